"""Rules: transactions of all kinds, and sending in them."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.property.harness import PICK, QUEUE, Call, Harness, one
from tests.property.model import Layer, Message, Transaction
from tests.property.sessions import Rows
from tests.property.steps import step


class Producing(Harness):
    """Open transactions live on over many steps, and end in every way."""

    @step(
        when=lambda self: not all(s.tx for s in self.db.sessions),
        pick=PICK,
        isolated=st.sampled_from([False, False, True]),
    )
    def begin(self, pick: int, isolated: bool) -> None:
        """Open a transaction; an isolated one takes its snapshot now and sends with it later."""
        session = one([s for s in self.db.sessions if not s.tx], pick)
        session.run("begin isolation level repeatable read" if isolated else "begin")
        if isolated:
            session.run("select count(*) from pgque.queue")
        session.tx = self.model.begin(isolated=isolated)

    @step(when=lambda self: self.model.open, pick=PICK, commit=st.sampled_from([True, True, False]))
    def finish(self, pick: int, commit: bool) -> None:
        """Commit or roll back, prepared ones too."""
        self.end(one(self.model.open, pick), commit=commit)

    @step(when=lambda self: any(s.tx for s in self.db.sessions), pick=PICK, back=st.booleans())
    def savepoint(self, pick: int, back: bool) -> None:
        """Set a savepoint, or go back to the last one."""
        session = one([s for s in self.db.sessions if s.tx], pick)
        assert session.tx
        if not back:
            session.run("savepoint sp")
            session.tx.layers.append(Layer())
        elif len(session.tx.layers) > 1:
            session.run("rollback to sp")
            session.run("release sp")
            self.model.rollback(session.tx, len(session.tx.layers) - 1)

    @step(when=lambda self: any(s.tx for s in self.db.sessions), pick=PICK, kill=st.booleans())
    def kill_or_prepare(self, pick: int, kill: bool) -> None:
        """The connection dies in its transaction; or the transaction is prepared for later."""
        session = one([s for s in self.db.sessions if s.tx], pick)
        assert session.tx
        if kill:
            session.kill(self.db.admin)
            self.model.rollback(session.tx)
            session.tx = None
        elif not session.tx.notifies and sum(bool(tx.prepared) for tx in self.model.open) < 2:
            self.prepared += 1
            session.tx.prepared = f"p{self.prepared} {session.conn.info.dbname}"
            session.prepare("prepare transaction %s", session.tx.prepared)
            session.tx = None

    @step(pick=PICK, queue=QUEUE, count=st.sampled_from([1, 2, 5]))
    def send(self, pick: int, queue: str, count: int) -> None:
        """Send one message or a batch."""
        payloads = [f"m{self.names + n}" for n in range(1, count + 1)]
        self.names += count

        def absorb(tx: Transaction, rows: Rows) -> None:
            ids = rows[0][0] if count > 1 else [rows[0][0]]
            assert ids == sorted(set(ids))
            for ev_id, payload in zip(ids, payloads, strict=True):
                message = Message(tx=tx, queue=queue, ev_id=ev_id, msg_id=ev_id, payload=payload)
                self.model.make(tx, message)

        call = Call("select pgque.send_batch(%s, %s::text[])", [queue, payloads], absorb)
        if count == 1:
            call = Call("select pgque.send(%s, %s::text)", [queue, payloads[0]], absorb)
        self.call(self.session(pick, any_isolation=True), call)

    @step(
        when=lambda self: any(s.tx for s in self.db.sessions),
        pick=PICK,
        queue=QUEUE,
        count=st.sampled_from([1, 3]),
    )
    def send_in_a_transaction(self, pick: int, queue: str, count: int) -> None:
        """The same, in one that is open."""
        sessions = [self.session(n, any_isolation=True) for n in range(4, 8)]
        numbers = [n for n, session in enumerate(sessions, 4) if session.tx]
        self.send(one(numbers or [0], pick), queue, count)
