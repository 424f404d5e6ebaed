-- Status: in words, what is wrong and what to call.

create or replace function pgque.version()
returns text
language sql
immutable
as $$
    select '@VERSION@'
$$;
comment on function pgque.version() is 'The version of the installed functions.';

-- Whether the functions in the database are those of the release; sql/build.py computes the same sum.
create or replace function pgque._is_genuine()
returns boolean
language sql
stable
as $$
    select encode(sha256(convert_to(string_agg(f.digest, '' order by f.digest), 'UTF8')), 'hex') = '@FINGERPRINT@'
    from (
        select encode(sha256(convert_to(p.prosrc, 'UTF8')), 'hex') collate "C" as digest
        from pg_catalog.pg_proc p
        where p.pronamespace = 'pgque'::regnamespace
            and p.proname <> 'version'
            and strpos(p.prosrc, '@FINGERPRINT@') = 0
    ) f
$$;

-- Who holds a lock that keeps a table, read by all, from being truncated.
create or replace function pgque._held_up(p_queue pgque.queue)
returns int[]
language sql
stable
as $$
    select array_agg(distinct l.pid)
    from generate_series(0, 2) i
    cross join lateral (select format('event_%s_%s', p_queue.queue_storage, i) as name) t
    join pg_catalog.pg_locks l on l.relation = format('pgque.%I', t.name)::regclass and l.granted
    where i <> p_queue.queue_cur_table
        and l.database = (select oid from pg_catalog.pg_database where datname = current_database())
        and l.pid <> pg_backend_pid()
        and not pgque._is_empty(t.name)
        and not pgque._has_unread(p_queue, t.name)
$$;

create or replace function pgque._queue_status(p_queue pgque.queue, out status text, out detail text, out action text)
language plpgsql
stable
as $$
declare
    v_newest pgque.tick := pgque._newest_tick(p_queue.queue_id);
    v_last record;
    v_pids int[] := pgque._held_up(p_queue);
begin
    select * into v_last from pgque.get_consumer_info(p_queue.queue_name, null) i order by i.lag desc limit 1;
    status := 'warning';
    if p_queue.queue_ticker_paused then
        detail := 'is paused';
        action := format('select pgque.resume_queue(%L)', p_queue.queue_name);
    elsif pgque._has_news(p_queue, v_newest) and v_last.lag > interval '10 seconds'
        and pgque._now() - v_newest.tick_time > interval '10 seconds'
    then
        detail := format('has messages that wait for a tick; the last one was %s ago',
            date_trunc('second', pgque._now() - v_newest.tick_time));
        action := 'run "pgque ticker", or call pgque.ticker() every 100 ms; a running Consumer ticks by itself';
    elsif v_last.lag > interval '1 minute' then
        detail := format('consumer "%s" is %s behind, %s messages to go at most', v_last.consumer_name,
            date_trunc('second', v_last.lag), v_last.pending_events);
        action := format('start it or look why it is slow: select * from pgque.get_consumer_info(%L); or unsubscribe it: its'
            ' messages are kept until then', p_queue.queue_name);
    elsif v_pids is not null then
        detail := format('a table that all have read can''t be truncated while sessions %s hold it', v_pids::text);
        action := 'let them finish; select * from pg_stat_activity where pid = any (' || quote_literal(v_pids::text) || ')';
    else
        status := 'ok';
        detail := 'no consumer is behind; the last tick was '
            || coalesce(date_trunc('second', pgque._now() - v_newest.tick_time) || ' ago', 'never');
    end if;
end
$$;

create or replace function pgque.status(out component text, out status text, out detail text, out action text)
returns setof record
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_upkeep timestamptz := (select last_upkeep from pgque.installation);
    v_queue pgque.queue;
begin
    component := 'version';
    if pgque._is_genuine() then
        select 'ok', 'pgque ' || pgque.version() || ', functions as released', null::text into status, detail, action;
    else
        select 'error', 'pgque ' || pgque.version() || ', functions differ from the release',
            'run the pgque.sql of this release again, or "pgque install"' into status, detail, action;
    end if;
    return next;

    component := 'upkeep';
    if v_upkeep > pgque._now() - interval '10 minutes' then
        select 'ok', 'ran within the last ten minutes', null::text into status, detail, action;
    else
        select 'warning', coalesce('last ran at ' || v_upkeep, 'has never run')
            || '; read messages are not removed meanwhile', 'run "pgque ticker", or call pgque.maint() once a minute' into status, detail, action;
    end if;
    return next;

    component := 'notifications';
    if pg_is_in_recovery() then
        select 'ok', 'this is a standby', null::text into status, detail, action;
    elsif pg_notification_queue_usage() < 0.5 then
        select 'ok', format('queue is %s %% full', round(pg_notification_queue_usage() * 100)), null::text into status, detail, action;
    else
        select 'warning', format('queue is %s %% full: sends do not notify, consumers poll',
            round(pg_notification_queue_usage() * 100)),
            'a listening session is in a long transaction: look in pg_stat_activity' into status, detail, action;
    end if;
    return next;

    for v_queue in select * from pgque.queue order by queue_name loop
        component := format('queue "%s"', v_queue.queue_name);
        select s.status, s.detail, s.action into status, detail, action from pgque._queue_status(v_queue) s;
        return next;
    end loop;
end
$$;
comment on function pgque.status() is
    'One row for the version, upkeep, notifications and each queue: ok, warning or error, what is wrong, and what to call '
    '(NULL if nothing).';

create or replace function pgque.uninstall()
returns void
language plpgsql
as $$
begin
    perform pgque.stop();  -- jobs would go on failing without us
    drop schema pgque cascade;
end
$$;
comment on function pgque.uninstall() is
    'Removes our jobs from pg_cron and drops the schema with all queues and messages. For its owner only; the three roles stay, since other databases of the '
    'cluster may use them.';
