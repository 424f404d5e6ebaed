"""Installing and upgrading by the one SQL file, in every way that people do it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sql import build
from tests.fix_db import PGQUE_SQL, Connect, database, install
from tests.fix_server import Server


def send_and_ack(conn: psycopg.Connection) -> None:
    """The main job in short, on an autocommit connection: what comes back is what was sent."""
    conn.execute("select pgque.create_queue('q'), pgque.subscribe('q', 'c')")
    conn.execute("select pgque.send('q', 't', 'hello'::text)")
    assert receive(conn) == [("t", "hello")]


def receive(conn: psycopg.Connection) -> list[tuple[str, str]]:
    """Tick, receive, ack; returns (type, payload)."""
    conn.execute("select pgque.force_next_tick('q')")
    conn.execute("select pgque.ticker('q')")
    rows = conn.execute("select batch_id, type, payload from pgque.receive('q', 'c')").fetchall()
    for batch_id in {row[0] for row in rows}:
        assert conn.execute("select pgque.ack(%s)", [batch_id]).fetchone() == (1,)
    return [row[1:] for row in rows]


@pytest.mark.parametrize("autocommit", [True, False])
def test_one_execute_of_a_driver_installs(empty_dsn: str, autocommit: bool) -> None:
    """Also inside a transaction of the caller, which then decides."""
    with psycopg.connect(empty_dsn, autocommit=autocommit) as conn:
        conn.execute(PGQUE_SQL.read_bytes())
        conn.commit()
        conn.autocommit = True
        send_and_ack(conn)


def test_rollback_leaves_nothing(empty_dsn: str) -> None:
    """The file holds no commit of its own."""
    with psycopg.connect(empty_dsn) as conn:
        conn.execute(PGQUE_SQL.read_bytes())
        conn.rollback()
        assert conn.execute("select to_regnamespace('pgque')").fetchone() == (None,)


def test_psql_installs_in_one_transaction(empty_dsn: str, psql: str) -> None:
    """`psql -1 -v ON_ERROR_STOP=1 -f`, as a migration tool does it."""
    options = ["-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", str(PGQUE_SQL)]
    subprocess.run([psql, *options, empty_dsn], check=True, capture_output=True)
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        send_and_ack(conn)


def test_installing_again_keeps_queues_consumers_and_messages(dsn: str, connect: Connect) -> None:
    """Once between send and receive, and once more with a batch open."""
    conn = connect()
    conn.execute("select pgque.create_queue('q'), pgque.subscribe('q', 'c')")
    conn.execute("select pgque.set_queue_config('q', 'max_retries', '7')")
    conn.execute("select pgque.send('q', 't', 'kept'::text)")
    install(dsn)
    conn.execute("select pgque.force_next_tick('q')")
    conn.execute("select pgque.ticker('q')")
    first = conn.execute("select msg_id, batch_id from pgque.receive('q', 'c')").fetchall()
    assert len(first) == 1
    install(dsn)
    again = conn.execute("select msg_id, batch_id from pgque.receive('q', 'c')").fetchall()
    assert again == first
    assert receive(conn) == [("t", "kept")]
    found = conn.execute("select queue_max_retries from pgque.queue").fetchall()
    assert found == [(7,)]


def at_once(jobs: list[Callable[[], None]]) -> None:
    """Run all jobs in threads that start together; raise what any of them raised."""
    barrier = threading.Barrier(len(jobs))

    def run(job: Callable[[], None]) -> None:
        barrier.wait()
        job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        for result in [pool.submit(run, job) for job in jobs]:
            result.result()


def test_ten_installs_at_once_into_an_empty_database_all_succeed(empty_dsn: str) -> None:
    """As when ten pods start with `pgque install` as their first step."""
    at_once([lambda: install(empty_dsn)] * 10)
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        send_and_ack(conn)


def test_first_installs_into_several_databases_of_a_cluster_all_succeed(
    make_server: Callable[..., Server],
) -> None:
    """They meet where the cluster's roles are created."""
    server = make_server()
    with ExitStack() as stack:
        dsns = [stack.enter_context(database(server.dsn)) for _ in range(4)]
        at_once([lambda dsn=dsn: install(dsn) for dsn in dsns])  # type: ignore[misc]
        for dsn in dsns:
            with psycopg.connect(dsn, autocommit=True) as conn:
                send_and_ack(conn)
    server.close()


def test_a_newer_schema_is_refused_and_left_alone(dsn: str, connect: Connect) -> None:
    """QU012 before anything is changed: the newer one goes on working."""
    conn = connect()
    conn.execute("update pgque.installation set shape = shape + 1, version = '99.0.0'")
    before = conn.execute("select * from pgque.installation").fetchall()
    assert before
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(PGQUE_SQL.read_bytes())
    assert caught.value.sqlstate == "QU012"
    assert conn.execute("select * from pgque.installation").fetchall() == before
    send_and_ack(conn)


def test_installs_and_runs_under_an_empty_search_path(empty_dsn: str) -> None:
    """Every name in the file and in the functions is qualified."""
    dsn = make_conninfo(empty_dsn, options="-c search_path=")
    install(dsn)
    install(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        send_and_ack(conn)
        conn.execute("select pgque.maint()")
        conn.execute("select * from pgque.status()")


def test_the_owner_of_a_database_who_may_create_roles_can_install(
    make_server: Callable[..., Server],
) -> None:
    """No superuser is needed, as on managed services; in two databases, and again."""
    server = make_server()
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute("create role landlord login createrole createdb")
    landlord = make_conninfo(server.dsn, user="landlord")
    for _ in range(2):
        with database(landlord) as dsn:
            install(dsn)
            install(dsn)
            with psycopg.connect(dsn, autocommit=True) as conn:
                send_and_ack(conn)
    server.close()


def test_uninstall_leaves_no_schema_and_the_file_installs_again(dsn: str, queue: str) -> None:
    """`select pgque.uninstall()`, by the owner."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select pgque.send(%s, 'x'::text)", [queue])
        conn.execute("select pgque.uninstall()")
        assert conn.execute("select to_regnamespace('pgque')").fetchone() == (None,)
        install(dsn)
        send_and_ack(conn)


def test_version_is_that_of_the_project(conn: psycopg.Connection) -> None:
    """The SQL and the Python package are one release."""
    assert conn.execute("select pgque.version()").fetchone() == (build.version(),)
