"""What the consumer's tests share: running one in a thread, and a proxy that breaks connections."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import pgque
from tests.fix_wait import wait_until


@contextlib.contextmanager
def running(*consumers: pgque.Consumer) -> Iterator[None]:
    """Run consumers in threads; at the end they have to stop soon, and without an error."""
    errors: list[BaseException] = []

    def run(consumer: pgque.Consumer) -> None:
        try:
            consumer.start()
        except BaseException as error:  # noqa: BLE001  (shown by the assertion)
            errors.append(error)

    threads = [threading.Thread(target=run, args=[consumer]) for consumer in consumers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for consumer in consumers:
            consumer.stop()
        for thread in threads:
            thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors


def recording(
    dsn: Any, queue: str, handler: Callable[[pgque.Message], object] | None = None, **options: Any
) -> tuple[pgque.Consumer, list[Any]]:
    """A consumer "c" that takes all types, and the list of the payloads that it was given."""
    seen: list[Any] = []
    consumer = pgque.Consumer(dsn, queue=queue, name="c", **options)

    @consumer.on("*")
    def handle(message: pgque.Message) -> None:
        seen.append(message.payload)
        if handler is not None:
            handler(message)

    return consumer, seen


def wait_for(seen: list[Any], payload: object) -> None:
    """Wait until that was handled."""
    wait_until(lambda: payload in seen, what=f"{payload!r} handled")


def sessions(conn: psycopg.Connection, *, listening: bool) -> list[int]:
    """The process ids of the consumer's listening session, or of its other ones."""
    found = conn.execute(
        "select a.pid from pg_stat_activity a where a.application_name = 'pgque c'"
        " and a.datname = current_database() and %s = exists (select from pg_locks l"
        " where l.pid = a.pid and l.locktype = 'advisory' and l.mode = 'ShareLock' and l.granted)",
        [listening],
    )
    return [pid for (pid,) in found]


class Proxy:
    """Passes TCP connections on to a server, until told not to."""

    def __init__(self, dsn: str) -> None:
        given = conninfo_to_dict(dsn)
        self._target = (str(given["host"]), int(str(given["port"])))
        self._door = socket.create_server(("127.0.0.1", 0))
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=self._door.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.open = True
        self.frozen = False
        self._closed = False
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._thread.join()
        self.cut()
        self._door.close()

    def cut(self) -> None:
        """End all connections."""
        while self._pairs:
            for side in self._pairs.pop():
                side.close()

    def _pass_on(self) -> None:
        while not self._closed:
            if not self.open:
                self.cut()
            sides = [] if self.frozen else [side for pair in self._pairs for side in pair]
            for ready in select.select([self._door, *sides], [], [], 0.05)[0]:
                if ready is self._door:
                    self._accept()
                else:
                    self._forward(ready)

    def _accept(self) -> None:
        client, _ = self._door.accept()
        if self.open:
            self._pairs.append((client, socket.create_connection(self._target)))
        else:
            client.close()

    def _forward(self, ready: socket.socket) -> None:
        for pair in list(self._pairs):
            if ready in pair:
                other = pair[1 - pair.index(ready)]
                with contextlib.suppress(OSError):
                    if data := ready.recv(65536):
                        other.sendall(data)
                        return
                self._pairs.remove(pair)
                for side in pair:
                    side.close()
