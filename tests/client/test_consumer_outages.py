"""The consumer outlives its connections, and a server that is silent, down, or read-only."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from psycopg import sql
from psycopg_pool import ConnectionPool

from pgque import Message, PgqueClient
from tests.client.consuming import Proxy, recording, running, sessions, wait_for
from tests.fix_db import Connect
from tests.fix_wait import wait_until


@pytest.fixture
def queue(client: PgqueClient, queue: str) -> str:
    """A queue with one consumer, "c"."""
    client.subscribe(queue, "c")
    return queue


def kill(conn: psycopg.Connection, pids: list[int]) -> None:
    for pid in pids:
        conn.execute("select pg_terminate_backend(%s)", [pid])
    gone = "select not exists (select from pg_stat_activity where pid = any(%s))"
    wait_until(lambda: conn.execute(gone, [pids]).fetchone() == (True,))


def test_a_connection_lost_in_a_handler_is_replaced_to_settle(
    dsn: str, client: PgqueClient, conn: psycopg.Connection, queue: str
) -> None:
    """What was done is not run again."""

    def cut(message: Message) -> None:
        if message.payload == 1:
            kill(conn, sessions(conn, listening=False))

    consumer, seen = recording(dsn, queue, cut)
    client.send_batch(queue, "t", [0, 1, 2])
    with running(consumer):
        wait_until(lambda: len(seen) == 3)
        client.send(queue, 3)
        wait_for(seen, 3)
    assert seen == [0, 1, 2, 3]


def test_a_lost_listening_connection_is_replaced(
    dsn: str, client: PgqueClient, conn: psycopg.Connection, queue: str
) -> None:
    """Wake-ups are prompt again, not only by polling."""
    consumer, seen = recording(dsn, queue, poll_interval=600)
    with running(consumer):
        for n in range(3):
            [pid] = wait_until(lambda: sessions(conn, listening=True))
            client.send(queue, n)
            wait_for(seen, n)
            kill(conn, [pid])
        wait_until(lambda: sessions(conn, listening=True))
        client.send(queue, 3)
        wait_for(seen, 3)
    assert seen == [0, 1, 2, 3]


def test_a_server_that_is_down_is_waited_for(
    dsn: str, client: PgqueClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """From the start, and later; each failure is logged with its reason."""
    with Proxy(dsn) as proxy:
        proxy.open = False
        consumer, seen = recording(proxy.dsn, queue)
        with running(consumer):
            wait_until(lambda: "next try in" in caplog.text)
            proxy.open = True
            client.send(queue, 0)
            wait_for(seen, 0)
            proxy.open = False
            client.send(queue, 1)
            time.sleep(0.5)
            proxy.open = True
            wait_for(seen, 1)
    assert seen == [0, 1]
    assert "closed the connection unexpectedly" in caplog.text
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) < 20


def test_a_silent_server_is_given_up(dsn: str, client: PgqueClient, queue: str) -> None:
    """The socket looks alive, as behind a proxy, but no answer comes."""
    with Proxy(dsn) as proxy:
        consumer, seen = recording(proxy.dsn, queue, poll_interval=0.05, answer_timeout=1)
        with running(consumer):
            client.send(queue, 0)
            wait_for(seen, 0)
            proxy.frozen = True
            time.sleep(0.2)
            client.send(queue, 1)
            pairs = list(proxy._pairs)
            time.sleep(2.5)
            proxy._pairs = [pair for pair in proxy._pairs if pair not in pairs]
            proxy.frozen = False
            wait_until(lambda: 1 in seen, timeout=20)
            for pair in pairs:
                for side in pair:
                    side.close()
    assert seen == [0, 1]


def test_stop_ends_a_consumer_whose_query_never_returns(
    dsn: str,
    conn: psycopg.Connection,
    connect: Connect,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within the time that a stop allows."""
    monkeypatch.setattr("pgque._watchdog._WHEN_STOPPING", 0.5)
    consumer, _ = recording(dsn, queue, poll_interval=0.05)
    blocker = connect(autocommit=False)
    with running(consumer):
        wait_until(lambda: sessions(conn, listening=True))
        [pid] = sessions(conn, listening=False)
        blocker.execute("lock table pgque.queue in access exclusive mode")
        blocked = "select pg_blocking_pids(%s) <> '{}'"
        wait_until(lambda: conn.execute(blocked, [pid]).fetchone() == (True,))
        started = time.monotonic()
    assert time.monotonic() - started < 9


def test_a_server_that_became_read_only_counts_as_lost(
    dsn: str, client: PgqueClient, conn: psycopg.Connection, queue: str
) -> None:
    """As after a failover, when the old primary still answers."""
    database = sql.Identifier(conn.info.dbname)
    consumer, seen = recording(dsn, queue)
    set_read_only = sql.SQL("alter database {} set default_transaction_read_only = {}")
    with running(consumer):
        wait_until(lambda: sessions(conn, listening=True))
        conn.execute(set_read_only.format(database, sql.SQL("on")))
        kill(conn, sessions(conn, listening=True) + sessions(conn, listening=False))
        client.send(queue, 1)
        time.sleep(1)
        assert seen == []
        conn.execute(set_read_only.format(database, sql.SQL("off")))
        wait_until(lambda: seen)


def test_dead_connections_of_a_pool_are_weeded_out(
    dsn: str, client: PgqueClient, conn: psycopg.Connection, queue: str
) -> None:
    """All at once, not one for each back-off."""
    options = {"application_name": "pgque c"}
    with ConnectionPool(dsn, min_size=10, max_size=10, kwargs=options, open=True) as pool:
        pool.wait()
        consumer, seen = recording(pool, queue)
        with running(consumer):
            client.send(queue, 0)
            wait_for(seen, 0)
            kill(conn, sessions(conn, listening=True) + sessions(conn, listening=False))
            started = time.monotonic()
            client.send(queue, 1)
            wait_for(seen, 1)
            assert time.monotonic() - started < 5
    assert seen == [0, 1]


def test_an_outage_in_the_middle_of_a_piece_settles_what_was_done_later(
    dsn: str, client: PgqueClient, queue: str
) -> None:
    """The outcomes are kept until the server is back."""
    with Proxy(dsn) as proxy:
        in_handler, go_on = threading.Event(), threading.Event()

        def block(message: Message) -> None:
            if message.payload == 1:
                in_handler.set()
                go_on.wait(10)

        consumer, seen = recording(proxy.dsn, queue, block)
        client.send_batch(queue, "t", [0, 1, 2])
        with running(consumer):
            assert in_handler.wait(10)
            proxy.open = False
            go_on.set()
            wait_for(seen, 2)
            time.sleep(0.5)
            proxy.open = True
            client.send(queue, 3)
            wait_for(seen, 3)
    assert seen == [0, 1, 2, 3]
