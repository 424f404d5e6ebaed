"""Hazard 7: a dump restored where the transaction counter is far below the stored numbers."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fix_db import PGQUE_SQL, database, install
from tests.fix_server import Server
from tests.race.sessions import at_once, replace_body
from tests.sql.calls import (
    ack,
    bring_back,
    configure,
    drain,
    nack,
    receive,
    rows,
    send,
    subscribe,
    take,
    tick,
    value,
)

Restore = Callable[[], psycopg.Connection]

BURN = "do $$ begin for i in 1..{} loop perform pg_current_xact_id(); commit; end loop; end $$"


@pytest.fixture(scope="module")
def old(make_server: Callable[..., Server]) -> Iterator[Server]:
    """A cluster whose transaction counter is far ahead of any other one's of these tests."""
    server = make_server()
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(BURN.format(30_000).encode())
    yield server
    server.close()


@pytest.fixture(scope="module")
def new(make_server: Callable[..., Server]) -> Iterator[Server]:
    """Another cluster, with a counter that has just begun."""
    server = make_server()
    yield server
    server.close()


@pytest.fixture
def source(old: Server) -> Iterator[psycopg.Connection]:
    """A database of the old cluster with queue "q" and the consumers a, b and c."""
    with database(old.dsn) as dsn:
        install(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            value(conn, "select pgque.create_queue('q')")
            subscribe(conn, "q", "a", "b", "c")
            yield conn


@pytest.fixture
def restore(
    source: psycopg.Connection, old: Server, new: Server, tmp_path: Path
) -> Iterator[Restore]:
    """Dump the source and restore it into the new cluster; a connection to it."""
    with contextlib.ExitStack() as stack:

        def restore() -> psycopg.Connection:
            dsn = stack.enter_context(database(new.dsn, template="template0"))
            copy(old, source.info.dsn, new, dsn)
            return stack.enter_context(psycopg.connect(dsn, autocommit=True))

        yield restore


def copy(old: Server, source: str, new: Server, target: str) -> None:
    """pg_dump | psql, with roles made first, as pg_dumpall --roles-only does."""
    with psycopg.connect(target, autocommit=True) as conn:
        for role in ("pgque_reader", "pgque_writer", "pgque_admin"):
            if not rows(conn, "select from pg_roles where rolname = %s", role):
                conn.execute(f"create role {role} nologin".encode())
    dump = subprocess.run(
        [old.bin / "pg_dump", *options(source)], check=True, capture_output=True
    ).stdout
    psql = ["-X", "-q", "-v", "ON_ERROR_STOP=1", *options(target)]
    subprocess.run([new.bin / "psql", *psql], input=dump, check=True, capture_output=True)


def options(dsn: str) -> list[str]:
    """The connection as command line options."""
    parts = conninfo_to_dict(dsn)
    server = ["-h", str(parts["host"]), "-p", str(parts["port"]), "-U", "postgres"]
    return [*server, str(parts["dbname"])]


def test_the_counters_are_what_the_tests_need(old: Server, new: Server) -> None:
    """The new cluster's is far behind, so nothing here passes by luck."""
    found = []
    for server in (old, new):
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            found.append(int(value(conn, "select pg_current_xact_id()::text")))
    assert found[0] > found[1] + 10_000


def test_everything_unread_is_delivered_exactly(
    source: psycopg.Connection, restore: Restore
) -> None:
    """Unread, half read, ticked and not ticked, an open batch, waiting retries and dead letters;
    three consumers at different places; and what is sent between the restore and the first tick."""
    configure(source, "q", max_retries=3)
    send(source, "q", "1", "2", "3")
    assert drain(source, "q", "a") == ["1", "2", "3"]  # a has read all so far
    ack(source, receive(source, "q", "b", limit=1)[0].batch_id)  # b has read the first, holds one
    (held,) = receive(source, "q", "b", limit=1)
    send(source, "q", "4", "5")
    tick(source, "q")
    first, second = receive(source, "q", "a")  # a: 4 waits for its retry, 5 is dead
    nack(source, first, "0")
    value(source, "select pgque.event_dead(%s, %s, 'bad')", second.batch_id, second.msg_id)
    ack(source, first.batch_id)
    bring_back(source, "q")
    (again,) = receive(source, "q", "a")
    nack(source, again, "1 second")
    ack(source, again.batch_id)
    send(source, "q", "6")  # not ticked

    target = restore()
    send(target, "q", "7")
    assert [m.payload for m in receive(target, "q", "b", limit=1)] == [held.payload]
    assert ack(target, held.batch_id) == 1  # the batch that was open is open
    send(target, "q", "8")
    assert eventually(target, "a", 4) == ["4", "6", "7", "8"]
    assert eventually(target, "b", 6) == ["3", "4", "5", "6", "7", "8"]
    assert eventually(target, "c", 8) == ["1", "2", "3", "4", "5", "6", "7", "8"]
    (letter,) = rows(target, "select * from pgque.dlq_inspect('q')")
    assert (letter.ev_data, letter.consumer_name) == ("5", "a")
    value(target, "select pgque.dlq_replay(%s)", letter.dl_id)
    assert eventually(target, "a", 1) == ["5"]
    send(target, "q", "9")
    assert [eventually(target, name, 1) for name in "abc"] == [["9"]] * 3


def eventually(conn: psycopg.Connection, consumer: str, count: int) -> list[str]:
    """Sorted payloads, taken until there are so many; then some rounds more, for duplicates."""
    taken: list[str] = []
    enough = 0
    for _ in range(60):
        value(conn, "select pgque.tick_if_new('q')")
        taken += take(conn, "q", consumer)
        conn.execute("select pg_sleep(0.05)")
        enough += len(taken) >= count
        if enough == 4:
            break
    return sorted(taken)


def test_without_the_guard_new_messages_look_old(
    source: psycopg.Connection, restore: Restore
) -> None:
    """How the hazard bites when the restore is not noticed: what is sent there is lost."""
    send(source, "q", "1")
    drain(source, "q", "a")
    target = restore()
    replace_body(target, "_numbered_elsewhere", "begin return false; end")
    send(target, "q", "2")
    assert drain(target, "q", "a") == []


@pytest.mark.parametrize("first", ["maint()", "ticker()", "maint_retry_events()"])
def test_upkeep_before_the_first_tick_takes_nothing_away(
    source: psycopg.Connection, restore: Restore, first: str
) -> None:
    """New messages have low transaction numbers, which look long read to rotation."""
    configure(source, "q", rotation_period="1 ms")
    send(source, "q", "1")
    for name in "abc":
        drain(source, "q", name)
    target = restore()
    send(target, "q", "2")
    for _ in range(5):
        target.execute("select pg_sleep(0.002)")
        value(target, f"select pgque.{first}")
    assert [eventually(target, name, 1) for name in "abc"] == [["2"]] * 3


def test_retries_that_came_back_before_the_dump_do_not_come_again(
    source: psycopg.Connection, restore: Restore
) -> None:
    """Also where the restored queue nacks and moves retries before its first tick."""
    send(source, "q", "1", "2")
    tick(source, "q")
    first, _ = receive(source, "q", "a")
    nack(source, first)
    ack(source, first.batch_id)
    bring_back(source, "q")
    assert take(source, "q", "a") == ["1"]
    target = restore()
    (again, _) = receive(target, "q", "b")
    nack(target, again)
    ack(target, again.batch_id)
    for _ in range(2):
        value(target, "select pgque.maint_retry_events()")
    assert eventually(target, "b", 1) == ["1"]
    send(target, "q", "3")
    assert eventually(target, "a", 1) == ["3"]
    assert eventually(target, "b", 1) == ["3"]
    assert eventually(target, "c", 3) == ["1", "2", "3"]


def test_an_external_ticker_heals_it_too(source: psycopg.Connection, restore: Restore) -> None:
    """Its ticks are a way to new messages as well."""
    configure(source, "q", external_ticker=True)
    value(source, "select pgque.ticker('q', 1000, now(), null)")
    send(source, "q", "1")
    value(source, "select pgque.ticker('q', 1001, now(), null)")
    assert take(source, "q", "a") == ["1"]
    target = restore()
    send(target, "q", "2")
    value(target, "select pgque.ticker('q', 1002, now(), null)")
    taken = []
    for number in range(1003, 1008):
        value(target, "select pgque.maint_retry_events()")
        value(target, "select pgque.ticker('q', %s, now(), null)", number)
        taken += take(target, "q", "a")
    assert taken == ["2"]


def test_a_chain_of_dumps(
    source: psycopg.Connection, restore: Restore, old: Server, new: Server
) -> None:
    """To the new cluster and back to the first, with messages sent in each and none ticked."""
    send(source, "q", "1")
    assert drain(source, "q", "a") == ["1"]
    send(source, "q", "2")
    target = restore()
    send(target, "q", "3")
    assert eventually(target, "a", 2) == ["2", "3"]
    send(target, "q", "4")
    with database(old.dsn, template="template0") as dsn:
        copy(new, target.info.dsn, old, dsn)
        with psycopg.connect(dsn, autocommit=True) as last:
            send(last, "q", "5")
            assert eventually(last, "a", 2) == ["4", "5"]
            assert eventually(last, "b", 5) == ["1", "2", "3", "4", "5"]


def test_the_release_can_be_installed_over_the_restored_one(
    source: psycopg.Connection, restore: Restore
) -> None:
    """Before anything else is called there, as a deployment does."""
    send(source, "q", "1")
    target = restore()
    target.execute(PGQUE_SQL.read_bytes())
    send(target, "q", "2")
    assert eventually(target, "a", 2) == ["1", "2"]


def test_two_sessions_heal_once(source: psycopg.Connection, restore: Restore) -> None:
    """The first tick after the restore is asked for by several consumers at the same time."""
    value(source, "select pgque.send_batch('q', array_fill('x'::text, array[500]))")
    target = restore()
    send(target, "q", "y")
    with contextlib.ExitStack() as stack:
        sessions = [
            stack.enter_context(psycopg.connect(target.info.dsn, autocommit=True)) for _ in range(4)
        ]
        at_once([partial(value, s, "select pgque.tick_if_new('q')") for s in sessions])
    for name in "abc":
        assert len(eventually(target, name, 501)) == 501
