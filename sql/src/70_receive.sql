-- Receiving: the window between two ticks, handed out in order of ev_id, in pieces.
--
-- A window (S1, S2] holds the messages that S2 shows and S1 does not. By the rules of the ticker part they are
-- found without a search:
--   ids above S1's low mark, up to S2's: a range of the index on ev_id, filtered by the two snapshots;
--   ids below it: only of transactions that were pending at S1 and are shown by S2, each a range of the index
--   on (ev_txid, ev_id). All of them come before the others in order of ev_id.
-- Both ranges are ordered, so a piece costs its own size, wherever in a window of ten million it lies. A
-- position within the window (the last settled ev_id) says where the next piece begins.
--
-- What receive hands out it writes down as the open batch, before anybody sees it. ack settles exactly that.
-- Writers of one subscription take turns under its lock (3) and read its newest state after they have it.

-- The event tables that hold anything. What a tick shows was there before the tick, so a table without a
-- page now has nothing of a window; leaving it out saves its share of planning.
create or replace function pgque._event_tables(p_queue pgque.queue)
returns text[]
language plpgsql
volatile
as $$
declare
    v_tables text[] := '{}';
    v_table text;
begin
    for i in 0..2 loop
        v_table := p_queue.queue_data_pfx || '_' || i;
        if i = p_queue.queue_cur_table or pg_relation_size(v_table::regclass) > 0 then
            v_tables := v_tables || v_table;
        end if;
    end loop;
    return v_tables;
end
$$;

-- One query over tables of one shape; %s in the pattern stands for the table.
create or replace function pgque._union(p_pattern text, p_tables text[])
returns text
language plpgsql
immutable
as $$
declare
    v_union text;
    v_table text;
begin
    foreach v_table in array p_tables loop
        v_union := concat_ws(' union all ', v_union, format(p_pattern, v_table));
    end loop;
    return v_union;
end
$$;

-- $1 and $2: the window's snapshots; $3 and $4: its range of ids; $5 and $6: the part of it that is wanted,
-- without and with the end; $7: at most so many; $8: queue_id; $9: owner_id; $10: transactions pending at $1. The
-- columns must include ev_id.
create or replace function pgque._window_query(p_queue pgque.queue, p_state pgque.subscription_state, p_columns text)
returns text
language plpgsql
volatile
as $$
declare
    v_tables constant text[] := pgque._event_tables(p_queue);
    v_branch constant text := 'select ' || p_columns
        || ' from %s where ev_queue = $8 and (ev_owner is null or ev_owner = $9) and ';
    v_range constant text := pgque._union(
        v_branch || 'ev_id > greatest($3, $5) and ev_id <= least($4, $6)'
        ' and not pg_visible_in_snapshot(ev_txid, $1) and pg_visible_in_snapshot(ev_txid, $2)', v_tables);
    v_stragglers text;
begin
    if p_state.position >= p_state.last_low or cardinality(p_state.last_pending) = 0 then
        return v_range || ' order by ev_id limit $7';
    end if;
    v_stragglers := pgque._union(v_branch || 'ev_txid = x and ev_id > $5 and ev_id <= least($3, $6)', v_tables);
    return format(
        '(select e.* from unnest($10) x cross join lateral (%s order by ev_id limit $7) e'
        ' where pg_visible_in_snapshot(x, $2) order by e.ev_id limit $7)'
        ' union all (%s order by ev_id limit $7) order by ev_id limit $7', v_stragglers, v_range);
end
$$;

-- The window in which to go on: the pinned one, or the one up to the next tick.
create or replace function pgque._next_window(p_queue pgque.queue, p_state pgque.subscription_state)
returns pgque.subscription_state
language plpgsql
volatile
set enable_seqscan = off
as $$
declare
    v_tick pgque.tick;
begin
    if p_state.next_tick is not null then
        return p_state;
    end if;
    select * into v_tick
    from pgque.tick
    where tick_queue = p_queue.queue_id and tick_id > p_state.last_tick
    order by tick_id
    limit 1;
    if found then
        p_state := pgque._enter_window(p_state, v_tick);
    end if;
    return p_state;
end
$$;

-- After an empty window: on to the first one that has something, in one step however many are empty. If none
-- has, the cursor goes to the newest tick.
create or replace function pgque._skip_empty_windows(p_queue pgque.queue, p_state pgque.subscription_state)
returns pgque.subscription_state
language plpgsql
volatile
set enable_seqscan = off
as $$
declare
    v_newest pgque.tick := pgque._newest_tick(p_queue.queue_id);
    v_tick pgque.tick;
    v_event record;
    v_all pgque.subscription_state;
