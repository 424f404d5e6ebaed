-- Looking: views and functions for people and dashboards. They change nothing and work on a standby.

-- A view reads tables with its owner's rights, but calls functions with those of whoever looks. So what the
-- two views show comes from functions that run as their owner.
create or replace function pgque.get_subscriptions(
    out sub_id int, out sub_queue int, out sub_consumer int, out sub_last_tick bigint, out sub_active timestamptz,
    out sub_batch bigint, out sub_next_tick bigint
)
returns setof record
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select
        s.sub_id, s.sub_queue, s.sub_consumer, t.last_tick, t.active,
        case when t.batch_open then pgque._batch_id(t) end,
        t.next_tick
    from pgque.subscriber s
    cross join pgque._state(s.sub_id) t
$$;
comment on function pgque.get_subscriptions() is 'What the view subscription shows.';

create or replace function pgque.get_retries()
returns setof pgque.delayed_event
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select d.*
    from pgque.queue q
    cross join pgque._last_pass(q.queue_id) p
    join pgque.delayed_event d on d.ev_queue = q.queue_id
    where d.ev_retry_after > p.pass_time or not pg_visible_in_snapshot(d.ev_txid, p.pass_snapshot)
$$;
comment on function pgque.get_retries() is 'What the view retry_queue shows.';

-- Only where they are missing: replacing a view waits for everybody who has looked at it in a transaction.
do $$
begin
    if to_regclass('pgque.subscription') is null then
        create view pgque.subscription as select * from pgque.get_subscriptions();
    end if;
    if to_regclass('pgque.retry_queue') is null then
        create view pgque.retry_queue as
        select
            ev_retry_after, ev_queue, ev_id, ev_time, ev_txid, ev_owner, ev_retry, ev_type, ev_data,
            ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_key, ev_headers, ev_reason
        from pgque.get_retries();
    end if;
end
$$;
comment on view pgque.subscription is
    'PgQ''s table: where each subscription stands. sub_batch is the open batch, NULL if there is none.';
comment on view pgque.retry_queue is
    'PgQ''s table: messages that wait for their retry time. ev_owner is the sub_id of the consumer that gets it.';

create or replace function pgque.get_queue_info(
    out queue_name text, out queue_ntables int, out queue_cur_table int, out queue_rotation_period interval,
    out queue_switch_time timestamptz, out queue_external_ticker boolean, out queue_ticker_paused boolean,
    out queue_ticker_max_count int, out queue_ticker_max_lag interval, out queue_ticker_idle_period interval,
    out ticker_lag interval, out ev_per_sec double precision, out ev_new bigint, out last_tick_id bigint
)
returns setof record
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    return query
    select
        q.queue_name, q.queue_ntables, q.queue_cur_table, q.queue_rotation_period, q.queue_switch_time,
        q.queue_external_ticker, q.queue_ticker_paused, q.queue_ticker_max_count, q.queue_ticker_max_lag,
        q.queue_ticker_idle_period,
        pgque._now() - newest.tick_time,
        case
            when newest.tick_time > older.tick_time then
                (newest.tick_event_seq - older.tick_event_seq) / extract(epoch from newest.tick_time - older.tick_time)
        end::double precision,
        pgque._last_event_id(q) - coalesce(newest.tick_event_seq, 0),
        newest.tick_id
    from pgque.queue q
    left join lateral (
        select t.* from pgque.tick t where t.tick_queue = q.queue_id order by t.tick_id desc limit 1
    ) newest on true
    left join lateral (
        select t.* from pgque.tick t where t.tick_queue = q.queue_id and t.tick_id < newest.tick_id
        order by t.tick_id desc offset 9 limit 1
    ) older on true
    order by q.queue_name;
end
$$;
comment on function pgque.get_queue_info() is
    'One row a queue, PgQ''s columns. ticker_lag: since the last tick. ev_per_sec: over the last ten ticks, NULL if there are '
    'fewer. ev_new: ids taken since the last tick, those of rolled-back sends included.';

create or replace function pgque.get_queue_info(
    queue text, out queue_name text, out queue_ntables int, out queue_cur_table int, out queue_rotation_period interval,
    out queue_switch_time timestamptz, out queue_external_ticker boolean, out queue_ticker_paused boolean,
    out queue_ticker_max_count int, out queue_ticker_max_lag interval, out queue_ticker_idle_period interval,
    out ticker_lag interval, out ev_per_sec double precision, out ev_new bigint, out last_tick_id bigint
)
returns setof record
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgque._find_queue(queue);
    return query select i.* from pgque.get_queue_info() i where i.queue_name = queue;
end
$$;
comment on function pgque.get_queue_info(text) is 'The row of get_queue_info() for one queue. Raises QU001.';

-- Nothing that the queue knows of lies beyond this position.
create or replace function pgque._is_caught_up(p_queue pgque.queue, p_state pgque.subscription_state, p_newest pgque.tick)
returns boolean
language plpgsql
stable
as $$
begin
    return p_state.next_tick is null
        and p_state.last_low = p_newest.tick_event_low
        and not pgque._has_news(p_queue, p_newest);
end
$$;

