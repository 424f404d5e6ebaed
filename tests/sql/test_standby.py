"""Hazard 11: on a standby everybody can look, and every other call says that it is read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fix_db import database, install
from tests.fix_server import Server, free_port
from tests.fix_wait import wait_until
from tests.sql.calls import receive, rows, send, subscribe, tick, value


@pytest.fixture(scope="module")
def standby(make_server: Callable[..., Server]) -> Iterator[psycopg.Connection]:
    """A session on the standby of a server with queue "q", one message and an open batch."""
    primary = make_server()
    copy, port = primary.folder / "standby", free_port()
    with database(primary.dsn) as dsn:
        install(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            value(conn, "select pgque.create_queue('q')")
            subscribe(conn, "q")
            send(conn, "q", "x")
            tick(conn, "q")
            receive(conn, "q")
            primary.run("pg_basebackup", "-d", primary.dsn, "-D", copy, "-R", "-c", "fast")
            with (copy / "postgresql.conf").open("a") as conf:
                conf.write(f"port = {port}\n")
            primary.run("pg_ctl", "-D", copy, "-l", primary.folder / "standby.log", "-w", "start")
            there = psycopg.connect(make_conninfo(dsn, port=port), autocommit=True)
            position = value(conn, "select pg_current_wal_lsn()")
            replayed = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
            wait_until(lambda: value(there, replayed, position))
            yield there
            there.close()
            primary.run("pg_ctl", "-D", copy, "-m", "immediate", "-w", "stop")
    primary.close()


def test_everybody_can_look(standby: psycopg.Connection) -> None:
    """All looking functions and views give what the primary would."""
    for call in (
        "get_queue_info()",
        "get_queue_info('q')",
        "get_consumer_info()",
        "get_consumer_info('q', 'c')",
        "peek('q', 0)",
        "status()",
        "queue",
        "subscription",
        "tick",
    ):
        assert rows(standby, f"select * from pgque.{call}"), call
    batch_id = value(standby, "select sub_batch from pgque.subscription")
    assert rows(standby, "select * from pgque.get_batch_info(%s)", batch_id)
    for call in ("retry_queue", "dead_letter", "dlq_inspect('q')"):
        assert rows(standby, f"select * from pgque.{call}") == []
    value(standby, "select pgque.next_retry_at('q')")


@pytest.mark.parametrize(
    "call",
    [
        "send('q', 'x'::text)",
        "send_batch('q', '{x}'::text[])",
        "receive('q', 'c')",
        "ack(1)",
        "nack(1, 1)",
        "ticker()",
        "ticker('q')",
        "tick_if_new('q')",
        "force_next_tick('q')",
        "subscribe('q', 'd')",
        "create_queue('r')",
        "maint()",
        "dlq_replay_all('q')",
    ],
)
def test_every_other_call_says_that_it_is_read_only(standby: psycopg.Connection, call: str) -> None:
    """Ours where we look first, else PostgreSQL's 25006; clients take both for the same."""
    with pytest.raises(psycopg.Error) as caught:
        rows(standby, f"select pgque.{call}")
    assert caught.value.sqlstate in {"QU016", "25006"}, caught.value
