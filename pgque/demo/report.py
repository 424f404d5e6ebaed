"""The demo's closing figures, and the check that every order was handled exactly once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from pgque._table import table
from pgque.demo.stage import CONSUMERS, Stage

_FIRST_ACT = """
    with of_order as (
        select consumer, order_id,
            bool_or(error is null) as handled,
            count(error) as failures
        from attempt group by consumer, order_id)
    select consumer,
        count(*) filter (where handled and failures = 0) as at_once,
        count(*) filter (where handled and failures > 0) as after_retry,
        sum(failures)::int as failures
    from of_order group by consumer
"""
# The latency of what worked at the first attempt; the rate over the import, which is not paced.
_SPEED = """
    select consumer, channel,
        percentile_cont(0.5) within group (order by latency_ms) as p50,
        percentile_cont(0.99) within group (order by latency_ms) as p99,
        (count(*) / nullif(extract(epoch from max(handled_at) - min(handled_at)), 0))::float8
            as per_second
    from attempt where attempt = 1 and error is null group by consumer, channel
"""
_CHECK = """
    select
        (select count(*) from orders o where not exists (
            select from attempt a
            where a.consumer = %(consumer)s and a.order_id = o.id and a.error is null)),
        (select count(*) from (
            select from attempt a where a.consumer = %(consumer)s and a.error is null
            group by a.order_id having count(*) > 1) twice),
        (select count(*) from attempt a
            where a.consumer = %(consumer)s and not exists (
                select from orders o where o.id = a.order_id))
"""


@dataclass(slots=True)
class Consumed:
    """What one consumer did."""

    at_once: int = 0
    after_retry: int = 0
    failures: int = 0
    dead: int = 0
    after_replay: int = 0
    never: int = 0
    twice: int = 0
    phantom: int = 0
    speed: dict[str, dict[str, float | None]] = field(default_factory=dict)

    @property
    def handled(self) -> int:
        """Orders handled in all."""
        return self.at_once + self.after_retry + self.after_replay


@dataclass(slots=True)
class Report:
    """All figures of one run."""

    orders_in_table: int
    sent: int
    produced: dict[str, Any]
    replayed: int = 0
    consumers: dict[str, Consumed] = field(
        default_factory=lambda: {name: Consumed() for name in CONSUMERS}
    )

    def problems(self) -> list[str]:
        """Say in words what is not as promised; empty if every order was handled once."""
        found = []
        if self.sent != self.orders_in_table:
            found.append(f"{self.orders_in_table} orders were stored, but {self.sent} sent")
        for name, c in self.consumers.items():
            for number, what in (
                (c.never, "never handled"),
                (c.twice, "handled more than once"),
                (c.phantom, "handled that nobody placed"),
            ):
                if number:
                    found.append(f"{name}: {number} order(s) {what}")
            if c.handled != self.sent:
                found.append(f"{name}: {self.sent} sent, but {c.handled} handled")
        return found

    def as_dict(self) -> dict[str, Any]:
        """All figures as plain values."""
        figures = asdict(self)
        for name, consumed in self.consumers.items():
            figures["consumers"][name]["handled"] = consumed.handled
        return {**figures, "problems": self.problems()}

    def as_table(self) -> str:
        """The closing table: one line for each figure, one column for each consumer."""
        lines: list[tuple[str, Callable[[Consumed], float | None]]] = [
            ("sent", lambda _: self.sent),
            ("handled at once", lambda c: c.at_once),
            ("handled after a retry", lambda c: c.after_retry),
            ("dead letters", lambda c: c.dead),
            ("handled after their replay", lambda c: c.after_replay),
            ("handled in all", lambda c: c.handled),
            ("failed attempts", lambda c: c.failures),
            ("shop, one by one: latency p50, ms", lambda c: _speed(c, "shop", "p50")),
            ("shop, one by one: latency p99, ms", lambda c: _speed(c, "shop", "p99")),
            ("import, in batches: latency p50, ms", lambda c: _speed(c, "marketplace", "p50")),
            ("import, in batches: latency p99, ms", lambda c: _speed(c, "marketplace", "p99")),
            (
                "import, in batches: handled a second",
                lambda c: _speed(c, "marketplace", "per_second"),
            ),
        ]
        return table(
            [
                {"": label, **{name: value(c) for name, c in self.consumers.items()}}
                for label, value in lines
            ]
        )


def _speed(consumed: Consumed, channel: str, figure: str) -> float | None:
    return consumed.speed.get(channel, {}).get(figure)


def first_act(stage: Stage, produced: dict[str, Any]) -> Report:
    """Collect the figures before the replay."""
    stored = stage.orders_stored()
    report = Report(stored, produced["shop"] + produced["imported"], produced)
    for name, at_once, after_retry, failures in stage.conn.execute(_FIRST_ACT):
        consumed = report.consumers[name]
        consumed.at_once, consumed.after_retry, consumed.failures = at_once, after_retry, failures
    for name, channel, p50, p99, per_second in stage.conn.execute(_SPEED):
        report.consumers[name].speed[channel] = {"p50": p50, "p99": p99, "per_second": per_second}
    for name, dead in stage.dead().items():
        report.consumers[name].dead = dead
    return report


def second_act(stage: Stage, report: Report) -> None:
    """Add what came of the replay, and the check of every single order."""
    for name, handled in stage.handled().items():
        consumed = report.consumers[name]
        consumed.after_replay = handled - consumed.at_once - consumed.after_retry
        row = stage.conn.execute(_CHECK, {"consumer": name}).fetchone()
        assert row is not None
        consumed.never, consumed.twice, consumed.phantom = row
