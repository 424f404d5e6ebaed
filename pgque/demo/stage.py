"""What the demo sets up in the database, reads there, and takes away again."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

import pgque
from pgque import schema

CONSUMERS: Final = ("billing", "shipping")

_TABLES: Final = """
    create table orders (
        id bigint primary key,
        customer text not null,
        total numeric not null,
        currency text not null);
    create table attempt (
        consumer text not null,
        order_id bigint not null,
        msg_id bigint not null,
        attempt int not null,
        channel text not null,
        latency_ms float8 not null,
        handled_at timestamptz not null default clock_timestamp(),
        error text);  -- null: handled
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """The demo's queue and its tables, in names that nobody else uses."""

    dsn: str
    name: str
    conn: psycopg.Connection[Any]

    @property
    def client(self) -> pgque.PgqueClient:
        """A client on the stage's own connection, which is in autocommit."""
        return pgque.PgqueClient(self.conn)

    def orders_stored(self) -> int:
        """Return the number of orders committed."""
        row = self.conn.execute("select count(*) from orders").fetchone()
        return int(row[0]) if row else 0

    def handled(self) -> dict[str, int]:
        """Return how many handlings succeeded, for each consumer."""
        rows = self.conn.execute(
            "select consumer, count(*) from attempt where error is null group by consumer"
        ).fetchall()
        return dict.fromkeys(CONSUMERS, 0) | dict(rows)

    def dead(self) -> dict[str, int]:
        """Return how many dead letters each consumer has."""
        rows = self.conn.execute(
            "select consumer_name, count(*) from pgque.dlq_inspect(%s, 1000000) group by 1",
            (self.name,),
        ).fetchall()
        return dict.fromkeys(CONSUMERS, 0) | dict(rows)

    def dead_reasons(self) -> list[tuple[str, int, str]]:
        """Return (consumer, number, reason) of the dead letters."""
        return self.conn.execute(
            "select consumer_name, count(*), dl_reason from pgque.dlq_inspect(%s, 1000000)"
            " group by 1, 3 order by 1, 2 desc",
            (self.name,),
        ).fetchall()


def connect(dsn: str, name: str) -> psycopg.Connection[Any]:
    """Connect in autocommit, with the demo's tables in the search path."""
    conn = psycopg.connect(dsn, autocommit=True)
    conn.execute("select set_config('search_path', %s, false)", (f'"{name}"',))
    return conn


@contextmanager
def set_up(dsn: str) -> Iterator[Stage]:
    """Make the queue, its two consumers and the tables; drop them at the end."""
    name = f"pgque_demo_{secrets.token_hex(4)}"
    with connect(dsn, name) as conn:
        conn.execute(sql.SQL("create schema {}").format(sql.Identifier(name)))
        try:
            conn.execute(_TABLES)
            stage = Stage(dsn, name, conn)
            client = stage.client
            client.create_queue(name)
            client.set_queue_config(name, "max_retries", "2")
            for consumer in CONSUMERS:
                client.subscribe(name, consumer)
            yield stage
        finally:
            _take_down(dsn, name)


def install_if_missing(dsn: str) -> str | None:
    """Install the schema where there is none; return its version, None if it was there."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        if schema.installed_version(conn) is None:
            return schema.install(conn)
    return None


def _take_down(dsn: str, name: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:  # the stage's own may be broken
        drop = sql.SQL("drop schema if exists {} cascade")
        conn.execute(drop.format(sql.Identifier(name)))
        with suppress(pgque.PgqueQueueNotFound):
            pgque.PgqueClient(conn).drop_queue(name, force=True)
