"""The consumer's way to the server: short transactions on a connection that may be lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo
from psycopg_pool import ConnectionPool

from pgque._connections import open_connection, run
from pgque._statements import Call, T
from pgque._watchdog import Watchdog
from pgque.errors import PgqueConnectionError, PgqueError, is_passing, translated

Connection: TypeAlias = psycopg.Connection[Any]

# Seconds to wait for a connection of the pool.
_PATIENCE = 10.0


class Source(Protocol):
    """Where connections come from."""

    def take(self) -> Connection: ...

    def give_back(self, conn: Connection, *, broken: bool) -> None: ...

    def close(self) -> None: ...

    def open_another(self) -> Connection:
        """Open an autocommit connection that stands apart, for listening."""
        ...

    def conninfo(self) -> str:
        """Return what another process connects with; it may hold a password."""
        ...


class OwnConnection:
    """One connection, opened when it is needed and kept until it breaks."""

    def __init__(self, dsn: str, application_name: str, prepare_threshold: int | None) -> None:
        self._dsn = dsn
        self._application_name = application_name
        self._prepare_threshold = prepare_threshold
        self._conn: Connection | None = None

    def take(self) -> Connection:
        if self._conn is None or self._conn.closed:
            self._conn = self.open_another()
        return self._conn

    def give_back(self, conn: Connection, *, broken: bool) -> None:
        if broken:
            conn.close()

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()

    def open_another(self) -> Connection:
        return open_connection(
            self._dsn,
            autocommit=True,
            application_name=self._application_name,
            prepare_threshold=self._prepare_threshold,
        )

    def conninfo(self) -> str:
        return self._dsn


class PooledConnections:
    """A connection from the application's pool for each transaction, none in between."""

    def __init__(self, pool: ConnectionPool[Any], watchdog: Watchdog) -> None:
        self._pool = pool
        self._watchdog = watchdog
        self._suspicious = False

    def take(self) -> Connection:
        """Take a connection; after a failure, throw the dead ones out on the way."""
        with translated():
            for _ in range(self._pool.max_size + 1):
                conn: Connection = self._pool.getconn(timeout=_PATIENCE)
                if not self._suspicious or self._is_alive(conn):
                    return conn
                self._pool.putconn(conn)
        raise PgqueConnectionError("the pool has only dead connections")

    def give_back(self, conn: Connection, *, broken: bool) -> None:
        self._suspicious = broken
        if broken:
            conn.close()
        self._pool.putconn(conn)

    def _is_alive(self, conn: Connection) -> bool:
        try:
            with self._watchdog.watching(conn):
                conn.execute("")
                if not conn.autocommit:
                    conn.rollback()
        except psycopg.Error:
            return False
        return True

    def close(self) -> None:
        """Leave the pool alone: it is the application's."""

    def open_another(self) -> Connection:
        conninfo, options = self._parameters()
        with translated():
            conn: Connection = self._pool.connection_class.connect(
                conninfo, **(options | {"autocommit": True})
            )
        return conn

    def conninfo(self) -> str:
        conninfo, options = self._parameters()
        known = {option.keyword.decode() for option in Conninfo.get_defaults()}
        with translated():
            return make_conninfo(
                conninfo, **{name: given for name, given in options.items() if name in known}
            )

    def _parameters(self) -> tuple[str, dict[str, Any]]:
        """Return the pool's connection string and options; either may be given as a function."""
        conninfo: Any = self._pool.conninfo
        options: Any = self._pool.kwargs or {}
        return (
            conninfo() if callable(conninfo) else conninfo,
            options() if callable(options) else options,
        )


class Session:
    """Runs statements, each in a transaction of its own or some in one."""

    def __init__(self, source: Source, watchdog: Watchdog) -> None:
        self._source = source
        self._watchdog = watchdog

    def run(self, call: Call[T]) -> T:
        """Run one statement as one transaction."""
        with self._connection() as conn:
            if conn.autocommit:
                return run(conn, call)
            with conn.transaction():
                return run(conn, call)

    def run_all(self, calls: list[Call[int]]) -> list[int]:
        """Run statements in one transaction."""
        if len(calls) == 1:
            return [self.run(calls[0])]
        with self._connection() as conn, conn.transaction():
            return [run(conn, call) for call in calls]

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        conn = self._source.take()
        broken = True
        try:
            with translated(), self._watchdog.watching(conn):
                yield conn
            broken = False
        except PgqueError as error:
            broken = is_passing(error)
            raise
        finally:
            self._source.give_back(conn, broken=broken)
