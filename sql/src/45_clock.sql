-- The clock: retries, ticks and rotation ask this one function for the time, so that a test can move it.

create or replace function pgque._now()
returns timestamptz
language sql
volatile
as $$
    select clock_timestamp()
$$;

-- Which cluster this is: two clusters number their transactions independently. It outlives restarts and
-- failovers, and differs after pg_dump and pg_restore elsewhere.
create or replace function pgque._cluster()
returns bigint
language plpgsql
stable
as $$
begin
    return (pg_control_system()).system_identifier;
end
$$;

-- Who has committed by now. PostgreSQL leaves a transaction out of the list of those in progress in its own
-- snapshots; here it is in the list, since what it sends from now on is not shown by this snapshot.
create or replace function pgque._snapshot()
returns pg_snapshot
language plpgsql
volatile
as $$
declare
    v_snapshot constant pg_snapshot := pg_current_snapshot();
    v_own constant xid8 := pg_current_xact_id_if_assigned();
begin
    if v_own < pg_snapshot_xmax(v_snapshot) then
        return format('%s:%s:%s', least(pg_snapshot_xmin(v_snapshot), v_own), pg_snapshot_xmax(v_snapshot), (
            select string_agg(x::text, ',' order by x)
            from (select pg_snapshot_xip(v_snapshot) union select v_own) t (x)
        ))::pg_snapshot;
    end if;
    return v_snapshot;
end
$$;
