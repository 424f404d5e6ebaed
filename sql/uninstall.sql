-- Removes pgque from this database: schema pgque with every queue, message and dead letter in it.
-- The roles pgque_reader, pgque_writer and pgque_admin stay: other databases of the cluster may use them.
--
-- It asks for a confirmation first, which is a setting of this session:
--     set pgque.confirm_uninstall = 'yes';
-- Only the owner of the schema can run it. Where pgque is not installed it does nothing.

do $$
begin
    if coalesce(current_setting('pgque.confirm_uninstall', true), '') <> 'yes' then
        raise exception 'refusing to drop schema pgque with every queue and message in it'
            using hint = 'Confirm it in this session first: set pgque.confirm_uninstall = ''yes'';';
    end if;
    if to_regprocedure('pgque.uninstall()') is not null then
        perform pgque.uninstall();
    else
        drop schema if exists pgque cascade;
    end if;
end
$$;
