"""Rules: every way to make a tick."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.property.database import QUEUES
from tests.property.harness import PICK, QUEUE, Call, Harness, one
from tests.property.model import Transaction
from tests.property.sessions import Rows
from tests.property.steps import step

if TYPE_CHECKING:
    from typing_extensions import LiteralString


class Ticking(Harness):
    """Ticks come when they are due, also in transactions that stay open."""

    @step(
        kind=st.sampled_from(["if new", "if new", "all", "one", "forced"]), pick=PICK, queue=QUEUE
    )
    def tick(self, kind: str, pick: int, queue: str) -> None:
        """One of the functions that tick."""
        if kind == "if new":
            self.tick_if_new(pick, queue)
        elif kind == "all":
            self.ticker(pick)
        else:
            if kind == "forced":
                self.force_next_tick(pick, queue)
            self.ticker_of_queue(pick, queue)

    @step(
        when=lambda self: any(s.tx and s.tx.isolated for s in self.db.sessions),
        pick=PICK,
        queue=QUEUE,
    )
    def tick_in_an_old_snapshot(self, pick: int, queue: str) -> None:
        """Is refused: it would give an old snapshot a new number."""
        session = one([s for s in self.db.sessions if s.tx and s.tx.isolated], pick)
        query: LiteralString = "select pgque.tick_if_new(%s)"
        self.call(session, Call(query, [queue], lambda tx, rows: None, lambda tx: "QU011"))

    def tick_due(self, tx: Transaction, queue: str) -> str | None:
        """Why a ticker has to tick now; None if it need not."""
        newest = self.model.newest_tick(tx, queue)
        if queue in self.model.paused:
            return None
        if newest is None:
            return "there is none yet"
        if self.forced.get(queue, 0) > newest.tick_id:
            return "one was forced"
        age = self.model.now - newest.time
        if age >= dt.timedelta(seconds=3) and self.model.unseen(tx, queue):
            return "messages wait"
        return "it idled" if age >= dt.timedelta(minutes=1) else None

    def ticker_of_queue(self, pick: int, queue: str) -> None:
        session = self.session(pick)

        def absorb(tx: Transaction, rows: Rows) -> None:
            tx.notifies = True
            due = self.tick_due(tx, queue)
            made, _ = self.look(session, tx)[queue]
            assert made == (rows != [(None,)])
            assert made or not due, f"no tick, although {due}"
            assert not (made and queue in self.model.paused)

        self.call(session, Call("select pgque.ticker(%s)", [queue], absorb))

    def ticker(self, pick: int) -> None:
        session = self.session(pick)

        def absorb(tx: Transaction, rows: Rows) -> None:
            due = {queue: self.tick_due(tx, queue) for queue in QUEUES}
            found = self.look(session, tx)
            assert rows == [(sum(made for made, _ in found.values()),)]
            for queue in QUEUES:
                assert found[queue][0] or not due[queue], f"no tick, although {due[queue]}"
                assert not (found[queue][0] and queue in self.model.paused)
            self.moved_all(tx, QUEUES)

        self.call(session, Call("select pgque.ticker()", [], absorb))

    def tick_if_new(self, pick: int, queue: str) -> None:
        session = self.session(pick)

        def absorb(tx: Transaction, rows: Rows) -> None:
            made, moved = self.look(session, tx)[queue]
            assert made == (rows != [(None,)])
            if queue in self.model.paused:
                assert (made, moved) == (0, 0)
                return
            assert made or moved or not self.model.unseen(tx, queue), "messages wait for a tick"
            self.moved_all(tx, [queue])

        self.call(session, Call("select pgque.tick_if_new(%s)", [queue], absorb))

    def force_next_tick(self, pick: int, queue: str) -> None:
        session = self.session(pick)

        def absorb(tx: Transaction, rows: Rows) -> None:
            newest = self.model.newest_tick(tx, queue)
            assert rows == [(newest and newest.tick_id,)]
            assert self.look(session, tx)[queue] == (0, 0)
            if queue not in self.model.paused:
                query: LiteralString = (
                    "select pg_sequence_last_value(queue_tick_seq)"
                    " from pgque.queue where queue_name = %s"
                )
                [(self.forced[queue],)] = session.ask(query, [queue])

        self.call(session, Call("select pgque.force_next_tick(%s)", [queue], absorb))
