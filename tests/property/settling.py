"""Rules: ack, ack_to, nack, event_dead, release, with good and bad ids."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.property import windows
from tests.property.consuming import LIMIT, Consuming
from tests.property.harness import PICK, Call, one
from tests.property.model import Batch, Letter, Message, Subscription, Transaction, Waiting
from tests.property.producing import Producing
from tests.property.sessions import Rows, Session
from tests.property.steps import step
from tests.property.tending import Tending
from tests.property.ticking import Ticking

if TYPE_CHECKING:
    from typing_extensions import LiteralString

# what a handler may answer, and after how many seconds it wants the message again
FAILURES = {"retry": 0, "retry in 5 s": 5, "retry in an hour": 3600, "dead": None}
AFTERWARDS = ["ack", "ack", "release", "ack the first batch", "maint", "nack again"]
UNSEEN_LETTERS = (
    "select dl_id, ev_id, ev_data, consumer_name from pgque.dlq_inspect(%s) where dl_id <> all (%s)"
)


class Settling(Consuming, Producing, Ticking, Tending):
    """Exactly what the batch's latest hand-out handed out can be settled, once."""

    def with_batch(self, tx: Transaction, batch_id: int) -> Subscription | None:
        """The subscription whose open batch this is; asking takes its lock all the same."""
        for sub in self.model.subscriptions(tx):
            if batch_id >> 40 == sub.uid:
                tx.lock(sub.lock)
                return sub if sub.batch and sub.batch.batch_id == batch_id else None
        return None

    def batches(self, session: Session, *, stale: bool) -> list[int]:
        """Batch ids that the session can use without waiting: all there were, or the open ones."""
        if stale:
            locked = [lock for tx in self.model.open if tx is not session.tx for lock in tx.locks]
            return [b for b in self.batch_ids if ("lock", b >> 40) not in locked]
        return [sub.batch.batch_id for sub in self.free_subscriptions(session) if sub.batch]

    def done(self, tx: Transaction, sub: Subscription, messages: tuple[Message, ...]) -> None:
        """Each message is settled once."""
        for message in messages:
            key = ("done", sub.uid, message.ev_id)
            assert not self.model.get(tx, key), f"message {message.msg_id} was settled before"
            self.model.put(tx, key, True)

    def ack_call(self, batch_id: int) -> Call:
        """An ack, of an open batch or not."""

        def absorb(tx: Transaction, rows: Rows) -> None:
            sub = self.with_batch(tx, batch_id)
            assert rows == [(1 if sub else 0,)]
            if sub and sub.batch:
                self.done(tx, sub, sub.batch.messages)
                self.store(tx, windows.settled(self.model, sub))

        return Call("select pgque.ack(%s)", [batch_id], absorb)

    def release_call(self, batch_id: int) -> Call:
        """A release, of an open batch or not."""

        def absorb(tx: Transaction, rows: Rows) -> None:
            sub = self.with_batch(tx, batch_id)
            assert rows == [(1 if sub else 0,)]
            if sub:
                self.store(tx, windows.released(sub))

        return Call("select pgque.release(%s)", [batch_id], absorb)

    def ack_to_call(self, batch_id: int, msg_id: int) -> Call:
        """An ack_to of a message that the batch handed out, or of another one."""

        def target(sub: Subscription | None) -> Message | None:
            messages = sub.batch.messages if sub and sub.batch else ()
            return next((m for m in messages if m.msg_id == msg_id), None)

        def error(tx: Transaction) -> str | None:
            sub = self.with_batch(tx, batch_id)
            return "QU004" if sub and not target(sub) else None

        def absorb(tx: Transaction, rows: Rows) -> None:
            sub = self.with_batch(tx, batch_id)
            assert rows == [(1 if sub else 0,)]
            if sub and sub.batch and (last := target(sub)):
                self.done(tx, sub, tuple(m for m in sub.batch.messages if m.ev_id <= last.ev_id))
                self.store(tx, windows.settled_to(sub, last.ev_id))

        return Call("select pgque.ack_to(%s, %s)", [batch_id, msg_id], absorb, error)

    def nack_call(self, session: Session, batch_id: int, msg_id: int, after: int | None) -> Call:
        """A nack that asks for a retry after so many seconds; None: an event_dead."""

        def error(tx: Transaction) -> str | None:
            sub = self.with_batch(tx, batch_id)
            if not (sub and sub.batch):
                return "QU003"
            return None if msg_id in [m.msg_id for m in sub.batch.messages] else "QU004"

        def absorb(tx: Transaction, rows: Rows) -> None:
            sub = self.with_batch(tx, batch_id)
            assert sub
            assert sub.batch
            first = not self.was_put_back(tx, batch_id, msg_id)
            assert rows == [(1 if first or after is not None else 0,)]
            message = next(m for m in sub.batch.messages if m.msg_id == msg_id)
            dead = after is None or (message.retry or 0) >= self.model.max_retries
            dl_id = self.note_letter(session, tx, sub, message if first and dead else None)
            if first and not dead:
                self.note_retry(tx, sub, message, after or 0)
            if first:
                self.model.put(tx, ("put back", batch_id, msg_id), dl_id or "waits")

        if after is None:
            query: LiteralString = "select pgque.event_dead(%s, %s, 'dead')"
            return Call(query, [batch_id, msg_id], absorb, error)
        query = "select pgque.nack(%s, %s, %s)"
        return Call(query, [batch_id, msg_id, dt.timedelta(seconds=after)], absorb, error)

    def note_letter(
        self, session: Session, tx: Transaction, sub: Subscription, message: Message | None
    ) -> int | None:
        """The one dead letter that must have come, or none."""
        known = self.model.letters(tx, sub.queue)
        new = session.ask(UNSEEN_LETTERS, [sub.queue, known])
        wanted = [(message.msg_id, message.payload, sub.consumer)] if message else []
        assert [row[1:] for row in new] == wanted
        for row in new:
            letter = Letter(sub.queue, sub.consumer, row[2])
            self.model.put(tx, ("letter", row[0]), letter)
        return new[0][0] if new else None

    def was_put_back(self, tx: Transaction, batch_id: int, msg_id: int) -> bool:
        """Say whether a nack has no effect any more. Once the letter is gone it has one again."""
        found = self.model.get(tx, ("put back", batch_id, msg_id))
        return found == "waits" or bool(self.model.get(tx, ("letter", found)))

    def note_retry(
        self, tx: Transaction, sub: Subscription, message: Message, seconds: int
    ) -> None:
        """The message waits from now on."""
        due = self.model.now + dt.timedelta(seconds=seconds)
        retry = (message.retry or 0) + 1
        waiting = Waiting(
            tx=tx, queue=sub.queue, message=message, owner=sub.uid, due=due, retry=retry
        )
        self.model.make(tx, waiting)

    @step(
        when=lambda self: self.batch_ids,
        kind=st.sampled_from(["ack", "release"]),
        pick=PICK,
        which=PICK,
        stale=st.booleans(),
    )
    def close(self, kind: str, pick: int, which: int, stale: bool) -> None:
        """Settle a batch, or give it back; `stale`: any batch that there ever was."""
        session = self.session(pick)
        if batches := self.batches(session, stale=stale):
            batch_id = one(batches, which)
            self.call(session, self.close_call(kind, batch_id))

    def close_call(self, kind: str, batch_id: int) -> Call:
        return self.ack_call(batch_id) if kind == "ack" else self.release_call(batch_id)

    @step(
        when=lambda self: self.batch_ids,
        answer=st.sampled_from([*FAILURES, "ack_to", "ack_to"]),
        pick=PICK,
        message=st.integers(0, 99),
        whose=st.sampled_from(["mine", "nacked", "any"]),
    )
    def settle_message(self, answer: str, pick: int, message: int, whose: str) -> None:
        """Answer for a message that is handed out, or was nacked before, or any at all."""
        session = self.session(pick)
        subs = [sub for sub in self.free_subscriptions(session) if sub.batch]
        pairs = [(s.batch.batch_id, m.msg_id) for s in subs if s.batch for m in s.batch.messages]
        if whose == "nacked":
            again = [p for p in pairs if self.model.get(session.tx, ("put back", *p))]
            pairs = again or pairs
        elif whose == "any":
            batches = self.batches(session, stale=True)
            seen = [m.msg_id for m in self.model.log if m.commit_no]
            pairs = [(batch_id, msg_id) for batch_id in batches for msg_id in seen]
        if pairs:
            self.answer(session, *one(pairs, message), answer)

    def answer(self, session: Session, batch_id: int, msg_id: int, answer: str) -> None:
        """Call what the answer stands for."""
        if answer in FAILURES:
            self.call(session, self.nack_call(session, batch_id, msg_id, FAILURES[answer]))
        elif not self.undetermined(session, batch_id, msg_id):
            self.call(session, self.ack_to_call(batch_id, msg_id))

    def undetermined(self, session: Session, batch_id: int, msg_id: int) -> bool:
        """Say whether the window has the message twice, or settled: then ack_to may do nothing."""
        subs = [s for s in self.model.subscriptions(session.tx) if s.uid == batch_id >> 40]
        mine = [m.msg_id for sub in subs if sub.batch for m in sub.batch.messages].count(msg_id)
        whole = [
            [m.msg_id for m in windows.content(self.model, sub, world._replace(position=0))]
            for sub in subs
            for world in sub.worlds
        ]
        return mine > 1 or any(ids.count(msg_id) > mine for ids in whole)

    @step(
        when=lambda self: self.model.subscriptions(),
        pick=PICK,
        which=PICK,
        limit=LIMIT,
        count=st.sampled_from([0, 1, 3]),
        tick=st.booleans(),
        answers=st.lists(st.sampled_from(["good", "ack_to", *FAILURES]), max_size=3),
        then=st.lists(st.sampled_from(AFTERWARDS), max_size=3),
    )
    def work(
        self,
        pick: int,
        which: int,
        limit: int,
        count: int,
        tick: bool,
        answers: list[str],
        then: list[str],
    ) -> None:
        """What goes on all day: send, tick, receive, answer for some messages, ack."""
        session = self.session(pick)
        if not (subs := self.free_subscriptions(session)):
            return
        sub = one(subs, which)
        if count:
            self.send(pick, sub.queue, count)
        if tick:
            self.tick_if_new(pick, sub.queue)
        self.call(session, self.receive_call(sub, limit))
        batch = self.model.get(session.tx, sub.key).batch
        if not batch or not batch.messages:
            return
        for message, answer in zip(batch.messages, answers, strict=False):
            if answer != "good":
                self.answer(session, batch.batch_id, message.msg_id, answer)
        for kind in then:
            self.afterwards(session, sub, batch, kind)

    def afterwards(self, session: Session, sub: Subscription, batch: Batch, kind: str) -> None:
        """What comes after the answers, or too late."""
        if kind == "maint":
            self.maint()
        elif kind == "nack again":
            self.answer(session, batch.batch_id, batch.messages[0].msg_id, "retry")
        elif kind == "ack the first batch":
            first = next(b for b in self.batch_ids if b >> 40 == sub.uid)
            self.call(session, self.ack_call(first))
        else:
            self.call(session, self.close_call(kind, batch.batch_id))

    def held(self) -> list[tuple[Subscription, Transaction]]:
        """Subscriptions that cannot be used now, and who keeps them."""
        return [
            (sub, tx)
            for tx in self.model.open
            for sub in self.model.subscriptions()
            if sub.lock in tx.locks and sub.queue not in self.model.paused
        ]

    @step(
        when=lambda self: self.held() and not all(s.tx for s in self.db.sessions),
        which=PICK,
        limit=LIMIT,
        commit=st.booleans(),
        kind=st.sampled_from(["receive", "ack"]),
    )
    def wait_for_another_session(self, which: int, limit: int, commit: bool, kind: str) -> None:
        """A receive or ack waits for the transaction of another session, and sees its end."""
        session = next(s for s in self.db.sessions if not s.tx)
        sub, tx = one(self.held(), which)
        ids = [b for b in self.batch_ids if b >> 40 == sub.uid]
        receive = kind == "receive" or not ids
        call = self.receive_call(sub, limit) if receive else self.ack_call(ids[-1])
        self.call_waits(session, call, tx, commit)
