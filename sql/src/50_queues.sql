-- Queues: create, drop, configure, pause.

create or replace function pgque._find_queue(p_queue text)
returns pgque.queue
language plpgsql
stable
as $$
declare
    v_queue pgque.queue;
begin
    select * into v_queue from pgque.queue where queue_name = p_queue;
    if not found then
        perform pgque._require('queue', p_queue);
        perform pgque._fail_queue_not_found(p_queue);
    end if;
    return v_queue;
end
$$;

create or replace function pgque._create_storage()
returns int
language plpgsql
as $$
declare
    v_storage int;
    v_table text;
begin
    insert into pgque.event_storage default values returning storage_id into v_storage;
    execute format('create sequence pgque.event_%s_id_seq', v_storage);
    execute format('create sequence pgque.event_%s_tick_seq', v_storage);
    for i in 0..2 loop
        v_table := format('event_%s_%s', v_storage, i);
        execute format('create table pgque.%I (like pgque.event including all)'
            ' with (autovacuum_enabled = false, toast.autovacuum_enabled = false)', v_table);
        -- create table … partition of would lock all senders out; this does not
        execute format('alter table pgque.event attach partition pgque.%I for values in (%s)', v_table, v_storage * 3 + i);
    end loop;
    return v_storage;
end
$$;

create or replace function pgque._claim_storage()
returns int
language plpgsql
as $$
declare
    v_storage int;
begin
    select storage_id into v_storage
    from pgque.event_storage
    where storage_queue is null
    order by storage_id
    limit 1
    for update skip locked;
    return coalesce(v_storage, pgque._create_storage());
end
$$;

create or replace function pgque.create_queue(queue text)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_storage int;
    v_queue_id int;
begin
    perform pgque._require('queue', queue);
    if octet_length(convert_to(queue, 'UTF8')) not between 1 and 57 then
        perform pgque._fail_invalid_name('queue', queue, 57);
    end if;
    if exists (select from pgque.queue where queue_name = create_queue.queue) then
        return 0;
    end if;
    -- Two who create one queue take turns before either takes tables for it: whoever waited for the other's name
    -- with the lock for new tables in hand would keep it from its next queue.
    perform pg_advisory_xact_lock(1346851150, hashtext(queue));
    if exists (select from pgque.queue where queue_name = create_queue.queue) then
        return 0;
    end if;
    v_storage := pgque._claim_storage();
    insert into pgque.queue (queue_name, queue_storage, queue_data_pfx, queue_event_seq, queue_tick_seq, queue_cluster)
    values (
        queue, v_storage, format('pgque.event_%s', v_storage),
        format('pgque.event_%s_id_seq', v_storage)::regclass, format('pgque.event_%s_tick_seq', v_storage)::regclass,
        pgque._cluster()
    )
    on conflict (queue_name) do nothing
    returning queue_id into v_queue_id;
    if v_queue_id is null then
        return 0;  -- it is there, though our snapshot does not show it; the storage stays free for the next queue
    end if;
    update pgque.event_storage set storage_queue = v_queue_id where storage_id = v_storage;
    return 1;
end
$$;
comment on function pgque.create_queue(text) is
    'Creates a queue. Returns 1, or 0 if it exists. Names have 1 to 57 bytes, since the channel is pgque_<queue>. Raises QU005, QU013.';

create or replace function pgque.create_queue(queue text, options jsonb)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_created int;
begin
    if jsonb_typeof(options) is distinct from 'object' then
        perform pgque._fail_invalid_argument('options', 'is not a JSON object of parameter names and values');
    end if;
    v_created := pgque.create_queue(queue);
    perform pgque.set_queue_config(create_queue.queue, o.key, o.value) from jsonb_each_text(options) o;
    return v_created;
end
$$;
comment on function pgque.create_queue(text, jsonb) is
    'As create_queue(queue), then set_queue_config for each key of options, also where the queue existed. Raises QU005, QU007, QU013.';

create or replace function pgque.drop_queue(queue text, force boolean default false)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue;
    v_consumers bigint;
