-- Reclaiming the state tables. In its turn a table gets a new partition for new rows, what still counts is copied
-- there, and the old partition is truncated under a lock that is taken only if it is free at once. A row that a
-- slow writer puts into the old partition afterwards is found like any other: readers look at both.
--
-- What still counts stands in one function for each table.

create or replace function pgque._kept_subscription_state(p_slot int)
returns setof pgque.subscription_state
language sql
as $$
    select t.*
    from pgque.subscriber s
    cross join pgque._state(s.sub_id) t
    where t.state_slot = p_slot
$$;

create or replace function pgque._kept_heartbeat(p_slot int)
returns setof pgque.heartbeat
language sql
as $$
    select distinct on (h.beat_sub) h.*
    from pgque.heartbeat h
    join pgque.subscriber s on s.sub_id = h.beat_sub
    where h.state_slot = p_slot
    order by h.beat_sub, h.beat_time desc
$$;

create or replace function pgque._kept_delayed_pass(p_slot int)
returns setof pgque.delayed_pass
language sql
as $$
    select p.*
    from pgque.queue q
    cross join pgque._last_pass(q.queue_id) p
    where p.state_slot = p_slot
$$;

-- What waits; and what was nacked in a batch that is still open, since a second nack must find it.
create or replace function pgque._kept_delayed_event(p_slot int)
returns setof pgque.delayed_event
language sql
as $$
    with passes as materialized (
        select p.* from pgque.queue q cross join pgque._last_pass(q.queue_id) p
    ),
    open_batches as materialized (
        select pgque._batch_id(t) as batch_id
        from pgque.subscriber s
        cross join pgque._state(s.sub_id) t
        where t.batch_open
    )
    select d.*
    from pgque.delayed_event d
    join passes p on p.pass_queue = d.ev_queue
    join pgque.subscriber s on s.sub_id = d.ev_owner
    left join open_batches o on o.batch_id = d.ev_batch_id
    where d.state_slot = p_slot
        and (
            d.ev_retry_after > p.pass_time
            or not pg_visible_in_snapshot(d.ev_txid, p.pass_snapshot)
            or o.batch_id is not null
        )
$$;

-- The newest of each queue; and what some consumer has still before it, thinned out to some 10,000 a queue. A
-- window may be wide: it is handed out in pieces.
create or replace function pgque._kept_tick(p_slot int)
returns setof pgque.tick
language sql
as $$
    with queues as materialized (
        select
            n.tick_queue,
            n.tick_id as newest,
            (
                select min(c.last_tick) from pgque._cursors(q.queue_id) c
            ) as oldest_cursor
        from pgque.queue q
        cross join pgque._newest_tick(q.queue_id) n
    ),
    numbered as (
        select
            t as tick,
            t.tick_id = q.newest as is_newest,
            row_number() over (partition by t.tick_queue order by t.tick_id) as position,
            count(*) over (partition by t.tick_queue) as waiting
        from pgque.tick t
        join queues q on q.tick_queue = t.tick_queue
        where t.tick_id > q.oldest_cursor or t.tick_id = q.newest
    )
    select (tick).*
    from numbered
    where (tick).state_slot = p_slot and (is_newest or position % (1 + waiting / 10000) = 0)
$$;

create or replace function pgque._keep_rows(p_state_table text, p_old int, p_new int)
returns void
language plpgsql
as $$
declare
    v_columns text;
begin
    select string_agg(quote_ident(attname), ', ' order by attnum) into v_columns
    from pg_attribute
    where attrelid = format('pgque.%I', p_state_table)::regclass
        and attnum > 0 and not attisdropped and attname <> 'state_slot';
    execute format(
        'insert into pgque.%1$I (state_slot, %2$s) select $2, %2$s from pgque.%3$I($1)',
        p_state_table, v_columns, '_kept_' || p_state_table)
    using p_old, p_new;
end
$$;

create or replace function pgque._has_grown(p_slot pgque.state_slot)
returns boolean
language plpgsql
volatile
as $$
begin
    return pg_relation_size(format('pgque.%I', p_slot.state_table || '_' || p_slot.current_slot))
        >= greatest(8 * 1024 * 1024, 4 * p_slot.kept_bytes);
end
$$;

create or replace function pgque._turn_state_table(p_state_table text)
returns int
language plpgsql
as $$
declare
    v_slot pgque.state_slot;
    v_old text;
    v_new text;
begin
    select * into v_slot from pgque.state_slot where state_table = p_state_table;
    v_old := format('%s_%s', p_state_table, v_slot.current_slot);
    v_new := format('%s_%s', p_state_table, 1 - v_slot.current_slot);
    if not pgque._has_grown(v_slot) then
        return 0;
    end if;
    perform from pgque.state_slot
    where state_table = p_state_table and current_slot = v_slot.current_slot
    for no key update skip locked;
    if not found or not pgque._lock_at_once(v_old) then
        return 0;
    end if;
    perform pgque._keep_rows(p_state_table, v_slot.current_slot, 1 - v_slot.current_slot);
    execute format('truncate pgque.%I', v_old);
    update pgque.state_slot
    set current_slot = 1 - v_slot.current_slot, kept_bytes = pg_relation_size(format('pgque.%I', v_new))
    where state_table = p_state_table;
    return 1;
end
$$;

create or replace function pgque.maint_rotate_tables_step2()
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgque._require_read_committed();
    return (
        select sum(pgque._turn_state_table(t))
        from unnest(array['tick', 'subscription_state', 'heartbeat', 'delayed_event', 'delayed_pass']) t
    );
end
$$;
comment on function pgque.maint_rotate_tables_step2() is
    'Reclaims the tables of ticks, positions and retries that have grown. Returns the number of tables truncated; 0 where '
    'none was due or locks were not free. Raises QU011, QU016.';
