"""Find the SQL of this release, install it, take it away again."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import psycopg

from pgque.errors import PgqueSchemaVersion, translated

_VERSION_EXISTS = """
    select exists (
        select from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
        where n.nspname = 'pgque' and p.proname = 'version' and p.pronargs = 0)
"""


def sql_text(name: str = "pgque.sql") -> str:
    """Return one SQL file of this release: ``pgque.sql`` or ``uninstall.sql``."""
    packaged = resources.files("pgque") / "sql" / name
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    checkout = Path(__file__).resolve().parent.parent / "sql" / name
    return checkout.read_text(encoding="utf-8")


def install(conn: psycopg.Connection[Any]) -> str:
    """Install the schema, or upgrade it in place, and return the version installed.

    It is one transaction of its own, or part of the caller's if one is open. Messages and
    consumers are kept. Raises `PgqueSchemaVersion` where the server is too old or the
    installed schema is newer than this release.
    """
    with translated(), conn.transaction():
        conn.execute(sql_text().encode())
    version = installed_version(conn)
    if version is None:  # the file ends by creating pgque.version()
        raise PgqueSchemaVersion("the SQL ran, but pgque.version() is not there")
    return version


def uninstall(conn: psycopg.Connection[Any]) -> bool:
    """Drop the schema with all queues and messages; False if it was not there.

    Calls ``pgque.uninstall()``, which only the owner may do.
    """
    if installed_version(conn) is None:
        return False
    with translated(), conn.transaction():
        conn.execute("select pgque.uninstall()")
    return True


def installed_version(conn: psycopg.Connection[Any]) -> str | None:
    """Return the version of the installed schema, None if there is none.

    Calls ``pgque.version()``.
    """
    with translated(), conn.cursor(row_factory=psycopg.rows.scalar_row) as cur:
        if not cur.execute(_VERSION_EXISTS).fetchone():
            return None
        return str(cur.execute("select pgque.version()").fetchone())
