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
