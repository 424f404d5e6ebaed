-- PgQue @VERSION@: a message queue inside PostgreSQL 14 to 18, in one file.
--
-- The map
--
--   send ──▶ event tables ──▶ ticker ──▶ receive ──▶ your handler ──▶ ack
--            (append-only)    (ticks)      ▲                     └──▶ nack
--                ▲                         │                           │
--                │                  subscription_state                 │
--                └──────────── delayed_event ◀─────────────────────────┤
--                                                                      └──▶ dead_letter
--
--   event               the log, one stored copy; three tables for each queue, used in turn and TRUNCATEd
--   tick                a snapshot of who had committed, taken now and then
--   subscription_state  where each consumer stands; a new row for each change, the newest one counts
--   delayed_event       messages that wait for their retry time; moved back into the log when due
--   dead_letter         messages that failed too often
--
-- A batch is what one tick's snapshot shows and the tick before it did not. So what belongs to a batch is
-- arithmetic on two stored snapshots; nothing is locked, marked or deleted for it.
--
-- Nothing on the hot path is ever updated: state is appended, read newest first by index, and reclaimed by
-- copying the few rows that still count to a second table and TRUNCATing the first. So nothing has dead
-- rows to walk when an old transaction keeps VACUUM from working.
--
-- Locks, in the order in which they are taken (a function takes some, never against the order):
--   1 row of queue   2 row of consumer   3 subscription   4 tick section   5 event tables   6 state tables
-- Lock 3 is the advisory lock (1346851155, sub_id), held to the end of the transaction. Lock 4 is the
-- advisory lock (1346851156, queue_id), held for microseconds within one call. Before all of them comes
-- (1346851150, hash of a queue's name), which create_queue holds to the end of the transaction. Some more keys
-- stand outside the order because nobody waits for them: (1346851159, queue_id) says "a consumer waits for this queue",
-- (1346851154, queue_id) admits one mover of due messages, (1346851149, queue_id) one consumer that ticks (others
-- wait 20 ms at most), (1346851148, 0) one ticker_loop, (1346851157, 0) one upkeep. Upkeep takes 5 and 6 only if
-- they are free at once.

do $$
begin
    if current_setting('server_version_num')::int < 140000 then
        raise exception using
            errcode = 'QU012',
            message = format('PostgreSQL %s is too old for pgque', current_setting('server_version')),
            hint = 'pgque needs PostgreSQL 14 or newer.';
    end if;
end
$$;

-- Two sessions that install at the same time take turns (when the file runs in one transaction).
do $$
begin
    perform pg_advisory_xact_lock(1346851145, 0), set_config('client_min_messages', 'warning', true);
end
$$;

do $$
begin
    if to_regclass('pgque.installation') is null
        and exists (select from pg_catalog.pg_class where relnamespace = to_regnamespace('pgque'))
    then
        raise exception using
            errcode = 'QU012',
            message = 'schema "pgque" holds something else, perhaps the original PgQue',
            hint = 'Drop or rename it first: alter schema pgque rename to pgque_old;';
    end if;
end
$$;

create schema if not exists pgque;

create table if not exists pgque.installation (
    only_row boolean primary key default true check (only_row),
    version text not null,
    shape int not null,
    installed_at timestamptz not null default now(),
    last_upkeep timestamptz,
    tick_period_ms int not null default 100
);

-- The shape counts the changes of tables and types; functions are simply replaced.
do $$
declare
    v_shape constant int := 1;
    v_found int := (select shape from pgque.installation);
begin
    if v_found > v_shape then
        raise exception using
            errcode = 'QU012',
            message = format('the installed pgque (shape %s) is newer than this file (shape %s)', v_found, v_shape),
            hint = 'Install the pgque.sql of the newer release, or keep what is there.';
    end if;
end
$$;