begin
    v_queue := pgque._find_queue(queue);
    perform from pgque.queue q where q.queue_id = v_queue.queue_id for update;
    if not found then
        perform pgque._fail_queue_not_found(queue);
    end if;
    select count(*) into v_consumers from pgque.subscriber where sub_queue = v_queue.queue_id and sub_member = '';
    if v_consumers > 0 and force is not true then
        perform pgque._fail_queue_in_use(queue, v_consumers);
    end if;
    -- Its messages stay behind under a queue_id that nobody asks for, until upkeep truncates the tables or
    -- the next queue's rotation does. So dropping waits for no producer, and no producer for it. This row comes
    -- before the queue is gone: somebody may hold it who then waits to create a queue of the same name.
    update pgque.event_storage set storage_queue = null where storage_id = v_queue.queue_storage;
    delete from pgque.subscriber where sub_queue = v_queue.queue_id;
    delete from pgque.queue where queue_id = v_queue.queue_id;
    return 1;
end
$$;
comment on function pgque.drop_queue(text, boolean) is
    'Drops a queue with its messages and dead letters. Returns 1. Raises QU001, and QU014 while it has consumers unless force is true.';

create or replace function pgque._config_value(p_param text, p_value text)
returns text
language plpgsql
as $$
declare
    v_expected text;
    v_valid boolean;
begin
    begin
        case p_param
            when 'ticker_max_count', 'max_retries' then
                v_expected := 'a whole number from 1 to 1000000 (max_retries: from 0)';
                v_valid := p_value::int between case p_param when 'max_retries' then 0 else 1 end and 1000000;
            when 'ticker_max_lag', 'ticker_idle_period', 'rotation_period' then
                v_expected := 'an interval from 1 millisecond to 1 year';
                v_valid := p_value::interval between '1 millisecond' and '1 year';
            when 'ticker_paused', 'external_ticker', 'disable_insert' then
                v_expected := 'a boolean';
                v_valid := p_value::boolean is not null;
            else
                perform pgque._fail_invalid_config(p_param, p_value, 'Parameters are ticker_max_count, ticker_max_lag,'
                    ' ticker_idle_period, ticker_paused, external_ticker, rotation_period, max_retries, disable_insert.');
        end case;
    exception
        when data_exception then
            v_valid := false;
    end;
    if not v_valid then
        perform pgque._fail_invalid_config(p_param, p_value, format('%s must be %s.', p_param, v_expected));
    end if;
    return p_value;
end
$$;

create or replace function pgque.set_queue_config(queue text, param text, value text)
returns int
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue pgque.queue;
    v_param text;
    v_value text;
begin
    v_queue := pgque._find_queue(queue);
    perform pgque._require('param', param);
    v_param := regexp_replace(param, '^queue_', '');
    if value is null then
        perform pgque._config_value(v_param, case when v_param ~ 'period|lag' then '1 minute' else '1' end);
        execute format('update pgque.queue set %I = default where queue_id = $1', 'queue_' || v_param) using v_queue.queue_id;
        return 1;
    end if;
    v_value := pgque._config_value(v_param, value);
    execute format('update pgque.queue set %I = %L where queue_id = $1', 'queue_' || v_param, v_value) using v_queue.queue_id;
    return 1;
end
$$;
comment on function pgque.set_queue_config(text, text, text) is
    'Sets one parameter of a queue, with or without the prefix queue_; NULL sets the default. Returns 1. Raises QU001, QU007, QU013.';

create or replace function pgque.pause_queue(queue text)
returns void
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgque.set_queue_config(queue, 'ticker_paused', 'true')
$$;
comment on function pgque.pause_queue(text) is
    'Stops ticks and hand-outs of the queue; sending and acking go on. Raises QU001.';

create or replace function pgque.resume_queue(queue text)
returns void
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgque.set_queue_config(queue, 'ticker_paused', 'false')
$$;
comment on function pgque.resume_queue(text) is
    'Ends pause_queue. What was sent meanwhile is delivered with the next tick. Raises QU001.';
