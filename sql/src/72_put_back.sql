-- Putting back: one message of a batch goes to delayed_event, to come again, or to dead_letter. The batch's
-- subscription is locked, so of two answers for a message the second one sees the first.

-- Delays beyond these bounds are cut, not refused: one odd value must not keep the rest of a batch from being settled.
create or replace function pgque._retry_time(p_retry_after interval)
returns timestamptz
language sql
volatile
as $$
    select pgque._now() + least(greatest(p_retry_after, interval '0'), interval '100 years')
$$;

create or replace function pgque._count_attempt(p_event pgque.event)
returns pgque.event
language plpgsql
immutable
as $$
begin
    p_event.ev_retry := coalesce(p_event.ev_retry, 0) + 1;
    return p_event;
end
$$;

create or replace function pgque._was_put_back(p_batch_id bigint, p_msg_id bigint)
returns boolean
language plpgsql
volatile
set enable_seqscan = off
as $$
begin
    return exists (select from pgque.delayed_event where ev_batch_id = p_batch_id and ev_id = p_msg_id)
        or exists (select from pgque.dead_letter where dl_batch_id = p_batch_id and ev_id = p_msg_id);
end
$$;

create or replace function pgque._retry_event(
    p_queue pgque.queue, p_batch_id bigint, p_sub_id int, p_event pgque.event, p_retry_at timestamptz, p_reason text
)
returns int
language plpgsql
as $$
begin
    if pgque._was_put_back(p_batch_id, p_event.ev_id) then
        return 0;
    end if;
    insert into pgque.delayed_event (
        ev_txid, ev_id, ev_retry_after, ev_time, state_slot, ev_queue, ev_owner, ev_retry, ev_batch_id, ev_reason, ev_type,
        ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_key, ev_headers
    )
    values (
        pg_current_xact_id(), p_event.ev_id, p_retry_at, p_event.ev_time, pgque._current_slot('delayed_event'),
        p_queue.queue_id, p_sub_id, p_event.ev_retry, p_batch_id, p_reason, p_event.ev_type,
        p_event.ev_data, p_event.ev_extra1, p_event.ev_extra2, p_event.ev_extra3, p_event.ev_extra4, p_event.ev_key,
        p_event.ev_headers
    );
    return 1;
end
$$;

create or replace function pgque._bury_event(
    p_queue pgque.queue, p_batch_id bigint, p_sub_id int, p_event pgque.event, p_reason text
)
returns int
language plpgsql
as $$
begin
    if pgque._was_put_back(p_batch_id, p_event.ev_id) then
        return 0;
    end if;
    perform from pgque.queue where queue_id = p_queue.queue_id for key share;
    if not found then
        perform pgque._fail_queue_not_found(p_queue.queue_name);
    end if;
    insert into pgque.dead_letter (
        dl_time, dl_reason, dl_queue_id, dl_consumer_id, dl_batch_id, queue_name, consumer_name, ev_id, ev_time, ev_txid,
        ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_key, ev_headers
    )
    select
        pgque._now(), p_reason, p_queue.queue_id, c.co_id, p_batch_id, p_queue.queue_name, c.co_name, p_event.ev_id,
        p_event.ev_time, p_event.ev_txid, p_event.ev_retry, p_event.ev_type, p_event.ev_data, p_event.ev_extra1,
        p_event.ev_extra2, p_event.ev_extra3, p_event.ev_extra4, p_event.ev_key, p_event.ev_headers
    from pgque.subscriber s
    join pgque.consumer c on c.co_id = s.sub_consumer
    where s.sub_id = p_sub_id;
    return 1;
end
$$;

-- What a failure leads to: another try, or a dead letter once the message came back max_retries times.
create or replace function pgque._fail_event(
    p_queue pgque.queue, p_batch_id bigint, p_sub_id int, p_event pgque.event, p_retry_after interval, p_reason text
)
returns int
language plpgsql
as $$
begin
    if coalesce(p_event.ev_retry, 0) >= p_queue.queue_max_retries then
        return pgque._bury_event(p_queue, p_batch_id, p_sub_id, p_event, coalesce(p_reason, 'max retries exceeded'));
    end if;
    return pgque._retry_event(
        p_queue, p_batch_id, p_sub_id, pgque._count_attempt(p_event), pgque._retry_time(p_retry_after), p_reason);
end
$$;
