"""The process that gives signs of life for a consumer's member: ``python -m pgque._heartbeat``.

Standard input brings one line of JSON, then "+" when a piece is in hand and "-" when none is.
It ends with its input, or when it has lost its parent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from pgque._connections import open_connection, run
from pgque._statements import touch_subconsumer
from pgque._watchdog import Watchdog
from pgque.errors import PgqueError


class Beater:
    """Touches the member every so many seconds from `begin` to `end`, while `alive` says so.

    It connects with the first beat, so short pieces cost no connection.
    """

    def __init__(
        self,
        dsn: str,
        every: float,
        queue: str,
        consumer: str,
        subconsumer: str,
        *,
        alive: Callable[[], bool],
    ) -> None:
        self._dsn = dsn
        self._every = every
        self._touch = touch_subconsumer(queue, consumer, subconsumer)
        self._name = f"pgque {consumer}.{subconsumer}"
        self._alive = alive
        self._busy = threading.Event()
        self._idle = threading.Event()
        self._watchdog = Watchdog(max(every, 1.0), lambda: False)
        self._conn: psycopg.Connection[Any] | None = None
        self._complained = False

    def begin(self) -> None:
        self._idle.clear()
        self._busy.set()

    def end(self) -> None:
        self._busy.clear()
        self._idle.set()

    def run(self) -> None:
        """Never returns. The first beat comes at once, as we took a while to be there."""
        pause = 0.0
        while True:
            self._busy.wait()
            if self._idle.wait(pause):
                self._close()
            elif self._alive():
                self._beat()
            pause = self._every

    def _beat(self) -> None:
        try:
            if self._conn is None:
                self._conn = open_connection(
                    self._dsn, autocommit=True, application_name=self._name
                )
            with self._watchdog.watching(self._conn):
                run(self._conn, self._touch)
            self._complained = False
        except PgqueError as error:
            self._close()
            if not self._complained:
                print(f"{self._name}: no heartbeat: {error}", file=sys.stderr, flush=True)
            self._complained = True

    def _close(self) -> None:
        if self._conn is not None:
            self._conn.close()
        self._conn = None


def can_work(parent: int) -> bool:
    """Say whether the parent is not stopped; end the process if there is no parent any more.

    Its end is also the end of our input, unless somebody else has inherited the other side.
    """
    if os.getppid() != parent:
        os._exit(0)
    try:
        state = Path(f"/proc/{parent}/stat").read_text("ascii", "replace").rpartition(") ")[2][:1]
    except OSError:  # another system: that can't be told
        return True
    return state not in "Tt"


def main() -> None:
    """Beat as the input says."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent may take its time to stop
    parent = os.getppid()
    with open(0, "rb", buffering=0) as commands:
        beater = Beater(**json.loads(commands.readline()), alive=lambda: can_work(parent))
        threading.Thread(target=beater.run, daemon=True).start()
        while word := commands.read(1):
            if word == b"+":
                beater.begin()
            else:
                beater.end()
    os._exit(0)


if __name__ == "__main__":
    main()
