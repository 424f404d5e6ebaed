-- Delayed messages: what was nacked waits here, and is moved back into the log when it is due.
--
-- A pass of the mover knows its time T and its snapshot S: what was due by T and is shown by S is moved. The
-- next pass (T', S') therefore has to look at two things only:
--   what became due since:        T < ev_retry_after <= T', by the index on time
--   what was due but came later:  ev_retry_after <= T, not shown by S, by the index on transaction
-- both shown by S'. Neither search begins at the low end of an index, where moved rows pile up until their
-- table is truncated. The pass is recorded in the same transaction as what it moved, under a lock that one
-- mover at a time gets, so each message is moved once.

create or replace function pgque._last_pass(p_queue_id int)
returns pgque.delayed_pass
language plpgsql
volatile
set enable_seqscan = off
as $$
declare
    v_pass pgque.delayed_pass;
begin
    select * into v_pass from pgque.delayed_pass where pass_queue = p_queue_id order by pass_id desc limit 1;
    if not found then
        v_pass.pass_queue := p_queue_id;
        v_pass.pass_id := 0;
        v_pass.pass_time := '-infinity';
        v_pass.pass_snapshot := '1:1:';
    end if;
    return v_pass;
end
$$;

create or replace function pgque._append_pass(p_pass pgque.delayed_pass)
returns void
language plpgsql
as $$
begin
    p_pass.pass_id := p_pass.pass_id + 1;
    p_pass.state_slot := pgque._current_slot('delayed_pass');
    insert into pgque.delayed_pass values (p_pass.*);
end
$$;

-- One arm for each way into the table, each with its index.
create or replace function pgque._due_events(p_last pgque.delayed_pass, p_now pgque.delayed_pass)
returns setof pgque.delayed_event
language plpgsql
volatile
as $$
begin
    return query
    select d.*
    from pgque.delayed_event d
    where d.ev_queue + 0 = p_last.pass_queue
        and d.ev_retry_after > p_last.pass_time
        and d.ev_retry_after <= p_now.pass_time
        and pg_visible_in_snapshot(d.ev_txid, p_now.pass_snapshot)
    union all
    select d.*
    from pgque.delayed_event d
    where d.ev_queue = p_last.pass_queue
        and d.ev_txid >= pg_snapshot_xmax(p_last.pass_snapshot)
        and d.ev_retry_after <= p_last.pass_time
        and pg_visible_in_snapshot(d.ev_txid, p_now.pass_snapshot)
    union all
    select d.*
    from pg_snapshot_xip(p_last.pass_snapshot) x
    cross join lateral (
        select * from pgque.delayed_event where ev_queue = p_last.pass_queue and ev_txid = x offset 0
    ) d
    where d.ev_retry_after <= p_last.pass_time
        and pg_visible_in_snapshot(d.ev_txid, p_now.pass_snapshot);
end
$$;

-- Moves what is due in one queue back into its log; returns how many messages.
create or replace function pgque._move_due(p_queue pgque.queue)
returns int
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_last pgque.delayed_pass;
    v_pass pgque.delayed_pass;
    v_due bigint;
    v_moved int;
begin
    if not exists (select from pgque.delayed_event where ev_queue = p_queue.queue_id) then
        return 0;
    end if;
    if not pg_try_advisory_xact_lock(1346851154, p_queue.queue_id) then
        return 0;
    end if;
    v_last := pgque._last_pass(p_queue.queue_id);
    v_pass := v_last;
    v_pass.pass_time := greatest(v_last.pass_time, pgque._now());
    v_pass.pass_snapshot := pgque._snapshot();
    if pg_snapshot_xmax(v_pass.pass_snapshot) < pg_snapshot_xmax(v_last.pass_snapshot) then
        perform pgque._renumber(p_queue);  -- a restored dump: what was moved before would look as if it was not
        return 0;
    end if;
    with due as materialized (
        select * from pgque._due_events(v_last, v_pass)
    ),
    moved as (
        insert into pgque.event (
            ev_txid, ev_id, ev_time, ev_slot, ev_queue, ev_owner, ev_retry, ev_msg_id, ev_type, ev_data,
            ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_key, ev_headers
        )
        select
            pg_current_xact_id(), nextval(p_queue.queue_event_seq), d.ev_time, p_queue.queue_slot, d.ev_queue, d.ev_owner,
            d.ev_retry, d.ev_id, d.ev_type, d.ev_data,
            d.ev_extra1, d.ev_extra2, d.ev_extra3, d.ev_extra4, d.ev_key, d.ev_headers
        from (select * from due order by ev_retry_after, ev_id) d
        where exists (select from pgque.subscriber where sub_id = d.ev_owner)
        returning ev_id
    )
    select (select count(*) from due), (select count(*) from moved) into v_due, v_moved;
    if v_moved > 0 then
        perform pg_notify('pgque_' || p_queue.queue_name, '');
    end if;
    -- Where nothing was due, the next pass still need not look at what was put here until now. A pass over what
    -- nobody wants any more counts too, or it would stay due for ever.
    if v_due > 0 or exists (
        select from pgque.delayed_event
        where ev_queue = p_queue.queue_id
            and ev_txid >= pg_snapshot_xmax(v_last.pass_snapshot)
            and pg_visible_in_snapshot(ev_txid, v_pass.pass_snapshot)
    ) then
        perform pgque._append_pass(v_pass);
    end if;
    return v_moved;
end
$$;

create or replace function pgque.maint_retry_events()
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_queue pgque.queue;
    v_moved int := 0;
begin
    perform pgque._require_read_committed();
    for v_queue in
        select q.*
        from pgque.queue q
        where exists (select from pgque.delayed_event d where d.ev_queue = q.queue_id)
        order by q.queue_id
    loop
        v_moved := v_moved + pgque._move_due(v_queue);
    end loop;
    return v_moved;
end
$$;
comment on function pgque.maint_retry_events() is
    'Moves the messages whose retry time has come back into their queues; the next tick after it delivers them. '
    'Returns how many. ticker(), maint() and consumers do this by themselves. Raises QU011, QU016.';
