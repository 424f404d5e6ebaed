-- Roles: who may call what is on one page, the grants part at the end.

do $$
declare
    v_role text;
begin
    foreach v_role in array array['pgque_reader', 'pgque_writer', 'pgque_admin'] loop
        continue when exists (select from pg_catalog.pg_roles where rolname = v_role);
        begin
            execute format('create role %I nologin', v_role);
        exception
            when duplicate_object or unique_violation then
                null;  -- another database of the cluster installs at this moment
            when insufficient_privilege then
                raise exception using
                    errcode = 'insufficient_privilege',
                    message = format('role "%s" does not exist and %s may not create it', v_role, current_user),
                    hint = 'Let somebody with CREATEROLE run: create role pgque_reader; create role pgque_writer;'
                        ' create role pgque_admin;';
        end;
    end loop;
end
$$;
