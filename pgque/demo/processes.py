"""The demo's child processes: started with the DSN in their environment, always ended."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import TYPE_CHECKING

from pgque.errors import PgqueError

if TYPE_CHECKING:
    from typing_extensions import Self


class Program:
    """One of the demo's programs, in a session of its own so that Ctrl-C reaches only us."""

    def __init__(self, module: str, *args: str, dsn: str) -> None:
        self.name = " ".join([module, *args[:1]])
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed by stop)
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"pgque.demo.{module}", *args],
            env={**os.environ, "PGQUE_DSN": dsn},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether it still runs; raises if it has failed."""
        code = self._process.poll()
        if code:
            self._fail(code)
        return code is None

    def read_line(self) -> str:
        """Wait for its next line of output; raises if it ends without one."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._fail(self._process.wait())
        return line

    def stop(self) -> None:
        """Ask it to stop, as a service manager does, and wait; kill it after 10 s."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _fail(self, code: int) -> None:
        self._errors.seek(0)
        last = self._errors.read().strip().rpartition("\n")[2]
        raise PgqueError(f"the demo's {self.name} ended with code {code}: {last}")
