-- Ticks: a tick is a snapshot with a number, and the range of message ids that belongs to it.
--
-- tick_event_low is read before the snapshot and tick_event_seq after it. A sender has its transaction number
-- before it takes an ev_id, and ids come from a sequence with cache 1. Hence:
--   whoever is shown by the snapshot took ids up to tick_event_seq;
--   whoever has a number at or above the snapshot's end takes ids above tick_event_low.
-- The second needs help: a snapshot ends after the highest number that is finished, and leaves out running
-- transactions with higher ones. So a transaction number is used up between tick_event_low and the snapshot, by a
-- subtransaction that is rolled back: whoever took an id up to tick_event_low has a lower number, and is shown by
-- the snapshot or listed in it as in progress.
--
-- Ids alone do not tell what is new: a transaction that sent before the tick and commits after it leaves the
-- sequence where it was. Such transactions are in tick_pending, until the tick after their end.
--
-- Snapshot and tick_id are taken in one section under lock 4, so a higher tick_id has a later snapshot. The
-- section ends before the transaction does: a chain of ticks with growing snapshots is right whichever of
-- them are visible, and so a long transaction that ticked holds nobody up.

create or replace function pgque._newest_tick(p_queue_id int)
returns pgque.tick
language plpgsql
volatile
set enable_seqscan = off
as $$
declare
    v_tick pgque.tick;
begin
    select * into v_tick from pgque.tick where tick_queue = p_queue_id order by tick_id desc limit 1;
    return v_tick;
end
$$;

create or replace function pgque._last_event_id(p_queue pgque.queue)
returns bigint
language sql
volatile
as $$
    select coalesce(pg_sequence_last_value(p_queue.queue_event_seq), 0)
$$;

create or replace function pgque._use_up_transaction_number()
returns void
language plpgsql
as $$
begin
    perform pg_logical_emit_message(true, 'pgque', '');  -- gives the subtransaction a number, and does nothing else
    raise exception using errcode = 'QU000';
exception
    when sqlstate 'QU000' then
        null;
end
$$;

create or replace function pgque._take_tick(p_queue pgque.queue, p_tick_id bigint default null)
returns pgque.tick
language plpgsql
volatile
as $$
declare
    v_tick pgque.tick;
begin
    perform pg_advisory_lock(1346851156, p_queue.queue_id);
    v_tick.tick_event_low := pgque._last_event_id(p_queue);
    perform pgque._use_up_transaction_number();
    v_tick.tick_snapshot := pgque._snapshot();
    v_tick.tick_event_seq := pgque._last_event_id(p_queue);
    v_tick.tick_id := coalesce(p_tick_id, nextval(p_queue.queue_tick_seq));
    perform pg_advisory_unlock(1346851156, p_queue.queue_id);
    return v_tick;
exception
    when query_canceled or others then
        perform pg_advisory_unlock(1346851156, p_queue.queue_id);
        raise;
end
$$;

-- Which transactions may still bring messages with ids that this tick's range covers. If no id was taken
-- since the tick before it, they are among that tick's; without this an idle queue in a busy database would
-- tick whenever anybody's transaction ends.
create or replace function pgque._pending(p_last pgque.tick, p_tick pgque.tick, p_ignore xid8)
returns xid8[]
language plpgsql
volatile
as $$
begin
    return (select coalesce(array_agg(x), '{}')
    from unnest(
        case
            when p_last.tick_event_low = p_tick.tick_event_seq then p_last.tick_pending
            else array(select pg_snapshot_xip(p_tick.tick_snapshot))
        end
    ) x
    where x is distinct from p_ignore and not pg_visible_in_snapshot(x, p_tick.tick_snapshot));
end
$$;

-- p_fresh: our own transaction has sent nothing, only made ticks, so nobody waits for its end.
create or replace function pgque._make_tick(p_queue pgque.queue, p_last pgque.tick, p_fresh boolean)
returns pgque.tick
language plpgsql
volatile
as $$
declare
    v_tick pgque.tick;
begin
    if pgque._numbered_elsewhere(p_queue, p_last) then
        return pgque._renumber(p_queue);
    end if;
    v_tick := pgque._take_tick(p_queue);
    v_tick.tick_pending := pgque._pending(p_last, v_tick, case when p_fresh then pg_current_xact_id_if_assigned() end);
    return pgque._store_tick(p_queue, v_tick);
end
$$;

create or replace function pgque._store_tick(p_queue pgque.queue, p_tick pgque.tick)
returns pgque.tick
language plpgsql
volatile
as $$
begin
    p_tick.tick_queue := p_queue.queue_id;
    p_tick.tick_time := coalesce(p_tick.tick_time, pgque._now());
    p_tick.state_slot := pgque._current_slot('tick');
    insert into pgque.tick values (p_tick.*);
    perform pg_notify('pgque_' || p_queue.queue_name, p_tick.tick_id::text);
    return p_tick;
