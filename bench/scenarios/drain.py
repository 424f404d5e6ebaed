"""Reading a backlog by the Python client, in pieces of 1,000 and in whole batches.

One backlog is read by many consumers, one for each run, so that all find the same. The first of
them only warms the server up: it sets the hint bits and fills the caches for the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count
from statistics import median
from typing import Any

import psycopg

from bench import pgbench
from bench.figures import median_ratio, medians, take_turns
from bench.report import Demand, Result
from bench.scenarios.send import PAYLOAD
from bench.server import fresh_database
from bench.workers.starting import output, start

QUEUE = "backlog"
PIECE = 1000
WHOLE = 2_147_483_647

Runs = list[dict[str, dict[str, float]]]


def run(server: str, rounds: int, quick: bool) -> Result:
    """A backlog sent in one transaction, then one of as many transactions as messages."""
    large, many = (50_000, 20_000) if quick else (1_000_000, 200_000)
    runs = {
        "one_transaction": _drain(server, rounds, large, _send_in_one),
        "single_sends": _drain(server, rounds, many, _send_singly),
    }
    found = {backlog: _summary(each) for backlog, each in runs.items()}
    one, single = found.values()
    return Result(
        demands=[
            Demand("rate in pieces, relative to whole batches", one["ratio"], at_least=0.7),
            Demand("peak memory in pieces, MB", one["pieces"]["peak_mb"], at_most=200),
            Demand("time of the last tenth of the pieces to the first", one["growth"], at_most=1.2),
            Demand("the same of a window of single sends", single["growth"], at_most=1.2),
        ],
        figures=found,
        setup={"messages": {"one_transaction": large, "single_sends": many}, "piece": PIECE},
        runs=[runs],
    )


def _summary(runs: Runs) -> dict[str, Any]:
    rates = [{name: drain["messages_per_second"] for name, drain in each.items()} for each in runs]
    pieces = medians([each["pieces"] for each in runs])
    return {
        "pieces": pieces,
        "whole": medians([each["whole"] for each in runs]),
        "ratio": median_ratio(rates, "pieces", "whole"),
        "growth": median(
            each["pieces"]["late_piece_ms"] / each["pieces"]["early_piece_ms"] for each in runs
        ),
    }


def _drain(server: str, rounds: int, messages: int, send: Callable[[str, int], None]) -> Runs:
    consumers = (f"consumer_{number}" for number in count())

    def drain(piece: int) -> dict[str, float]:
        return _run_worker(dsn, next(consumers), piece, messages)

    with fresh_database(server) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("select pgque.create_queue(%s)", [QUEUE])
            conn.execute(
                "select pgque.subscribe(%s, 'consumer_' || n) from generate_series(0, %s) n",
                [QUEUE, 2 * rounds],
            )
        send(dsn, messages)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("select pgque.tick_if_new(%s)", [QUEUE])
            conn.execute("checkpoint")
        drain(PIECE)
        return take_turns(rounds, {"pieces": lambda: drain(PIECE), "whole": lambda: drain(WHOLE)})


def _run_worker(dsn: str, consumer: str, piece: int, expected: int) -> dict[str, float]:
    worker = start("bench.workers.drain", QUEUE, consumer, str(piece), dsn=dsn)
    found = json.loads(output(worker))
    if found["messages"] != expected:
        raise RuntimeError(f"{found['messages']} messages came, not {expected}")
    seconds: Sequence[float] = found["seconds"]
    tenth = max(len(seconds) // 10, 1)
    return {
        "messages_per_second": expected / sum(seconds),
        "peak_mb": found["peak_bytes"] / 1e6,
        "early_piece_ms": median(seconds[:tenth]) * 1000,
        "late_piece_ms": median(seconds[-tenth:]) * 1000,
    }


def _send_in_one(dsn: str, messages: int) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(
            "select count(pgque.send_batch(%s, 'order', array_fill(%s::text, array[1000])))"
            " from generate_series(1, %s)",
            [QUEUE, PAYLOAD, messages // 1000],
        )


def _send_singly(dsn: str, messages: int) -> None:
    script = f"select pgque.send('{QUEUE}', 'order', :payload::text);"
    pgbench.repeat(dsn, script, times=messages, clients=2, payload=PAYLOAD)
