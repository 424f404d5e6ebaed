"""Queues: create, drop, configure, pause."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.sql.calls import (
    ack,
    configure,
    drain,
    nack,
    receive,
    refused,
    rows,
    send,
    subscribe,
    take,
    tick,
    value,
)

DEFAULTS = {
    "ticker_max_count": 500,
    "ticker_max_lag": "00:00:03",
    "ticker_idle_period": "00:01:00",
    "ticker_paused": False,
    "external_ticker": False,
    "rotation_period": "02:00:00",
    "max_retries": 5,
    "disable_insert": False,
}


def setting(conn: psycopg.Connection, queue: str, param: str) -> Any:
    """The column of this name, as text."""
    return value(conn, f"select queue_{param}::text from pgque.queue where queue_name = %s", queue)


def test_create_returns_1_and_0_where_it_exists(conn: psycopg.Connection) -> None:
    """The second call changes nothing."""
    assert value(conn, "select pgque.create_queue('orders')") == 1
    configure(conn, "orders", max_retries=9)
    assert value(conn, "select pgque.create_queue('orders')") == 0
    assert setting(conn, "orders", "max_retries") == "9"


def test_options_are_set_also_on_a_queue_that_exists(conn: psycopg.Connection) -> None:
    """create_queue(queue, options) is create_queue and then set_queue_config for each key."""
    options = '{"max_retries": 1, "ticker_max_lag": "2 s", "ticker_paused": true}'
    assert value(conn, "select pgque.create_queue('optional', %s::jsonb)", options) == 1
    found = [setting(conn, "optional", name) for name in ("max_retries", "ticker_max_lag")]
    assert found == ["1", "00:00:02"]
    assert setting(conn, "optional", "ticker_paused") == "true"
    assert value(conn, """select pgque.create_queue('optional', '{"max_retries": null}')""") == 0
    assert setting(conn, "optional", "max_retries") == "5"


def test_a_bad_option_creates_no_queue(conn: psycopg.Connection) -> None:
    """The call fails as a whole."""
    with refused("QU007", "max_retries"):
        value(conn, """select pgque.create_queue('badly', '{"max_retries": -1}')""")
    assert value(conn, "select pgque.create_queue('badly')") == 1


@pytest.mark.parametrize("options", ["[]", '"max_retries"', "null"])
def test_options_must_be_an_object(conn: psycopg.Connection, options: str) -> None:
    """Any other JSON is an invalid argument."""
    with refused("QU013", "options"):
        value(conn, "select pgque.create_queue('q', %s::jsonb)", options)


@pytest.mark.parametrize(("param", "default"), DEFAULTS.items())
def test_null_sets_the_default(
    conn: psycopg.Connection, queue: str, param: str, default: object
) -> None:
    """Those of the contract, with and without PgQ's prefix."""
    before = setting(conn, queue, param)
    other = "true" if isinstance(default, bool) else "7" if isinstance(default, int) else "7 s"
    configure(conn, queue, **{param: other})
    assert setting(conn, queue, param) != before
    value(conn, "select pgque.set_queue_config(%s, %s, null)", queue, f"queue_{param}")
    assert setting(conn, queue, param) == before
    assert before == str(default).lower()


@pytest.mark.parametrize(
    ("param", "text"),
    [
        ("ticker_max_count", "0"),
        ("ticker_max_count", "1000001"),
        ("ticker_max_count", "99999999999999999999"),
        ("ticker_max_count", "many"),
        ("ticker_max_count", ""),
        ("max_retries", "-1"),
        ("max_retries", "1.5"),
        ("ticker_max_lag", "0"),
        ("ticker_max_lag", "-1 s"),
        ("ticker_idle_period", "2 years"),
        ("ticker_idle_period", "300000000 years"),
        ("rotation_period", "soon"),
        ("rotation_period", "infinity"),
        ("ticker_paused", "maybe"),
        ("external_ticker", "2"),
        ("disable_insert", ""),
        ("colour", "red"),
        ("", "1"),
        ("name", "stolen"),
        ("cur_table", "1"),
        ("queue_queue_max_retries", "1"),
        ("max_retries = 1, queue_name", "1"),
    ],
)
def test_bad_configuration_is_refused(
    conn: psycopg.Connection, queue: str, param: str, text: str
) -> None:
    """QU007, and the message shows both; nothing changes."""
    statement = "select * from pgque.queue where queue_name = %s"
    before = rows(conn, statement, queue)
    with refused("QU007", param.removeprefix("queue_"), text):
        value(conn, "select pgque.set_queue_config(%s, %s, %s)", queue, param, text)
    assert rows(conn, statement, queue) == before


