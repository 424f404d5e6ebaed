"""Scheduling: ticker_loop for any scheduler, and start and stop with a real pg_cron.

The latter with PGQUE_TEST_PG_CRON=/usr/lib/postgresql/15/bin, after apt-get install
postgresql-15-cron on Debian 12.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fix_db import install
from tests.fix_server import Server
from tests.fix_wait import wait_until
from tests.sql.calls import configure, refused, row, rows, send, take, value


def test_a_slot_ticks_and_commits_each_tick(own: psycopg.Connection) -> None:
    """A message sent while the slot runs is delivered before the slot ends."""
    value(own, "select pgque.set_tick_period_ms(20)")
    configure(own, "q", ticker_max_lag="10 milliseconds")
    with psycopg.connect(own.info.dsn, autocommit=True) as loop:
        slot = threading.Thread(target=loop.execute, args=("call pgque.ticker_loop(2)",))
        slot.start()
        send(own, "q", "x")
        taken = wait_until(lambda: take(own, "q"))
        assert slot.is_alive()
        slot.join()
    assert taken == ["x"]


def test_a_second_loop_leaves_at_once(own: psycopg.Connection) -> None:
    """Overlapping slots do not double the ticks."""
    own.execute("select pg_advisory_lock(1346851148, 0)")
    with psycopg.connect(own.info.dsn, autocommit=True) as loop:
        send(own, "q", "x")
        loop.execute("call pgque.ticker_loop(60)")
    assert take(own, "q") == []


@pytest.mark.parametrize("period", [0, -1, 3, 1001, None])
def test_a_period_must_divide_a_second(own: psycopg.Connection, period: int | None) -> None:
    with refused("QU007", "tick_period_ms"):
        value(own, "select pgque.set_tick_period_ms(%s::int)", period)
    assert value(own, "select pgque.set_tick_period_ms(250)") == 250


@pytest.mark.parametrize("seconds", [0, -1, 3601, None])
def test_a_slot_has_a_length(own: psycopg.Connection, seconds: int | None) -> None:
    with refused("QU013", "slot_seconds"):
        own.execute("call pgque.ticker_loop(%s::int)", (seconds,))


def test_without_pg_cron_start_says_what_to_do(own: psycopg.Connection) -> None:
    with pytest.raises(psycopg.Error, match="pg_cron is not installed") as caught:
        value(own, "select pgque.start()")
    assert caught.value.sqlstate == "QU017"
    assert "start_statements" in (caught.value.diag.message_hint or "")
    assert value(own, "select pgque.stop()") == 0


@pytest.mark.parametrize(
    ("version", "seconds"),
    [
        ("1.4", False),
        ("1.4-1", False),
        ("1.5", True),
        ("1.6.2", True),
        ("1.10", True),
        ("2.0", True),
    ],
)
def test_seconds_are_known_from_1_5_on(
    own: psycopg.Connection, version: str, seconds: bool
) -> None:
    assert value(own, "select pgque._cron_has_seconds(%s)", version) is seconds


@pytest.fixture
def cron(make_server: Callable[..., Server]) -> Iterator[psycopg.Connection]:
    """The database "postgres" of a server of its own with pg_cron in it, and pgque installed.

    Each test has its own, since the launcher of pg_cron 1.4 was seen to go on with jobs that were
    removed and not to begin new ones.
    """
    programs = os.environ.get("PGQUE_TEST_PG_CRON")
    if programs is None:
        pytest.skip("PGQUE_TEST_PG_CRON does not name the programs of a server with pg_cron")
    server = make_server(
        Path(programs),
        shared_preload_libraries="pg_cron",
        **{"cron.database_name": "postgres", "cron.use_background_workers": "on"},
        max_worker_processes="20",
    )
    install(server.dsn)
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("create extension pg_cron")
        yield conn


OURS = "select jobname, schedule, database from cron.job order by jobname"


def ticked(cron: psycopg.Connection, conn: psycopg.Connection) -> list[str]:
    """What is delivered in two and a half minutes; else pg_cron's log says why not."""
    try:
        return wait_until(lambda: take(conn, "q"), timeout=150, what="a message ticked")
    except AssertionError as error:
        log = rows(cron, "select * from cron.job_run_details order by runid desc limit 20")
        raise AssertionError(f"{error}: {log}") from None


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_pg_cron_ticks(cron: psycopg.Connection) -> None:
    """Started twice it runs once; it delivers without any other ticker; stop removes all of it."""
    value(cron, "select pgque.create_queue('q')")
    value(cron, "select pgque.subscribe('q', 'c')")
    value(cron, "select pgque.start()")
    said = value(cron, "select pgque.start()")
    assert "pg_cron" in said
    assert [job.jobname for job in rows(cron, OURS)] == [
        f"pgque {what} of postgres" for what in ("cleaning", "ticker", "upkeep")
    ]
    send(cron, "q", "x")
    assert ticked(cron, cron) == ["x"]
    assert value(cron, "select pgque.stop()") == 3
    assert rows(cron, OURS) == []


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_pg_cron_in_another_database(cron: psycopg.Connection) -> None:
    """What start_statements returns is run where pg_cron lives, and works in our database."""
    cron.execute("create database elsewhere")
    dsn = make_conninfo(cron.info.dsn, dbname="elsewhere")
    install(dsn)
    seconds = value(cron, "select extversion from pg_extension where extname = 'pg_cron'") >= "1.5"
    with psycopg.connect(dsn, autocommit=True) as conn:
        value(conn, "select pgque.create_queue('q')")
        value(conn, "select pgque.subscribe('q', 'c')")
        with refused("QU017"):
            value(conn, "select pgque.start()")
        for statement in rows(conn, "select * from pgque.start_statements(%s)", seconds):
            cron.execute(statement[0].encode())
        send(conn, "q", "x")
        assert ticked(cron, conn) == ["x"]
    # The cleaning job removes the jobs of a database that is gone.
    cleaning = row(
        cron, "select command from cron.job where jobname = 'pgque cleaning of elsewhere'"
    )
    wait_until(lambda: drop(cron, "elsewhere"))
    cron.execute(cleaning.command.encode())
    assert [job for job in rows(cron, OURS) if "elsewhere" in job.jobname] == []


def drop(conn: psycopg.Connection, database: str) -> bool:
    conn.execute(f"drop database if exists {database} with (force)".encode())
    return True
