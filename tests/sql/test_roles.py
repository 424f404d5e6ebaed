"""Roles: who may call and read what, for every public function and table that there is."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.fix_db import Connect
from tests.sql.calls import ack, drain, receive, refused, rows, send, take, tick, value

ROLES = ("pgque_reader", "pgque_writer", "pgque_admin")

WRITER = "send send_batch insert_event"
READER = """
    subscribe unsubscribe receive ack ack_to nack release mark_waiting tick_if_new next_retry_at
    ticker force_next_tick force_tick
    subscribe_subconsumer register_subconsumer unsubscribe_subconsumer unregister_subconsumer
    receive_coop touch_subconsumer
    register_consumer register_consumer_at unregister_consumer next_batch next_batch_info
    next_batch_custom get_batch_events get_batch_cursor finish_batch event_retry batch_retry
    event_dead
    get_queue_info get_consumer_info get_batch_info get_subscriptions get_retries dlq_inspect
    peek last_event_id
    """
BOTH = {"version", "status"}
ADMIN = """
    create_queue drop_queue set_queue_config pause_queue resume_queue
    dlq_replay dlq_replay_all dlq_purge
    maint maint_retry_events maint_rotate_tables_step1 maint_rotate_tables_step2
    ticker_loop _begin_slot _await_next_tick _end_slot set_tick_period_ms
    start start_statements stop
    """
OWNER = {"uninstall"}


def expected(name: str) -> set[str]:
    """The roles that may call it, by the contract."""
    if name in ADMIN.split():
        return {"pgque_admin"}
    if name in WRITER.split():
        return {"pgque_writer", "pgque_admin"}
    if name in READER.split():
        return {"pgque_reader", "pgque_admin"}
    if name in BOTH:
        return set(ROLES)
    assert name.startswith("_") or name in OWNER, (
        f"who may call {name}? Say it in the grants and here"
    )
    return set()


def test_every_function_has_the_grants_of_its_kind(conn: psycopg.Connection) -> None:
    """Nobody else, PUBLIC least of all, may call anything."""
    found = rows(
        conn,
        "select p.oid::regprocedure::text as call, p.proname as name,"
        " array(select r::text from unnest(%s::text[]) r"
        "  where has_function_privilege(r, p.oid, 'execute')) as roles,"
        " exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
        "  where a.grantee = 0) as public"
        " from pg_proc p where p.pronamespace = 'pgque'::regnamespace",
        list(ROLES),
    )
    assert len(found) > 100
    for function in found:
        assert set(function.roles) == expected(function.name), function.call
        assert not function.public, function.call


def test_every_security_definer_function_pins_its_search_path(conn: psycopg.Connection) -> None:
    """pg_catalog first and pg_temp last; every public function is one, or needs no rights."""
    found = rows(
        conn,
        "select p.oid::regprocedure::text as call, proconfig, prosecdef, proname"
        " from pg_proc p where p.pronamespace = 'pgque'::regnamespace",
    )
    for function in found:
        if function.prosecdef:
            assert "search_path=pg_catalog, pg_temp" in function.proconfig, function.call
        elif not function.proname.startswith("_"):
            assert function.proname in {"version", "uninstall", "ticker_loop"}, function.call


def test_tables_are_only_looked_at(conn: psycopg.Connection) -> None:
    """The reader sees the six that PgQ has; nobody but the owner writes any, or any sequence."""
    found = rows(
        conn,
        "select c.relname, r as role, p as privilege from pg_class c, unnest(%s::text[]) r,"
        " unnest('{select,insert,update,delete,truncate,references,trigger}'::text[]) p"
        " where c.relnamespace = 'pgque'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')"
        " and has_table_privilege(r, c.oid, p)",
        list(ROLES),
    )
    seen = {"queue", "consumer", "subscription", "tick", "retry_queue", "dead_letter"}
    for grant in found:
        assert grant.privilege == "select", grant
        assert grant.role != "pgque_writer", grant
    assert {grant.relname for grant in found} == seen
    sequences = rows(
        conn,
        "select c.relname from pg_class c, unnest(%s::text[]) r"
        " where c.relnamespace = 'pgque'::regnamespace and c.relkind = 'S'"
        " and has_sequence_privilege(r, c.oid, 'usage, select, update')",
        list(ROLES),
    )
    assert sequences == []
    assert (
        value(
            conn,
            "select array_agg(u) from unnest(%s::text[]) u"
            " where has_schema_privilege(u, 'pgque', 'create')",
            list(ROLES),
        )
        is None
    )


@pytest.fixture
def stranger(conn: psycopg.Connection) -> Iterator[str]:
    """A role with no rights here."""
    name = f"stranger_{conn.info.backend_pid}"
    conn.execute(f"create role {name}".encode())
    yield name
    conn.execute(f"reset role; drop role {name}".encode())


def test_public_has_nothing(conn: psycopg.Connection, topic: str, stranger: str) -> None:
    """Not even the use of the schema."""
    conn.execute(f"set role {stranger}".encode())
    with refused("42501", "pgque"):
        value(conn, "select pgque.version()")
    with refused("42501", "pgque"):
        rows(conn, "select * from pgque.queue")


def test_the_writer_produces_and_the_reader_consumes(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """The whole life of a message under the two roles; neither can do the other's part."""
    writer, reader = connect(), connect()
    writer.execute("set role pgque_writer")
    reader.execute("set role pgque_reader")
    send(writer, topic, "x")
    value(reader, "select pgque.mark_waiting(%s, true)", topic)
    value(writer, "select pgque.send_batch(%s, '{y}'::text[])", topic)
    tick(reader, topic)
    first, second = receive(reader, topic)
    value(reader, "select pgque.nack(%s, %s, '0')", first.batch_id, first.msg_id)
    value(reader, "select pgque.event_dead(%s, %s, 'x')", second.batch_id, second.msg_id)
    ack(reader, first.batch_id)
    value(reader, "select pgque.tick_if_new(%s)", topic)
    value(reader, "select pgque.tick_if_new(%s)", topic)
    assert take(reader, topic) == ["x"]
    for call in ("receive(%s, 'c')", "subscribe(%s, 'w')", "get_queue_info(%s)", "ticker(%s)"):
        with refused("42501"):
            rows(writer, f"select pgque.{call}", topic)
    for call in ("send(%s, 'x'::text)", "insert_event(%s, 't', 'x')", "drop_queue(%s)"):
        with refused("42501"):
            rows(reader, f"select pgque.{call}", topic)
    with refused("42501"):
        rows(reader, "select * from pgque.event")
    with refused("42501"):
        rows(reader, "select pgque._now()")


