"""The ticker process: it ticks, retries, stands by, takes over, and outlives its server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from pgque.errors import PgqueConnectionError, PgqueNotInstalled
from pgque.ticker import ADVISORY_LOCK, Ticker
from tests.fix_db import Connect, install
from tests.fix_server import Server
from tests.fix_wait import wait_until


@contextmanager
def ticking(dsn: str) -> Iterator[Ticker]:
    """A fast ticker in a thread; stopped at the end, which has to be prompt."""
    ticker = Ticker(dsn, interval=0.02, idle_interval=0.05, upkeep_interval=0.05)
    thread = threading.Thread(target=ticker.run)
    thread.start()
    try:
        yield ticker
    finally:
        ticker.stop()
        thread.join(10)
        assert not thread.is_alive()


def active(conn: psycopg.Connection) -> int | None:
    """The process id of the session that holds the tickers' lock."""
    row = conn.execute(
        "select pid from pg_locks where locktype = 'advisory' and granted and classid = %s"
        " and objid = %s and database ="
        " (select oid from pg_database where datname = current_database())",
        ADVISORY_LOCK,
    ).fetchone()
    return row[0] if row else None


def tickers(conn: psycopg.Connection) -> set[int]:
    """The process ids of all tickers of this database."""
    rows = conn.execute(
        "select pid from pg_stat_activity"
        " where application_name = 'pgque ticker' and datname = current_database()"
    )
    return {row[0] for row in rows}


def subscribed_queue(conn: psycopg.Connection) -> None:
    """Queue q with consumer c, which ticks as soon as there is something."""
    conn.execute("select pgque.create_queue('q')")
    conn.execute("select pgque.set_queue_config('q', 'ticker_max_lag', '1 ms')")
    conn.execute("select pgque.subscribe('q', 'c')")


def receive(conn: psycopg.Connection) -> list[tuple[str, int]]:
    """What plain SQL receives: (payload, batch id)."""
    return conn.execute("select payload, batch_id from pgque.receive('q', 'c')").fetchall()


def test_what_is_sent_becomes_visible(dsn: str, conn: psycopg.Connection) -> None:
    """A consumer in plain SQL needs nobody else to tick."""
    subscribed_queue(conn)
    with ticking(dsn):
        conn.execute("select pgque.send('q', 'hello'::text)")
        assert wait_until(lambda: receive(conn))[0][0] == "hello"


def test_a_nacked_message_comes_back(dsn: str, conn: psycopg.Connection) -> None:
    """Retries that are due go back into the log without any consumer process."""
    subscribed_queue(conn)
    with ticking(dsn):
        conn.execute("select pgque.send('q', 'again'::text)")
        ((_, batch_id),) = wait_until(lambda: receive(conn))
        conn.execute(
            "select pgque.nack(batch_id, msg_id, '1 ms', 'later') from pgque.receive('q', 'c')"
        )
        conn.execute("select pgque.ack(%s)", [batch_id])
        ((payload, second),) = wait_until(lambda: receive(conn))
        assert payload == "again"
        assert second != batch_id


def test_run_once_needs_no_lock(dsn: str, conn: psycopg.Connection) -> None:
    """One pass ticks, though another ticker is active in the database."""
    subscribed_queue(conn)
    conn.execute("select pg_advisory_lock(%s, %s)", ADVISORY_LOCK)
    conn.execute("select pgque.send('q', 'hello'::text)")
    assert Ticker(dsn).run_once() == 1
    assert receive(conn)[0][0] == "hello"


def test_second_ticker_stands_by_and_takes_over(dsn: str, conn: psycopg.Connection) -> None:
    """One is active; when its session ends the other one is."""
    with ticking(dsn) as first:
        before = wait_until(lambda: active(conn))
        with ticking(dsn):
            wait_until(lambda: len(tickers(conn)) == 2, what="two sessions")
            assert active(conn) == before
            first.stop()
            after = wait_until(lambda: (found := active(conn)) != before and found)
            assert tickers(conn) == {after}


def test_a_killed_session_is_replaced(dsn: str, conn: psycopg.Connection) -> None:
    """pg_terminate_backend costs a reconnect and nothing else."""
    with ticking(dsn):
        before = wait_until(lambda: active(conn))
        conn.execute("select pg_terminate_backend(%s)", [before])
        wait_until(lambda: active(conn) not in (None, before), what="a new session")


@pytest.mark.slow
def test_it_outlives_restarts_of_the_server(make_server: Callable[..., Server]) -> None:
    """After a crash and a pause without any server it ticks again."""
    server = make_server()
    install(server.dsn)
    with ticking(server.dsn):
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            subscribed_queue(conn)
            wait_until(lambda: active(conn))
        server.stop("immediate")
        server.start()
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            conn.execute("select pgque.send('q', 'after the crash'::text)")
            found = wait_until(lambda: receive(conn), timeout=20)
            assert [payload for payload, _ in found] == ["after the crash"]
    server.close()


def test_it_waits_for_a_server_that_is_not_there_yet(caplog: pytest.LogCaptureFixture) -> None:
    """At boot the ticker may be first; stopping it then is prompt too."""
    with caplog.at_level(logging.WARNING, "pgque.ticker"), ticking("host=127.0.0.1 port=1"):
        wait_until(lambda: "no ticks" in caplog.text)


def test_it_waits_out_a_read_only_server(
    dsn: str, conn: psycopg.Connection, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A standby, or a primary in the middle of a failover, becomes writable in the end."""
    subscribed_queue(conn)
    database = sql.Identifier(conn.info.dbname)
    conn.execute(
        sql.SQL("alter database {} set default_transaction_read_only = on").format(database)
    )
    with caplog.at_level(logging.WARNING, "pgque.ticker"), ticking(dsn):
        wait_until(lambda: "read-only" in caplog.text)
        conn.execute(sql.SQL("alter database {} reset all").format(database))
        conn.execute("select pgque.send('q', 'hello'::text)")
        assert wait_until(lambda: receive(conn))


def test_failing_upkeep_does_not_stop_the_ticks(
    dsn: str, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a failure that stays the same the log speaks once."""
    subscribed_queue(conn)
    conn.execute(
        "create or replace function pgque.maint() returns int language plpgsql as"
        " $$ begin raise exception 'no space' using errcode = '53100'; end $$"
    )
    with caplog.at_level(logging.WARNING, "pgque.ticker"), ticking(dsn):
        conn.execute("select pgque.send('q', 'hello'::text)")
        wait_until(lambda: receive(conn))
        wait_until(lambda: "no space" in caplog.text)
        time.sleep(0.2)  # upkeep is due four times meanwhile
    assert caplog.text.count("no space") == 1


def test_without_the_schema_it_says_so(empty_dsn: str) -> None:
    """No amount of waiting installs it."""
    with pytest.raises(PgqueNotInstalled):
        Ticker(empty_dsn).run()


def test_once_without_a_server_fails() -> None:
    """Only the process waits; one pass is for scripts."""
    with pytest.raises(PgqueConnectionError):
        Ticker("host=127.0.0.1 port=1").run_once()


@pytest.mark.parametrize("interval", [0, -1, float("inf"), float("nan")])
def test_senseless_intervals_are_refused(interval: float) -> None:
    """Before anything is done."""
    with pytest.raises(ValueError):
        Ticker(interval=interval)
