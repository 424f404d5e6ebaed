-- PgQ's primitives, for consumers that were written for PgQ. A batch here is a whole window between two ticks.

create or replace function pgque.register_consumer(queue text, consumer text)
returns int
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgque.subscribe(queue, consumer)
$$;
comment on function pgque.register_consumer(text, text) is 'PgQ''s name for subscribe(queue, consumer).';

create or replace function pgque.register_consumer_at(queue text, consumer text, tick_pos bigint)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
    v_new int;
    v_sub_id int;
    v_tick pgque.tick;
begin
    if tick_pos is null then
        return pgque.subscribe(queue, consumer);
    end if;
    perform pgque._require_read_committed();
    v_new := pgque._register(v_queue, consumer);
    v_sub_id := coalesce(v_new, pgque._find_subscription(v_queue, consumer, false));
    perform pgque._lock_subscription(v_sub_id);
    select * into v_queue from pgque.queue q where q.queue_id = v_queue.queue_id for share;  -- keeps rotation off
    select * into v_tick from pgque.tick where tick_queue = v_queue.queue_id and tick_id = tick_pos;
    if not found then
        perform pgque._fail_fell_behind(consumer, format('tick %s does not exist or is reclaimed', tick_pos));
    elsif v_queue.queue_truncated_txid >= pg_snapshot_xmin(v_tick.tick_snapshot) then
        perform pgque._fail_fell_behind(consumer, format('messages after tick %s are rotated away', tick_pos));
    end if;
    perform pgque._start_at(v_sub_id, v_tick);
    return (v_new is not null)::int;
end
$$;
comment on function pgque.register_consumer_at(text, text, bigint) is
    'Subscribes a consumer, or moves its position, to a tick that still exists; an open batch is closed. NULL: as subscribe. '
    'Returns 1, or 0 if it was subscribed. Raises QU001, QU005, QU010, QU011, QU013, QU016.';

create or replace function pgque.unregister_consumer(queue text, consumer text)
returns int
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgque.unsubscribe(queue, consumer)
$$;
comment on function pgque.unregister_consumer(text, text) is 'PgQ''s name for unsubscribe(queue, consumer).';

-- The tick at which a batch that begins at p_state may end; no row if none is there yet.
create or replace function pgque._find_tick(
    p_queue pgque.queue, p_state pgque.subscription_state, p_min_lag interval, p_min_count int, p_min_interval interval
)
returns pgque.tick
language plpgsql
volatile
set enable_seqscan = off
as $$
declare
    v_tick pgque.tick;
    v_from timestamptz := (
        select tick_time from pgque.tick where tick_queue = p_queue.queue_id and tick_id = p_state.last_tick
    );
begin
    select * into v_tick
    from pgque.tick
    where tick_queue = p_queue.queue_id
        and tick_id > p_state.last_tick
        and (p_min_lag is null or tick_time <= pgque._now() - p_min_lag)
        and (
            (p_min_count is null and p_min_interval is null)
            or tick_event_seq - p_state.last_low >= p_min_count
            or tick_time - coalesce(v_from, p_state.active) >= p_min_interval
        )
    order by tick_id
    limit 1;
    return v_tick;
end
$$;

