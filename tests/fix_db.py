"""Databases and connections: every test that asks for one has a fresh database of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

if TYPE_CHECKING:
    from pgque import PgqueClient

PGQUE_SQL = Path(__file__).parent.parent / "sql" / "pgque.sql"

_numbers = count(1)


class Connect(Protocol):
    """Open one more connection to the test's database; keywords as for psycopg.connect."""

    def __call__(self, dsn: str = ..., *, autocommit: bool = ..., **kw: Any) -> psycopg.Connection:
        raise NotImplementedError


@contextlib.contextmanager
def database(server: str, template: str = "template1") -> Iterator[str]:
    """A database that is there for the length of the block; yields its DSN."""
    name = f"pgque_test_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server, autocommit=True) as conn:
        statement = "create database {} template {}"
        conn.execute(sql.SQL(statement).format(sql.Identifier(name), sql.Identifier(template)))
    try:
        yield make_conninfo(server, dbname=name)
    finally:
        with psycopg.connect(server, autocommit=True) as conn:
            conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def install(dsn: str, text: str | None = None) -> None:
    """Run pgque.sql, or `text` in its stead, as one execute of the driver."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute((text or PGQUE_SQL.read_text("utf-8")).encode())


@pytest.fixture(scope="session")
def template_dsn(server: str) -> Iterator[str]:
    """A database with pgque installed, to be cloned: no connection to it may stay open."""
    with database(server) as dsn:
        install(dsn)
        yield dsn


@pytest.fixture
def empty_dsn(server: str) -> Iterator[str]:
    """A fresh database without pgque."""
    with database(server) as dsn:
        yield dsn


@pytest.fixture
def dsn(server: str, template_dsn: str) -> Iterator[str]:
    """A fresh database with pgque installed."""
    template = psycopg.conninfo.conninfo_to_dict(template_dsn)["dbname"]
    with database(server, template=str(template)) as dsn:
        yield dsn


@pytest.fixture
def connect(dsn: str) -> Iterator[Connect]:
    """Open further connections to the test's database, autocommit; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def connect(dsn: str = dsn, *, autocommit: bool = True, **kw: Any) -> psycopg.Connection:
            conn = psycopg.connect(dsn, autocommit=autocommit, **kw)
            stack.callback(conn.close)
            return conn

        yield connect


@pytest.fixture
def conn(connect: Connect) -> psycopg.Connection:
    """An autocommit connection to the test's database."""
    return connect()


@pytest.fixture
def queue(conn: psycopg.Connection) -> str:
    """The name of a new queue, with no consumer yet."""
    name = f"queue_{next(_numbers)}"
    conn.execute("select pgque.create_queue(%s)", [name])
    return name


@pytest.fixture
def client(connect: Connect) -> PgqueClient:
    """A client on an autocommit connection of its own."""
    import pgque

    return pgque.PgqueClient(connect())
