"""The caller's surroundings do not matter: hostile objects, search_path, unusual settings."""

from __future__ import annotations

import psycopg
import psycopg.types.string
import pytest

from tests.fix_db import Connect
from tests.sql.calls import (
    bring_back,
    configure,
    drain,
    move_clock,
    nack,
    receive,
    row,
    rows,
    subscribe,
    take,
    tick,
    value,
)

SPRUNG = "a trap was sprung"

# What a careless name in our SQL would find. pg_catalog comes first in a search_path that does not
# name it, so the traps are also tried with pg_catalog named last.
TRAPS = f"""
create function SCHEMA.trap() returns boolean language plpgsql as
    $$ begin raise exception '{SPRUNG}'; end $$;
create function SCHEMA.now() returns timestamptz language plpgsql as
    $$ begin raise exception '{SPRUNG}'; end $$;
create function SCHEMA.clock_timestamp() returns timestamptz language plpgsql as
    $$ begin raise exception '{SPRUNG}'; end $$;
create function SCHEMA.nextval(regclass) returns bigint language plpgsql as
    $$ begin raise exception '{SPRUNG}'; end $$;
create function SCHEMA.pg_current_snapshot() returns pg_snapshot language plpgsql as
    $$ begin raise exception '{SPRUNG}'; end $$;
create function SCHEMA.pg_notify(text, text) returns void language plpgsql as
    $$ begin raise exception '{SPRUNG}'; end $$;
create function SCHEMA.format(text, text) returns text language plpgsql as
    $$ begin raise exception '{SPRUNG}'; end $$;
create function SCHEMA.coalesce(anyelement, anyelement) returns anyelement language plpgsql as
    $$ begin raise exception '{SPRUNG}'; end $$;
create function SCHEMA.same(text, text) returns boolean language plpgsql as
    $$ begin raise exception '{SPRUNG}'; end $$;
create function SCHEMA.same(bigint, bigint) returns boolean language plpgsql as
    $$ begin raise exception '{SPRUNG}'; end $$;
create function SCHEMA.same(int, int) returns boolean language plpgsql as
    $$ begin raise exception '{SPRUNG}'; end $$;
create operator SCHEMA.= (leftarg = text, rightarg = text, function = SCHEMA.same);
create operator SCHEMA.= (leftarg = bigint, rightarg = bigint, function = SCHEMA.same);
create operator SCHEMA.= (leftarg = int, rightarg = int, function = SCHEMA.same);
create operator SCHEMA.< (leftarg = int, rightarg = int, function = SCHEMA.same);
"""

TABLES = [
    "queue",
    "consumer",
    "subscriber",
    "subscription_state",
    "event",
    "tick",
    "delayed_event",
    "delayed_pass",
    "dead_letter",
    "state_slot",
    "installation",
    "pg_class",
    "pg_locks",
]


def cycle(conn: psycopg.Connection, queue: str) -> None:
    """Everything that a queue does in its life, with results that tell right from wrong."""
    assert value(conn, "select pgque.create_queue(%s)", queue) == 1
    configure(conn, queue, max_retries=1, rotation_period="1 ms")
    subscribe(conn, queue)
    value(conn, "select pgque.send(%s, 'kind', '{\"a\": 1}'::jsonb, 'key', '[1]')", queue)
    value(conn, "select pgque.send_batch(%s, '{two,three}'::text[])", queue)
    value(conn, "select pgque.insert_event(%s, 'old', 'four', '1', '2', '3', '4')", queue)
    assert isinstance(value(conn, "select pgque.tick_if_new(%s)", queue), int)
    messages = receive(conn, queue, limit=2)
    assert [message.payload for message in messages] == ['{"a": 1}', "two"]
    nack(conn, messages[0])
    value(conn, "select pgque.ack(%s)", messages[0].batch_id)
    bring_back(conn, queue)
    assert take(conn, queue, limit=2) == ["three", "four", '{"a": 1}']
    value(conn, "select pgque.send(%s, 'five'::text)", queue)
    tick(conn, queue)
    (message,) = receive(conn, queue)
    statement = "select pgque.event_dead(%s, %s, 'bad')"
    value(conn, statement, message.batch_id, message.msg_id)
    value(conn, "select pgque.ack(%s)", message.batch_id)
    assert row(conn, "select * from pgque.dlq_inspect(%s)", queue).ev_data == "five"
    assert row(conn, "select * from pgque.dlq_replay_all(%s)", queue).replayed == 1
    assert drain(conn, queue) == ["five"]
    assert value(conn, "select pgque.dlq_purge(%s, '0')", queue) == 0
    for call in (
        "get_queue_info()",
        "get_consumer_info()",
        "status()",
        "subscription",
        "retry_queue",
    ):
        rows(conn, f"select * from pgque.{call}")
    rows(conn, "select * from pgque.peek(%s, 0)", queue)
    batch_id = value(conn, "select pgque.next_batch(%s, 'c')", queue)
    assert batch_id is None
    value(conn, "select pgque.ticker()")
    for _ in range(3):
        conn.execute("select pg_catalog.pg_sleep(0.002)")
        value(conn, "select pgque.maint()")
    value(conn, "select pgque.unsubscribe(%s, 'c')", queue)
    assert value(conn, "select pgque.drop_queue(%s)", queue) == 1