def test_the_reader_can_look_at_everything(conn: psycopg.Connection, topic: str) -> None:
    """Field case 30: every looking function and view, also status()."""
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    conn.execute("set role pgque_reader")
    for call in (
        "get_queue_info()",
        f"get_queue_info('{topic}')",
        "get_consumer_info()",
        f"get_consumer_info('{topic}')",
        f"get_consumer_info('{topic}', 'c')",
        f"get_batch_info({message.batch_id})",
        f"peek('{topic}', 0)",
        "status()",
        "queue",
        "consumer",
        "subscription",
        "tick",
    ):
        assert rows(conn, f"select * from pgque.{call}"), call
    for call in ("retry_queue", "dead_letter", f"dlq_inspect('{topic}')"):
        rows(conn, f"select * from pgque.{call}")
    conn.execute("reset role")


def test_the_admin_does_all_but_uninstall(conn: psycopg.Connection) -> None:
    """It has both roles and the rest; the schema stays its owner's."""
    conn.execute("set role pgque_admin")
    value(conn, "select pgque.create_queue('administered')")
    value(conn, "select pgque.subscribe('administered', 'c')")
    send(conn, "administered", "x")
    assert drain(conn, "administered") == ["x"]
    value(conn, "select pgque.maint()")
    value(conn, "select pgque.ticker()")
    value(conn, "select pgque.drop_queue('administered', true)")
    with refused("42501"):
        value(conn, "select pgque.uninstall()")
    conn.execute("reset role")
