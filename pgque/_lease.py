"""Signs of life while a piece is in hand, given by a process of its own (`_heartbeat`).

A thread would not do: it can't run while a handler holds the GIL, in a regular expression or in
C code, and that may well take longer than any `dead_interval`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import IO

from pgque.errors import PgqueError

_log = logging.getLogger("pgque.consumer")

_BEATS_IN_AN_INTERVAL = 3
_PATIENCE = 5.0


class Heartbeats:
    """The process, started with the first piece; it ends with ours, however that ends."""

    def __init__(
        self,
        conninfo: Callable[[], str],
        queue: str,
        consumer: str,
        member: str,
        dead_interval: float,
    ) -> None:
        self._conninfo = conninfo
        self._member = {"queue": queue, "consumer": consumer, "subconsumer": member}
        self._every = dead_interval / _BEATS_IN_AN_INTERVAL
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: IO[bytes] | None = None

    def begin(self) -> None:
        """Let it give signs of life, from one interval after now on."""
        if self._say(b"+"):
            return
        self.close()
        try:
            self._start()
        except (OSError, PgqueError) as error:
            _log.warning("no heartbeats: %s: what takes long may be taken over", error)
            return
        self._say(b"+")

    def end(self) -> None:
        """Let it be silent."""
        self._say(b"-")

    def close(self) -> None:
        """End the process."""
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                self._pipe.close()
        if self._process is not None:
            try:
                self._process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._pipe = None

    def _say(self, word: bytes) -> bool:
        """Tell the process; False if there is none, or it does not take it."""
        if self._pipe is None:
            return False
        try:
            return self._pipe.write(word) == len(word)  # None: full, as nobody reads
        except OSError:
            return False

    def _start(self) -> None:
        # What it connects with goes through the pipe: arguments and environment can be read by
        # others. The session of its own keeps the terminal's Ctrl-C away from it.
        first = {"dsn": self._conninfo(), "every": self._every, **self._member}
        self._process = subprocess.Popen(
            [sys.executable or "python3", "-m", "pgque._heartbeat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": _search_path(), "PYTHONSAFEPATH": "1"},
            start_new_session=True,
            bufsize=0,
        )
        self._pipe = self._process.stdin
        assert self._pipe is not None
        self._pipe.write(json.dumps(first).encode() + b"\n")
        os.set_blocking(self._pipe.fileno(), False)


def _search_path() -> str:
    """Return where this process finds its modules, for another one to find the same."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)  # noqa: PTH100  ("" too)
