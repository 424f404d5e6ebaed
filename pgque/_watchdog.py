"""No statement waits for ever: a connection whose server does not answer is cut."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

_log = logging.getLogger("pgque.consumer")

_PERIOD = 1.0
_WHEN_STOPPING = 10.0


class Watchdog:
    """Shuts the socket of a statement that takes longer than `limit` seconds.

    Keepalives find a dead peer, but not a proxy that has lost its server. Once `stopping`, a
    statement has ten seconds left. The thread ends with `close`.
    """

    def __init__(self, limit: float, stopping: Callable[[], bool]) -> None:
        self._limit = limit
        self._stopping = stopping
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[psycopg.Connection[Any], float]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._patrol, name="pgque-watchdog", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def watching(self, conn: psycopg.Connection[Any]) -> Iterator[None]:
        """Give the block `limit` seconds to get its answers on `conn`."""
        with self._lock:
            self._watched[id(conn)] = conn, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._watched[id(conn)]

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _patrol(self) -> None:
        stop_seen = float("inf")
        while not self._closed.wait(_PERIOD):
            now = time.monotonic()
            if self._stopping():
                stop_seen = min(stop_seen, now)
            with self._lock:
                for conn, since in self._watched.values():
                    deadline = min(since + self._limit, max(stop_seen, since) + _WHEN_STOPPING)
                    if now > deadline:
                        _log.warning("no answer for %.0f s: connection given up", now - since)
                        _cut(conn)


def _cut(conn: psycopg.Connection[Any]) -> None:
    """Shut the socket, so that whoever waits on it gets an error; harmless if it is shut."""
    with contextlib.suppress(OSError, psycopg.Error):
        twin = socket.fromfd(conn.fileno(), socket.AF_INET, socket.SOCK_STREAM)
        with twin:
            twin.shutdown(socket.SHUT_RDWR)
