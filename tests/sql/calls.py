"""The calls that nearly every SQL test makes, in short."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row


def rows(conn: psycopg.Connection, statement: str, *args: object) -> list[Any]:
    """All rows, as named tuples."""
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        return list(cursor.execute(statement.encode(), args or None).fetchall())


def row(conn: psycopg.Connection, statement: str, *args: object) -> Any:
    """The only row."""
    (found,) = rows(conn, statement, *args)
    return found


def value(conn: psycopg.Connection, statement: str, *args: object) -> Any:
    """The only value of the only row."""
    found = conn.execute(statement.encode(), args or None).fetchall()
    assert len(found) == 1
    assert len(found[0]) == 1
    return found[0][0]


def subscribe(conn: psycopg.Connection, queue: str, *consumers: str) -> None:
    """Subscribe each of them, now."""
    for consumer in consumers or ("c",):
        assert value(conn, "select pgque.subscribe(%s, %s)", queue, consumer) == 1


def configure(conn: psycopg.Connection, queue: str, **params: object) -> None:
    """Set these parameters of the queue."""
    for name, setting in params.items():
        value(conn, "select pgque.set_queue_config(%s, %s, %s)", queue, name, str(setting))


def send(conn: psycopg.Connection, queue: str, *payloads: str) -> list[int]:
    """Send each as a message of its own; returns the ids."""
    return [value(conn, "select pgque.send(%s, %s::text)", queue, text) for text in payloads]


def tick(conn: psycopg.Connection, queue: str) -> int:
    """Make a tick, due or not."""
    value(conn, "select pgque.force_next_tick(%s)", queue)
    made = value(conn, "select pgque.ticker(%s)", queue)
    assert isinstance(made, int)
    return made


def receive(
    conn: psycopg.Connection, queue: str, consumer: str = "c", limit: int = 100
) -> list[Any]:
    """What one call of receive hands out."""
    return rows(conn, "select * from pgque.receive(%s, %s, %s)", queue, consumer, limit)


def ack(conn: psycopg.Connection, batch_id: int) -> int:
    """1 if the batch was open."""
    acked = value(conn, "select pgque.ack(%s)", batch_id)
    assert isinstance(acked, int)
    return acked


def nack(
    conn: psycopg.Connection, message: Any, after: str = "0", reason: str | None = None
) -> int:
    """Give a message back, by default at once."""
    statement = "select pgque.nack(%s, %s, %s::interval, %s)"
    return int(value(conn, statement, message.batch_id, message.msg_id, after, reason))


def take(conn: psycopg.Connection, queue: str, consumer: str = "c", limit: int = 100) -> list[str]:
    """Receive and ack until nothing comes; returns the payloads."""
    taken: list[str] = []
    while messages := receive(conn, queue, consumer, limit):
        taken += [message.payload for message in messages]
        assert ack(conn, messages[0].batch_id) == 1
    return taken


def drain(conn: psycopg.Connection, queue: str, consumer: str = "c", limit: int = 100) -> list[str]:
    """Tick, then take: all that was committed before."""
    tick(conn, queue)
    return take(conn, queue, consumer, limit)


def bring_back(conn: psycopg.Connection, queue: str) -> None:
    """Move due retries into the log and tick, so that the next receive brings them."""
    value(conn, "select pgque.maint_retry_events()")
    tick(conn, queue)


@contextlib.contextmanager
def refused(sqlstate: str, *words: str) -> Iterator[None]:
    """The block fails with this SQLSTATE, and its message holds these words."""
    with pytest.raises(psycopg.Error) as caught:
        yield
    assert caught.value.sqlstate == sqlstate, caught.value
    message = caught.value.diag.message_primary or ""
    assert all(word in message for word in words), message


def move_clock(conn: psycopg.Connection, ahead: str) -> None:
    """From now on this database's queues think that it is so much later."""
    conn.execute(
        "create or replace function pgque._now() returns timestamptz language sql volatile"
        f" as $$ select clock_timestamp() + interval '{ahead}' $$".encode()
    )
