"""The machine: all rules together, and what must hold at the end."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.database import QUEUES, Database
from tests.property.model import Subscription
from tests.property.settling import Settling
from tests.property.steps import FAILURES, Step, minimal


class Delivery(Settling):
    """Producers, tickers, consumers and upkeep on real sessions, held against the model."""

    def teardown(self) -> None:
        """If nothing failed until here, the end must be right, too."""
        try:
            if self.healthy:
                self.drain()
        finally:
            self.db.clear()

    def drain(self) -> None:
        """End what is open, wait long enough, consume everything: nothing may be missing."""
        self.script.lines.append("-- the end: what is open ends, time passes, all is consumed")
        for n, tx in enumerate(list(self.model.open)):
            self.end(tx, commit=n % 3 != 2)
        for queue in self.model.paused.copy():
            self.pause_or_resume(queue)
        self.time_passes(7200)
        for queue in QUEUES * 2:  # the first round may move, the second ticks
            self.tick_if_new(0, queue)
        for sub in self.model.subscriptions():
            self.consume(sub)
            self.check_complete(sub)

    def consume(self, sub: Subscription) -> None:
        """Receive and ack until nothing comes any more."""
        session = self.db.sessions[0]
        for _ in range(1000):
            self.call(session, self.receive_call(sub, 3))
            if not (batch := self.model.get(None, sub.key).batch):
                return
            self.call(session, self.ack_call(batch.batch_id))
        raise AssertionError("receive never ends")

    def check_complete(self, sub: Subscription) -> None:
        """Everything since its beginning was handed out and settled, and nothing waits."""
        missing = [
            m.payload
            for m in self.model.log
            if m.queue == sub.queue
            and (m.commit_no or 0) > sub.begin
            and m.owner in (None, sub.uid)
            and not (
                self.model.committed.get(("done", sub.uid, m.ev_id))
                and self.seen[sub.uid, m.payload]
            )
        ]
        assert not missing, f"consumer {sub.consumer} of {sub.queue} never got {missing}"
        assert not [w for w in self.model.due(None, sub.queue) if w.owner == sub.uid]


def search(db: Database, bounds: settings | None = None) -> list[Step] | None:
    """Look for a failure; return the steps that led to it, None if there is none."""
    machine = type("Machine", (Delivery,), {"db": db})
    try:
        run_state_machine_as_test(machine, settings=bounds)
    except FAILURES:
        return db.script.steps
    return None


def explain(db: Database, steps: list[Step]) -> str:
    """The script of the smallest failure like that of `steps`."""
    return minimal(type("Machine", (Delivery,), {"db": db}), steps)
