-- Scheduling: a ticker without a process of its own, by pg_cron or any scheduler that can run a statement.
--
-- A slot is one run of ticker_loop: it ticks every tick_period_ms, with a commit after each, until its time is over.
-- Slots that overlap do not double the ticks, since only the one that has the loop's advisory lock works.

create or replace function pgque.set_tick_period_ms(ms int)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if ms is null or ms not between 1 and 1000 or 1000 % ms <> 0 then
        perform pgque._fail_invalid_config('tick_period_ms', coalesce(ms::text, 'NULL'),
            'It must divide 1000 exactly: 1, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100, 125, 200, 250, 500 or 1000.');
    end if;
    update pgque.installation set tick_period_ms = ms;
    return ms;
end
$$;
comment on function pgque.set_tick_period_ms(int) is
    'How often ticker_loop ticks, in milliseconds (100 at first); a divisor of 1000. Returns it. Raises QU007.';

-- Sleeps until the next tick of a slot that ends at p_end; false when the slot is over.
create or replace function pgque._await_next_tick(p_end timestamptz)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_period constant double precision := (select tick_period_ms from pgque.installation) / 1000.0;
    v_pause constant double precision := v_period - (extract(epoch from clock_timestamp())::numeric % v_period::numeric);
begin
    if clock_timestamp() + make_interval(secs => v_pause) >= p_end then
        return false;
    end if;
    perform pg_sleep(v_pause);
    return true;
end
$$;

-- Waits for the end of the slot before, which may be a little late.
create or replace function pgque._begin_slot(p_seconds int, out v_end timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgque._require_read_committed();
    if p_seconds is null or p_seconds not between 1 and 3600 then
        perform pgque._fail_invalid_argument('slot_seconds', 'is not from 1 to 3600');
    end if;
    for i in 1..10 loop
        if pg_try_advisory_lock(1346851148, 0) then
            v_end := clock_timestamp() + make_interval(secs => p_seconds);
            return;
        end if;
        perform pg_sleep(0.05);
    end loop;
end
$$;

create or replace function pgque._end_slot()
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_advisory_unlock(1346851148, 0);
end
$$;

-- It commits, so it can be neither "security definer" nor have a search_path of its own: it only calls functions
-- that have both.
create or replace procedure pgque.ticker_loop(slot_seconds int default 1)
language plpgsql
as $$
declare
    v_end timestamptz := pgque._begin_slot(slot_seconds);
begin
    if v_end is null then
        return;
    end if;
    loop
        perform pgque.ticker();
        commit;
        exit when not pgque._await_next_tick(v_end);
    end loop;
    perform pgque._end_slot();
end
$$;
comment on procedure pgque.ticker_loop(int) is
    'For a scheduler: ticks every tick_period_ms for slot_seconds (1 to 3600), with a commit after each tick. Returns at once if '
    'another loop is running. Raises QU011, QU013, QU016.';

-- What the scheduler has to run. job_database: where it runs, NULL for the database of pg_cron.
create or replace function pgque._jobs(
    p_seconds boolean, out job_name text, out schedule text, out command text, out job_database text
)
returns setof record
language plpgsql
stable
as $$
declare
    v_database constant text := current_database();
begin
    return query
    values
        (
            format('pgque ticker of %s', v_database),
            case when p_seconds then '1 second' else '* * * * *' end,
            case when p_seconds then 'call pgque.ticker_loop(1)' else 'call pgque.ticker_loop(60)' end,
            v_database
        ),
        (format('pgque upkeep of %s', v_database), '* * * * *', 'select pgque.maint()', v_database),
        (
            format('pgque cleaning of %s', v_database), '17 * * * *',
            format(
                'delete from cron.job_run_details where end_time < now() - interval ''1 day'' and jobid in'
                ' (select jobid from cron.job where jobname like ''pgque %% of %%'');'
                ' select cron.unschedule(jobid) from cron.job where jobname in (%L, %L, %L)'
                ' and not exists (select from pg_database where datname = %L)',
                format('pgque ticker of %s', v_database), format('pgque upkeep of %s', v_database),
                format('pgque cleaning of %s', v_database), v_database),
            null
        );
end
$$;

-- pg_cron knows seconds from version 1.5 on.
create or replace function pgque._cron_has_seconds(p_version text)
returns boolean
language plpgsql
immutable
as $$
begin
    return string_to_array(substring(p_version from '^\d+\.\d+'), '.')::int[] >= array[1, 5];
end
$$;

create or replace function pgque._cron_version()
returns text
language plpgsql
stable
as $$
begin
    return (select extversion from pg_extension where extname = 'pg_cron');
end
$$;

-- The statements that schedule our jobs from the database in which pg_cron lives.
create or replace function pgque.start_statements(seconds boolean default true)
returns setof text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select format('select cron.schedule_in_database(%L, %L, %L, %s)', j.job_name, j.schedule, j.command,
        coalesce(quote_literal(j.job_database), 'current_database()'))
    from pgque._jobs(seconds) j;
end
$$;
comment on function pgque.start_statements(boolean) is
    'What to run in the database in which pg_cron lives, where that is another one, as a role that may call pgque.maint(). '
    'seconds: false for pg_cron before 1.5.';

create or replace function pgque.start()
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_version constant text := pgque._cron_version();
    v_seconds constant boolean := pgque._cron_has_seconds(v_version);
    v_job record;
begin
    if v_version is null then
        perform pgque._fail('QU017', format('pg_cron is not installed in database "%s"', current_database()), format(
            'If it lives in another database of this cluster (%s), run there what pgque.start_statements() returns. '
            'Without it, run "pgque ticker" or let a scheduler call pgque.ticker() and pgque.maint().',
            coalesce(nullif(current_setting('cron.database_name', true), ''), 'cron.database_name says which')));
    end if;
    perform pgque.stop();
    for v_job in select * from pgque._jobs(v_seconds) loop
        execute 'select cron.schedule($1, $2, $3)' using v_job.job_name, v_job.schedule, v_job.command;
    end loop;
    return case
        when v_seconds then format('ticking every second by pg_cron %s', v_version)
        else format('ticking in slots of one minute by pg_cron %s, which knows no seconds', v_version)
    end;
end
$$;
comment on function pgque.start() is
    'Puts the ticker and upkeep into pg_cron, as jobs of the schema''s owner; again: anew. Returns what it did. Raises QU017 '
    'where pg_cron is not in this database, with what to do, and insufficient_privilege where the owner may not use it.';

create or replace function pgque.stop()
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_stopped int := 0;
begin
    if pgque._cron_version() is not null then
        execute 'select count(cron.unschedule(jobid)) from cron.job where jobname = any ($1)'
        into v_stopped
        using array(select job_name from pgque._jobs(true));
    end if;
    return v_stopped;
end
$$;
comment on function pgque.stop() is
    'Removes our jobs from the pg_cron of this database. Returns how many there were, 0 without pg_cron.';
