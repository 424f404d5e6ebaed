-- Waking: what a consumer calls that wants its messages at once, whether a ticker runs or not.
--
-- The loop: tick_if_new, receive; where that gives nothing, mark_waiting(true) on the listening session, look
-- once more, and wait for a notification, the time of next_retry_at, or the poll interval. A sender that did not
-- see the mark had looked before it was set; it commits before our last look, or its message waits for the next.

-- Consumers that wake up together make one tick: those that come second wait until the first one's is committed,
-- and then see it. Not for longer, in case somebody ticks in a transaction that stays open.
create or replace function pgque._wait_for_other_tick(p_queue_id int)
returns void
language plpgsql
set lock_timeout = '20ms'
as $$
begin
    perform pg_advisory_xact_lock(1346851149, p_queue_id);
exception
    when lock_not_available then
        null;
end
$$;

create or replace function pgque.tick_if_new(queue text)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
    v_fresh boolean := pg_current_xact_id_if_assigned() is null;
    v_last pgque.tick := pgque._newest_tick(v_queue.queue_id);
    v_has_news boolean;
begin
    perform pgque._require_read_committed();
    if v_queue.queue_ticker_paused or v_queue.queue_external_ticker then
        return null;
    end if;
    v_has_news := pgque._has_news(v_queue, v_last);
    if pgque._move_due(v_queue) > 0 then
        v_fresh := false;  -- what we move ourselves is in the tick of a later transaction
    end if;
    if not v_has_news then
        return null;
    end if;
    if not pg_try_advisory_xact_lock(1346851149, v_queue.queue_id) then
        perform pgque._wait_for_other_tick(v_queue.queue_id);
        v_last := pgque._newest_tick(v_queue.queue_id);
        if not pgque._has_news(v_queue, v_last) then
            return v_last.tick_id;
        end if;
    end if;
    return (pgque._make_tick(v_queue, v_last, v_fresh)).tick_id;
end
$$;
comment on function pgque.tick_if_new(text) is
    'For consumers: moves due retries, and makes a tick at once if it would show anything new. Call it in a transaction of '
    'its own. Returns the tick''s id, also of one that another session made at the same moment, or NULL where there is '
    'nothing new, or the queue is paused or has an external ticker. Retries that it moved are in the next tick; next_retry_at then says now. Raises QU001, QU011, QU016.';

-- Whether a tick beyond the consumer's position may bring it something.
create or replace function pgque._is_behind(p_state pgque.subscription_state, p_newest pgque.tick)
returns boolean
language plpgsql
immutable
as $$
begin
    return p_state.next_tick is not null
        or (p_newest.tick_id > p_state.last_tick and p_newest.tick_event_seq > p_state.last_low);
end
$$;

create or replace function pgque._next_retry_at(p_queue pgque.queue)
returns timestamptz
language plpgsql
volatile
set enable_seqscan = off
as $$
declare
    v_pass pgque.delayed_pass := pgque._last_pass(p_queue.queue_id);
begin
    return (
        select d.ev_retry_after
        from pgque.delayed_event d
        where d.ev_queue + 0 = p_queue.queue_id
            and d.ev_retry_after > v_pass.pass_time
            and exists (select from pgque.subscriber s where s.sub_id = d.ev_owner)
        order by d.ev_retry_after
        limit 1
    );
end
$$;

create or replace function pgque.next_retry_at(queue text, consumer text default null)
returns timestamptz
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
    v_newest pgque.tick := pgque._newest_tick(v_queue.queue_id);
    v_sub_id int;
begin
    if v_queue.queue_ticker_paused then
        return null;
    end if;
    if not v_queue.queue_external_ticker and pgque._has_news(v_queue, v_newest) then
        return pgque._now();
    end if;
    if consumer is not null then
        v_sub_id := (
            select s.sub_id
            from pgque.subscriber s
            join pgque.consumer c on c.co_id = s.sub_consumer
            where s.sub_queue = v_queue.queue_id and c.co_name = next_retry_at.consumer and s.sub_member = ''
        );
        if v_sub_id is null then
            perform pgque._fail_consumer_not_found(queue, consumer);
        elsif pgque._is_behind(pgque._state(v_sub_id), v_newest) then
            return pgque._now();
        end if;
    end if;
    return pgque._next_retry_at(v_queue);
end
$$;
comment on function pgque.next_retry_at(text, text) is
    'When a consumer of this queue should look again at the latest: the earliest retry time, or now if something waits for a '
    'tick, or a tick for the consumer (NULL: not looked at). NULL if nothing is known to come, or the queue is paused. '
    'Raises QU001, QU002.';

create or replace function pgque.mark_waiting(queue text, waiting boolean)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id constant int := (pgque._find_queue(queue)).queue_id;
begin
    perform pgque._require('waiting', waiting);
    if waiting then
        perform pg_advisory_lock_shared(1346851159, v_queue_id);
    else
        perform pg_advisory_unlock_shared(1346851159, v_queue_id);
    end if;
end
$$;
comment on function pgque.mark_waiting(text, boolean) is
    'On the session that listens to pgque_<queue>: while the mark is set, sends notify that channel. Set it, then look once '
    'more before waiting. The end of the session removes it. Raises QU001.';
