-- Settling: ack, ack_to, nack, release.
--
-- A batch id is good as long as the newest state of its subscription says that this batch is open. That is
-- read, and the answer written, under the subscription's lock, so a late or second answer finds the batch closed.

create or replace function pgque._open_state(p_batch_id bigint)
returns pgque.subscription_state
language plpgsql
as $$
declare
    v_sub_id int := (p_batch_id >> 40)::int;
    v_state pgque.subscription_state;
begin
    perform pgque._require('batch_id', p_batch_id);
    perform pgque._require_read_committed();
    if exists (select from pgque.subscriber where sub_id = v_sub_id) then
        perform pgque._lock_subscription(v_sub_id);
        select t.* into v_state  -- unless it went while we waited
        from pgque.subscriber s
        cross join pgque._state(s.sub_id) t
        where s.sub_id = v_sub_id;
    end if;
    if v_state.batch_open and pgque._batch_id(v_state) = p_batch_id then
        return v_state;
    end if;
    return null;
end
$$;

create or replace function pgque._is_member(p_sub_id int)
returns boolean
language plpgsql
stable
as $$
begin
    return exists (select from pgque.subscriber where sub_id = p_sub_id and sub_parent is not null);
end
$$;

create or replace function pgque._required_open_state(p_batch_id bigint)
returns pgque.subscription_state
language plpgsql
as $$
declare
    v_state pgque.subscription_state := pgque._open_state(p_batch_id);
begin
    if v_state.sub_id is null then
        if pgque._is_member((p_batch_id >> 40)::int) then
            perform pgque._fail_lease_lost(p_batch_id);
        end if;
        perform pgque._fail_batch_not_open(p_batch_id);
    end if;
    return v_state;
end
$$;

create or replace function pgque._queue_of(p_state pgque.subscription_state)
returns pgque.queue
language plpgsql
stable
as $$
declare
    v_queue pgque.queue;
begin
    select q.* into v_queue
    from pgque.subscriber s
    join pgque.queue q on q.queue_id = s.sub_queue
    where s.sub_id = p_state.sub_id;
    if not found then  -- drop_queue does not wait for the subscription's lock
        perform pgque._fail_batch_not_open(pgque._batch_id(p_state));
    end if;
    return v_queue;
end
$$;

-- The message of the open batch that its consumer knows as p_msg_id. A message that was nacked in two batches, the
-- first of which was given back, comes again twice under its id: then the first copy that is not settled.
create or replace function pgque._handed_out(p_queue pgque.queue, p_state pgque.subscription_state, p_msg_id bigint)
returns pgque.event
language plpgsql
volatile
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_event pgque.event;
    v_query text;
begin
    v_query := pgque._union(
        'select * from %1$s where ev_id = $1 and ev_msg_id is null union all select * from %1$s where ev_msg_id = $1',
        pgque._event_tables(p_queue));
    execute format(
        'select * from (%s) e where ev_queue = $2 and (ev_owner is null or ev_owner = $3) and ev_id <= $4'
        ' and not pg_visible_in_snapshot(ev_txid, $5) and pg_visible_in_snapshot(ev_txid, $6)'
        ' order by ev_id <= $7, ev_id limit 1', v_query)
    into v_event
    using p_msg_id, p_queue.queue_id, p_state.owner_id, p_state.handed_to, p_state.last_snapshot, p_state.next_snapshot,
        p_state.position;
    if v_event.ev_id is null then
        perform pgque._require('msg_id', p_msg_id);
        perform pgque._fail_message_not_in_batch(pgque._batch_id(p_state), p_msg_id);
    end if;
    return v_event;
end
$$;

create or replace function pgque._unsettled(p_queue pgque.queue, p_state pgque.subscription_state, p_msg_id bigint)
returns pgque.event
language plpgsql
volatile
as $$
declare
    v_event pgque.event := pgque._handed_out(p_queue, p_state, p_msg_id);
begin
    if v_event.ev_id <= p_state.position then
        perform pgque._fail_message_not_in_batch(pgque._batch_id(p_state), p_msg_id);
    end if;
    v_event.ev_id := coalesce(v_event.ev_msg_id, v_event.ev_id);
    return v_event;
end
$$;