@pytest.fixture
def trapped(own: psycopg.Connection) -> psycopg.Connection:
    """A session full of traps in public and in pg_temp."""
    own.execute(TRAPS.replace("SCHEMA", "public").encode())
    own.execute("create temp table dummy ()")
    own.execute(TRAPS.replace("SCHEMA", "pg_temp").encode())
    for schema in ("public", "pg_temp"):
        for table in TABLES:
            own.execute(f"create table {schema}.{table} (trap int)".encode())
        own.execute(f"create type {schema}.message as (trap int)".encode())
        own.execute(f"create domain {schema}.bigint as text".encode())
    return own


@pytest.mark.parametrize(
    "path", ["public, pg_temp", "public, pg_temp, pg_catalog", "pg_temp, public, pg_catalog", "''"]
)
def test_hostile_objects_are_never_found(trapped: psycopg.Connection, path: str) -> None:
    """Field case 32: not by name, not by operator, whatever the search_path."""
    value(trapped, "select set_config('search_path', %s, false)", path)
    cycle(trapped, "hostile")


def test_the_traps_do_bite(trapped: psycopg.Connection) -> None:
    """Otherwise the test above would prove nothing."""
    trapped.execute("set search_path = public, pg_temp, pg_catalog")
    for trap in ("select now()", "select 1 = 1", "select 'a'::text = 'b'::text"):
        with pytest.raises(psycopg.errors.RaiseException, match=SPRUNG):
            trapped.execute(trap.encode())


SETTINGS = [
    {"datestyle": "SQL, DMY"},
    {"datestyle": "German"},
    {"intervalstyle": "sql_standard"},
    {"intervalstyle": "iso_8601"},
    {"timezone": "Australia/Lord_Howe"},
    {"timezone": "<-23:59>+23:59"},
    {"bytea_output": "escape"},
    {"standard_conforming_strings": "off", "escape_string_warning": "off"},
    {"extra_float_digits": "-15"},
    {"lc_messages": "C", "lc_numeric": "C", "client_encoding": "LATIN1"},
    {"default_transaction_deferrable": "on", "transform_null_equals": "on"},
    {"quote_all_identifiers": "on", "array_nulls": "off"},
    {"enable_indexscan": "off", "enable_bitmapscan": "off", "enable_sort": "off"},
    {"plan_cache_mode": "force_generic_plan"},
    {"plan_cache_mode": "force_custom_plan"},
    {"check_function_bodies": "off", "row_security": "off", "session_replication_role": "replica"},
    {"plpgsql.variable_conflict": "error", "plpgsql.extra_errors": "all"},
    {"plpgsql.variable_conflict": "use_variable"},
    {"lock_timeout": "5s", "statement_timeout": "20s", "idle_in_transaction_session_timeout": "5s"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: ",".join(settings))
def test_unusual_settings_change_nothing(connect: Connect, settings: dict[str, str]) -> None:
    """A whole life of a queue under each of them."""
    conn = connect()
    for kind in ("timestamptz", "interval"):  # psycopg can't read every style
        conn.adapters.register_loader(kind, psycopg.types.string.TextLoader)
    for name, setting in settings.items():
        value(conn, "select set_config(%s, %s, false)", name, setting)
    cycle(conn, f"under {' '.join([*settings, *settings.values()])}"[:57])


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles"])
def test_times_are_absolute(own: psycopg.Connection, zone: str) -> None:
    """A retry time does not depend on the TimeZone of who nacks or who moves it."""
    value(own, "select pgque.send('q', 'x'::text)")
    tick(own, "q")
    (message,) = receive(own, "q")
    value(own, "select set_config('timezone', %s, false)", zone)
    nack(own, message, "1 hour")
    value(own, "select pgque.ack(%s)", message.batch_id)
    own.execute("set timezone = 'UTC'")
    move_clock(own, "59 minutes")
    bring_back(own, "q")
    assert take(own, "q") == []
    move_clock(own, "61 minutes")
    bring_back(own, "q")
    assert take(own, "q") == ["x"]
