"""Rules: subscriptions, and hand-outs to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.property import windows
from tests.property.harness import CONSUMER, PICK, QUEUE, Call, Harness, one
from tests.property.model import Subscription, Transaction, World
from tests.property.sessions import Rows, Session
from tests.property.steps import first_step, step

if TYPE_CHECKING:
    from typing_extensions import LiteralString

LIMIT = st.sampled_from([1, 2, 3, 100])
FIND_UID = (
    "select sub_id from pgque.subscriber join pgque.queue on sub_queue = queue_id"
    " join pgque.consumer on co_id = sub_consumer where queue_name = %s and co_name = %s"
)


class Consuming(Harness):
    """Each hand-out is exactly what the model says."""

    @first_step(first=st.lists(st.tuples(QUEUE, CONSUMER), min_size=1, max_size=4, unique=True))
    def first_subscriptions(self, first: list[tuple[str, str]]) -> None:
        """Some are there from the beginning."""
        for queue, consumer in first:
            self.subscribe(0, queue, consumer)

    @step(pick=PICK, queue=QUEUE, consumer=CONSUMER, away=st.booleans(), which=PICK)
    def subscription_changes(
        self, pick: int, queue: str, consumer: str, away: bool, which: int
    ) -> None:
        """Somebody comes, or goes."""
        if away:
            self.unsubscribe(pick, which)
        else:
            self.subscribe(pick, queue, consumer)

    def subscribe(self, pick: int, queue: str, consumer: str) -> None:
        session = self.session(pick)
        key = ("subscription", queue, consumer)
        if self.model.written(key, session.tx):
            return  # it would wait

        def absorb(tx: Transaction, rows: Rows) -> None:
            tx.notifies = True
            tx.lock(("queue", queue))
            self.look(session, tx)
            if self.model.get(tx, key):
                assert rows == [(0,)]
                return
            assert rows == [(1,)]
            [(uid,)] = session.ask(FIND_UID, [queue, consumer])
            begin = self.model.commits
            worlds = frozenset([World(begin)])
            self.model.put(tx, key, Subscription(uid, queue, consumer, begin, worlds))

        self.call(session, Call("select pgque.subscribe(%s, %s)", [queue, consumer], absorb))

    def unsubscribe(self, pick: int, which: int) -> None:
        session = self.session(pick)
        subs = self.free_subscriptions(session)
        if len(subs) < 2:
            return
        sub = one(subs, which)

        def absorb(tx: Transaction, rows: Rows) -> None:
            assert rows == [(1,)]
            tx.lock(sub.lock)
            self.model.put(tx, sub.key, None)

        query: LiteralString = "select pgque.unsubscribe(%s, %s)"
        self.call(session, Call(query, [sub.queue, sub.consumer], absorb))

    def store(self, tx: Transaction, sub: Subscription) -> None:
        """What a receive, ack or nack wrote, under the subscription's lock."""
        tx.lock(sub.lock)
        self.model.put(tx, sub.key, sub)

    def handed_out(self, tx: Transaction, before: Subscription, after: Subscription) -> None:
        """Note a hand-out: a new batch has an id that no committed one had."""
        assert after.batch
        batch_id = after.batch.batch_id
        if not (before.batch and before.batch.batch_id == batch_id):
            assert not self.model.get(tx, ("batch", batch_id)), f"batch id {batch_id} comes again"
        self.model.put(tx, ("batch", batch_id), True)
        if batch_id not in self.batch_ids:
            self.batch_ids.append(batch_id)
        for message in after.batch.messages:
            self.seen[after.uid, message.payload] += 1
        self.store(tx, after)

    def receive_call(self, sub: Subscription, limit: int) -> Call:
        """A receive of at most `limit`."""

        def error(tx: Transaction) -> str | None:
            return None if self.model.get(tx, sub.key) else "QU002"

        def absorb(tx: Transaction, rows: Rows) -> None:
            now = self.model.get(tx, sub.key)
            tx.lock(now.lock)
            if sub.queue in self.model.paused:
                assert rows == [], "handed out something of a paused queue"
            elif not rows:
                self.store(tx, windows.received_nothing(self.model, tx, now))
            else:
                ids = [row[0] for row in rows]
                [batch_id] = {row[1] for row in rows}
                after = windows.received(self.model, tx, now, batch_id, ids, limit)
                assert after.batch
                fields = [(m.payload, m.retry) for m in after.batch.messages]
                assert fields == [row[2:4] for row in rows]
                assert after.deliveries < 0 or {row[4] for row in rows} == {after.deliveries}
                self.handed_out(tx, now, after)

        query: LiteralString = (
            "select msg_id, batch_id, payload, retry_count, delivery_count"
            " from pgque.receive(%s, %s, %s)"
        )
        return Call(query, [sub.queue, sub.consumer, limit], absorb, error)

    @step(
        when=lambda self: self.model.subscriptions(),
        pick=PICK,
        which=PICK,
        limit=LIMIT,
        whole=st.sampled_from([False, False, False, True]),
    )
    def receive(self, pick: int, which: int, limit: int, whole: bool) -> None:
        """Hand out the next batch, the rest of one, or an unsettled one again."""
        session = self.session(pick)
        if not (subs := self.free_subscriptions(session)):
            return
        if whole:
            self.next_batch(session, one(subs, which))
        else:
            self.call(session, self.receive_call(one(subs, which), limit))

    def next_batch(self, session: Session, sub: Subscription) -> None:
        """PgQ's way: the whole window is the batch."""

        def absorb(tx: Transaction, rows: Rows) -> None:
            batch_id = rows[0][0]
            ids = []
            if batch_id is not None:
                query: LiteralString = "select ev_id from pgque.get_batch_events(%s)"
                ids = [row[0] for row in session.run(query, [batch_id])]
            after = windows.opened(self.model, tx, sub, batch_id, ids)
            tx.lock(sub.lock)
            if batch_id is not None:
                self.handed_out(tx, sub, after)

        query: LiteralString = "select pgque.next_batch(%s, %s)"
        self.call(session, Call(query, [sub.queue, sub.consumer], absorb))
