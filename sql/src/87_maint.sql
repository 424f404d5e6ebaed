-- Upkeep in one call.

create or replace function pgque.maint()
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_done int;
begin
    perform pgque._require_read_committed();
    if not pg_try_advisory_xact_lock(1346851157, 0) then
        return 0;  -- another session is at it
    end if;
    -- event tables before state tables, which is the order of locks
    v_done := pgque.maint_retry_events() + pgque._clear_dropped();
    v_done := v_done + coalesce((
        select sum(pgque._rotate(q)) from (select * from pgque.queue order by queue_id) q
    ), 0);
    v_done := v_done + pgque.maint_rotate_tables_step2();
    -- once a minute is enough to see in status() that upkeep runs
    update pgque.installation
    set last_upkeep = pgque._now()
    where last_upkeep is null or last_upkeep < pgque._now() - interval '1 minute';
    return v_done;
end
$$;
comment on function pgque.maint() is
    'One pass of upkeep: due retries, rotation, reclaiming. Call it every second to every minute, in a transaction of its own. '
    'Returns how many things it did, 0 while another session does it. Raises QU011, QU016.';
