"""The demo's producer process: stores orders and sends them, in one transaction each.

Usage: ``python -m pgque.demo.producer NAME COUNT RATE``, DSN in PGQUE_DSN. Prints one line
of JSON at the end: what it sent, in how many seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import psycopg

import pgque
from pgque.demo.orders import Order, load
from pgque.demo.stage import connect

BATCH = 50


def main(name: str, count: int, rate: float) -> None:
    """Sell the shop's orders one by one, then import the marketplace's in batches."""
    orders = load(count)
    shop = [order for order in orders if order["channel"] == "shop"]
    imported = [order for order in orders if order["channel"] == "marketplace"]
    with connect(os.environ["PGQUE_DSN"], name) as conn:
        client = pgque.PgqueClient(conn)
        declined, shop_seconds = sell(client, name, shop, rate)
        import_seconds = import_batches(client, name, imported)
    report = {
        "shop": len(shop) - declined,
        "declined": declined,
        "shop_seconds": shop_seconds,
        "imported": len(imported),
        "import_seconds": import_seconds,
    }
    print(json.dumps(report))


def sell(
    client: pgque.PgqueClient, queue: str, orders: list[Order], rate: float
) -> tuple[int, float]:
    """Place `rate` orders a second; return (declined, seconds)."""
    declined = 0
    start = time.monotonic()
    for number, order in enumerate(orders):
        time.sleep(max(0.0, start + number / rate - time.monotonic()))
        # The order and its message commit together, or neither exists.
        with client.conn.transaction():
            store(client.conn, [order])
            client.send(queue, order, type="order.placed")
            if order["payment"] == "declined":
                declined += 1
                raise psycopg.Rollback
    return declined, time.monotonic() - start


def import_batches(client: pgque.PgqueClient, queue: str, orders: list[Order]) -> float:
    """Store and send `BATCH` orders in each transaction; return the seconds it took."""
    start = time.monotonic()
    for first in range(0, len(orders), BATCH):
        batch = orders[first : first + BATCH]
        with client.conn.transaction():
            store(client.conn, batch)
            client.send_batch(queue, "order.imported", batch)
    return time.monotonic() - start


def store(conn: psycopg.Connection[Any], orders: list[Order]) -> None:
    """Insert orders into the shop's own table."""
    with conn.cursor() as cur:
        cur.executemany(
            "insert into orders (id, customer, total, currency) values (%s, %s, %s, %s)",
            [(o["id"], o["customer"], o["total"], o["currency"]) for o in orders],
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
