-- Members: who shares a cooperative consumer.

create or replace function pgque._register_member(p_queue pgque.queue, p_group_id int, p_member text)
returns int
language plpgsql
as $$
declare
    v_member_id int;
    v_state pgque.subscription_state;
begin
    perform pgque._require_name('subconsumer', p_member);
    insert into pgque.subscriber (sub_queue, sub_consumer, sub_member, sub_parent)
    select sub_queue, sub_consumer, p_member, sub_id from pgque.subscriber where sub_id = p_group_id
    on conflict (sub_queue, sub_consumer, sub_member) do nothing
    returning sub_id into v_member_id;
    if v_member_id is not null then
        v_state := pgque._state(v_member_id);
        v_state.owner_id := p_group_id;
        perform pgque._append_state(v_state);
    end if;
    return v_member_id;
end
$$;

create or replace function pgque._make_cooperative(p_queue pgque.queue, p_consumer text, p_convert boolean)
returns int
language plpgsql
as $$
declare
    v_group_id int;
begin
    if pgque.subscribe(p_queue.queue_name, p_consumer) = 1 then
        p_convert := true;
    end if;
    select s.sub_id into v_group_id
    from pgque.subscriber s
    join pgque.consumer c on c.co_id = s.sub_consumer
    where s.sub_queue = p_queue.queue_id and c.co_name = p_consumer and s.sub_member = '';
    if p_convert and not (select sub_cooperative from pgque.subscriber where sub_id = v_group_id) then
        perform pgque._lock_subscription(v_group_id);
        if (pgque._state(v_group_id)).batch_open then
            perform pgque._fail_cooperative(format('consumer "%s" has an open batch', p_consumer),
                'Ack or release it before the consumer becomes cooperative.');
        end if;
        update pgque.subscriber set sub_cooperative = true where sub_id = v_group_id;
    end if;
    v_group_id := pgque._find_subscription(p_queue, p_consumer, true);
    perform from pgque.subscriber where sub_id = v_group_id for key share;  -- nobody may remove it until the member is in
    if not found then
        perform pgque._fail_consumer_not_found(p_queue.queue_name, p_consumer);
    end if;
    return v_group_id;
end
$$;

create or replace function pgque.subscribe_subconsumer(
    queue text, consumer text, subconsumer text, convert_normal boolean default false
)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
begin
    perform pgque._require_read_committed();
    perform pgque._require_name('subconsumer', subconsumer);
    return (
        pgque._register_member(
            v_queue, pgque._make_cooperative(v_queue, consumer, coalesce(convert_normal, false)), subconsumer
        ) is not null
    )::int;
end
$$;
comment on function pgque.subscribe_subconsumer(text, text, text, boolean) is
    'Makes a subconsumer a member of a cooperative consumer, and subscribes that if it is new. convert_normal: a normal '
    'consumer becomes cooperative and keeps its position. Returns 1, or 0 if it is a member. Raises QU001, QU005, QU008 (a '
    'normal consumer, or an open batch), QU011, QU013, QU016.';

create or replace function pgque.register_subconsumer(
    queue text, consumer text, subconsumer text, convert_normal boolean default false
)
returns int
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgque.subscribe_subconsumer(queue, consumer, subconsumer, convert_normal)
$$;
comment on function pgque.register_subconsumer(text, text, text, boolean) is 'PgQue''s other name for subscribe_subconsumer.';

-- NULL if there is no such member.
create or replace function pgque._find_member(p_queue pgque.queue, p_consumer text, p_member text)
returns int
language plpgsql
stable
as $$
begin
    return (
        select s.sub_id
        from pgque.subscriber s
        join pgque.consumer c on c.co_id = s.sub_consumer
        where s.sub_queue = p_queue.queue_id and c.co_name = p_consumer and s.sub_member = p_member and s.sub_parent is not null
    );
end
$$;

