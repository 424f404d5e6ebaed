"""Looking: PgQ's info functions, status() in words, and peek, which disturbs nobody."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from tests.fix_db import Connect
from tests.fix_wait import wait_until
from tests.sql.calls import (
    ack,
    configure,
    drain,
    move_clock,
    nack,
    receive,
    refused,
    row,
    rows,
    send,
    subscribe,
    take,
    tick,
    value,
)


def component(conn: psycopg.Connection, name: str) -> tuple[str, str, str | None]:
    """(status, detail, action) of one row of status()."""
    found = row(conn, "select * from pgque.status() where component = %s", name)
    return found.status, found.detail, found.action


def test_queue_info_has_pgqs_columns(conn: psycopg.Connection, topic: str) -> None:
    """In PgQ's order; one row for the named queue, all queues without a name."""
    info = row(conn, "select * from pgque.get_queue_info(%s)", topic)
    assert " ".join(info._fields) == (
        "queue_name queue_ntables queue_cur_table queue_rotation_period queue_switch_time"
        " queue_external_ticker queue_ticker_paused queue_ticker_max_count queue_ticker_max_lag"
        " queue_ticker_idle_period ticker_lag ev_per_sec ev_new last_tick_id"
    )
    assert (info.queue_name, info.queue_ntables, info.ev_new) == (topic, 3, 0)
    send(conn, topic, "1", "2")
    assert row(conn, "select * from pgque.get_queue_info(%s)", topic).ev_new == 2
    for _ in range(12):
        tick(conn, topic)
    info = row(conn, "select * from pgque.get_queue_info(%s)", topic)
    assert info.ev_new == 0
    assert info.ev_per_sec >= 0
    assert topic in [i.queue_name for i in rows(conn, "select * from pgque.get_queue_info()")]
    with refused("QU001"):
        rows(conn, "select * from pgque.get_queue_info('nowhere')")


def test_consumer_info_follows_the_consumer(own: psycopg.Connection) -> None:
    """lag and pending_events grow with what is unread, and are 0 when all is taken."""
    info = row(own, "select * from pgque.get_consumer_info('q', 'c')")
    assert " ".join(info._fields) == (
        "queue_name consumer_name lag last_seen last_tick current_batch next_tick pending_events"
    )
    assert (info.lag, info.pending_events, info.current_batch) == (timedelta(0), 0, None)
    send(own, "q", "1", "2")
    move_clock(own, "1 hour")
    for _ in range(2):
        info = row(own, "select * from pgque.get_consumer_info('q', 'c')")
        assert info.lag > timedelta(minutes=59)
        assert info.pending_events == 2
        tick(own, "q")
    (message, _) = receive(own, "q")
    info = row(own, "select * from pgque.get_consumer_info('q')")
    assert (info.current_batch, info.pending_events) == (message.batch_id, 2)
    ack(own, message.batch_id)
    receive(own, "q")
    info = row(own, "select * from pgque.get_consumer_info()")
    assert (info.lag, info.pending_events, info.current_batch) == (timedelta(0), 0, None)


def test_peek_shows_messages_and_takes_none(conn: psycopg.Connection, topic: str) -> None:
    """Also those that were acked or not ticked; not what is only one consumer's."""
    ids = send(conn, topic, "1", "2", "3")
    call = "select * from pgque.peek(%s, %s, %s)"
    assert [m.payload for m in rows(conn, call, topic, 0, 2)] == ["1", "2"]
    assert [m.payload for m in rows(conn, call, topic, ids[0], 100)] == ["2", "3"]
    assert [m.msg_id for m in rows(conn, call, topic, -(2**63), 100)] == ids
    assert rows(conn, call, topic, 2**63 - 1, 100) == []
    assert rows(conn, call, topic, None, 100) == []
    assert value(conn, "select pgque.last_event_id(%s)", topic) == ids[2]
    tick(conn, topic)
    messages = receive(conn, topic)
    nack(conn, messages[0])
    ack(conn, messages[0].batch_id)
    value(conn, "select pgque.maint_retry_events()")
    assert [m.payload for m in rows(conn, call, topic, 0, 100)] == ["1", "2", "3"]
    assert drain(conn, topic) == ["1"]


@pytest.mark.parametrize("limit", [-1, None])
def test_peek_wants_a_limit_that_is_not_negative(
    conn: psycopg.Connection, topic: str, limit: int | None
) -> None:
    """QU013."""
    with refused("QU013", "max_return"):
        rows(conn, "select * from pgque.peek(%s, 0, %s::int)", topic, limit)


def test_status_is_well_when_all_is_well(own: psycopg.Connection) -> None:
    """No action where there is nothing to do."""
    value(own, "select pgque.maint()")
    send(own, "q", "x")
    drain(own, "q")
    for part in ("version", "upkeep", "notifications", 'queue "q"'):
        status, detail, action = component(own, part)
        assert (status, action) == ("ok", None), (part, detail)


def test_status_says_that_functions_were_changed(own: psycopg.Connection) -> None:
    """By the fingerprint of the release."""
    move_clock(own, "0")
    status, detail, action = component(own, "version")
    assert status == "error"
    assert "differ" in detail
    assert action is not None
    assert "install" in action


def test_status_says_which_consumer_is_behind_and_by_how_much(own: psycopg.Connection) -> None:
    """And what to look at."""
    subscribe(own, "q", "slow one")
    send(own, "q", "x")
    tick(own, "q")
    take(own, "q")
    move_clock(own, "2 hours")
    status, detail, action = component(own, 'queue "q"')
    assert status == "warning"
    assert "slow one" in detail
    assert "2:00:0" in detail
    assert action is not None
    assert "get_consumer_info('q')" in action


