-- Positions: where each subscription stands is the newest of its rows in subscription_state.

create or replace function pgque._current_slot(p_state_table text)
returns int
language plpgsql
stable
as $$
begin
    return (select current_slot from pgque.state_slot where state_table = p_state_table);
end
$$;

-- A subscription without a row stands before everything. That is so only in a copy of the database in which the
-- table was reclaimed while the copy was made; what it has read may come again there.
create or replace function pgque._state(p_sub_id int)
returns pgque.subscription_state
language plpgsql
volatile
set enable_seqscan = off
as $$
declare
    v_state pgque.subscription_state;
begin
    select * into v_state
    from pgque.subscription_state
    where sub_id = p_sub_id
    order by version desc
    limit 1;
    if not found then
        v_state := row(p_sub_id, p_sub_id, 0, 0, 0, 0, '1:1:', '{}', null, null, null, null, null, 0, 0, false, null, null, 0, 'epoch');
    end if;
    return v_state;
end
$$;

create or replace function pgque._append_state(p_state pgque.subscription_state)
returns void
language plpgsql
as $$
begin
    p_state.version := p_state.version + 1;
    p_state.state_slot := pgque._current_slot('subscription_state');
    p_state.active := pgque._now();
    insert into pgque.subscription_state values (p_state.*);
end
$$;

create or replace function pgque._start_at(p_sub_id int, p_tick pgque.tick)
returns void
language plpgsql
as $$
declare
    v_state pgque.subscription_state := pgque._state(p_sub_id);
begin
    v_state.last_tick := p_tick.tick_id;
    v_state.last_low := p_tick.tick_event_low;
    v_state.last_snapshot := p_tick.tick_snapshot;
    v_state.last_pending := p_tick.tick_pending;
    v_state.next_tick := null;
    v_state.next_low := null;
    v_state.next_seq := null;
    v_state.next_snapshot := null;
    v_state.next_pending := null;
    v_state.position := 0;
    v_state.batch_open := false;
    v_state.handed_to := null;
    v_state.handed_all := null;
    v_state.deliveries := 0;
    perform pgque._append_state(v_state);
end
$$;

-- The cursor moves to the end of its window: all of it is settled.
create or replace function pgque._leave_window(p_state pgque.subscription_state)
returns pgque.subscription_state
language plpgsql
immutable
as $$
begin
    p_state.last_tick := p_state.next_tick;
    p_state.last_low := p_state.next_low;
    p_state.last_snapshot := p_state.next_snapshot;
    p_state.last_pending := p_state.next_pending;
    p_state.next_tick := null;
    p_state.next_low := null;
    p_state.next_seq := null;
    p_state.next_snapshot := null;
    p_state.next_pending := null;
    p_state.position := 0;
    p_state.batch_open := false;
    p_state.handed_to := null;
    p_state.handed_all := null;
    p_state.deliveries := 0;
    return p_state;
end
$$;

create or replace function pgque._enter_window(p_state pgque.subscription_state, p_tick pgque.tick)
returns pgque.subscription_state
language plpgsql
immutable
as $$
begin
    p_state.next_tick := p_tick.tick_id;
    p_state.next_low := p_tick.tick_event_low;
    p_state.next_seq := p_tick.tick_event_seq;
    p_state.next_snapshot := p_tick.tick_snapshot;
    p_state.next_pending := p_tick.tick_pending;
    p_state.position := 0;
    return p_state;
end
$$;

-- Opens the batch under a new number, or hands the open one out once more under the same.
create or replace function pgque._open_batch(p_state pgque.subscription_state)
returns pgque.subscription_state
language plpgsql
immutable
as $$
begin
    if not p_state.batch_open then
        p_state.batch_open := true;
        p_state.batch_no := p_state.batch_no + 1;
    end if;
    p_state.deliveries := p_state.deliveries + 1;
    return p_state;
end
$$;

-- The positions behind which messages must be kept: those of consumers, and of members that have work.
create or replace function pgque._cursors(p_queue_id int)
returns setof pgque.subscription_state
language plpgsql
volatile
as $$
begin
    return query
    select t.*
    from pgque.subscriber s
    cross join pgque._state(s.sub_id) t
    where s.sub_queue = p_queue_id and (s.sub_parent is null or t.next_tick is not null);
end
$$;

-- Batch ids name their subscription, and through it their queue: sub_id, then the number of the batch.
create or replace function pgque._batch_id(p_state pgque.subscription_state)
returns bigint
language sql
immutable
as $$
    select (p_state.sub_id::bigint << 40) | p_state.batch_no
$$;

create or replace function pgque._lock_subscription(p_sub_id int)
returns void
language plpgsql
as $$
begin
    perform pg_advisory_xact_lock(1346851155, p_sub_id);
end
$$;
