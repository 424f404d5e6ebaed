"""What a batch costs after 20,000, while a REPEATABLE READ transaction pins the horizon.

A cycle is send, tick_if_new, receive, ack, each a transaction of its own, waiting for the disk as
by default. Three databases take turns. Two are aged: `pinned` has such a transaction open, `free`
has not. `young` is pinned too, and made so late that its cycles 500 to 1,000 fall together with
the last 500 of the others: a machine that is slower by then is slower for all.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import psycopg

from bench.figures import rounded, say
from bench.report import Demand, Result
from bench.scenarios.send import PAYLOAD
from bench.server import fresh_database

BLOCK = 500  # cycles between two calls of maint, and the number that a median is taken of
TURN = 10

CALLS = {
    "send": "select pgque.send('flat', %(payload)s::text)",
    "tick_if_new": "select pgque.tick_if_new('flat')",
    "receive": "select batch_id from pgque.receive('flat', 'reader', 100)",
    "ack": "select pgque.ack(%(batch_id)s)",
}

Medians = dict[str, float]


class Cycles:
    """A database with one queue and one consumer, and the milliseconds of each call so far."""

    def __init__(self, dsn: str, *, pinned: bool) -> None:
        self._conn = psycopg.connect(dsn, autocommit=True)
        self._upkeep = psycopg.connect(dsn, autocommit=True)
        self._conn.execute("select pgque.create_queue('flat'), pgque.subscribe('flat', 'reader')")
        self._pin = _hold_horizon(dsn) if pinned else None
        self._times: dict[str, list[float]] = {call: [] for call in CALLS}

    def close(self) -> None:
        for conn in (self._conn, self._upkeep, self._pin):
            if conn is not None:
                conn.close()

    def run(self, cycles: int) -> None:
        """Do so many cycles, and upkeep after every block of them."""
        for _ in range(cycles):
            self._cycle()
            if len(self._times["ack"]) % BLOCK == 0:
                self._upkeep.execute("select pgque.maint()")

    def block(self, number: int) -> Medians:
        """Return the median of each call in one block of cycles; -1 is the last."""
        return {call: median(_blocks(times)[number]) for call, times in self._times.items()}

    def blocks(self) -> list[Medians]:
        return [self.block(number) for number in range(len(self._times["ack"]) // BLOCK)]

    def _cycle(self) -> None:
        values: dict[str, Any] = {"payload": PAYLOAD, "batch_id": None}
        for call, query in CALLS.items():
            started = time.perf_counter()
            row = self._conn.execute(query.encode(), values).fetchone()
            self._times[call].append((time.perf_counter() - started) * 1000)
            if row is None or not row[0]:
                raise RuntimeError(f"{call} returned nothing")
            values["batch_id"] = row[0]  # of interest only after receive


def run(server: str, rounds: int, quick: bool) -> Result:
    """Each round begins with new databases."""
    count = 1500 if quick else 20_000
    runs = [_round(server, count) for _ in range(rounds)]
    to_young = _growth((each["pinned"][-1], each["young"][1]) for each in runs)
    return Result(
        demands=[
            Demand(f"{call} after {count:,} batches to one after 500", to_young[call], at_most=1.1)
            for call in ("receive", "ack", "send", "tick_if_new")
        ],
        figures={
            "pinned_last_to_young": to_young,
            "pinned_last_to_early": _growth(
                (each["pinned"][-1], each["pinned"][1]) for each in runs
            ),
            "free_last_to_early": _growth((each["free"][-1], each["free"][1]) for each in runs),
            "milliseconds": {
                "pinned_early": _medians(each["pinned"][1] for each in runs),
                "pinned_last": _medians(each["pinned"][-1] for each in runs),
                "young": _medians(each["young"][1] for each in runs),
                "free_early": _medians(each["free"][1] for each in runs),
                "free_last": _medians(each["free"][-1] for each in runs),
            },
        },
        setup={"cycles": count, "early, young": "cycles 500 to 1,000", "last": "the last 500"},
        runs=runs,
    )


def _round(server: str, count: int) -> dict[str, list[Medians]]:
    with contextlib.ExitStack() as stack:

        def make(*, pinned: bool) -> Cycles:
            cycles = Cycles(stack.enter_context(fresh_database(server)), pinned=pinned)
            stack.callback(cycles.close)
            return cycles

        pinned, free = make(pinned=True), make(pinned=False)
        _take_turns([pinned, free], count - BLOCK)
        young = make(pinned=True)
        young.run(BLOCK)
        _take_turns([pinned, young, free], BLOCK)
        say(f"  pinned {rounded(pinned.block(-1))}, young {rounded(young.block(1))}")
        return {"pinned": pinned.blocks(), "young": young.blocks(), "free": free.blocks()}


def _take_turns(databases: Sequence[Cycles], count: int) -> None:
    for turn in range(count // TURN):
        for cycles in databases if turn % 2 == 0 else databases[::-1]:
            cycles.run(TURN)


def _blocks(times: list[float]) -> list[list[float]]:
    return [times[start : start + BLOCK] for start in range(0, len(times), BLOCK)]


def _growth(pairs: Iterable[tuple[Medians, Medians]]) -> Medians:
    return _medians({call: late[call] / early[call] for call in CALLS} for late, early in pairs)


def _medians(blocks: Iterable[Medians]) -> Medians:
    each = list(blocks)
    return {call: median(block[call] for block in each) for call in CALLS}


def _hold_horizon(dsn: str) -> psycopg.Connection[Any]:
    conn = psycopg.connect(dsn)
    conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    conn.execute("select pg_current_xact_id()")
    return conn
