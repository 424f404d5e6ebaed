-- Restore: a dump that was loaded into another cluster.
--
-- Stored snapshots and transaction numbers belong to the cluster that gave them. In another one the counter may
-- be far below: what is sent there would look as if it had been delivered long ago. The cluster's identifier,
-- kept with each queue, tells; and so does a counter that is behind the newest tick. Every way to new messages
-- leads through a tick, so the ticker looks, before it makes the first tick in the new cluster. Until then upkeep
-- takes nothing away.
--
-- What was unread is then known exactly: messages above the last tick's ids (sent after it, here or there; the
-- sequence was restored too), and those that a consumer's own snapshot, in the old numbers, does not show.
-- They go to each consumer through delayed_event, due at once; the log starts again empty at a new tick.

create or replace function pgque._numbered_elsewhere(p_queue pgque.queue, p_last pgque.tick)
returns boolean
language plpgsql
volatile
as $$
begin
    return p_queue.queue_cluster <> pgque._cluster()
        or pg_snapshot_xmax(pg_current_snapshot()) < pg_snapshot_xmax(p_last.tick_snapshot);
end
$$;

create or replace function pgque._delay_unread(p_queue pgque.queue, p_state pgque.subscription_state, p_last_id bigint)
returns void
language plpgsql
as $$
begin
    insert into pgque.delayed_event (
        ev_txid, ev_id, ev_retry_after, ev_time, state_slot, ev_queue, ev_owner, ev_retry, ev_type, ev_data,
        ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_key, ev_headers
    )
    select
        pg_current_xact_id(), coalesce(e.ev_msg_id, e.ev_id), pgque._now(), e.ev_time, pgque._current_slot('delayed_event'),
        e.ev_queue, p_state.owner_id, e.ev_retry, e.ev_type, e.ev_data,
        e.ev_extra1, e.ev_extra2, e.ev_extra3, e.ev_extra4, e.ev_key, e.ev_headers
    from pgque.event e
    where e.ev_slot between p_queue.queue_storage * 3 and p_queue.queue_storage * 3 + 2
        and e.ev_queue = p_queue.queue_id
        and (e.ev_owner is null or e.ev_owner = p_state.owner_id)
        and (e.ev_id > p_last_id or not pg_visible_in_snapshot(e.ev_txid, p_state.last_snapshot))
        and not coalesce(
            e.ev_id <= least(p_state.position, p_last_id) and pg_visible_in_snapshot(e.ev_txid, p_state.next_snapshot), false
        )
        and (
            p_state.owner_id = p_state.sub_id
            or (e.ev_id <= p_state.next_seq and pg_visible_in_snapshot(e.ev_txid, p_state.next_snapshot))
        )
    order by e.ev_id;
end
$$;

-- What waits for its retry time keeps waiting, under this transaction's number; what was moved is forgotten.
create or replace function pgque._renumber_delayed(p_queue pgque.queue)
returns void
language plpgsql
as $$
declare
    v_pass pgque.delayed_pass := pgque._last_pass(p_queue.queue_id);
begin
    delete from pgque.delayed_event
    where ev_queue = p_queue.queue_id
        and ev_retry_after <= v_pass.pass_time
        and pg_visible_in_snapshot(ev_txid, v_pass.pass_snapshot);
    update pgque.delayed_event set ev_txid = pg_current_xact_id() where ev_queue = p_queue.queue_id;
    v_pass.pass_snapshot := pgque._snapshot();
    perform pgque._append_pass(v_pass);
end
$$;

create or replace function pgque._renumber(p_queue pgque.queue, p_tick_id bigint default null)
returns pgque.tick
language plpgsql
as $$
declare
    v_queue pgque.queue;
    v_tick pgque.tick;
    v_last_id bigint;
begin
    select * into v_queue from pgque.queue where queue_id = p_queue.queue_id for update;
    v_tick := pgque._newest_tick(p_queue.queue_id);
    if not pgque._numbered_elsewhere(v_queue, v_tick) then
        return v_tick;  -- another session did it while we waited
    end if;
    perform pgque._lock_subscription(sub_id)
    from (select sub_id from pgque.subscriber where sub_queue = p_queue.queue_id order by sub_id) s;
    for i in 0..2 loop
        execute format('lock table pgque.event_%s_%s in share row exclusive mode', v_queue.queue_storage, i);
    end loop;
    v_last_id := greatest(0, v_tick.tick_event_seq, (
        select max(greatest(c.last_low, c.next_seq)) from pgque._cursors(p_queue.queue_id) c
    ));
    perform pgque._renumber_delayed(v_queue);
    perform pgque._delay_unread(v_queue, c, v_last_id) from pgque._cursors(p_queue.queue_id) c;
    delete from pgque.event
    where ev_slot between v_queue.queue_storage * 3 and v_queue.queue_storage * 3 + 2;
    update pgque.queue set queue_cluster = pgque._cluster(), queue_truncated_txid = null where queue_id = p_queue.queue_id;
    v_tick := pgque._take_tick(v_queue, p_tick_id);
    v_tick.tick_pending := array(select pg_snapshot_xip(v_tick.tick_snapshot));
    v_tick := pgque._store_tick(v_queue, v_tick);
    perform pgque._start_at(sub_id, v_tick) from pgque.subscriber where sub_queue = p_queue.queue_id;
    return v_tick;
end
$$;
