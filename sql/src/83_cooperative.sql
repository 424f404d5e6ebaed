-- Cooperative consumers: several subconsumers, the members, share one consumer.
--
-- The consumer's position is the place up to which the log was handed out. A member that asks takes the next
-- piece from there: the piece becomes the member's own window, and the position moves behind it, in one
-- transaction under the consumer's lock. From then on the member receives, acks, nacks and releases under its own
-- lock, so nobody waits for anybody's handler. A piece that a member gave back, or holds but is not heard of for
-- dead_interval, goes to the next one who asks: it becomes that one's window and vanishes from the first one's, so
-- the old batch id is not open any more. Messages are kept until no position and no piece needs them.

-- Waits for another member's hand-out, which takes a moment, but not for a transaction that somebody keeps open.
create or replace function pgque._lock_hand_out(p_group_id int)
returns boolean
language plpgsql
as $$
begin
    for i in 1..50 loop
        if pg_try_advisory_xact_lock(1346851155, p_group_id) then
            return true;
        end if;
        perform pg_sleep(0.001);
    end loop;
    return false;
end
$$;

create or replace function pgque._last_sign_of_life(p_state pgque.subscription_state)
returns timestamptz
language plpgsql
volatile
set enable_seqscan = off
as $$
begin
    return greatest(p_state.active, (select max(h.beat_time) from pgque.heartbeat h where h.beat_sub = p_state.sub_id));
end
$$;

create or replace function pgque._is_free(p_piece pgque.subscription_state, p_dead_interval interval)
returns boolean
language plpgsql
volatile
as $$
begin
    return p_piece.next_tick is not null
        and (not p_piece.batch_open or pgque._now() - pgque._last_sign_of_life(p_piece) > p_dead_interval);
end
$$;

-- Moves a piece from one member to another; what the first one settled of it stays settled.
create or replace function pgque._move_piece(p_from pgque.subscription_state, p_to pgque.subscription_state)
returns pgque.subscription_state
language plpgsql
as $$
begin
    p_to.last_tick := p_from.last_tick;
    p_to.last_low := p_from.last_low;
    p_to.last_snapshot := p_from.last_snapshot;
    p_to.last_pending := p_from.last_pending;
    p_to.next_tick := p_from.next_tick;
    p_to.next_low := p_from.next_low;
    p_to.next_seq := p_from.next_seq;
    p_to.next_snapshot := p_from.next_snapshot;
    p_to.next_pending := p_from.next_pending;
    p_to.position := p_from.position;
    p_to.deliveries := p_from.deliveries;
    return p_to;
end
$$;

-- A piece that is free for the taking, taken; or p_state as it was. A member whose lock is held is at work.
create or replace function pgque._take_over(p_state pgque.subscription_state, p_dead_interval interval)
returns pgque.subscription_state
language plpgsql
as $$
declare
    v_piece pgque.subscription_state;
begin
    for v_piece in
        select t.*
        from pgque.subscriber s
        cross join pgque._state(s.sub_id) t
        where s.sub_parent = p_state.owner_id and s.sub_id <> p_state.sub_id and pgque._is_free(t, p_dead_interval)
        order by t.last_tick, t.position
    loop
        continue when not pg_try_advisory_xact_lock(1346851155, v_piece.sub_id);
        v_piece := pgque._state(v_piece.sub_id);
        if pgque._is_free(v_piece, p_dead_interval) then
            p_state := pgque._move_piece(v_piece, p_state);
            perform pgque._append_state(pgque._leave_window(v_piece));
            perform pgque._append_state(p_state);
            return p_state;
        end if;
    end loop;
    return p_state;
end
$$;

create or replace function pgque._hand_out_own(p_queue pgque.queue, p_state pgque.subscription_state, p_max_return int)
returns setof pgque.received_message
language plpgsql
as $$
begin
    if p_state.next_tick is null then
        return;
    end if;
    return query select * from pgque._hand_out(p_queue, p_state, p_max_return);
    if not found then
        perform pgque._append_state(pgque._leave_window(p_state));  -- settled to the end by ack_to
    end if;
end
$$;

-- The next piece of the log: the consumer's window becomes the member's, cut where the piece ends.
create or replace function pgque._hand_out_next(p_queue pgque.queue, p_member_id int, p_max_return int)
returns setof pgque.received_message
language plpgsql
as $$
declare
    v_member pgque.subscription_state := pgque._state(p_member_id);
    v_before pgque.subscription_state := pgque._state(v_member.owner_id);
    v_state pgque.subscription_state := pgque._next_window(p_queue, v_before);
begin
    while v_state.next_tick is not null loop
        return query
        select * from pgque._hand_out(p_queue, pgque._move_piece(v_state, v_member), p_max_return, p_cut => true);
        if found then
            v_state.position := (pgque._state(p_member_id)).handed_to;
            perform pgque._append_state(v_state);
            return;
        end if;
        v_state := pgque._skip_empty_windows(p_queue, pgque._leave_window(v_state));
    end loop;
    perform pgque._keep_skipped(v_before, v_state);
end
$$;

create or replace function pgque.receive_coop(
    queue text, consumer text, subconsumer text, max_return int default 100, dead_interval interval default null
)
returns setof pgque.received_message
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
    v_member_id int := pgque._find_member(v_queue, consumer, subconsumer);
    v_state pgque.subscription_state;
begin
    perform pgque._require_read_committed();
    perform pgque._require_max_return(max_return);
    if dead_interval <= interval '0' then
        perform pgque._fail_invalid_argument('dead_interval', format('is %s, not positive', dead_interval));
    end if;
    if v_member_id is null then
        perform pgque.subscribe_subconsumer(receive_coop.queue, receive_coop.consumer, receive_coop.subconsumer);
        v_member_id := pgque._find_member(v_queue, consumer, subconsumer);
    end if;
    if v_queue.queue_ticker_paused then
        return;
    end if;
    perform pgque._lock_subscription(v_member_id);
    v_state := pgque._state(v_member_id);
    return query select * from pgque._hand_out_own(v_queue, v_state, max_return);
    if found or not pgque._lock_hand_out(v_state.owner_id) then
        return;
    end if;
    v_state := pgque._take_over(pgque._state(v_member_id), dead_interval);
    return query select * from pgque._hand_out_own(v_queue, v_state, max_return);
    if not found then
        return query select * from pgque._hand_out_next(v_queue, v_member_id, max_return);
    end if;
end
$$;
comment on function pgque.receive_coop(text, text, text, int, interval) is
    'Hands a member its next piece of at most max_return messages, or once more the one that it did not ack, under its id. '
    'Registers what is missing. Pieces that members gave back, or hold without a sign of life for dead_interval (NULL: never), '
    'come first, under a new batch id. No rows if there is nothing, or another member''s hand-out is not committed yet. '
    'Raises QU001, QU005, QU008 (a normal consumer), QU011, QU013, QU016.';