end
$$;

create or replace function pgque._has_news(p_queue pgque.queue, p_last pgque.tick)
returns boolean
language plpgsql
volatile
as $$
begin
    return p_last.tick_id is null
        or pgque._last_event_id(p_queue) <> p_last.tick_event_low
        or exists (
            select from unnest(p_last.tick_pending) x where pg_visible_in_snapshot(x, pgque._snapshot())
        );
end
$$;

create or replace function pgque._is_forced(p_queue pgque.queue, p_last pgque.tick)
returns boolean
language sql
volatile
as $$
    select coalesce(pg_sequence_last_value(p_queue.queue_tick_seq), 0) > coalesce(p_last.tick_id, 0)
$$;

-- PgQ's rules for a scheduled ticker: enough messages, or waiting long enough, or idle for long enough.
create or replace function pgque._tick_is_due(p_queue pgque.queue, p_last pgque.tick)
returns boolean
language plpgsql
volatile
as $$
begin
    return case
        when p_last.tick_id is null or pgque._is_forced(p_queue, p_last) then true
        when pgque._has_news(p_queue, p_last) then
            pgque._last_event_id(p_queue) - p_last.tick_event_low >= p_queue.queue_ticker_max_count
            or pgque._now() - p_last.tick_time >= p_queue.queue_ticker_max_lag
        else pgque._now() - p_last.tick_time >= p_queue.queue_ticker_idle_period
    end;
end
$$;

create or replace function pgque.ticker(queue text)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
    v_last pgque.tick;
begin
    perform pgque._require_read_committed();
    if v_queue.queue_external_ticker then
        perform pgque._fail_external_ticker(queue);
    end if;
    v_last := pgque._newest_tick(v_queue.queue_id);
    if v_queue.queue_ticker_paused or not pgque._tick_is_due(v_queue, v_last) then
        return null;
    end if;
    return (pgque._make_tick(v_queue, v_last, pg_current_xact_id_if_assigned() is null)).tick_id;
end
$$;
comment on function pgque.ticker(text) is
    'Makes a tick if one is due by the queue''s ticker_max_count, ticker_max_lag and ticker_idle_period, or was forced. '
    'Returns its id, or NULL if none was due or the queue is paused. Raises QU001, QU006 (external ticker), QU011, QU016.';

create or replace function pgque.ticker()
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    v_fresh constant boolean := pg_current_xact_id_if_assigned() is null;
    v_queue pgque.queue;
    v_ticked bigint := 0;
begin
    perform pgque._require_read_committed();
    for v_queue in
        select q.*
        from pgque.queue q
        left join lateral (
            select t.* from pgque.tick t where t.tick_queue = q.queue_id order by t.tick_id desc limit 1
        ) t on true
        where not q.queue_ticker_paused and not q.queue_external_ticker
            -- what tells an idle queue without a call, since there may be thousands
            and (
                t.tick_id is null
                or cardinality(t.tick_pending) > 0
                or pgque._last_event_id(q) <> t.tick_event_low
                or pgque._is_forced(q, t)
                or pgque._now() - t.tick_time >= q.queue_ticker_idle_period
            )
            and pgque._tick_is_due(q, t)
        order by q.queue_id
    loop
        perform pgque._make_tick(v_queue, pgque._newest_tick(v_queue.queue_id), v_fresh);
        v_ticked := v_ticked + 1;
    end loop;
    perform pgque.maint_retry_events();
    return v_ticked;
end
$$;
comment on function pgque.ticker() is
    'Makes a tick in every queue that is due, and moves due retries back into their queues. Returns the number of '
    'queues ticked. Call it every 100 ms or so. Raises QU011, QU016.';

create or replace function pgque.force_next_tick(queue text)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
    v_last bigint := (pgque._newest_tick(v_queue.queue_id)).tick_id;
begin
    if not v_queue.queue_ticker_paused and not v_queue.queue_external_ticker then
        perform nextval(v_queue.queue_tick_seq);  -- a tick id that no tick has: see _is_forced
    end if;
    return v_last;
end
$$;
comment on function pgque.force_next_tick(text) is
    'Makes the next call of ticker(queue) or ticker() tick, whatever the thresholds; inserts no tick itself. '
    'Returns the id of the last tick, NULL if there is none. Without effect on a paused queue. Raises QU001.';

create or replace function pgque.force_tick(queue text)
returns bigint
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgque.force_next_tick(queue)
$$;
comment on function pgque.force_tick(text) is 'PgQ''s name for force_next_tick(queue).';
