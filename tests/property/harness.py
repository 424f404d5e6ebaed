"""What all rules share: running statements, holding the outcome against the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from tests.fix_wait import wait_until
from tests.property.database import CONSUMERS, QUEUES, Database
from tests.property.model import Layer, Message, Model, Subscription, Tick, Transaction
from tests.property.sessions import Rows, Session
from tests.property.steps import Script

if TYPE_CHECKING:
    from typing_extensions import LiteralString

T = TypeVar("T")

PICK = st.integers(0, 11)
QUEUE = st.sampled_from(QUEUES)
CONSUMER = st.sampled_from(CONSUMERS)
SELDOM = st.sampled_from([False, False, False, True])


@dataclass
class Call:
    """A statement, what becomes true with its result, and the error that the contract asks for."""

    query: LiteralString
    args: Sequence[Any]
    absorb: Callable[[Transaction, Rows], None]
    error: Callable[[Transaction], str | None] = lambda tx: None


def one(choices: Sequence[T], pick: int) -> T:
    """One of the choices; small numbers for the first ones, so that failures shrink."""
    return choices[pick % len(choices)]


class Harness(RuleBasedStateMachine):
    """The model beside the database."""

    db: ClassVar[Database]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.script = Script()
        self.healthy = True  # a rule that failed leaves the model behind
        self.names = 0
        self.prepared = 0
        self.batch_ids: list[int] = []
        self.forced: dict[str, int] = {}
        self.seen: Counter[tuple[int, str]] = Counter()
        self.known = dict.fromkeys(QUEUES, (0, 0))  # newest tick_id and ev_id of a move
        self.db.begin(self.script)
        self.queue_ids: dict[str, int] = dict(
            self.db.admin.ask("select queue_name, queue_id from pgque.queue")
        )

    def call(self, session: Session, call: Call) -> None:
        """Run it in the session's transaction, or in one of its own."""
        self.healthy = False
        tx = session.tx or self.model.begin()
        tx.layers.append(Layer())
        error = call.error(tx)
        if error and session.tx:
            session.run("savepoint before_error")
        self.outcome(tx, error, call, lambda: session.run(call.query, call.args))
        if error:
            self.model.rollback(tx, len(tx.layers) - 1)
            if session.tx:
                session.run("rollback to before_error")
        else:
            tx.merge()
        if not session.tx:
            self.model.commit(tx)
        self.healthy = True

    def call_waits(self, session: Session, call: Call, holder: Transaction, commit: bool) -> None:
        """Run it while `holder` has the lock that it needs; go on when the holder has ended."""
        self.healthy = False
        running = session.start(call.query, call.args)
        pid = session.conn.info.backend_pid
        blockers: LiteralString = "select 1 from unnest(pg_blocking_pids(%s))"
        wait_until(lambda: running.done() or self.db.admin.ask(blockers, [pid]))
        assert not running.done(), f"did not wait: {running.result()}"
        self.end(holder, commit=commit)
        tx = self.model.begin()
        self.outcome(tx, call.error(tx), call, lambda: session.finish(running))
        self.model.commit(tx)
        self.healthy = True

    def outcome(
        self, tx: Transaction, error: str | None, call: Call, run: Callable[[], Rows]
    ) -> None:
        """Hold result or error against the contract."""
        try:
            rows = run()
        except psycopg.Error as raised:
            if raised.sqlstate != error:
                raise
        else:
            assert error is None, f"{rows} instead of {error}"
            call.absorb(tx, rows)

    def end(self, tx: Transaction, *, commit: bool) -> None:
        """Commit or roll back an open or prepared transaction."""
        if tx.prepared:
            query: LiteralString = "commit prepared %s" if commit else "rollback prepared %s"
            self.db.admin.prepare(query, tx.prepared)
        else:
            session = next(s for s in self.db.sessions if s.tx is tx)
            session.run("commit" if commit else "rollback")
            session.tx = None
        if commit:
            self.model.commit(tx)
        else:
            self.model.rollback(tx)

    def session(self, pick: int, *, any_isolation: bool = False) -> Session:
        """A session that may tick and consume; those in a transaction come up more often."""
        able = [s for s in self.db.sessions if any_isolation or not (s.tx and s.tx.isolated)]
        return one([*able, *(s for s in able if s.tx)] or [self.db.admin], pick)

    def free_subscriptions(self, session: Session) -> list[Subscription]:
        """Those that the session can work with without waiting."""
        subs = self.model.subscriptions(session.tx)
        return [sub for sub in subs if not self.model.locked(sub.lock, session.tx)]

    def queue_row_free(self, queue: str) -> bool:
        """Say whether no open transaction has subscribed: that holds the queue's row."""
        return not self.model.locked(("queue", queue), None)

    def look(self, session: Session, tx: Transaction) -> dict[str, tuple[int, int]]:
        """Take note of new ticks and of what was moved; returns how many of each, by queue."""
        known = [self.known[queue] for queue in QUEUES]
        args = [[self.queue_ids[q] for q in QUEUES], [t for t, _ in known], [e for _, e in known]]
        rows = session.ask(
            """
            with k as (select * from unnest(%s::int[], %s::bigint[], %s::bigint[]) k (q, t, e))
            select 1, q, tick_id, 0, 0, 0 from k join pgque.tick on tick_queue = q and tick_id > t
            union all
            select 2, q, ev_id, ev_msg_id, ev_owner, ev_retry
            from k join pgque.event on ev_queue = q and ev_id > e and ev_msg_id is not null
            order by 1, 2, 3
            """,
            args,
        )
        names = {queue_id: queue for queue, queue_id in self.queue_ids.items()}
        for kind, queue_id, number, *row in rows:
            if kind == 1:
                self.note_tick(tx, names[queue_id], number)
            else:
                self.note_move(tx, names[queue_id], number, *row)
        kinds = Counter((row[0], names[row[1]]) for row in rows)
        return {queue: (kinds[1, queue], kinds[2, queue]) for queue in QUEUES}

    def note_tick(self, tx: Transaction, queue: str, tick_id: int) -> None:
        """A tick shows what has committed until now."""
        at, time = self.model.commits, self.model.now
        self.model.make(tx, Tick(tx=tx, queue=queue, tick_id=tick_id, at=at, time=time))
        self.known[queue] = (tick_id, self.known[queue][1])

    def note_move(
        self, tx: Transaction, queue: str, ev_id: int, msg_id: int, owner: int, retry: int
    ) -> None:
        """What waited came back into the log: it must be due, and nobody else be at it."""
        wanted = (msg_id, owner, retry)
        due = self.model.due(tx, queue)
        moved = [w for w in due if (w.message.msg_id, w.owner, w.retry) == wanted]
        assert moved, f"moved message {msg_id} of consumer {owner}, which is not due"
        self.model.put(tx, ("moved", moved[0]), True)
        message = Message(
            tx=tx,
            queue=queue,
            ev_id=ev_id,
            msg_id=msg_id,
            payload=moved[0].message.payload,
            retry=retry,
            owner=owner,
        )
        self.model.make(tx, message)
        self.known[queue] = (self.known[queue][0], ev_id)

    def moved_all(self, tx: Transaction, queues: Sequence[str]) -> None:
        """After a mover ran nothing is due, unless another one is at it."""
        tx.notifies = True
        for queue in queues:
            if not self.model.locked(("mover", queue), tx):
                assert not self.model.due(tx, queue), "due, but not moved"
            tx.lock(("mover", queue))
