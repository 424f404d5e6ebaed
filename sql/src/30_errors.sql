-- Errors: one SQLSTATE for each condition, each raised in one place. docs/reference/errors.md lists them.

create or replace function pgque._fail(p_code text, p_message text, p_hint text)
returns void
language plpgsql
as $$
begin
    raise exception using errcode = p_code, message = p_message, hint = p_hint;
end
$$;

create or replace function pgque._fail_queue_not_found(p_queue text)
returns void
language sql
as $$
    select pgque._fail('QU001', format('queue not found: "%s"', p_queue),
        'Create it with pgque.create_queue(queue), or look at pgque.get_queue_info() for the names that exist.')
$$;

create or replace function pgque._fail_consumer_not_found(p_queue text, p_consumer text)
returns void
language sql
as $$
    select pgque._fail('QU002', format('consumer not found: "%s" is not subscribed to queue "%s"', p_consumer, p_queue),
        'Subscribe it with pgque.subscribe(queue, consumer) before anything is sent that it has to see.')
$$;

create or replace function pgque._fail_batch_not_open(p_batch_id bigint)
returns void
language sql
as $$
    select pgque._fail('QU003', format('batch not found: %s is not open', p_batch_id),
        'It was acked, released or handed out again under another id. What it held and was not acked comes again: receive it.')
$$;

create or replace function pgque._fail_message_not_in_batch(p_batch_id bigint, p_msg_id bigint)
returns void
language sql
as $$
    select pgque._fail('QU004', format('message %s is not in the open part of batch %s', p_msg_id, p_batch_id),
        'Only messages that the batch handed out and that are not settled yet can be named.')
$$;

create or replace function pgque._fail_invalid_name(p_what text, p_name text, p_limit int)
returns void
language sql
as $$
    select pgque._fail('QU005', format('invalid %s name: "%s"', p_what, left(p_name, 80)),
        format('A %s name has 1 to %s bytes in UTF-8; this one has %s.', p_what, p_limit,
            octet_length(convert_to(p_name, 'UTF8'))))
$$;

create or replace function pgque._fail_queue_disabled(p_queue text)
returns void
language sql
as $$
    select pgque._fail('QU006', format('sending to queue "%s" is disabled', p_queue),
        'Enable it with pgque.set_queue_config(queue, ''disable_insert'', ''false'').')
$$;

create or replace function pgque._fail_external_ticker(p_queue text)
returns void
language sql
as $$
    select pgque._fail('QU006', format('queue "%s" gets its ticks from an external ticker', p_queue),
        'Call pgque.ticker(queue, tick_id, orig_timestamp, event_seq), or set external_ticker to false.')
$$;

create or replace function pgque._fail_invalid_config(p_param text, p_value text, p_expected text)
returns void
language sql
as $$
    select pgque._fail('QU007', format('invalid queue configuration: %s = "%s"', p_param, left(p_value, 80)), p_expected)
$$;

create or replace function pgque._fail_cooperative(p_problem text, p_hint text)
returns void
language sql
as $$
    select pgque._fail('QU008', p_problem, p_hint)
$$;

create or replace function pgque._fail_lease_lost(p_batch_id bigint)
returns void
language sql
as $$
    select pgque._fail('QU009', format('lease lost: batch %s is not this subconsumer''s any more', p_batch_id),
        'It was settled, given back, or taken over because its holder was not heard of for dead_interval. Drop it and go on.')
$$;

create or replace function pgque._fail_fell_behind(p_consumer text, p_detail text)
returns void
language sql
as $$
    select pgque._fail('QU010', format('consumer "%s" cannot start there: %s', p_consumer, p_detail),
        'Start at a later tick, or at the end of the queue with pgque.subscribe(queue, consumer).')
$$;

create or replace function pgque._fail_invalid_argument(p_argument text, p_problem text)
returns void
language sql
as $$
    select pgque._fail('QU013', format('invalid argument: %s %s', p_argument, p_problem),
        format('Call it again with a valid %s; nothing was done.', p_argument))
$$;

create or replace function pgque._fail_queue_in_use(p_queue text, p_consumers bigint)
returns void
language sql
as $$
    select pgque._fail('QU014', format('queue "%s" still has %s consumer(s)', p_queue, p_consumers),
        'Unsubscribe them first, or drop it together with them: pgque.drop_queue(queue, true).')
$$;

create or replace function pgque._fail_dead_letter_not_found(p_dl_id bigint)
returns void
language sql
as $$
    select pgque._fail('QU015', format('dead letter not found: %s', p_dl_id),
        'It was replayed or purged; pgque.dlq_inspect(queue) lists those that are there.')
$$;

-- Positions and ticks are read after a lock was taken and must then be the newest ones; a snapshot that is
-- older than the lock would show a position that somebody has moved since.
create or replace function pgque._require_read_committed()
returns void
language plpgsql
as $$
begin
    if current_setting('transaction_read_only')::boolean then
        perform pgque._fail('QU016', 'this session is read-only: it talks to a standby or set transaction_read_only',
            'Connect to the primary; looking functions such as pgque.get_queue_info() work here.');
    elsif current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        perform pgque._fail('QU011', format('wrong isolation level: %s', current_setting('transaction_isolation')),
            'Ticking, receiving and settling need READ COMMITTED; sending works at any level.');
    end if;
end
$$;

create or replace function pgque._require_limit(p_argument text, p_limit int)
returns void
language plpgsql
as $$
begin
    if p_limit is null or p_limit < 0 then
        perform pgque._fail_invalid_argument(p_argument, coalesce('is ' || p_limit || ', below 0', 'is NULL'));
    end if;
end
$$;

create or replace function pgque._require(p_argument text, p_value anyelement)
returns void
language plpgsql
as $$
begin
    if p_value is null then
        perform pgque._fail_invalid_argument(p_argument, 'is NULL');
    end if;
end
$$;
