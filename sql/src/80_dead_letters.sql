-- Dead letters: look at them, send them again, throw them away.

create or replace function pgque.dlq_inspect(queue text, limit_count int default 100)
returns setof pgque.dead_letter
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id constant int := (pgque._find_queue(queue)).queue_id;
begin
    perform pgque._require_limit('limit_count', limit_count);
    return query
    select d.* from pgque.dead_letter d where d.dl_queue_id = v_queue_id order by d.dl_id desc limit limit_count;
end
$$;
comment on function pgque.dlq_inspect(text, int) is
    'The dead letters of a queue, newest first; no rows if there are none. Raises QU001, QU013.';

create or replace function pgque._replay(p_letter pgque.dead_letter)
returns bigint
language plpgsql
as $$
declare
    v_id bigint;
begin
    insert into pgque.event (
        ev_txid, ev_id, ev_time, ev_slot, ev_queue, ev_owner, ev_type, ev_data,
        ev_extra1, ev_extra2, ev_extra3, ev_extra4, ev_key, ev_headers
    )
    select
        pg_current_xact_id(), nextval(q.queue_event_seq), clock_timestamp(), q.queue_slot, q.queue_id, s.sub_id,
        p_letter.ev_type, p_letter.ev_data, p_letter.ev_extra1, p_letter.ev_extra2, p_letter.ev_extra3, p_letter.ev_extra4,
        p_letter.ev_key, p_letter.ev_headers
    from pgque.queue q
    join pgque.subscriber s on s.sub_queue = q.queue_id
    where q.queue_id = p_letter.dl_queue_id and s.sub_consumer = p_letter.dl_consumer_id and s.sub_parent is null
    returning ev_id into v_id;
    if v_id is null then
        perform pgque._fail_consumer_not_found(p_letter.queue_name, p_letter.consumer_name);
    end if;
    delete from pgque.dead_letter where dl_id = p_letter.dl_id;
    perform pgque._wake(p_letter.queue_name, p_letter.dl_queue_id);
    return v_id;
end
$$;

create or replace function pgque.dlq_replay(dead_letter_id bigint)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_letter pgque.dead_letter;
begin
    perform pgque._require('dead_letter_id', dead_letter_id);
    select * into v_letter from pgque.dead_letter where dl_id = dead_letter_id for update;
    if not found then
        perform pgque._fail_dead_letter_not_found(dead_letter_id);
    end if;
    return pgque._replay(v_letter);
end
$$;
comment on function pgque.dlq_replay(bigint) is
    'Sends a dead letter to the consumer that failed, and only to it, as a new message with no attempts counted. Returns the '
    'new message''s id. Of two replays at once the second finds nothing. Raises QU002 (not subscribed any more), QU013, QU015.';

create or replace function pgque.dlq_replay_all(queue text, out replayed bigint, out failed bigint, out first_error text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id constant int := (pgque._find_queue(queue)).queue_id;
    v_letter pgque.dead_letter;
begin
    replayed := 0;
    failed := 0;
    for v_letter in
        select * from pgque.dead_letter where dl_queue_id = v_queue_id order by dl_id for update skip locked
    loop
        begin
            perform pgque._replay(v_letter);
            replayed := replayed + 1;
        exception
            when others then
                failed := failed + 1;
                first_error := coalesce(first_error, sqlerrm);
        end;
    end loop;
end
$$;
comment on function pgque.dlq_replay_all(text) is
    'Replays all dead letters of a queue, oldest first; those that another session is replaying are left to it. Returns how '
    'many were replayed, how many could not be, and the first error (NULL if none). Raises QU001.';

create or replace function pgque.dlq_purge(queue text, older_than interval default '30 days')
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id constant int := (pgque._find_queue(queue)).queue_id;
    v_purged bigint;
begin
    perform pgque._require('older_than', older_than);
    delete from pgque.dead_letter where dl_queue_id = v_queue_id and dl_time <= pgque._now() - older_than;
    get diagnostics v_purged = row_count;
    return v_purged;
end
$$;
comment on function pgque.dlq_purge(text, interval) is
    'Deletes the dead letters of a queue that are at least so old; interval 0 deletes all. Returns how many. Raises QU001, QU013.';
