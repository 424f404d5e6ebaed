"""The catalog: every public object is described, and calls have the names of the contract."""

from __future__ import annotations

import psycopg
import pytest

from tests.sql.calls import rows, value

# The contract's calls: name, argument names in order, how many of them have defaults, result.
CONTRACT = """
create_queue(queue) 0 integer
create_queue(queue, options) 0 integer
drop_queue(queue, force) 1 integer
set_queue_config(queue, param, value) 0 integer
pause_queue(queue) 0 void
resume_queue(queue) 0 void
send(queue_name, payload) 0 bigint
send_batch(queue_name, payloads) 0 bigint[]
insert_event(queue_name, ev_type, ev_data) 0 bigint
insert_event(queue_name, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4) 0 bigint
subscribe(queue, consumer) 0 integer
unsubscribe(queue, consumer) 0 integer
ack(batch_id) 0 integer
ack_to(batch_id, msg_id) 0 integer
nack(batch_id, msg, retry_after, reason) 2 integer
nack(batch_id, msg_id, retry_after, reason) 2 integer
ticker() 0 bigint
ticker(queue) 0 bigint
force_next_tick(queue) 0 bigint
force_tick(queue) 0 bigint
maint() 0 integer
maint_retry_events() 0 integer
maint_rotate_tables_step1(queue) 0 integer
maint_rotate_tables_step2() 0 integer
version() 0 text
uninstall() 0 void
dlq_replay(dead_letter_id) 0 bigint
dlq_purge(queue, older_than) 1 bigint
register_consumer(queue, consumer) 0 integer
unregister_consumer(queue, consumer) 0 integer
next_batch(queue, consumer) 0 bigint
finish_batch(batch_id) 0 integer
batch_retry(batch_id, retry_seconds) 0 integer
event_dead(batch_id, event_id, reason) 0 integer
""".strip().splitlines()

MESSAGE = "msg_id batch_id type payload retry_count created_at extra1 extra2 extra3 extra4"


@pytest.mark.parametrize("call", CONTRACT)
def test_named_calls_work(conn: psycopg.Connection, call: str) -> None:
    """Argument names are part of the API."""
    signature, defaults, result = call.rsplit(" ", 2)
    found = rows(
        conn,
        "select format('%%s(%%s)', p.proname, array_to_string((p.proargnames)[:p.pronargs], ', '))"
        " as signature, p.pronargdefaults as defaults, p.prorettype::regtype::text as result"
        " from pg_proc p where p.pronamespace = 'pgque'::regnamespace and p.proname = %s",
        signature.split("(")[0],
    )
    assert (signature, int(defaults), result) in [tuple(f) for f in found]


def test_message_is_pgques_ten_fields_and_received_message_goes_on_from_there(
    conn: psycopg.Connection,
) -> None:
    """`row(…)::pgque.message` of existing clients takes exactly ten values."""
    statement = (
        "select string_agg(attname, ' ' order by attnum) from pg_attribute"
        " where attrelid = %s::regclass"
    )
    assert value(conn, statement, "pgque.message") == MESSAGE
    found = value(conn, statement, "pgque.received_message")
    assert found == f"{MESSAGE} key headers delivery_count"


def test_every_public_object_is_described(conn: psycopg.Connection) -> None:
    """By a comment that says more than its name."""
    found = rows(
        conn,
        "select p.oid::regprocedure::text as name, obj_description(p.oid, 'pg_proc') as comment"
        " from pg_proc p where p.pronamespace = 'pgque'::regnamespace and p.proname not like '\\_%'"
        " union all"
        " select c.relname, obj_description(c.oid, 'pg_class') from pg_class c"
        " where c.relnamespace = 'pgque'::regnamespace and c.relkind = 'v'",
    )
    assert len(found) > 60
    bare = [f.name for f in found if len(f.comment or "") < 20]
    assert bare == []
