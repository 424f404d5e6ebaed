"""Real connections, and the script of all that was run on them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg

from tests.fix_wait import wait_until
from tests.property.model import Transaction
from tests.property.steps import Script

if TYPE_CHECKING:
    from typing_extensions import LiteralString

Rows = list[tuple[Any, ...]]

SETTINGS = "-c lock_timeout=2s -c synchronous_commit=off -c pgque.notify=off"


class Session:
    """One connection; `tx` is its open transaction."""

    def __init__(self, dsn: str, name: str) -> None:
        self.dsn = dsn
        self.name = name
        self.tx: Transaction | None = None
        self.script = Script()
        self.statements = 0
        self.threads = ThreadPoolExecutor(1)
        self.conn = self._connect()

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self.dsn, autocommit=True, options=SETTINGS)

    def run(self, query: LiteralString, args: Sequence[Any] = ()) -> Rows:
        """Run one statement; it is part of the script that a failure prints."""
        self.statements += 1
        text = self._text(query, args)
        try:
            rows = self.ask(query, args)
        except psycopg.Error as error:
            self.script.lines.append(f"{text}  -- {error.sqlstate} {str(error).splitlines()[0]}")
            raise
        self.script.lines.append(text + self._result(rows))
        return rows

    def start(self, query: LiteralString, args: Sequence[Any]) -> Future[Rows]:
        """Run one statement in the background."""
        self.statements += 1
        self.script.lines.append(f"{self._text(query, args)}  -- waits")
        return self.threads.submit(self.ask, query, args)

    def finish(self, running: Future[Rows]) -> Rows:
        """What the statement in the background returned in the end."""
        rows = running.result(10)
        self.script.lines.append(f"    /* {self.name} goes on */{self._result(rows)}")
        return rows

    def ask(self, query: LiteralString, args: Sequence[Any] = ()) -> Rows:
        """Run one statement that is no part of the script."""
        cursor = self.conn.execute(query, args)
        return cursor.fetchall() if cursor.description else []

    def prepare(self, query: LiteralString, gid: str) -> None:
        """Run a statement about a prepared transaction: these take no parameters."""
        self.script.lines.append(self._text(query, [gid]))
        with psycopg.ClientCursor(self.conn) as cursor:
            cursor.execute(query, [gid])

    def kill(self, admin: Session) -> None:
        """Terminate the backend, wait until it is gone, connect again."""
        self.script.lines.append(f"    /* {self.name} is killed */")
        pid = self.conn.info.backend_pid
        admin.ask("select pg_terminate_backend(%s)", [pid])
        wait_until(lambda: not admin.ask("select 1 from pg_stat_activity where pid = %s", [pid]))
        self.conn.close()
        self.conn = self._connect()

    def close(self) -> None:
        """Close the connection."""
        self.threads.shutdown()
        self.conn.close()

    def _text(self, query: LiteralString, args: Sequence[Any]) -> str:
        with psycopg.ClientCursor(self.conn) as cursor:
            return f"    /* {self.name} */ {cursor.mogrify(query, args)};"

    @staticmethod
    def _result(rows: Rows) -> str:
        shown = "; ".join(str(r[0] if len(r) == 1 else r) for r in rows)
        return f"  -- {shown}" if rows else ""
