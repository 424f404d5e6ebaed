"""Field case 8: a prepared transaction's messages come when it is committed, even days later."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.fix_db import database, install
from tests.fix_server import Server
from tests.sql.calls import drain, send, subscribe, take, tick, value


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_prepared_transaction_is_a_long_producer(
    conn: psycopg.Connection, topic: str, outcome: str
) -> None:
    """It is in progress for every tick until it is decided; a waiting consumer does not hinder it
    where notifications are switched off for the transaction."""
    value(conn, "select pgque.mark_waiting(%s, true)", topic)
    with conn.transaction():
        conn.execute("set local pgque.notify = off")
        send(conn, topic, "prepared")
        value(conn, "select pgque.send_batch(%s, '{too}'::text[])", topic)
        conn.execute(f"prepare transaction '{topic}'".encode())
    send(conn, topic, "1")
    tick(conn, topic)
    assert drain(conn, topic) == ["1"]
    conn.execute(f"{outcome} prepared '{topic}'".encode())
    expected = ["prepared", "too"] if outcome == "commit" else []
    assert drain(conn, topic) == expected


def test_it_outlives_a_crash_and_a_restart(make_server: Callable[..., Server]) -> None:
    """Ticks made before and after do not pass it by."""
    server = make_server()
    with database(server.dsn) as dsn:
        install(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("select pgque.create_queue('q'), pgque.subscribe('q', 'c')")
            subscribe(conn, "q", "d")
            with conn.transaction():
                send(conn, "q", "prepared")
                conn.execute("prepare transaction 'p'")
            send(conn, "q", "1")
            assert drain(conn, "q") == ["1"]
        server.stop("immediate")
        server.start()
        with psycopg.connect(dsn, autocommit=True) as conn:
            send(conn, "q", "2")
            assert drain(conn, "q") == ["2"]
            conn.execute("commit prepared 'p'")
            assert value(conn, "select pgque.tick_if_new('q')") is not None
            assert take(conn, "q") == ["prepared"]
            assert sorted(take(conn, "q", "d")) == ["1", "2", "prepared"]
    server.close()
