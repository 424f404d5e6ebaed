-- Sending: one static INSERT, and a NOTIFY only if somebody waits. This is the hottest code of all, so send and
-- insert_event hold it themselves: an inner function would cost as much as a partition's routing.
--
-- A sender looks its queue up and inserts into the event table that is current in its snapshot. A rotation
-- that switches tables at this moment does not matter: readers look into all tables of the queue, and a table
-- is truncated only after a look, under its lock, that nothing in it is unread (see the upkeep part).

create or replace function pgque._fail_send(p_queue text, p_type text)
returns void
language plpgsql
as $$
begin
    perform pgque._require('type', p_type);
    if (pgque._find_queue(p_queue)).queue_disable_insert then
        perform pgque._fail_queue_disabled(p_queue);
    end if;
    perform pgque._fail_queue_not_found(p_queue);  -- it was created, or enabled, after the caller looked
end
$$;

-- A waiting consumer holds the queue's "waiting" lock shared, so an exclusive try fails. Two senders that try
-- at the same moment see each other, hence the second try. Whoever begins to wait between this look and our
-- commit looks at the queue once more after it took the lock, and else at its next poll: it is late, not lost.
-- Taking and giving back is one expression: between two statements a cancelled session would keep the lock.
create or replace function pgque._nobody_waits(p_queue_id int)
returns boolean
language sql
volatile
as $$
    select pg_try_advisory_lock(1346851159, p_queue_id) and pg_advisory_unlock(1346851159, p_queue_id)
$$;

create or replace function pgque._wake(p_queue text, p_queue_id int)
returns void
language plpgsql
as $$
begin
    if (case when pg_try_advisory_lock(1346851159, p_queue_id) then pg_advisory_unlock(1346851159, p_queue_id) else false end) then
        null;
    elsif coalesce(current_setting('pgque.notify', true), '') <> 'off' and pg_notification_queue_usage() < 0.5 then
        perform pg_notify('pgque_' || p_queue, '');
    end if;
end
$$;

create or replace function pgque._send_batch(
    p_queue text, p_type text, p_data text[], p_keys text[], p_headers jsonb[]
)
returns bigint[]
language plpgsql
as $$
declare
    v_queue pgque.queue;
    v_txid xid8;
    v_ids bigint[];
begin
    v_queue := pgque._find_queue(p_queue);
    perform pgque._require('payloads', p_data);
    perform pgque._require('type', p_type);
    if v_queue.queue_disable_insert then
        perform pgque._fail_queue_disabled(p_queue);
    end if;
    if array_ndims(p_data) > 1 or cardinality(p_keys) <> cardinality(p_data) or cardinality(p_headers) <> cardinality(p_data) then
        perform pgque._fail_invalid_argument('payloads', 'and its keys and headers must be flat arrays of one length');
    end if;
    if cardinality(p_data) = 0 then
        return '{}';
    end if;
    v_txid := pg_current_xact_id();
    with inserted as (
        insert into pgque.event (ev_txid, ev_id, ev_time, ev_slot, ev_queue, ev_type, ev_data, ev_key, ev_headers)
        select
            v_txid, nextval(v_queue.queue_event_seq), clock_timestamp(), v_queue.queue_slot, v_queue.queue_id,
            p_type, m.data, m.key, m.headers
        from unnest(p_data, p_keys, p_headers) m (data, key, headers)
        returning ev_id
    )
    select array_agg(ev_id) into v_ids from inserted;
    perform pgque._wake(p_queue, v_queue.queue_id);
    return v_ids;
end
$$;

create or replace function pgque.send(queue_name text, payload text)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgque.send(queue_name, 'default', payload);
end
$$;
comment on function pgque.send(text, text) is
    'Sends one message of type "default"; the text is kept byte for byte. Returns its id. Raises QU001, QU006, QU013.';

create or replace function pgque.send(queue_name text, payload jsonb)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgque.send(queue_name, 'default', payload::text);
end
$$;
comment on function pgque.send(text, jsonb) is
    'Sends one message of type "default"; the payload is kept in jsonb''s canonical form. Returns its id. Raises QU001, QU006, QU013.';

create or replace function pgque.send(
    queue_name text, type_name text, payload text, partition_key text default null, headers jsonb default null
)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue_id int;
    v_slot int;
    v_event_seq regclass;
    v_txid xid8;
    v_id bigint;
