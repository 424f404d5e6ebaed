"""The consumer's loop: poll, run handlers, settle, wait; and what happens when something breaks."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from pgque import _consumer_statements as statements
from pgque._backoff import Backoff
from pgque._lease import Heartbeats
from pgque._piece import Piece, PieceSize
from pgque._runners import Runner
from pgque._session import Session
from pgque._statements import unsubscribe_subconsumer
from pgque._subscription import Subscription
from pgque._wakeup import Alarm, Listener
from pgque.errors import (
    PgqueBatchNotFound,
    PgqueError,
    PgqueLeaseLost,
    PgqueMessageNotInBatch,
    PgqueQueueDisabled,
    is_passing,
)
from pgque.messages import Message, stored_length

_log = logging.getLogger("pgque.consumer")

# Seconds; while a piece takes long, what is done is settled this often: it bounds what a crash
# repeats, and lets nacked messages come back in time.
_SETTLE_EVERY = 1.0
# After so many polls in a row that found something, notifications would only cost the senders.
_BUSY_POLLS = 5
# Seconds; see _patience.
_SHORTEST_WAIT = 0.02

_NO_LONGER_OURS = (PgqueBatchNotFound, PgqueMessageNotInBatch, PgqueLeaseLost)


class ConsumerLoop:
    """One run of a consumer, until `stopping` says so and `alarm` has rung."""

    def __init__(
        self,
        subscription: Subscription,
        size: PieceSize,
        runner: Runner,
        session: Session,
        listener: Listener | None,
        heartbeats: Heartbeats | None,
        alarm: Alarm,
        stopping: Callable[[], bool],
    ) -> None:
        self._at = subscription
        self._size = size
        self._runner = runner
        self._session = session
        self._listener = listener
        self._heartbeats = heartbeats
        self._alarm = alarm
        self._stopping = stopping
        self._unsettled: Piece | None = None
        self._busy_polls = 0
        self._armed_at = 0.0
        self._overdue_polls = 0
        self._overdue = Backoff(first=0.005, maximum=60, jitter=0)
        self._failures = 0
        self._reconnect = Backoff(first=0.1, maximum=5, jitter=0.3)

    def run(self) -> None:
        """Loop until stopped; raise what no new try can heal."""
        while not self._stopping():
            try:
                self._cycle()
            except PgqueError as error:
                if not is_passing(error):
                    raise
                self._pause(error)
            else:
                self._recovered()
        if self._at.passing and self._unsettled is None:
            self._leave()

    def _cycle(self) -> None:
        if self._unsettled is not None:
            self._settle(self._unsettled, leaving=True)
        asked = self._size.value
        messages = self._poll()
        if messages:
            self._work(Piece(messages))
            if len(messages) < asked:
                self._rest()
        elif self._listener is not None and self._listener.arm():
            self._armed_at = time.monotonic()  # and poll once more
        else:
            self._wait()

    # polling

    def _poll(self) -> list[Message]:
        """Receive what is there, making the tick it needs; in a backlog without a tick a piece."""
        messages = self._receive() if self._busy_polls else []
        if not messages:
            with contextlib.suppress(PgqueQueueDisabled):  # its ticks come from elsewhere
                tick_id = self._session.run(statements.tick(self._at.queue))
                if self._listener is not None:
                    self._listener.saw(tick_id)
            messages = self._receive()
        if messages:
            self._busy_polls += 1
            self._overdue_polls = 0
            if self._listener is not None and self._busy_polls > _BUSY_POLLS:
                self._listener.disarm()
        else:
            self._busy_polls = 0
        return messages

    def _receive(self) -> list[Message]:
        messages = self._session.run(self._at.receive(self._size.value))
        if messages:
            self._size.learn(len(messages), stored_length(messages))
        return messages

    def _rest(self) -> None:
        """After a window's last message: whoever sent since then has seen that we wait.

        Not so for a member of a group: others may give something back.
        """
        listener = self._listener
        if listener is None or not listener.armed or self._at.member is not None:
            return
        if self._stopping() or listener.has_news():
            return
        due = self._due()
        if due is None or due > 0:
            self._busy_polls = 0
            listener.wait(self._alarm, self._patience(due))

    def _wait(self) -> None:
        patience = self._patience(self._due())
        if self._listener is None:
            self._alarm.wait(patience)
        else:
            self._listener.wait(self._alarm, patience)

    def _due(self) -> float | None:
        at = self._at
        return self._session.run(statements.seconds_to_next_retry(at.queue, at.consumer))

    def _patience(self, due: float | None) -> float:
        """Return the seconds after which to poll even if nothing is heard.

        Who sent before we listened, and commits afterwards, does not notify. So soon after
        arming polls are frequent, and then ever rarer: such a message waits about as long again
        as its transaction took.
        """
        limit = self._at.longest_wait
        if self._listener is not None and self._listener.armed:
            limit = min(limit, max(time.monotonic() - self._armed_at, _SHORTEST_WAIT))
        if due is None:
            return limit
        if due > 0:
            self._overdue_polls = 0
            return min(limit, due + 0.001)
        self._overdue_polls += 1  # moved just now, or it is not for us
        return min(limit, self._overdue.delay(self._overdue_polls - 1))

    # handling

    def _work(self, piece: Piece) -> None:
        """Handle a piece and settle it: all of it, or what is done when a stop comes."""
        self._unsettled = piece
        if self._heartbeats is not None:
            self._heartbeats.begin()
        try:
            self._handle_all(piece)
            self._settle(piece, leaving=True)
        except PgqueError as error:
            if not is_passing(error):
                raise
            _log.warning("%s; settling through a new connection", error)
            self._settle(piece, leaving=True)
        except BaseException:
            try:
                self._settle(piece, leaving=True)
            except PgqueError as error:
                _log.warning("batch %s is not settled and comes again: %s", piece.batch_id, error)
            raise

    def _handle_all(self, piece: Piece) -> None:
        started = time.monotonic()
        settle_at = started + _SETTLE_EVERY

        def progress() -> None:
            nonlocal settle_at
            if time.monotonic() > settle_at:
                self._settle(piece, leaving=False)
                settle_at = time.monotonic() + _SETTLE_EVERY

        self._runner.run(piece, progress)
        self._size.took(len(piece.messages), time.monotonic() - started)

    def _settle(self, piece: Piece, *, leaving: bool) -> None:
        """Write what is done; a batch that is not ours any more is dropped with a warning."""
        if piece.lost:
            return
        settlement = piece.pending(leaving=leaving)
        calls = list(statements.settle(settlement))
        why = "it is not open"
        try:
            if calls:
                results = self._session.run_all(calls)
                acks = settlement.complete or settlement.ack_to is not None
                piece.lost = acks and results[-1 - settlement.release] == 0
        except _NO_LONGER_OURS as error:
            piece.lost, why = True, str(error)
        if piece.lost:
            _log.warning(self._at.lost, piece.batch_id, why)
        else:
            piece.settled()
        if leaving or piece.lost:
            self._unsettled = None
            if self._heartbeats is not None:
                self._heartbeats.end()

    def _leave(self) -> None:
        """End the membership that was made for this run."""
        at = self._at
        assert at.member is not None
        try:
            self._session.run(unsubscribe_subconsumer(at.queue, at.consumer, at.member, 1))
        except PgqueError as error:
            _log.warning("%s: still registered: %s", at, error)

    # failures

    def _pause(self, error: PgqueError) -> None:
        if self._stopping():
            if self._unsettled is not None:
                batch = self._unsettled.batch_id
                _log.warning("batch %s is not settled and comes again: %s", batch, error)
            return
        delay = self._reconnect.delay(self._failures)
        self._failures += 1
        _log.warning("%s: %s; next try in %.1f s", self._at, error, delay)
        self._alarm.wait(delay)

    def _recovered(self) -> None:
        if self._failures:
            _log.info("%s: working again", self._at)
            self._failures = 0