create or replace function pgque.touch_subconsumer(queue text, consumer text, subconsumer text)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
    v_member_id int := pgque._find_member(v_queue, consumer, subconsumer);
begin
    perform pgque._require('consumer', consumer);
    perform pgque._require('subconsumer', subconsumer);
    insert into pgque.heartbeat (beat_sub, state_slot, beat_time)
    select v_member_id, pgque._current_slot('heartbeat'), pgque._now()
    where v_member_id is not null;
    return (v_member_id is not null)::int;
end
$$;
comment on function pgque.touch_subconsumer(text, text, text) is
    'A sign of life of a member that works on a piece; call it more often than dead_interval. Waits for nobody. Returns 1, or '
    '0 if there is no such member. Raises QU001, QU013.';

-- What is left of a member's piece goes back to its consumer through delayed_event; p_failed: as if nacked.
create or replace function pgque._return_messages(p_queue pgque.queue, p_state pgque.subscription_state, p_failed boolean)
returns void
language plpgsql
as $$
declare
    v_event pgque.event;
    v_batch_id constant bigint := pgque._batch_id(p_state);
begin
    for v_event in
        execute pgque._window_query(p_queue, p_state, '*')
        using p_state.last_snapshot, p_state.next_snapshot, p_state.last_low, p_state.next_seq, p_state.position,
            p_state.next_seq, 9223372036854775807, p_queue.queue_id, p_state.owner_id, p_state.last_pending
    loop
        v_event.ev_id := coalesce(v_event.ev_msg_id, v_event.ev_id);
        if p_failed then
            perform pgque._fail_event(p_queue, v_batch_id, p_state.owner_id, v_event, '0', 'subconsumer left');
        else
            perform pgque._retry_event(p_queue, v_batch_id, p_state.owner_id, v_event, pgque._now(), null);
        end if;
    end loop;
end
$$;

create or replace function pgque.unsubscribe_subconsumer(
    queue text, consumer text, subconsumer text, batch_handling int default 0
)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
    v_member_id int := pgque._find_member(v_queue, consumer, subconsumer);
    v_state pgque.subscription_state;
begin
    perform pgque._require_read_committed();
    perform pgque._require('consumer', consumer);
    perform pgque._require('subconsumer', subconsumer);
    if batch_handling is null or batch_handling not in (0, 1) then
        perform pgque._fail_invalid_argument('batch_handling', 'is neither 0 (refuse) nor 1 (through retry)');
    end if;
    if v_member_id is null then
        return 0;
    end if;
    perform pgque._lock_subscription(v_member_id);
    v_state := pgque._state(v_member_id);
    if v_state.batch_open and batch_handling = 0 then
        perform pgque._fail_cooperative(
            format('subconsumer "%s" has an open batch, %s', subconsumer, pgque._batch_id(v_state)),
            'Ack or release it first, or pass batch_handling => 1 to send its messages through retry or dead letter.');
    end if;
    if v_state.next_tick is not null then
        perform pgque._return_messages(v_queue, v_state, v_state.batch_open);
        perform pgque._wake(queue, v_queue.queue_id);
    end if;
    delete from pgque.subscriber where sub_id = v_member_id;
    return found::int;
end
$$;
comment on function pgque.unsubscribe_subconsumer(text, text, text, int) is
    'Removes a member. batch_handling 0 refuses while it has an open batch; 1 sends that batch''s messages through retry or '
    'dead letter, as nack does. What it gave back goes to the others. Returns 1, or 0 if there is no such member. Raises '
    'QU001, QU008, QU011, QU013, QU016.';

create or replace function pgque.unregister_subconsumer(
    queue text, consumer text, subconsumer text, batch_handling int default 0
)
returns int
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgque.unsubscribe_subconsumer(queue, consumer, subconsumer, batch_handling)
$$;
comment on function pgque.unregister_subconsumer(text, text, text, int) is 'PgQue''s other name for unsubscribe_subconsumer.';
