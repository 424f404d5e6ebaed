"""Waiting on what can be seen, never on time alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float = 10, what: str = "") -> T:
    """Call `predicate` until it returns something true, and return that."""
    deadline = time.monotonic() + timeout
    while not (result := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what or predicate}")
        time.sleep(0.01)
    return result


def wait_blocked(
    observer: psycopg.Connection, blocked: psycopg.Connection, timeout: float = 10
) -> list[int]:
    """Wait until `blocked` waits for a lock; return the process ids that it waits for."""
    pid = blocked.info.backend_pid

    def blockers() -> list[int]:
        row = observer.execute("select pg_blocking_pids(%s)", [pid]).fetchone()
        return list(row[0]) if row else []

    return wait_until(blockers, timeout, f"session {pid} blocked by a lock")


def wait_activity(
    observer: psycopg.Connection, pid: int, *, state: str, timeout: float = 10
) -> None:
    """Wait until session `pid` is in a `state` of pg_stat_activity, 'gone' if it has ended."""

    def reached() -> bool:
        found = observer.execute(
            "select state from pg_stat_activity where pid = %s", [pid]
        ).fetchone()
        return (found[0] if found else "gone") == state

    wait_until(reached, timeout, f"session {pid} in state {state}")
