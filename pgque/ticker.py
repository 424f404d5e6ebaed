"""The ticker process: keeps one database ticking, delivers due retries, rotates.

For servers without pg_cron. One ticker is active for each database; others stand by
and take over when its session ends.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import psycopg

from pgque import _admin_statements as statements
from pgque._backoff import Backoff
from pgque._connections import open_connection, run
from pgque._statements import Call
from pgque._wakeup import Alarm
from pgque.errors import PgqueError, PgqueReadOnlyServer, is_passing, translated

_log = logging.getLogger("pgque.ticker")

#: The session advisory lock that the active ticker of a database holds (two-key form).
ADVISORY_LOCK: Final = (1346851152, 0)  # "PGQP", beside the keys that the SQL uses

_GROWTH = 1.2  # of the pause from one idle pass to the next


class Ticker:
    """Tick all queues of one database until `stop`.

    All times are seconds. `interval` is the pause while there is traffic; with nothing to do
    it grows up to `idle_interval`. Retries that are due and rotation are looked after every
    `upkeep_interval`. The connection must be a session: through PgBouncer in transaction mode
    the lock that makes a second ticker stand by does not hold. With several hosts in the DSN,
    `target_session_attrs=read-write` makes it follow the primary.
    """

    def __init__(
        self,
        dsn: str = "",
        *,
        interval: float = 0.1,
        idle_interval: float = 1.0,
        upkeep_interval: float = 1.0,
    ) -> None:
        for seconds in (interval, idle_interval, upkeep_interval):
            if not 0 < seconds <= 3600:
                raise ValueError("a ticker's intervals are above 0 and at most 3600 seconds")
        self._dsn = dsn
        self._interval = interval
        self._idle_interval = max(idle_interval, interval)
        self._upkeep_interval = upkeep_interval
        self._backoff = Backoff(first=0.1, maximum=10, jitter=0.3)
        self._failures = 0
        self._worked = False
        self._told = ""
        self._stopped = False
        self._alarm: Alarm | None = None

    def run(self) -> None:
        """Tick until `stop` is called, through restarts and failovers of the server.

        Raises `PgqueError` only for what waiting cannot heal and only before anything has
        worked: no schema, no right to tick.
        """
        self._alarm = Alarm()
        try:
            while not self._stopped:
                self._session(self._alarm)
        finally:
            alarm, self._alarm = self._alarm, None
            alarm.close()

    def stop(self) -> None:
        """Make `run` return after the statement in hand; from any thread, or a signal handler."""
        self._stopped = True
        if (alarm := self._alarm) is not None:
            alarm.ring()

    def run_once(self) -> int:
        """Do one pass of upkeep and ticks, and return the number of queues ticked.

        It needs no lock: tickers that race each other do no harm.
        """
        with self._connect() as conn:
            run(conn, statements.maint())
            return run(conn, statements.ticker_all())

    def _session(self, alarm: Alarm) -> None:
        """Tick through one connection until it fails or `stop` is called."""
        try:
            with self._connect() as conn:
                if self._stand_by(conn, alarm):
                    self._keep_ticking(conn, alarm)
        except PgqueError as error:
            if not self._worked and not is_passing(error):
                raise
            delay = self._backoff.delay(self._failures)
            self._failures += 1
            text = " ".join(str(error).split())  # libpq's has a line for each host
            _log.warning("no ticks: %s; next try in %.1f s", text, delay)
            self._pause(alarm, delay)

    def _connect(self) -> psycopg.Connection[Any]:
        conn = open_connection(self._dsn, autocommit=True, application_name="pgque ticker")
        try:
            # A tick lost in a crash is made again, and whatever is built on one that was seen
            # commits later in the log and so carries it to disk.
            with translated():
                conn.execute("set synchronous_commit = off")
        except BaseException:
            conn.close()
            raise
        return conn

    def _stand_by(self, conn: psycopg.Connection[Any], alarm: Alarm) -> bool:
        """Wait until this session is the active one; False if stopped before."""
        told = False
        while not self._stopped:
            with translated():
                row = conn.execute("select pg_try_advisory_lock(%s, %s)", ADVISORY_LOCK).fetchone()
            if row is not None and row[0]:
                _log.info("active: ticking")
                return True
            if not told:
                _log.info("standing by: another ticker is active in this database")
                told = True
            self._pause(alarm, self._idle_interval)
        return False

    def _keep_ticking(self, conn: psycopg.Connection[Any], alarm: Alarm) -> None:
        pause, upkeep_due = self._interval, 0.0
        while not self._stopped:
            if time.monotonic() >= upkeep_due:
                self._call(conn, statements.maint())
                upkeep_due = time.monotonic() + self._upkeep_interval
            busy = self._call(conn, statements.ticker_all())
            pause = self._interval if busy else min(pause * _GROWTH, self._idle_interval)
            self._pause(alarm, pause)

    def _call(self, conn: psycopg.Connection[Any], call: Call[int]) -> int:
        """Run one upkeep statement; a failure that leaves the session usable is only logged."""
        try:
            number = run(conn, call)
        except PgqueError as error:
            hopeless = not self._worked and not is_passing(error)
            if conn.closed or hopeless or isinstance(error, PgqueReadOnlyServer):
                raise
            self._complain(f"{call.query}: {error}")
            return 0
        self._worked, self._failures = True, 0
        return number

    def _complain(self, text: str) -> None:
        """Log a failure as a warning the first time, and quietly while it stays the same."""
        _log.log(logging.DEBUG if text == self._told else logging.WARNING, "%s", text)
        self._told = text

    def _pause(self, alarm: Alarm, seconds: float) -> None:
        if not self._stopped:
            alarm.wait(seconds)