create or replace function pgque.next_batch_custom(
    queue text, consumer text, min_lag interval, min_count int, min_interval interval,
    out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint, out cur_tick_time timestamptz,
    out prev_tick_time timestamptz, out cur_tick_event_seq bigint, out prev_tick_event_seq bigint
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
    v_state pgque.subscription_state;
    v_tick pgque.tick;
begin
    perform pgque._require_read_committed();
    v_state := pgque._state(pgque._lock_consumer(v_queue, consumer));
    if v_state.next_tick is null then
        v_tick := pgque._find_tick(v_queue, v_state, min_lag, min_count, min_interval);
        if v_tick.tick_id is null then
            return;
        end if;
        v_state := pgque._enter_window(v_state, v_tick);
    end if;
    if v_state.handed_all is not true or not v_state.batch_open then
        v_state := pgque._open_batch(v_state);
        v_state.handed_to := v_state.next_seq;
        v_state.handed_all := true;
        perform pgque._append_state(v_state);
    end if;
    batch_id := pgque._batch_id(v_state);
    cur_tick_id := v_state.next_tick;
    prev_tick_id := v_state.last_tick;
    cur_tick_event_seq := v_state.next_seq;
    prev_tick_event_seq := v_state.last_low;
    select t.tick_time into cur_tick_time
    from pgque.tick t where t.tick_queue = v_queue.queue_id and t.tick_id = cur_tick_id;
    select t.tick_time into prev_tick_time
    from pgque.tick t where t.tick_queue = v_queue.queue_id and t.tick_id = prev_tick_id;
end
$$;
comment on function pgque.next_batch_custom(text, text, interval, int, interval) is
    'Opens the next batch, or returns the open one, with PgQ''s columns; all NULL if there is no tick yet that is min_lag old and '
    'min_count messages or min_interval, whichever comes first, after the last. Raises QU001, QU002, QU011, QU016.';

create or replace function pgque.next_batch_info(
    queue text, consumer text,
    out batch_id bigint, out cur_tick_id bigint, out prev_tick_id bigint, out cur_tick_time timestamptz,
    out prev_tick_time timestamptz, out cur_tick_event_seq bigint, out prev_tick_event_seq bigint
)
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select * from pgque.next_batch_custom(queue, consumer, null, null, null)
$$;
comment on function pgque.next_batch_info(text, text) is 'next_batch_custom without conditions.';

create or replace function pgque.next_batch(queue text, consumer text)
returns bigint
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select batch_id from pgque.next_batch_custom(queue, consumer, null, null, null)
$$;
comment on function pgque.next_batch(text, text) is
    'Opens the window up to the next tick, or returns the open batch; NULL if there is no new tick. A batch may be empty: '
    'finish it all the same. Raises QU001, QU002, QU011, QU016.';

create or replace function pgque.get_batch_events(
    batch_id bigint, out ev_id bigint, out ev_time timestamptz, out ev_txid bigint, out ev_retry int, out ev_type text,
    out ev_data text, out ev_extra1 text, out ev_extra2 text, out ev_extra3 text, out ev_extra4 text
)
returns setof record
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_state pgque.subscription_state := pgque._required_open_state(batch_id);
    v_queue pgque.queue := pgque._queue_of(v_state);
begin
    return query execute format(
        'select coalesce(ev_msg_id, ev_id), ev_time, ev_txid::text::bigint, ev_retry, ev_type, ev_data,'
        ' ev_extra1, ev_extra2, ev_extra3, ev_extra4 from (%s) e', pgque._window_query(v_queue, v_state,
        'ev_id, ev_msg_id, ev_time, ev_txid, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4'))
    using v_state.last_snapshot, v_state.next_snapshot, v_state.last_low, v_state.next_seq, v_state.position,
        v_state.handed_to, 9223372036854775807, v_queue.queue_id, v_state.owner_id, v_state.last_pending;
end
$$;
comment on function pgque.get_batch_events(bigint) is
    'The unsettled messages of an open batch, in order. Raises QU003, QU011, QU013, QU016.';

create or replace function pgque.get_batch_cursor(
    batch_id bigint, cursor_name text, quick_limit int, out ev_id bigint, out ev_time timestamptz, out ev_txid bigint,
    out ev_retry int, out ev_type text, out ev_data text, out ev_extra1 text, out ev_extra2 text, out ev_extra3 text,
    out ev_extra4 text
)
returns setof record
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_cursor refcursor := cursor_name;
begin
    perform pgque._require('cursor_name', cursor_name);
    perform pgque._require_limit('quick_limit', quick_limit);
    open v_cursor for select * from pgque.get_batch_events(get_batch_cursor.batch_id);
    for i in 1..quick_limit loop
        fetch v_cursor into ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4;
        exit when not found;
        return next;
    end loop;
end
$$;
comment on function pgque.get_batch_cursor(bigint, text, int) is
    'Opens a cursor over get_batch_events(batch_id) and returns its first quick_limit rows; fetch the others from it in the '
    'same transaction. Raises QU003, QU011, QU013, QU016.';

create or replace function pgque.finish_batch(batch_id bigint)
returns int
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgque.ack(batch_id)
$$;
comment on function pgque.finish_batch(bigint) is 'PgQ''s name for ack(batch_id).';

create or replace function pgque.event_retry(batch_id bigint, event_id bigint, retry_time timestamptz)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgque.subscription_state := pgque._required_open_state(batch_id);
    v_queue pgque.queue := pgque._queue_of(v_state);
begin
    perform pgque._require('retry_time', retry_time);
    return pgque._retry_event(
        v_queue, batch_id, v_state.owner_id, pgque._count_attempt(pgque._unsettled(v_queue, v_state, event_id)),
        least(greatest(retry_time, pgque._now()), pgque._retry_time('100 years')), null);
end
$$;
comment on function pgque.event_retry(bigint, bigint, timestamptz) is
    'Brings one message of the batch back to this consumer at that time, however often it came back already. Returns 1, or 0 '
    'if it was given back in this batch before. Raises QU003, QU004, QU011, QU013, QU016.';

create or replace function pgque.event_retry(batch_id bigint, event_id bigint, retry_seconds int)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgque._require('retry_seconds', retry_seconds);
    return pgque.event_retry(batch_id, event_id, pgque._retry_time(make_interval(secs => retry_seconds)));
end
$$;
comment on function pgque.event_retry(bigint, bigint, int) is 'As event_retry with a time, so many seconds from now.';

create or replace function pgque.batch_retry(batch_id bigint, retry_seconds int)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgque._require('retry_seconds', retry_seconds);
    return (
        select coalesce(sum(pgque.event_retry(batch_retry.batch_id, e.ev_id, retry_seconds)), 0)
        from pgque.get_batch_events(batch_retry.batch_id) e
    );
end
$$;
comment on function pgque.batch_retry(bigint, int) is
    'event_retry for each message of the batch. Returns how many. The batch still wants to be finished. Raises QU003, QU011, QU013, QU016.';

create or replace function pgque.event_dead(batch_id bigint, event_id bigint, reason text)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgque.subscription_state := pgque._required_open_state(batch_id);
    v_queue pgque.queue := pgque._queue_of(v_state);
begin
    return pgque._bury_event(
        v_queue, batch_id, v_state.owner_id, pgque._unsettled(v_queue, v_state, event_id), reason);
end
$$;
comment on function pgque.event_dead(bigint, bigint, text) is
    'Makes one message of the batch a dead letter at once. Returns 1, or 0 if it was given back in this batch before. '
    'Raises QU003, QU004, QU011, QU013, QU016.';