create or replace function pgque.ack(batch_id bigint)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgque.subscription_state := pgque._open_state(batch_id);
begin
    if v_state.sub_id is null then
        return 0;
    end if;
    if v_state.handed_all then
        v_state := pgque._leave_window(v_state);
    else
        v_state.position := v_state.handed_to;
        v_state.batch_open := false;
        v_state.deliveries := 0;
    end if;
    perform pgque._append_state(v_state);
    return 1;
end
$$;
comment on function pgque.ack(bigint) is
    'Settles the messages that the batch handed out last; what it did not hand out comes with the next receive. '
    'Returns 1, or 0 if the batch is not open. Raises QU011, QU013, QU016.';

create or replace function pgque.ack_to(batch_id bigint, msg_id bigint)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgque.subscription_state := pgque._open_state(batch_id);
    v_event pgque.event;
begin
    if v_state.sub_id is null then
        if pgque._is_member((batch_id >> 40)::int) then
            perform pgque._fail_lease_lost(batch_id);
        end if;
        return 0;
    end if;
    v_event := pgque._handed_out(pgque._queue_of(v_state), v_state, msg_id);
    if v_event.ev_id > v_state.position then
        v_state.position := v_event.ev_id;
        perform pgque._append_state(v_state);
    end if;
    return 1;
end
$$;
comment on function pgque.ack_to(bigint, bigint) is
    'Settles the batch''s messages up to and including msg_id, in the order in which they were handed out; the batch stays '
    'open with the rest. Returns 1, or 0 if the batch is not open. Raises QU004, QU009 (a subconsumer lost it), QU011, QU013, QU016.';

create or replace function pgque.release(batch_id bigint)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgque.subscription_state := pgque._open_state(batch_id);
begin
    if v_state.sub_id is null then
        return 0;
    end if;
    v_state.batch_open := false;
    v_state.deliveries := case when v_state.position < v_state.handed_to then greatest(v_state.deliveries - 1, 0) else 0 end;
    perform pgque._append_state(v_state);
    if v_state.owner_id <> v_state.sub_id then
        perform pgque._wake(q.queue_name, q.queue_id) from pgque._queue_of(v_state) q;  -- other members may take it
    end if;
    return 1;
end
$$;
comment on function pgque.release(bigint) is
    'Gives back what the batch handed out and is not settled, as if it had not been handed out: the next receive brings it '
    'under a new batch id. No attempt is counted. Returns 1, or 0 if the batch is not open. Raises QU011, QU013, QU016.';

create or replace function pgque.nack(
    batch_id bigint, msg_id bigint, retry_after interval default '60 seconds', reason text default null
)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgque.subscription_state := pgque._required_open_state(batch_id);
    v_queue pgque.queue := pgque._queue_of(v_state);
    v_event pgque.event := pgque._unsettled(v_queue, v_state, msg_id);
begin
    perform pgque._require('retry_after', retry_after);
    perform pgque._fail_event(v_queue, batch_id, v_state.owner_id, v_event, retry_after, reason);
    return 1;
end
$$;
comment on function pgque.nack(bigint, bigint, interval, text) is
    'Gives one message of an open batch back: it comes again to this consumer after retry_after (cut to 0 … 100 years), or is '
    'a dead letter once it came back max_retries times. The batch is acked as usual. A second nack of it has no effect. '
    'Returns 1. Raises QU003, QU004, QU009 (a subconsumer lost the batch), QU011, QU013, QU016.';

create or replace function pgque.nack(
    batch_id bigint, msg pgque.message, retry_after interval default '60 seconds', reason text default null
)
returns int
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgque.nack(batch_id, msg.msg_id, retry_after, reason)
$$;
comment on function pgque.nack(bigint, pgque.message, interval, text) is
    'As nack(batch_id, msg_id, …); only msg.msg_id is read, the stored message decides.';

create or replace function pgque.nack(
    batch_id bigint, msg pgque.received_message, retry_after interval default '60 seconds', reason text default null
)
returns int
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgque.nack(batch_id, msg.msg_id, retry_after, reason)
$$;
comment on function pgque.nack(bigint, pgque.received_message, interval, text) is
    'As nack(batch_id, msg_id, …) for a row of receive; only msg.msg_id is read.';
