"""Waiting for work: a notification, a stop, or the time, whichever comes first."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from pgque import _consumer_statements as statements
from pgque._backoff import Backoff
from pgque._connections import run
from pgque._watchdog import Watchdog
from pgque.errors import PgqueError, translated

_log = logging.getLogger("pgque.consumer")

# Seconds of silence after which the listening connection is asked whether it is alive.
_PROBE_AFTER = 30.0


class Alarm:
    """A flag that ends a wait from any thread, and from a signal handler: it takes no lock."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # full: it rings already; closed: nobody waits
            self._writer.send(b"!")

    def wait(self, timeout: float, readable: int | None = None) -> None:
        """Wait until it rings, the file descriptor `readable` has news, or the time is over."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            if readable is not None:
                selector.register(readable, selectors.EVENT_READ)
            selector.select(max(timeout, 0))

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class Listener:
    """The connection that hears of news in one queue, replaced whenever it is lost.

    Armed means: LISTEN was issued, and senders see that somebody waits. What was sent just
    before can only be found by polling, so poll once more after arming.
    """

    def __init__(
        self, connect: Callable[[], psycopg.Connection[Any]], queue: str, watchdog: Watchdog
    ) -> None:
        self._connect = connect
        self._queue = queue
        self._watchdog = watchdog
        self._conn: psycopg.Connection[Any] | None = None
        self._marked = False
        self._heard: set[bytes] = set()
        self._seen_tick = 0
        self._proven = 0.0
        self._failures = 0
        self._next_try = 0.0
        self._backoff = Backoff(first=0.2, maximum=10, jitter=0.3)

    @property
    def armed(self) -> bool:
        return self._marked

    def arm(self) -> bool:
        """Make sure that news are heard; True if they were not before this call."""
        if (self._marked and self._probe()) or time.monotonic() < self._next_try:
            return False
        try:
            self._mark(True)
        except PgqueError as error:
            self._lose(error)
            return False
        self._failures = 0
        return True

    def disarm(self) -> None:
        """Spare senders the notifications while everything is found by polling anyway."""
        if self._marked:
            try:
                self._mark(False)
            except PgqueError as error:
                self._lose(error)

    def saw(self, tick_id: int | None) -> None:
        """Take note that what this tick brings has been looked for: it is no news any more."""
        self._seen_tick = max(self._seen_tick, tick_id or 0)

    def wait(self, alarm: Alarm, timeout: float) -> None:
        """Wait until there may be news, or it is time to try to listen again."""
        if self.has_news():
            return
        if self._conn is None:
            alarm.wait(min(timeout, max(self._next_try - time.monotonic(), 0.01)))
            return
        alarm.wait(timeout, self._conn.fileno())
        self.has_news()  # what is heard until here is looked for by the poll that follows

    def close(self) -> None:
        """Close the connection; with it, nobody waits here any more."""
        if self._conn is not None:
            self._conn.close()
        self._conn, self._marked = None, False

    def _mark(self, waiting: bool) -> None:
        if self._conn is None:
            self._conn = self._open()
        with self._watchdog.watching(self._conn):
            run(self._conn, statements.mark_waiting(self._queue, waiting))
        self._marked, self._proven = waiting, time.monotonic()

    def _open(self) -> psycopg.Connection[Any]:
        conn = self._connect()
        conn.add_notify_handler(self._hear)
        listen = sql.SQL("listen {}").format(sql.Identifier(f"pgque_{self._queue}"))
        with self._watchdog.watching(conn), translated():
            conn.execute(listen)
        return conn

    def _hear(self, notify: psycopg.Notify) -> None:
        self._heard.add(notify.payload.encode())

    def has_news(self) -> bool:
        """Take in what has arrived; True if that was news, or the end of the connection."""
        if self._conn is not None:
            try:
                with translated():
                    self._conn.pgconn.consume_input()
                    while notify := self._conn.pgconn.notifies():
                        self._heard.add(notify.extra)
            except PgqueError as error:
                self._lose(error)
                return True
        heard, self._heard = self._heard, set()
        if heard:
            self._proven = time.monotonic()
        return any(map(self._is_news, heard))

    def _is_news(self, payload: bytes) -> bool:
        """A ticker sends the tick's id, a sender nothing."""
        return not (payload.isdigit() and int(payload) <= self._seen_tick)

    def _probe(self) -> bool:
        """Say whether the connection is alive, asking the server only after a long silence."""
        if self._conn is None or time.monotonic() - self._proven < _PROBE_AFTER:
            return self._conn is not None
        try:
            with self._watchdog.watching(self._conn):
                run(self._conn, statements.probe())
        except PgqueError as error:
            self._lose(error)
            return False
        self._proven = time.monotonic()
        return True

    def _lose(self, error: PgqueError) -> None:
        delay = self._backoff.delay(self._failures)
        self._failures += 1
        self._next_try = time.monotonic() + delay
        _log.warning(
            "queue %r: not listening, only polling: %s; next try in %.1f s",
            *(self._queue, error, delay),
        )
        self.close()
