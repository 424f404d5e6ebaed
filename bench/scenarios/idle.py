"""WAL written while 100 consumers wait for messages that don't come, with and without a ticker."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import psycopg

import pgque
from bench.figures import medians, take_turns
from bench.report import Demand, Result
from bench.server import fresh_database
from bench.workers.starting import start

COUNT = 100


def run(server: str, rounds: int, quick: bool) -> Result:
    """The server alone, with consumers, and with consumers and a `pgque ticker` process.

    The ticker ticks idle queues once a minute, so a run of a minute holds that once.
    """
    seconds, settle = (2, 2) if quick else (60, 5)

    def measure(*running: Callable[[str], contextlib.AbstractContextManager[None]]) -> float:
        with contextlib.ExitStack() as stack:
            for start_up in running:
                stack.enter_context(start_up(dsn))
            time.sleep(settle)
            return _wal_rate(dsn, seconds)

    with fresh_database(server) as dsn:
        _make_queues(dsn)
        _forestall_autovacuum(dsn)
        runs = take_turns(
            rounds,
            {
                "server_alone": lambda: measure(),
                "consumers": lambda: measure(_consumers),
                "consumers_and_ticker": lambda: measure(_consumers, _ticker),
            },
        )
    rates = medians(runs)
    return Result(
        demands=[
            Demand(f"WAL bytes a second, {name}", rates[name], at_most=1000)
            for name in ("consumers", "consumers_and_ticker")
        ],
        figures={"wal_bytes_per_second": rates},
        setup={"queues": COUNT, "consumers": COUNT, "seconds_per_run": seconds},
        runs=runs,
    )


def _wal_rate(dsn: str, seconds: float) -> float:
    with psycopg.connect(dsn, autocommit=True) as conn:
        before = conn.execute("select pg_current_wal_insert_lsn()").fetchone()
        time.sleep(seconds)
        row = conn.execute("select pg_current_wal_insert_lsn() - %s::pg_lsn", before).fetchone()
    assert row is not None
    return float(row[0]) / seconds


def _make_queues(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for number in range(COUNT):
            conn.execute("select pgque.create_queue(%s)", [f"idle_{number}"])
            conn.execute("select pgque.subscribe(%s, 'reader')", [f"idle_{number}"])


def _forestall_autovacuum(dsn: str) -> None:
    """Do at once, in all databases, what autovacuum would do while we count."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        found = conn.execute("select datname from pg_database where datallowconn").fetchall()
        conn.execute("checkpoint")
    for (name,) in found:
        with psycopg.connect(dsn, dbname=name, autocommit=True) as conn:
            conn.execute("vacuum (analyze)")


@contextlib.contextmanager
def _consumers(dsn: str) -> Iterator[None]:
    """One Consumer with default settings for each queue, each on a thread of its own."""
    consumers = [
        pgque.Consumer(dsn, queue=f"idle_{number}", name="reader", install_signal_handlers=False)
        for number in range(COUNT)
    ]
    threads = [threading.Thread(target=consumer.start) for consumer in consumers]
    for thread in threads:
        thread.start()
    try:
        yield
        _check_waiting(dsn)
    finally:
        for consumer in consumers:
            consumer.stop()
        for thread in threads:
            thread.join()


def _check_waiting(dsn: str) -> None:
    """See that the consumers were there at all: each holds the mark of its queue."""
    with psycopg.connect(dsn) as conn:
        row = conn.execute("""
            select count(*) from pg_locks join pg_database d on d.oid = database
             where datname = current_database() and locktype = 'advisory' and mode = 'ShareLock'
        """).fetchone()
    if row != (COUNT,):
        raise RuntimeError(f"{row} of {COUNT} consumers are waiting")


@contextlib.contextmanager
def _ticker(dsn: str) -> Iterator[None]:
    process = start("pgque", "ticker", dsn=dsn)
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError("the ticker ended")
    finally:
        process.terminate()
        process.communicate()