@pytest.mark.parametrize(
    ("param", "text"),
    [
        ("ticker_max_count", "1"),
        ("ticker_max_count", "1000000"),
        ("max_retries", "0"),
        ("rotation_period", "1 ms"),
        ("rotation_period", "1 year"),
        ("ticker_paused", "on"),
    ],
)
def test_the_ends_of_the_ranges_are_in(
    conn: psycopg.Connection, queue: str, param: str, text: str
) -> None:
    """And 1 is returned."""
    assert value(conn, "select pgque.set_queue_config(%s, %s, %s)", queue, param, text) == 1


def test_drop_refuses_while_there_are_consumers(conn: psycopg.Connection, queue: str) -> None:
    """Unless forced, also where force is NULL."""
    subscribe(conn, queue, "a", "b")
    for force in ("false", "null"):
        with refused("QU014", queue, "2 consumer"):
            value(conn, f"select pgque.drop_queue(%s, {force})", queue)
    assert value(conn, "select pgque.drop_queue(%s, true)", queue) == 1
    with refused("QU001", queue):
        value(conn, "select pgque.drop_queue(%s, true)", queue)


def test_nothing_of_a_dropped_queue_comes_back_under_its_name(own: psycopg.Connection) -> None:
    """Not its messages, consumers, retries or dead letters, though the tables are used again."""
    send(own, "q", "retried", "dead", "unread")
    tick(own, "q")
    retried, dead, _ = receive(own, "q")
    nack(own, retried)
    value(own, "select pgque.event_dead(%s, %s, 'old')", dead.batch_id, dead.msg_id)
    value(own, "select pgque.drop_queue('q', true)")
    value(own, "select pgque.create_queue('q')")
    with refused("QU002", "c"):
        receive(own, "q")
    subscribe(own, "q")
    value(own, "select pgque.maint()")
    send(own, "q", "new")
    assert drain(own, "q") == ["new"]
    assert rows(own, "select * from pgque.dlq_inspect('q')") == []
    assert ack(own, dead.batch_id) == 0


def test_dropped_queues_tables_are_used_again(own: psycopg.Connection) -> None:
    """So creating and dropping does not pile up tables."""
    for _ in range(3):
        value(own, "select pgque.create_queue('other')")
        send(own, "other", "x")
        value(own, "select pgque.drop_queue('other')")
    assert value(own, "select count(*) from pgque.event_storage") == 2
    value(own, "select pgque.maint()")
    assert value(own, "select count(*) from pgque.event") == 0


def test_pause_stops_delivery_and_not_sending(conn: psycopg.Connection, queue: str) -> None:
    """What was ticked before is not handed out either; an open batch can be settled."""
    subscribe(conn, queue)
    send(conn, queue, "before")
    tick(conn, queue)
    (message,) = receive(conn, queue)
    send(conn, queue, "ticked")
    tick(conn, queue)
    value(conn, "select pgque.pause_queue(%s)", queue)
    send(conn, queue, "paused")
    assert value(conn, "select pgque.ticker(%s)", queue) is None
    assert value(conn, "select pgque.tick_if_new(%s)", queue) is None
    value(conn, "select pgque.force_next_tick(%s)", queue)
    value(conn, "select pgque.ticker()")
    assert receive(conn, queue) == []
    assert ack(conn, message.batch_id) == 1
    assert receive(conn, queue) == []
    value(conn, "select pgque.resume_queue(%s)", queue)
    assert drain(conn, queue) == ["ticked", "paused"]


def test_rolled_back_queues_leave_nothing(conn: psycopg.Connection) -> None:
    """Creating, sending and dropping are transactional."""
    with pytest.raises(ZeroDivisionError), conn.transaction():
        value(conn, "select pgque.create_queue('undone')")
        send(conn, "undone", "x")
        raise ZeroDivisionError
    with refused("QU001"):
        rows(conn, "select * from pgque.get_queue_info('undone')")
    value(conn, "select pgque.create_queue('undone')")
    subscribe(conn, "undone")
    send(conn, "undone", "x")
    with pytest.raises(ZeroDivisionError), conn.transaction():
        value(conn, "select pgque.drop_queue('undone', true)")
        raise ZeroDivisionError
    assert drain(conn, "undone") == ["x"]
    assert take(conn, "undone") == []
