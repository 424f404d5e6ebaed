"""Rules: time, configuration, upkeep, dead letters."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.property.database import QUEUES
from tests.property.harness import PICK, QUEUE, SELDOM, Call, Harness, one
from tests.property.model import Letter, Message, Subscription, Transaction
from tests.property.sessions import Rows, Session
from tests.property.steps import step

if TYPE_CHECKING:
    from typing_extensions import LiteralString


class Tending(Harness):
    """Upkeep may run at any time, and nobody notices."""

    @step(
        kind=st.sampled_from(["time", "time", "time", "pause", "retries"]),
        queue=QUEUE,
        seconds=st.sampled_from([1, 4, 61, 3601]),
        limit=st.sampled_from([0, 1, 5]),
    )
    def change(self, kind: str, queue: str, seconds: int, limit: int) -> None:
        """Time passes, or somebody changes a setting."""
        if kind == "time":
            self.time_passes(seconds)
        elif all(self.queue_row_free(queue) for queue in QUEUES):
            if kind == "pause":
                self.pause_or_resume(queue)
            else:
                self.set_max_retries(limit)

    def time_passes(self, seconds: int) -> None:
        self.model.now += dt.timedelta(seconds=seconds)
        self.script.lines.append(f"    /* {seconds} s pass */")
        self.db.set_clock(self.model.now)

    def pause_or_resume(self, queue: str) -> None:
        if queue in self.model.paused:
            self.db.admin.run("select pgque.resume_queue(%s)", [queue])
        else:
            self.db.admin.run("select pgque.pause_queue(%s)", [queue])
        self.model.paused ^= {queue}

    def set_max_retries(self, limit: int) -> None:
        query: LiteralString = "select pgque.set_queue_config(%s, 'max_retries', %s)"
        for queue in QUEUES:
            self.db.admin.run(query, [queue, str(limit)])
        self.model.max_retries = limit

    @step(
        kind=st.sampled_from(["retry", "rotate", "rotate", "turn", "all", "all"]),
        pick=PICK,
        queue=QUEUE,
        undo=SELDOM,
    )
    def upkeep(self, kind: str, pick: int, queue: str, undo: bool) -> None:
        """One of the functions of upkeep; `undo`: its transaction is rolled back."""
        if kind == "retry":
            self.maint_retry_events(self.session(pick))
        elif kind == "turn":
            self.run_upkeep("select pgque.maint_rotate_tables_step2()", [], undo)
        elif kind == "all":
            self.maint()
        elif self.queue_row_free(queue):
            self.time_passes(1)
            self.run_upkeep("select pgque.maint_rotate_tables_step1(%s)", [queue], undo)

    def run_upkeep(self, query: LiteralString, args: list[str], undo: bool) -> None:
        if undo:
            self.db.admin.run("begin")
        self.db.admin.run(query, args)
        if undo:
            self.db.admin.run("rollback")

    def maint_retry_events(self, session: Session) -> None:
        def absorb(tx: Transaction, rows: Rows) -> None:
            found = self.look(session, tx)
            assert rows == [(sum(moved for _, moved in found.values()),)]
            self.moved_all(tx, QUEUES)

        self.call(session, Call("select pgque.maint_retry_events()", [], absorb))

    def maint(self) -> None:
        if not all(self.queue_row_free(queue) for queue in QUEUES):
            return
        self.time_passes(1)

        def absorb(tx: Transaction, rows: Rows) -> None:
            self.look(self.db.admin, tx)
            self.moved_all(tx, QUEUES)

        self.call(self.db.admin, Call("select pgque.maint()", [], absorb))

    @step(
        when=lambda self: any(self.model.letters(None, queue) for queue in QUEUES),
        kind=st.sampled_from(["replay", "replay", "all", "purge", "inspect"]),
        pick=PICK,
        queue=QUEUE,
        which=PICK,
    )
    def dead_letters(self, kind: str, pick: int, queue: str, which: int) -> None:
        """One of the functions on dead letters."""
        session = self.session(pick)
        letters = self.model.letters(session.tx, queue)
        free = [n for n in letters if not self.model.written(("letter", n), session.tx)]
        if kind == "replay" and free:
            self.dlq_replay(session, one(free, which))
        elif kind == "all":
            self.dlq_replay_all(session, queue, free)
        elif kind == "purge" and free == letters:
            self.dlq_purge(session, queue, letters)
        elif kind == "inspect":
            self.dlq_inspect(session, queue)

    def addressee(self, tx: Transaction, dl_id: int) -> Subscription | None:
        """The subscription that a replay goes to, if it is there."""
        letter: Letter = self.model.get(tx, ("letter", dl_id))
        found: Subscription | None = self.model.get(
            tx, ("subscription", letter.queue, letter.consumer)
        )
        return found

    def note_replay(self, tx: Transaction, dl_id: int, ev_id: int) -> None:
        """The letter is gone, and a message to its consumer only is there."""
        letter: Letter = self.model.get(tx, ("letter", dl_id))
        sub = self.addressee(tx, dl_id)
        assert sub
        self.model.put(tx, ("letter", dl_id), None)
        message = Message(
            tx=tx,
            queue=letter.queue,
            ev_id=ev_id,
            msg_id=ev_id,
            payload=letter.payload,
            owner=sub.uid,
        )
        self.model.make(tx, message)

    def dlq_replay(self, session: Session, dl_id: int) -> None:
        def error(tx: Transaction) -> str | None:
            return None if self.addressee(tx, dl_id) else "QU002"

        def absorb(tx: Transaction, rows: Rows) -> None:
            self.note_replay(tx, dl_id, rows[0][0])

        self.call(session, Call("select pgque.dlq_replay(%s)", [dl_id], absorb, error))

    def dlq_replay_all(self, session: Session, queue: str, letters: list[int]) -> None:
        def absorb(tx: Transaction, rows: Rows) -> None:
            able = [dl_id for dl_id in letters if self.addressee(tx, dl_id)]
            assert rows[0][:2] == (len(able), len(letters) - len(able))
            query: LiteralString = (
                "select ev_id from pgque.event where ev_queue = %s and ev_msg_id is null"
                " order by ev_id desc limit %s"
            )
            events = session.ask(query, [self.queue_ids[queue], len(able)])
            for dl_id, (ev_id,) in zip(able, reversed(events), strict=True):
                self.note_replay(tx, dl_id, ev_id)

        self.call(session, Call("select * from pgque.dlq_replay_all(%s)", [queue], absorb))

    def dlq_purge(self, session: Session, queue: str, letters: list[int]) -> None:
        def absorb(tx: Transaction, rows: Rows) -> None:
            assert rows == [(len(letters),)]
            for dl_id in letters:
                self.model.put(tx, ("letter", dl_id), None)

        self.call(session, Call("select pgque.dlq_purge(%s, '0 s')", [queue], absorb))

    def dlq_inspect(self, session: Session, queue: str) -> None:
        def absorb(tx: Transaction, rows: Rows) -> None:
            assert sorted(row[0] for row in rows) == self.model.letters(tx, queue)

        self.call(session, Call("select dl_id from pgque.dlq_inspect(%s)", [queue], absorb))