begin
    select q.queue_id, q.queue_slot, q.queue_event_seq into v_queue_id, v_slot, v_event_seq
    from pgque.queue q
    where q.queue_name = send.queue_name and not q.queue_disable_insert and type_name is not null;
    if not found then
        perform pgque._fail_send(queue_name, type_name);
    end if;
    v_txid := pg_current_xact_id();  -- before the id: see the ticker part
    v_id := nextval(v_event_seq);
    insert into pgque.event (ev_txid, ev_id, ev_time, ev_slot, ev_queue, ev_type, ev_data, ev_key, ev_headers)
    values (v_txid, v_id, clock_timestamp(), v_slot, v_queue_id, type_name, payload, partition_key, headers);
    if not pgque._nobody_waits(v_queue_id) then
        perform pgque._wake(queue_name, v_queue_id);
    end if;
    return v_id;
end
$$;
comment on function pgque.send(text, text, text, text, jsonb) is
    'Sends one message of the given type, with an optional key and headers that stay with it. Returns its id. Raises QU001, QU006, QU013.';

create or replace function pgque.send(
    queue_name text, type_name text, payload jsonb, partition_key text default null, headers jsonb default null
)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgque.send(queue_name, type_name, payload::text, partition_key, headers);
end
$$;
comment on function pgque.send(text, text, jsonb, text, jsonb) is
    'As send with a text payload; this one is kept in jsonb''s canonical form. Returns its id. Raises QU001, QU006, QU013.';

create or replace function pgque.send_batch(queue_name text, payloads text[])
returns bigint[]
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgque._send_batch(queue_name, 'default', payloads, null, null);
end
$$;
comment on function pgque.send_batch(text, text[]) is
    'Sends messages of type "default". Returns their ids in input order, {} for an empty array; NULL elements are NULL payloads. Raises QU001, QU006, QU013.';

create or replace function pgque.send_batch(queue_name text, payloads jsonb[])
returns bigint[]
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgque._send_batch(queue_name, 'default', payloads::text[], null, null);
end
$$;
comment on function pgque.send_batch(text, jsonb[]) is
    'As send_batch with text payloads; these are kept in jsonb''s canonical form. Raises QU001, QU006, QU013.';

create or replace function pgque.send_batch(
    queue_name text, type_name text, payloads text[], partition_keys text[] default null, headers jsonb[] default null
)
returns bigint[]
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgque._send_batch(queue_name, type_name, payloads, partition_keys, headers);
end
$$;
comment on function pgque.send_batch(text, text, text[], text[], jsonb[]) is
    'Sends messages of one type, each with the key and headers at its place. Returns their ids in input order, {} for an empty array. Raises QU001, QU006, QU013.';

create or replace function pgque.send_batch(
    queue_name text, type_name text, payloads jsonb[], partition_keys text[] default null, headers jsonb[] default null
)
returns bigint[]
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgque._send_batch(queue_name, type_name, payloads::text[], partition_keys, headers);
end
$$;
comment on function pgque.send_batch(text, text, jsonb[], text[], jsonb[]) is
    'As send_batch with text payloads; these are kept in jsonb''s canonical form. Raises QU001, QU006, QU013.';

create or replace function pgque.insert_event(queue_name text, ev_type text, ev_data text)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgque.send(queue_name, ev_type, ev_data);
end
$$;
comment on function pgque.insert_event(text, text, text) is
    'PgQ''s name for send(queue, type, payload). Returns the id. Raises QU001, QU006, QU013.';

create or replace function pgque.insert_event(
    queue_name text, ev_type text, ev_data text, ev_extra1 text, ev_extra2 text, ev_extra3 text, ev_extra4 text
)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_queue_id int;
    v_slot int;
    v_event_seq regclass;
    v_txid xid8;
    v_id bigint;
begin
    select q.queue_id, q.queue_slot, q.queue_event_seq into v_queue_id, v_slot, v_event_seq
    from pgque.queue q
    where q.queue_name = insert_event.queue_name and not q.queue_disable_insert and insert_event.ev_type is not null;
    if not found then
        perform pgque._fail_send(queue_name, insert_event.ev_type);
    end if;
    v_txid := pg_current_xact_id();  -- before the id: see the ticker part
    v_id := nextval(v_event_seq);
    insert into pgque.event (ev_txid, ev_id, ev_time, ev_slot, ev_queue, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4)
    values (v_txid, v_id, clock_timestamp(), v_slot, v_queue_id, insert_event.ev_type, insert_event.ev_data,
        insert_event.ev_extra1, insert_event.ev_extra2, insert_event.ev_extra3, insert_event.ev_extra4);
    if not pgque._nobody_waits(v_queue_id) then
        perform pgque._wake(queue_name, v_queue_id);
    end if;
    return v_id;
end
$$;
comment on function pgque.insert_event(text, text, text, text, text, text, text) is
    'Sends one message with PgQ''s four extra fields. Returns its id. Raises QU001, QU006, QU013.';
