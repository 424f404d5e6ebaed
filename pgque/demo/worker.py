"""The demo's consumer process: bills or ships the orders, with bugs or without.

Usage: ``python -m pgque.demo.worker billing|shipping NAME [--fixed]``, DSN in PGQUE_DSN.
Runs until SIGTERM. Handlers note each attempt in a table through a connection of their own.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import psycopg

import pgque
from pgque.demo.orders import Order
from pgque.demo.stage import connect

RETRY_AFTER = 0.4
Work = Callable[[Order, bool], None]


def bill(order: Order, first_time: bool) -> None:
    """Book the amount. The bug: not every currency has cents."""
    if first_time and order["id"] % 50 == 7:
        raise TimeoutError("the payment gateway did not answer")
    whole, cents = order["total"].split(".")
    assert int(whole) * 100 + int(cents) > 0


def bill_fixed(order: Order, first_time: bool) -> None:  # noqa: ARG001
    """Book the amount, in currencies with and without cents."""
    whole, _, cents = order["total"].partition(".")
    assert int(whole) * 100 + int(cents or 0) > 0


def ship(order: Order, first_time: bool) -> None:
    """Print the label. The bug: not every address has a postcode."""
    if first_time and order["id"] % 60 == 11:
        raise pgque.Retry(after=RETRY_AFTER, reason="the label printer is out of paper")
    assert order["postcode"].upper()


def ship_fixed(order: Order, first_time: bool) -> None:  # noqa: ARG001
    """Print the label, with a postcode or without."""
    assert (order["postcode"] or order["city"]).upper()


WORK: dict[tuple[str, bool], Work] = {
    ("billing", False): bill,
    ("billing", True): bill_fixed,
    ("shipping", False): ship,
    ("shipping", True): ship_fixed,
}


def main(name: str, queue: str, *, fixed: bool) -> None:
    """Consume `queue` as `name` until SIGTERM."""
    dsn = os.environ["PGQUE_DSN"]
    work = WORK[name, fixed]
    consumer = pgque.Consumer(dsn, queue=queue, name=name, retry_after=RETRY_AFTER)
    with connect(dsn, queue) as conn:
        offset = server_clock_offset(conn)

        @consumer.on("*")
        def handle(msg: pgque.Message) -> None:
            latency = time.time() + offset - msg.created_at.timestamp()
            try:
                work(msg.payload, msg.retry_count is None)
            except Exception as error:
                note(conn, name, msg, latency, f"{type(error).__name__}: {error}")
                raise
            note(conn, name, msg, latency, None)

        print("ready", flush=True)
        consumer.start()


def note(
    conn: psycopg.Connection[Any],
    consumer: str,
    msg: pgque.Message,
    latency: float,
    error: str | None,
) -> None:
    """Record one attempt; what a real handler would do to its own tables."""
    order = msg.payload
    conn.execute(
        "insert into attempt (consumer, order_id, msg_id, attempt, channel, latency_ms, error)"
        " values (%s, %s, %s, %s, %s, %s, %s)",
        (
            consumer,
            order["id"],
            msg.msg_id,
            (msg.retry_count or 0) + 1,
            order["channel"],
            latency * 1000,
            error,
        ),
    )


def server_clock_offset(conn: psycopg.Connection[Any]) -> float:
    """Return how many seconds the server's clock is ahead of ours."""
    before = time.time()
    row = conn.execute("select extract(epoch from clock_timestamp())::float8").fetchone()
    assert row is not None
    return float(row[0]) - (before + time.time()) / 2


if __name__ == "__main__":
    # The failures are part of the show; the demo tells them in its own words.
    logging.basicConfig(level=logging.CRITICAL)
    main(sys.argv[1], sys.argv[2], fixed="--fixed" in sys.argv)
