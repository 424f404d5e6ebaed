"""Sessions that run beside each other, stop at a point, and engines with a guard taken out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg

from tests.fix_wait import wait_until
from tests.sql.calls import rows, value

POINT = 1777  # the advisory lock (POINT, n) is stop n


def in_background(job: Callable[[], Any]) -> Future[Any]:
    """Run it in a thread; ask the future for the result."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(job())
        except BaseException as error:  # noqa: BLE001  (comes out of the future)
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def start(conn: psycopg.Connection, statement: str, *args: object) -> Future[list[Any]]:
    """Send the statement on its way; its rows come from the future."""
    return in_background(lambda: rows(conn, statement, *args))


def at_once(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run all jobs in threads that start together; their results, or the first error."""
    barrier = threading.Barrier(len(jobs))

    def run(job: Callable[[], Any]) -> Any:
        barrier.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))


def use_up_transaction_numbers(conn: psycopg.Connection, count: int = 1) -> None:
    """As a busy database does."""
    for _ in range(count):
        conn.execute("select pg_current_xact_id()")


def source(conn: psycopg.Connection, function: str) -> str:
    """The definition of an internal function, as it can be run again."""
    kind = "regprocedure" if "(" in function else "regproc"
    return str(value(conn, f"select pg_get_functiondef(%s::{kind})", f"pgque.{function}"))


def rewrite(conn: psycopg.Connection, function: str, old: str, new: str) -> None:
    """Put `new` for `old` in a function of this test's own database; `old` has to be there once."""
    text = source(conn, function)
    assert text.count(old) == 1, f"{function} holds {old!r} {text.count(old)} times:\n{text}"
    conn.execute(text.replace(old, new).encode())


def replace_body(conn: psycopg.Connection, function: str, body: str) -> None:
    """Put another PL/pgSQL body into a function of this test's own database."""
    text = source(conn, function)
    head = text[: text.index("AS $function$")].replace("LANGUAGE sql", "LANGUAGE plpgsql")
    conn.execute(f"{head} AS $function$ {body} $function$".encode())


def add_stop(conn: psycopg.Connection) -> None:
    """Make public.stop(n), which waits there in sessions that asked for it with stopping_at."""
    conn.execute(
        """
        create function public.stop(point int) returns void language plpgsql as $$
        begin
            if current_setting('test.stop_at', true) = point::text then
                perform pg_advisory_lock_shared(1777, point);
                perform pg_advisory_unlock_shared(1777, point);
            end if;
        end
        $$
        """
    )


@contextlib.contextmanager
def stopped_at(
    observer: psycopg.Connection,
    point: int,
    conn: psycopg.Connection,
    statement: str,
    *args: object,
) -> Iterator[Future[list[Any]]]:
    """Inside the block `conn` stands at stop(point) in the statement; it goes on afterwards."""
    observer.execute("select pg_advisory_lock(%s, %s)", [POINT, point])
    conn.execute("select set_config('test.stop_at', %s, false)", [str(point)])
    future = start(conn, statement, *args)
    try:
        wait_until(
            lambda: rows(
                observer,
                "select from pg_locks where locktype = 'advisory' and not granted"
                " and classid = %s and objid = %s and pid = %s",
                POINT,
                point,
                conn.info.backend_pid,
            ),
            what=f"session stands at stop {point}",
        )
        yield future
    finally:
        observer.execute("select pg_advisory_unlock(%s, %s)", [POINT, point])
    future.exception(10)