def test_status_says_that_nothing_ticks(own: psycopg.Connection) -> None:
    """Messages wait, and nobody makes ticks."""
    send(own, "q", "x")
    move_clock(own, "5 minutes")
    status, detail, action = component(own, 'queue "q"')
    assert status == "warning"
    assert "tick" in detail
    assert action is not None
    assert "ticker" in action


def test_status_says_that_a_queue_is_paused(own: psycopg.Connection) -> None:
    """And how to go on; the action can be run as it stands."""
    value(own, "select pgque.create_queue('it''s')")
    value(own, "select pgque.pause_queue('it''s')")
    status, _, action = component(own, 'queue "it\'s"')
    assert status == "warning"
    assert action is not None
    own.execute(action.encode())
    assert component(own, 'queue "it\'s"')[0] == "ok"


def test_status_says_that_upkeep_does_not_run(own: psycopg.Connection) -> None:
    """Never, or not for a while."""
    assert "never" in component(own, "upkeep")[1]
    value(own, "select pgque.maint()")
    move_clock(own, "1 hour")
    status, _, action = component(own, "upkeep")
    assert status == "warning"
    assert action is not None
    assert "maint" in action


def test_status_names_the_session_that_holds_rotation_up(
    own: psycopg.Connection, connect: Connect
) -> None:
    """Field case 33: a table that all have read, and a reader that sits on it."""
    configure(own, "q", rotation_period="1 ms")
    send(own, "q", "x")
    drain(own, "q")
    own.execute("select pg_sleep(0.002)")
    assert value(own, "select pgque.maint()") >= 1
    reader = connect(own.info.dsn, autocommit=False)
    reader.execute("lock table pgque.event in access share mode")
    value(own, "select pgque.maint()")
    assert value(own, "select count(*) from pgque.event") == 1
    status, detail, action = component(own, 'queue "q"')
    assert status == "warning"
    assert str(reader.info.backend_pid) in detail
    assert action is not None
    assert "pg_stat_activity" in action
    reader.rollback()
    assert component(own, 'queue "q"')[0] == "ok"
    value(own, "select pgque.maint()")
    assert value(own, "select count(*) from pgque.event") == 0


def test_a_waiting_consumer_can_be_seen(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """mark_waiting is a shared advisory lock of its session, and ends with it."""
    listener = connect()
    statement = "select count(*) from pg_locks where locktype = 'advisory' and pid = %s"
    pid = listener.info.backend_pid
    assert value(listener, "select pgque.mark_waiting(%s, true)", topic) in ("", None)
    assert value(conn, statement, pid) == 1
    listener.close()
    wait_until(lambda: value(conn, statement, pid) == 0)
    with refused("QU001"):
        value(conn, "select pgque.mark_waiting('nowhere', true)")


def test_waiting_is_marked_once_however_often_it_is_said(
    conn: psycopg.Connection, topic: str
) -> None:
    """Twice true and once false is not waiting; false twice warns of nothing."""
    notices: list[str | None] = []
    conn.add_notice_handler(lambda diag: notices.append(diag.message_primary))
    for waiting in (True, True, False, False):
        value(conn, "select pgque.mark_waiting(%s, %s)", topic, waiting)
    statement = "select count(*) from pg_locks where locktype = 'advisory' and pid = %s"
    assert value(conn, statement, conn.info.backend_pid) == 0
    assert notices == []


@pytest.mark.parametrize("read_only", ["set transaction read only", "set transaction_read_only=1"])
def test_looking_works_in_a_read_only_transaction(
    conn: psycopg.Connection, topic: str, read_only: str
) -> None:
    """As it does on a standby."""
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    with conn.transaction():
        conn.execute(read_only.encode())
        for call in (
            f"get_queue_info('{topic}')",
            f"get_consumer_info('{topic}', 'c')",
            f"get_batch_info({message.batch_id})",
            f"peek('{topic}', 0)",
            "status()",
            "subscription",
            "tick",
            f"next_retry_at('{topic}')",
            "version()",
        ):
            assert rows(conn, f"select * from pgque.{call}"), call
        rows(conn, "select * from pgque.retry_queue")


@pytest.mark.parametrize(
    "call",
    [
        "send('{q}', 'x'::text)",
        "send('{q}', '1'::jsonb)",
        "send_batch('{q}', '{{x}}'::text[])",
        "insert_event('{q}', 't', 'x')",
        "create_queue('read only')",
        "drop_queue('{q}', true)",
        "set_queue_config('{q}', 'max_retries', '1')",
        "set_queue_config('{q}', 'max_retries', null)",
        "pause_queue('{q}')",
        "subscribe('{q}', 'd')",
        "unsubscribe('{q}', 'c')",
        "receive('{q}', 'c')",
        "next_batch('{q}', 'c')",
        "ack({b})",
        "ack_to({b}, {m})",
        "nack({b}, {m})",
        "release({b})",
        "event_dead({b}, {m}, 'x')",
        "event_retry({b}, {m}, 1)",
        "ticker()",
        "ticker('{q}')",
        "tick_if_new('{q}')",
        "force_next_tick('{q}')",
        "maint()",
        "maint_retry_events()",
        "dlq_replay(1)",
        "dlq_replay_all('{q}')",
        "dlq_purge('{q}')",
    ],
)
def test_everything_else_says_that_the_session_is_read_only(
    conn: psycopg.Connection, topic: str, call: str
) -> None:
    """Hazard 11: ours where we look first, else PostgreSQL's own, 25006; both say it clearly."""
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    statement = call.format(q=topic, b=message.batch_id, m=message.msg_id)
    with pytest.raises(psycopg.Error, match="read-only") as caught, conn.transaction():
        conn.execute("set transaction read only")
        conn.execute(f"select pgque.{statement}".encode())
    assert caught.value.sqlstate in {"QU016", "25006"}
