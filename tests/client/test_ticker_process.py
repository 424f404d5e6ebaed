"""`pgque ticker` as processes: killed, stopped, and left without a server. See test_ticker.py."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgque.ticker import ADVISORY_LOCK
from tests.fix_db import install
from tests.fix_server import Server
from tests.fix_wait import wait_until
from tests.sql.calls import configure, row, rows, send, subscribe, take, value

ROOT = Path(__file__).parents[2]


class Process:
    """A fast `pgque ticker`; `log` is what it has logged."""

    def __init__(self, dsn: str, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", "pgque", "ticker", "--interval", "0.02"]
        env = os.environ | {
            "PGQUE_DSN": dsn,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--idle-interval", "0.05"], env=env, stderr=output
            )

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8")

    @property
    def active(self) -> bool:
        """Whether it said last that it ticks."""
        return "active: ticking" in self.log.rpartition("standing by")[2]

    def end(self) -> int:
        """Stop it in order, and return its exit code."""
        self.process.terminate()
        return self.process.wait(10)


Start = Callable[[str, str], Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a ticker for a database, under a name; all are killed at the end."""
    with contextlib.ExitStack() as stack:

        def start(dsn: str, name: str) -> Process:
            ticker = Process(dsn, tmp_path / f"{name}.log")
            stack.callback(ticker.process.wait)
            stack.callback(ticker.process.kill)
            return ticker

        yield start


def holders(conn: psycopg.Connection) -> list[int]:
    """The sessions that hold the tickers' lock in this database."""
    found = rows(
        conn,
        "select pid from pg_locks where locktype = 'advisory' and granted and classid = %s"
        " and objid = %s"
        " and database = (select oid from pg_database where datname = current_database())",
        *ADVISORY_LOCK,
    )
    return [each.pid for each in found]


def both_connected(conn: psycopg.Connection) -> bool:
    """Whether two tickers have a session each."""
    sessions = "select from pg_stat_activity where application_name = 'pgque ticker'"
    return len(rows(conn, sessions)) == 2


def subscribed(conn: psycopg.Connection) -> None:
    """Queue q with consumer c, which ticks as soon as there is something."""
    value(conn, "select pgque.create_queue('q')")
    configure(conn, "q", ticker_max_lag="1 ms")
    subscribe(conn, "q")


def delivered(conn: psycopg.Connection, text: str, timeout: float = 10) -> None:
    """Send it, and see that somebody ticks."""
    send(conn, "q", text)
    assert wait_until(lambda: take(conn, "q"), timeout=timeout) == [text]


def test_the_second_one_takes_over_when_the_first_is_killed(
    dsn: str, conn: psycopg.Connection, start: Start
) -> None:
    """One is active at a time. The kernel closes the killed one's connection, and so its session
    and its lock end."""
    subscribed(conn)
    first = start(dsn, "first")
    (before,) = wait_until(lambda: holders(conn), timeout=20)
    second = start(dsn, "second")
    wait_until(lambda: "standing by" in second.log, timeout=20)
    delivered(conn, "by the first")
    assert holders(conn) == [before]
    assert not second.active
    first.process.kill()
    wait_until(lambda: second.active)
    assert len(holders(conn)) == 1
    assert holders(conn) != [before]
    delivered(conn, "by the second")
    assert second.end() == 0
    wait_until(lambda: holders(conn) == [])


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_of_them_outlive_restarts_of_the_server(
    make_server: Callable[..., Server], start: Start
) -> None:
    """In order and by a crash: afterwards one ticks and the other one stands by, whichever; and
    both can be stopped while there is no server."""
    server = make_server()
    install(server.dsn)
    tickers = [start(server.dsn, name) for name in ("first", "second")]
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        subscribed(conn)
        delivered(conn, "before", timeout=20)
    for mode in ("fast", "immediate"):
        server.stop(mode)
        server.start()
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            delivered(conn, mode, timeout=30)
            wait_until(partial(both_connected, conn), timeout=30)
            assert len(holders(conn)) == 1
        assert [ticker.process.poll() for ticker in tickers] == [None, None]
    server.stop()
    assert [ticker.end() for ticker in tickers] == [0, 0]
    assert all("Traceback" not in ticker.log for ticker in tickers)
    server.close()


def test_one_ticker_for_each_database(dsn: str, empty_dsn: str, start: Start) -> None:
    """Those of two databases of a server do not stand by for each other."""
    install(empty_dsn)
    first, second = start(dsn, "first"), start(empty_dsn, "second")
    wait_until(lambda: first.active and second.active, timeout=20)


def test_ctrl_c_stops_it_in_order(dsn: str, start: Start) -> None:
    """As SIGTERM does."""
    ticker = start(dsn, "one")
    wait_until(lambda: ticker.active, timeout=20)
    ticker.process.send_signal(signal.SIGINT)
    assert ticker.process.wait(10) == 0


def test_what_waiting_does_not_heal_ends_it_with_1(
    dsn: str, conn: psycopg.Connection, empty_dsn: str, start: Start
) -> None:
    """No schema, or no right to the upkeep: whoever supervises it sees that; one line says why."""
    role = sql.Identifier(f"{conn.info.dbname}_role")
    conn.execute(sql.SQL("create role {} login in role pgque_reader").format(role))
    try:
        homeless = start(empty_dsn, "homeless")
        poor = start(make_conninfo(dsn, user=f"{conn.info.dbname}_role"), "poor")
        assert [each.process.wait(20) for each in (homeless, poor)] == [1, 1]
    finally:
        conn.execute(sql.SQL("drop role {}").format(role))
    assert "pgque install" in homeless.log
    assert "permission denied" in poor.log
    assert not row(conn, "select last_upkeep from pgque.installation").last_upkeep