create or replace function pgque.get_consumer_info(
    queue text, consumer text, out queue_name text, out consumer_name text, out lag interval, out last_seen interval,
    out last_tick bigint, out current_batch bigint, out next_tick bigint, out pending_events bigint
)
returns setof record
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if get_consumer_info.queue is not null then
        perform pgque._find_queue(get_consumer_info.queue);
    end if;
    return query
    select
        q.queue_name,
        c.co_name || case when b.sub_member <> '' then '.' || b.sub_member else '' end,
        case
            when b.sub_parent is not null and s.next_tick is null then interval '0'
            when pgque._is_caught_up(q, s, newest) then interval '0'
            else pgque._now() - coalesce(last.tick_time, s.active)
        end,
        pgque._now() - greatest(s.active, (select max(h.beat_time) from pgque.heartbeat h where h.beat_sub = s.sub_id)),
        s.last_tick,
        case when s.batch_open then pgque._batch_id(s) end,
        s.next_tick,
        case
            when b.sub_parent is not null then coalesce(s.next_seq - s.position, 0)
            else greatest(pgque._last_event_id(q) - greatest(s.last_low, s.position), 0)
        end
    from pgque.subscriber b
    join pgque.queue q on q.queue_id = b.sub_queue
    join pgque.consumer c on c.co_id = b.sub_consumer
    cross join lateral pgque._state(b.sub_id) s
    cross join lateral pgque._newest_tick(q.queue_id) newest
    left join pgque.tick last on last.tick_queue = q.queue_id and last.tick_id = s.last_tick
    where q.queue_name = coalesce(get_consumer_info.queue, q.queue_name)
        and c.co_name = coalesce(get_consumer_info.consumer, c.co_name)
    order by q.queue_name, c.co_name, b.sub_member;
end
$$;
comment on function pgque.get_consumer_info(text, text) is
    'One row a subscription and one for each member of it (as consumer.subconsumer), PgQ''s columns; NULL queue or consumer: '
    'all. lag: age of the position, 0 if nothing is unread. last_seen: since the position last changed, or a member''s last '
    'heartbeat. current_batch: the open batch, NULL if none. pending_events: ids beyond '
    'the position, those of rolled-back sends and other consumers'' retries included. Raises QU001.';

create or replace function pgque.get_consumer_info(
    queue text, out queue_name text, out consumer_name text, out lag interval, out last_seen interval,
    out last_tick bigint, out current_batch bigint, out next_tick bigint, out pending_events bigint
)
returns setof record
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select * from pgque.get_consumer_info(queue, null)
$$;
comment on function pgque.get_consumer_info(text) is 'The rows of get_consumer_info(queue, consumer) for one queue. Raises QU001.';

create or replace function pgque.get_consumer_info(
    out queue_name text, out consumer_name text, out lag interval, out last_seen interval,
    out last_tick bigint, out current_batch bigint, out next_tick bigint, out pending_events bigint
)
returns setof record
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select * from pgque.get_consumer_info(null, null)
$$;
comment on function pgque.get_consumer_info() is 'The rows of get_consumer_info(queue, consumer) for all queues.';

create or replace function pgque.get_batch_info(
    batch_id bigint, out queue_name text, out consumer_name text, out batch_start timestamptz, out batch_end timestamptz,
    out prev_tick_id bigint, out tick_id bigint, out lag interval, out seq_start bigint, out seq_end bigint
)
returns setof record
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_state pgque.subscription_state := pgque._state((get_batch_info.batch_id >> 40)::int);
begin
    if v_state.batch_open is not true or pgque._batch_id(v_state) <> get_batch_info.batch_id then
        return;
    end if;
    return query
    select
        q.queue_name, c.co_name, last.tick_time, next.tick_time, v_state.last_tick, v_state.next_tick,
        pgque._now() - next.tick_time, v_state.last_low, v_state.next_seq
    from pgque.subscriber s
    join pgque.queue q on q.queue_id = s.sub_queue
    join pgque.consumer c on c.co_id = s.sub_consumer
    left join pgque.tick last on last.tick_queue = q.queue_id and last.tick_id = v_state.last_tick
    left join pgque.tick next on next.tick_queue = q.queue_id and next.tick_id = v_state.next_tick
    where s.sub_id = v_state.sub_id;
end
$$;
comment on function pgque.get_batch_info(bigint) is
    'The open batch with this id, PgQ''s columns; no row if it is not open. Times are NULL once the tick''s row is reclaimed.';

create or replace function pgque.last_event_id(queue text)
returns bigint
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgque._last_event_id(pgque._find_queue(queue))
$$;
comment on function pgque.last_event_id(text) is 'The highest message id that was taken so far, 0 if none. Raises QU001.';

create or replace function pgque.peek(queue text, after_id bigint, max_return int default 100)
returns setof pgque.received_message
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
begin
    perform pgque._require_limit('max_return', max_return);
    return query execute format(
        'select ev_id, null::bigint, ev_type, ev_data, ev_retry, ev_time, ev_extra1, ev_extra2, ev_extra3, ev_extra4,'
        ' ev_key, ev_headers, 0 from (%s) e order by ev_id limit $3',
        pgque._union('select * from %s where ev_id > $1 and ev_queue = $2 and ev_owner is null', pgque._event_tables(v_queue)))
    using coalesce(after_id, 9223372036854775807), v_queue.queue_id, max_return;
end
$$;
comment on function pgque.peek(text, bigint, int) is
    'Messages with a higher id than after_id in order of id, without consuming them; batch_id is NULL. No rows if there are none '
    'or after_id is NULL. Only what is not rotated away is seen, and a transaction that commits late may bring ids below '
    'those that were seen already. Raises QU001.';
