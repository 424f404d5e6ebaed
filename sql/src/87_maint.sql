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
    v_done := pgque.maint_retry_events() + pgque.maint_rotate_tables_step2() + pgque._clear_dropped();
    v_done := v_done + coalesce((
        select sum(pgque.maint_rotate_tables_step1(q.queue_name))
        from (select queue_name from pgque.queue q where pgque._rotation_is_due(q) order by queue_id) q
    ), 0);
    -- once a minute is enough to see in status() that upkeep runs
    update pgque.installation
    set last_upkeep = pgque._now()
    where last_upkeep is null or last_upkeep < pgque._now() - interval '1 minute';
    return v_done;
end
$$;
comment on function pgque.maint() is
    'One pass of upkeep: due retries, rotation, reclaiming. Call it every second to every minute, in a transaction of its own. '
    'Returns how many things it did. Raises QU011, QU016.';
