"""One database for all SQL tests, with queues of their own; `own` where one needs it alone."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fix_db import database
from tests.sql.calls import subscribe


@pytest.fixture(scope="session")
def shared_dsn(server: str, template_dsn: str) -> Iterator[str]:
    """A database with pgque installed; `conn`, `queue` and `connect` are of it."""
    with database(server, template=str(conninfo_to_dict(template_dsn)["dbname"])) as dsn:
        yield dsn


@pytest.fixture
def dsn(shared_dsn: str) -> str:
    """In place of fix_db's, which makes a database for each test."""
    return shared_dsn


@pytest.fixture
def topic(conn: psycopg.Connection, queue: str) -> str:
    """A new queue with the consumer "c"."""
    subscribe(conn, queue)
    return queue


@pytest.fixture
def own(server: str, template_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection to a database of the test's own, with queue "q" and consumer "c"."""
    template = str(conninfo_to_dict(template_dsn)["dbname"])
    with (
        database(server, template=template) as dsn,
        psycopg.connect(dsn, autocommit=True) as conn,
    ):
        conn.execute("select pgque.create_queue('q')")
        subscribe(conn, "q")
        yield conn
