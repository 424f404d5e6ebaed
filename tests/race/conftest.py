"""Each race has a database of its own: its functions are broken on purpose, its clock is moved."""

from __future__ import annotations

import psycopg
import pytest

from tests.race.sessions import add_stop
from tests.sql.calls import subscribe


@pytest.fixture
def topic(conn: psycopg.Connection, queue: str) -> str:
    """A new queue with the consumer "c", in a database that knows public.stop(n)."""
    add_stop(conn)
    subscribe(conn, queue)
    return queue


@pytest.fixture(params=["with the guard", "without the guard"])
def guarded(request: pytest.FixtureRequest) -> bool:
    """Runs the same scenario on the engine, and on an engine whose guard was taken out."""
    return bool(request.param == "with the guard")
