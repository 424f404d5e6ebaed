"""Opening connections of our own: safe against silent servers, and discreet about passwords."""

from __future__ import annotations

import os
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow, tuple_row

from pgque._statements import Call, T
from pgque.errors import PgqueConnectionError, translated

# A server that is gone without a word is noticed within about a minute. Only where the DSN says
# nothing else.
_DEFAULTS: dict[str, int | str] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "client_encoding": "utf8",
    "fallback_application_name": "pgque",
}
_ENVIRONMENT = {"connect_timeout": "PGCONNECT_TIMEOUT", "client_encoding": "PGCLIENTENCODING"}


def open_connection(
    dsn: str, *, autocommit: bool, application_name: str = "pgque", **options: Any
) -> psycopg.Connection[TupleRow]:
    """Connect, or raise `PgqueConnectionError` with a message that holds no part of a password.

    `options` are psycopg's, such as `prepare_threshold`.
    """
    given = _parsed(dsn)
    defaults = _DEFAULTS | {"fallback_application_name": application_name[:63]}
    for name, value in defaults.items():
        if name not in given and _ENVIRONMENT.get(name, "") not in os.environ:
            options.setdefault(name, value)
    with translated():
        return psycopg.connect(dsn, autocommit=autocommit, row_factory=tuple_row, **options)


def _parsed(dsn: str) -> dict[str, Any]:
    """Refuse what libpq would cite in its messages with pieces of a badly quoted password."""
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise PgqueConnectionError("the connection string can't be read") from None
    host, port = str(given.get("host", "")), str(given.get("port", ""))
    if "@" in host or (port and not port.replace(",", "").isdecimal()):
        raise PgqueConnectionError(
            "the connection string's host or port can't be right",
            hint="Special characters in a password must be percent-encoded in a URL.",
        )
    return given


def run(conn: psycopg.Connection[Any], call: Call[T]) -> T:
    """Run one statement, whatever row or cursor factory the connection has been given."""
    with translated(), psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        cursor.execute(call.query, call.params, binary=True)
        return call.decode(cursor.fetchall())