begin
    if v_newest.tick_id is null or v_newest.tick_id <= p_state.last_tick then
        return p_state;  -- NULL: the queue was dropped meanwhile, and its ticks are reclaimed
    end if;
    v_all := pgque._enter_window(p_state, v_newest);
    execute pgque._window_query(p_queue, v_all, 'ev_id, ev_txid') into v_event
    using v_all.last_snapshot, v_all.next_snapshot, v_all.last_low, v_all.next_seq, 0::bigint, v_all.next_seq,
        1::bigint, p_queue.queue_id, p_state.owner_id, v_all.last_pending;
    if v_event.ev_id is null then
        return pgque._leave_window(v_all);
    end if;
    select * into strict v_tick
    from pgque.tick
    where tick_queue = p_queue.queue_id
        and tick_id > p_state.last_tick
        and pg_visible_in_snapshot(v_event.ev_txid, tick_snapshot)
    order by tick_id
    limit 1;
    return pgque._enter_window(p_state, v_tick);
end
$$;

-- An idle consumer passes over idle ticks without a word; its position is written down now and then.
create or replace function pgque._keep_skipped(p_before pgque.subscription_state, p_after pgque.subscription_state)
returns void
language plpgsql
as $$
begin
    if p_before.next_tick is not null
        or p_after.last_low > p_before.last_low
        or (p_after.last_tick > p_before.last_tick and pgque._now() - p_before.active > '10 minutes')
    then
        perform pgque._append_state(p_after);
    end if;
end
$$;

-- Hands out the open batch once more, or what is left in the window as the next one; at most p_max_return messages.
-- An open batch never grows, it may only shrink: of two processes that received it, whichever acks settles nothing
-- that the other one alone was given. No rows, and nothing written, if nothing is left. p_cut: the batch is all that
-- this state gets of the window.
create or replace function pgque._hand_out(
    p_queue pgque.queue, p_state pgque.subscription_state, p_max_return int, p_cut boolean default false
)
returns setof pgque.received_message
language plpgsql
as $$
declare
    v_open pgque.subscription_state;
    v_row record;
    v_count bigint := 0;
    v_more boolean := false;
begin
    if p_state.batch_open and p_state.position >= p_state.handed_to then
        p_state.batch_open := false;  -- settled to its end by ack_to
        p_state.deliveries := 0;
    end if;
    v_open := pgque._open_batch(p_state);
    for v_row in
        execute pgque._window_query(p_queue, p_state,
            'ev_id, row(coalesce(ev_msg_id, ev_id), $11, ev_type, ev_data, ev_retry, ev_time,'
            ' ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_key, ev_headers, $12)::pgque.received_message as message')
        using p_state.last_snapshot, p_state.next_snapshot, p_state.last_low, p_state.next_seq, p_state.position,
            case when p_state.batch_open then p_state.handed_to else p_state.next_seq end,
            p_max_return::bigint + 1, p_queue.queue_id, p_state.owner_id, p_state.last_pending,
            pgque._batch_id(v_open), v_open.deliveries
    loop
        v_more := v_count = p_max_return;
        exit when v_more;
        return next v_row.message;
        v_count := v_count + 1;
        v_open.handed_to := v_row.ev_id;
    end loop;
    if v_count > 0 then
        v_open.handed_all := p_cut or not (v_more or (p_state.batch_open and not p_state.handed_all));
        v_open.next_seq := case when p_cut then v_open.handed_to else v_open.next_seq end;
        perform pgque._append_state(v_open);
    end if;
end
$$;

create or replace function pgque._require_max_return(p_max_return int)
returns void
language plpgsql
as $$
begin
    if p_max_return is null or p_max_return < 1 then
        perform pgque._fail_invalid_argument('max_return', coalesce('is ' || p_max_return || ', not positive', 'is NULL'));
    end if;
end
$$;

create or replace function pgque.receive(queue text, consumer text, max_return int default 100)
returns setof pgque.received_message
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
    v_before pgque.subscription_state;
    v_state pgque.subscription_state;
begin
    perform pgque._require_read_committed();
    perform pgque._require_max_return(max_return);
    v_before := pgque._state(pgque._lock_consumer(v_queue, consumer));
    if v_queue.queue_ticker_paused then
        return;
    end if;
    v_state := pgque._next_window(v_queue, v_before);
    while v_state.next_tick is not null loop
        return query select * from pgque._hand_out(v_queue, v_state, max_return);
        if found then
            return;
        end if;
        v_state := pgque._skip_empty_windows(v_queue, pgque._leave_window(v_state));
    end loop;
    perform pgque._keep_skipped(v_before, v_state);
end
$$;
comment on function pgque.receive(text, text, int) is
    'Hands out the next batch of a consumer, or the rest of one, or once more the one that is not acked, under its id; at '
    'most max_return messages. No rows if there is no tick with anything new, or the queue is paused. The consumer''s other '
    'receives, acks and nacks wait until this transaction ends. Raises QU001, QU002, QU011, QU013, QU016.';
