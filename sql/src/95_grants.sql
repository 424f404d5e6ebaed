-- Grants: the whole security model. PUBLIC has nothing; pgque_reader consumes and looks; pgque_writer produces;
-- pgque_admin has both and the rest. Functions run as their owner, so nobody needs rights on the tables of
-- messages. Functions whose names begin with _ are nobody's but the owner's; ticker_loop cannot run as its owner,
-- so pgque_admin also has the three that it calls.

revoke all on schema pgque from public;
revoke all on all tables in schema pgque from public;
revoke all on all sequences in schema pgque from public;
revoke all on all routines in schema pgque from public;

do $$
declare
    v_routine regprocedure;
    v_name text;
    v_roles text;
begin
    grant usage on schema pgque to pgque_reader, pgque_writer, pgque_admin;
    -- not again: it may have been granted by the owner of another database's pgque
    foreach v_roles in array array['pgque_reader', 'pgque_writer'] loop
        if not pg_has_role('pgque_admin', v_roles, 'member') then
            execute format('grant %I to pgque_admin', v_roles);
        end if;
    end loop;
    grant select on pgque.queue, pgque.consumer, pgque.subscription, pgque.tick, pgque.retry_queue, pgque.dead_letter
        to pgque_reader;

    for v_routine, v_name in
        select p.oid::regprocedure, p.proname
        from pg_catalog.pg_proc p
        where p.pronamespace = 'pgque'::regnamespace
            and (p.proname not like '\_%' or p.proname in ('_begin_slot', '_await_next_tick', '_end_slot'))
    loop
        v_roles := case
            when v_name in ('send', 'send_batch', 'insert_event') then 'pgque_writer'
            when v_name in (
                'subscribe', 'unsubscribe', 'receive', 'ack', 'ack_to', 'nack', 'release', 'mark_waiting',
                'tick_if_new', 'next_retry_at', 'ticker', 'force_next_tick', 'force_tick',
                'register_consumer', 'register_consumer_at', 'unregister_consumer', 'next_batch', 'next_batch_info',
                'subscribe_subconsumer', 'register_subconsumer', 'receive_coop', 'touch_subconsumer',
                'unsubscribe_subconsumer', 'unregister_subconsumer', 'next_batch_custom', 'get_batch_events', 'get_batch_cursor', 'finish_batch', 'event_retry', 'batch_retry',
                'event_dead', 'get_subscriptions', 'get_retries', 'get_queue_info', 'get_consumer_info', 'get_batch_info', 'dlq_inspect', 'peek', 'last_event_id'
            ) then 'pgque_reader'
            when v_name in ('version', 'status') then 'pgque_reader, pgque_writer'
            when v_name = 'uninstall' then null
            else 'pgque_admin'
        end;
        if v_roles is not null then
            execute format('grant execute on routine %s to %s', v_routine, v_roles);
        end if;
    end loop;
end
$$;
