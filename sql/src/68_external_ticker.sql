-- External tickers: ticks with ids and times of somebody else's, as PgQ has them.

create or replace function pgque.ticker(queue text, tick_id bigint, orig_timestamp timestamptz, event_seq bigint)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue := pgque._find_queue(queue);
    v_last pgque.tick;
    v_tick pgque.tick;
begin
    perform pgque._require_read_committed();
    perform pgque._require('tick_id', ticker.tick_id);
    if not v_queue.queue_external_ticker then
        perform pgque._fail_invalid_config('external_ticker', 'false', 'Set external_ticker to true for ticks with ids of your own.');
    end if;
    v_last := pgque._newest_tick(v_queue.queue_id);
    if ticker.tick_id <= coalesce(v_last.tick_id, 0) then
        perform pgque._fail_invalid_argument('tick_id', format('%s is not above the last one, %s', ticker.tick_id, v_last.tick_id));
    elsif ticker.tick_id > 4611686018427387904 then
        perform pgque._fail_invalid_argument('tick_id', format('%s is above 2^62: no room for later ticks', ticker.tick_id));
    end if;
    if pgque._numbered_elsewhere(v_queue, v_last) then
        perform pgque._renumber(v_queue, ticker.tick_id);
        return ticker.tick_id;
    end if;
    v_tick := pgque._take_tick(v_queue, ticker.tick_id);
    perform setval(v_queue.queue_tick_seq, ticker.tick_id);  -- so that own ticks would go on above it
    v_tick.tick_time := orig_timestamp;
    v_tick.tick_event_seq := greatest(v_tick.tick_event_seq, event_seq);
    v_tick.tick_pending := pgque._pending(v_last, v_tick, null);
    perform pgque._store_tick(v_queue, v_tick);
    return ticker.tick_id;
end
$$;
comment on function pgque.ticker(text, bigint, timestamptz, bigint) is
    'Makes a tick with the id and time of an external ticker. Calls for one queue must not overlap. '
    'Returns tick_id. Raises QU001, QU007 (external_ticker is off), QU011, QU013 (not above the last one), QU016.';
