-- Subscriptions: who reads which queue, and from where.

create or replace function pgque._find_subscription(p_queue pgque.queue, p_consumer text, p_cooperative boolean)
returns int
language plpgsql
stable
as $$
declare
    v_sub_id int;
    v_cooperative boolean;
begin
    select s.sub_id, s.sub_cooperative into v_sub_id, v_cooperative
    from pgque.subscriber s
    join pgque.consumer c on c.co_id = s.sub_consumer
    where s.sub_queue = p_queue.queue_id and c.co_name = p_consumer and s.sub_member = '';
    if not found then
        perform pgque._require('consumer', p_consumer);
        perform pgque._fail_consumer_not_found(p_queue.queue_name, p_consumer);
    elsif v_cooperative and not p_cooperative then
        perform pgque._fail_cooperative(format('consumer "%s" is cooperative', p_consumer),
            'Receive with pgque.receive_coop(queue, consumer, subconsumer).');
    elsif p_cooperative and not v_cooperative then
        perform pgque._fail_cooperative(format('consumer "%s" is not cooperative', p_consumer),
            'Convert it: pgque.subscribe_subconsumer(queue, consumer, subconsumer, convert_normal => true).');
    end if;
    return v_sub_id;
end
$$;

-- Finds a subscription and locks it. Looks once more under the lock, since whoever held it may have unsubscribed
-- the consumer, or subscribed it anew.
create or replace function pgque._lock_consumer(p_queue pgque.queue, p_consumer text)
returns int
language plpgsql
as $$
declare
    v_sub_id int := pgque._find_subscription(p_queue, p_consumer, false);
    v_locked int;
begin
    while v_sub_id is distinct from v_locked loop
        perform pgque._lock_subscription(v_sub_id);
        v_locked := v_sub_id;
        v_sub_id := pgque._find_subscription(p_queue, p_consumer, false);
    end loop;
    return v_sub_id;
end
$$;

create or replace function pgque._require_name(p_what text, p_name text)
returns void
language plpgsql
as $$
begin
    perform pgque._require(p_what, p_name);
    if octet_length(convert_to(p_name, 'UTF8')) not between 1 and 255 then
        perform pgque._fail_invalid_name(p_what, p_name, 255);
    end if;
end
$$;

-- Returns the new sub_id, or NULL if the consumer is subscribed already. Two sessions that subscribe one name
-- for the first time wait for each other at the consumer's row, always before the subscription's.
create or replace function pgque._register(p_queue pgque.queue, p_consumer text)
returns int
language plpgsql
as $$
declare
    v_consumer_id int;
    v_sub_id int;
begin
    perform pgque._require_name('consumer', p_consumer);
    perform from pgque.queue where queue_id = p_queue.queue_id for key share;
    if not found then
        perform pgque._fail_queue_not_found(p_queue.queue_name);
    end if;
    insert into pgque.consumer (co_name) values (p_consumer) on conflict (co_name) do nothing;
    select co_id into v_consumer_id from pgque.consumer where co_name = p_consumer for key share;
    insert into pgque.subscriber (sub_queue, sub_consumer)
    values (p_queue.queue_id, v_consumer_id)
    on conflict (sub_queue, sub_consumer, sub_member) do nothing
    returning sub_id into v_sub_id;
    return v_sub_id;
end
$$;

create or replace function pgque.subscribe(queue text, consumer text)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
    v_fresh constant boolean := pg_current_xact_id_if_assigned() is null;
    v_sub_id int;
    v_tick pgque.tick;
begin
    perform pgque._require_read_committed();
    if pgque._numbered_elsewhere(v_queue, pgque._newest_tick(v_queue.queue_id)) then
        perform pgque._renumber(v_queue);  -- before we hold the queue's row like other subscribers
    end if;
    v_sub_id := pgque._register(v_queue, consumer);
    if v_sub_id is null then
        return 0;
    end if;
    v_tick := pgque._newest_tick(v_queue.queue_id);
    if v_tick.tick_id is null or not v_queue.queue_external_ticker then
        v_tick := pgque._make_tick(v_queue, v_tick, v_fresh);
    end if;
    perform pgque._start_at(v_sub_id, v_tick);
    return 1;
end
$$;
comment on function pgque.subscribe(text, text) is
    'Subscribes a consumer at the end of the queue: it gets what is committed from now on (from the last tick on where an '
    'external ticker is used). Returns 1, or 0 if it is subscribed already. Raises QU001, QU005, QU011, QU013, QU016.';

create or replace function pgque.unsubscribe(queue text, consumer text)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
    v_sub_id int;
begin
    perform pgque._require('consumer', consumer);
    select s.sub_id into v_sub_id
    from pgque.subscriber s
    join pgque.consumer c on c.co_id = s.sub_consumer
    where s.sub_queue = v_queue.queue_id and c.co_name = unsubscribe.consumer and s.sub_member = '';
    if not found then
        return 0;
    end if;
    perform pgque._lock_subscription(v_sub_id);
    delete from pgque.subscriber where sub_id = v_sub_id;
    return found::int;
end
$$;
comment on function pgque.unsubscribe(text, text) is
    'Removes a subscription with its position and waiting retries; its dead letters stay. Returns 1, or 0 if there was none. '
    'Raises QU001, QU013.';
