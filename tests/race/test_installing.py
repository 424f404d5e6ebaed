"""Hazard 10: installing beside others who install, send and consume."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.fix_db import PGQUE_SQL, Connect
from tests.fix_wait import wait_blocked
from tests.race.sessions import at_once, in_background
from tests.sql.calls import ack, drain, receive, send, take, tick, value

GUARD = "perform pg_advisory_xact_lock(1346851145, 0), "


def install_in(conn: psycopg.Connection, text: str | None = None) -> Future[Any]:
    """Run the file on its way, as one execute."""
    return in_background(lambda: conn.execute((text or PGQUE_SQL.read_text("utf-8")).encode()))


def test_the_second_of_two_first_installs_waits(
    empty_dsn: str, connect: Connect, guarded: bool
) -> None:
    """And then finds all there. Without the file's lock it runs into what the first one creates:
    seen as a unique violation in the catalog."""
    text = PGQUE_SQL.read_text("utf-8")
    if not guarded:
        assert text.count(GUARD) == 1
        text = text.replace(GUARD, "perform ")
    observer = connect(empty_dsn)
    first, second = connect(empty_dsn, autocommit=False), connect(empty_dsn)
    install_in(first, text).result(30)
    later = install_in(second, text)
    assert wait_blocked(observer, second) == [first.info.backend_pid]
    first.commit()
    if guarded:
        later.result(30)
        assert value(observer, "select pgque.create_queue('q')") == 1
    else:
        with pytest.raises(psycopg.errors.UniqueViolation):
            later.result(30)


def test_many_install_at_once(empty_dsn: str, connect: Connect) -> None:
    """Field case 24: all succeed, and the queue works."""
    text = PGQUE_SQL.read_bytes()
    sessions = [connect(empty_dsn) for _ in range(6)]
    at_once([partial(session.execute, text) for session in sessions])
    conn = sessions[0]
    conn.execute("select pgque.create_queue('q'), pgque.subscribe('q', 'c')")
    send(conn, "q", "x")
    assert drain(conn, "q") == ["x"]


@pytest.mark.parametrize("work", ["send", "receive", "ack", "ticker", "subscribe", "look"])
def test_installing_again_does_not_wait_for_open_work(
    conn: psycopg.Connection, topic: str, connect: Connect, work: str
) -> None:
    """Field case 25: a transaction that sent, received, ticked or looked stays open for long; the
    new release is installed beside it, and nobody queues up behind the installer."""
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    open_one = connect(autocommit=False)
    calls = {
        "send": f"select pgque.send('{topic}', 'y'::text)",
        "receive": f"select pgque.receive('{topic}', 'c')",
        "ack": f"select pgque.ack({message.batch_id})",
        "ticker": "select pgque.ticker()",
        "subscribe": f"select pgque.subscribe('{topic}', 'd')",
        "look": "select * from pgque.get_consumer_info(), pgque.status()",
    }
    open_one.execute(calls[work].encode())
    installer = connect()
    installer.execute("set lock_timeout = '2s'")
    install_in(installer).result(30)
    open_one.commit()
    assert len(drain(conn, topic)) == {"send": 2, "ack": 0}.get(work, 1)


def test_producers_and_consumers_work_on_while_it_is_installed(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Installed again and again: no error, no deadlock, each message once."""
    sent = [str(number) for number in range(150)]
    taken: list[str] = []
    sender, consumer, installer = connect(), connect(), connect()
    for session in (sender, consumer, installer):
        session.execute("set lock_timeout = '10s'; set deadlock_timeout = '200ms'")
    text = PGQUE_SQL.read_bytes()

    def consume() -> None:
        for _ in range(2000):
            if len(taken) < len(sent):
                value(consumer, "select pgque.tick_if_new(%s)", topic)
                taken.extend(take(consumer, topic))

    at_once(
        [
            lambda: send(sender, topic, *sent),
            consume,
            lambda: [installer.execute(text) for _ in range(3)],
        ]
    )
    assert taken + drain(conn, topic) == sent


def test_an_open_batch_outlives_the_upgrade(conn: psycopg.Connection, topic: str) -> None:
    """It is acked afterwards as if nothing had happened."""
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    conn.execute(PGQUE_SQL.read_bytes())
    assert ack(conn, message.batch_id) == 1
    assert take(conn, topic) == []
