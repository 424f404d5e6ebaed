-- Rotation of the event tables. Takes locks only where they are free at once, so it never waits and nobody waits
-- behind it; what it could not get is done by a later call.
--
-- An event table may be truncated if nothing in it is unread. That is looked up under its exclusive lock with a
-- snapshot taken after it: nobody has an unfinished insert in it then, and whoever found it as the current table
-- and inserts later puts a row into an empty table, where readers find it, and the next look sees it.
-- Readers with an older snapshot (REPEATABLE READ, pg_dump) see a truncated table as empty.

create or replace function pgque._lock_at_once(p_table text)
returns boolean
language plpgsql
as $$
begin
    execute format('lock table pgque.%I in access exclusive mode nowait', p_table);
    return true;
exception
    when lock_not_available then
        return false;
end
$$;

create or replace function pgque._is_empty(p_table text)
returns boolean
language plpgsql
volatile
as $$
begin
    return pg_relation_size(format('pgque.%I', p_table)) = 0;
end
$$;

create or replace function pgque._event_table(p_queue pgque.queue, p_ahead int)
returns text
language plpgsql
immutable
as $$
begin
    return format('event_%s_%s', p_queue.queue_storage, (p_queue.queue_cur_table + p_ahead) % 3);
end
$$;

create or replace function pgque._switch_is_due(p_queue pgque.queue)
returns boolean
language plpgsql
volatile
as $$
begin
    return pgque._now() - p_queue.queue_switch_time >= p_queue.queue_rotation_period
        and not pgque._is_empty(pgque._event_table(p_queue, 0))
        and pgque._is_empty(pgque._event_table(p_queue, 1));
end
$$;

-- Looked at without a lock, since locking a row is written to the disk.
create or replace function pgque._rotation_is_due(p_queue pgque.queue)
returns boolean
language plpgsql
volatile
as $$
begin
    return pgque._switch_is_due(p_queue)
        or not pgque._is_empty(pgque._event_table(p_queue, 1))
        or not pgque._is_empty(pgque._event_table(p_queue, 2));
end
$$;

-- Unread are messages that some subscription's cursor does not show: of transactions at or above its
-- snapshot's end, or in progress then. Both are index ranges.
create or replace function pgque._has_unread(p_queue pgque.queue, p_table text)
returns boolean
language plpgsql
volatile
set enable_seqscan = off
as $$
declare
    v_state pgque.subscription_state;
    v_unread boolean;
begin
    for v_state in select * from pgque._cursors(p_queue.queue_id) loop
        execute format(
            'select exists (select from pgque.%1$I where ev_txid >= pg_snapshot_xmax($1) and ev_queue = $2)'
            ' or exists (select from pg_snapshot_xip($1) x join pgque.%1$I on ev_txid = x where ev_queue = $2)', p_table)
        into v_unread
        using v_state.last_snapshot, p_queue.queue_id;
        if v_unread then
            return true;
        end if;
    end loop;
    return false;
end
$$;

create or replace function pgque._truncate_if_read(p_queue pgque.queue, p_table text)
returns int
language plpgsql
as $$
declare
    v_txid xid8;
begin
    if pgque._is_empty(p_table) or pgque._has_unread(p_queue, p_table) or not pgque._lock_at_once(p_table)
        or pgque._has_unread(p_queue, p_table)  -- once more, now that nobody can be inserting
    then
        return 0;
    end if;
    execute format('select ev_txid from pgque.%I order by ev_txid desc limit 1', p_table) into v_txid;
    execute format('truncate pgque.%I', p_table);
    update pgque.queue
    set queue_truncated_txid = greatest(queue_truncated_txid, v_txid)
    where queue_id = p_queue.queue_id;
    return 1;
end
$$;

create or replace function pgque._rotate(p_queue pgque.queue)
returns int
language plpgsql
as $$
declare
    v_done int := 0;
begin
    if not pgque._rotation_is_due(p_queue) then
        return 0;
    end if;
    select * into p_queue from pgque.queue where queue_id = p_queue.queue_id for no key update skip locked;
    if not found or pgque._numbered_elsewhere(p_queue, pgque._newest_tick(p_queue.queue_id)) then
        return 0;
    end if;
    for i in 1..2 loop
        v_done := v_done + pgque._truncate_if_read(p_queue, pgque._event_table(p_queue, i));
    end loop;
    if pgque._switch_is_due(p_queue) then
        update pgque.queue
        set queue_cur_table = (queue_cur_table + 1) % 3, queue_switch_time = pgque._now()
        where queue_id = p_queue.queue_id;
        v_done := v_done + 1;
    end if;
    return v_done;
end
$$;

create or replace function pgque.maint_rotate_tables_step1(queue text)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgque._require_read_committed();
    return pgque._rotate(pgque._find_queue(queue));
end
$$;
comment on function pgque.maint_rotate_tables_step1(text) is
    'Truncates the queue''s event tables that are read by all consumers, and lets new messages go to the next table when '
    'rotation_period has passed. Returns the number of tables truncated or switched; 0 where locks were not free. '
    'Raises QU001, QU011, QU016.';

-- The row of the storage is locked while its tables are emptied, so that no new queue gets them meanwhile.
create or replace function pgque._clear_dropped()
returns int
language plpgsql
as $$
declare
    v_table text;
    v_cleared int := 0;
begin
    for v_table in
        select format('event_%s_%s', s.storage_id, i)
        from pgque.event_storage s
        cross join generate_series(0, 2) i
        where s.storage_queue is null and not pgque._is_empty(format('event_%s_%s', s.storage_id, i))
        order by s.storage_id, i
        for update of s skip locked
    loop
        if pgque._lock_at_once(v_table) then
            execute format('truncate pgque.%I', v_table);
            v_cleared := v_cleared + 1;
        end if;
    end loop;
    return v_cleared;
end
$$;
