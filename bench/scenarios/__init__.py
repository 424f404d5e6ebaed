"""The scenarios by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.report import Result
from bench.scenarios import drain, flat, idle, latency, send


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is measured; `run` takes the server's DSN, the number of rounds, and whether quick."""

    what: str
    rounds: int
    run: Callable[[str, int, bool], Result]


SCENARIOS = {
    "send": Scenario("send, one message a transaction, against a plain INSERT", 20, send.one),
    "send_batch": Scenario("send_batch of 1,000 against INSERT … SELECT unnest", 20, send.many),
    "drain": Scenario("a backlog in pieces of 1,000 against whole batches", 5, drain.run),
    "flat": Scenario(
        "cost of a batch after 20,000 under a pinned transaction horizon", 5, flat.run
    ),
    "idle": Scenario("WAL of 100 idle consumers on 100 idle queues", 5, idle.run),
    "latency": Scenario("send to handler, beside PgQueuer and procrastinate", 5, latency.run),
}
