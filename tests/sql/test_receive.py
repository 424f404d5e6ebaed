"""Subscribing and receiving: which messages come, in which order and pieces, under which ids."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_db import Connect
from tests.sql.calls import (
    ack,
    drain,
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


def test_subscribe_returns_1_and_0_where_it_is_subscribed(
    conn: psycopg.Connection, topic: str
) -> None:
    """The second call does not move the position."""
    send(conn, topic, "x")
    assert value(conn, "select pgque.subscribe(%s, 'c')", topic) == 0
    assert drain(conn, topic) == ["x"]
    assert value(conn, "select pgque.unsubscribe(%s, 'c')", topic) == 1
    assert value(conn, "select pgque.unsubscribe(%s, 'c')", topic) == 0


def test_a_subscription_starts_at_the_end(conn: psycopg.Connection, queue: str) -> None:
    """What was committed before is not seen, what is sent afterwards is, without a tick between."""
    send(conn, queue, "before")
    subscribe(conn, queue)
    send(conn, queue, "after")
    assert drain(conn, queue) == ["after"]


def test_a_consumer_that_comes_back_starts_anew(conn: psycopg.Connection, topic: str) -> None:
    """Unsubscribing gives up the position, the open batch and what waits for a retry."""
    send(conn, topic, "1")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    value(conn, "select pgque.nack(%s, %s, '0')", message.batch_id, message.msg_id)
    value(conn, "select pgque.unsubscribe(%s, 'c')", topic)
    assert ack(conn, message.batch_id) == 0
    with refused("QU002", "c", topic):
        receive(conn, topic)
    subscribe(conn, topic)
    send(conn, topic, "2")
    value(conn, "select pgque.maint()")
    assert drain(conn, topic) == ["2"]


def test_create_subscribe_and_send_in_one_transaction(conn: psycopg.Connection) -> None:
    """What an application's set-up does: the messages come, whatever others do meanwhile."""
    with conn.transaction():
        value(conn, "select pgque.create_queue('together')")
        subscribe(conn, "together")
        send(conn, "together", "x")
    assert drain(conn, "together") == ["x"]


def test_messages_need_a_tick(conn: psycopg.Connection, topic: str) -> None:
    """PgQ's rule: a batch is what lies between two ticks."""
    send(conn, topic, "x")
    assert receive(conn, topic) == []
    assert drain(conn, topic) == ["x"]
    assert receive(conn, topic) == []


def test_an_unacked_batch_comes_again_under_its_id(conn: psycopg.Connection, topic: str) -> None:
    """The same messages; delivery_count says how often they were handed out."""
    send(conn, topic, "1", "2")
    tick(conn, topic)
    first = receive(conn, topic)
    send(conn, topic, "3")
    tick(conn, topic)
    second = receive(conn, topic)
    assert [m._replace(delivery_count=2) for m in first] == second
    assert ack(conn, first[0].batch_id) == 1
    assert ack(conn, first[0].batch_id) == 0
    (third,) = receive(conn, topic)
    assert (third.payload, third.delivery_count) == ("3", 1)
    assert third.batch_id > first[0].batch_id


@pytest.mark.parametrize("limit", [1, 3, 10, 11, 2147483647])
def test_pieces_hold_every_message_once_in_order(
    conn: psycopg.Connection, topic: str, limit: int
) -> None:
    """Each piece is a batch with an id of its own."""
    sent = [str(number) for number in range(10)]
    value(conn, "select pgque.send_batch(%s, %s::text[])", topic, sent)
    tick(conn, topic)
    taken: list[str] = []
    batches: list[int] = []
    while messages := receive(conn, topic, limit=limit):
        assert len(messages) == min(limit, 10 - len(taken))
        taken += [message.payload for message in messages]
        batches.append(messages[0].batch_id)
        ack(conn, messages[0].batch_id)
    assert taken == sent
    assert batches == sorted(set(batches))


def test_ack_settles_what_was_handed_out_and_nothing_else(
    conn: psycopg.Connection, topic: str
) -> None:
    """The one deliberate difference to PgQue: the rest of the batch still comes."""
    value(conn, "select pgque.send_batch(%s, '{1,2,3,4,5}'::text[])", topic)
    tick(conn, topic)
    messages = receive(conn, topic, limit=2)
    ack(conn, messages[0].batch_id)
    assert take(conn, topic) == ["3", "4", "5"]


def test_order_holds_across_pieces_with_late_commits_between(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Ids of a transaction that ticks passed over come first in the window that shows it."""
    late = connect(autocommit=False)
    send(late, topic, "1")
    send(conn, topic, "2")
    send(late, topic, "3")
    tick(conn, topic)
    send(conn, topic, "4")
    send(late, topic, "5")
    late.commit()
    send(conn, topic, "6")
    assert drain(conn, topic, limit=1) == ["2", "1", "3", "4", "5", "6"]


@pytest.mark.parametrize("limit", [0, -1, -2147483648])
def test_a_limit_must_be_positive(conn: psycopg.Connection, topic: str, limit: int) -> None:
    """QU013, and nothing is handed out."""
    send(conn, topic, "x")
    tick(conn, topic)
    with refused("QU013", "max_return", str(limit)):
        receive(conn, topic, limit=limit)
    (message,) = receive(conn, topic)
    assert message.delivery_count == 1


def test_empty_windows_are_passed_over(conn: psycopg.Connection, topic: str) -> None:
    """Field case 1: no batch without messages is ever opened, so none can be stuck."""
    for _ in range(3):
        tick(conn, topic)
    assert receive(conn, topic) == []
    assert row(conn, "select * from pgque.get_consumer_info(%s, 'c')", topic).current_batch is None
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), conn.transaction():
            send(conn, topic, "rolled back")
            raise ZeroDivisionError
        tick(conn, topic)
    send(conn, topic, "x")
    tick(conn, topic)
    tick(conn, topic)
    (message,) = receive(conn, topic)
    assert message.payload == "x"
    ack(conn, message.batch_id)
    assert receive(conn, topic) == []


def test_a_backlog_of_many_windows_is_taken_window_by_window(
    conn: psycopg.Connection, topic: str
) -> None:
    """Field case 5: each call brings the next one, no waiting in between."""
    sent = [str(number) for number in range(200)]
    for text in sent:
        send(conn, topic, text)
        tick(conn, topic)
    assert take(conn, topic) == sent


def test_a_rolled_back_receive_was_none(conn: psycopg.Connection, topic: str) -> None:
    """Receive, ack and the handler's work vanish together."""
    send(conn, topic, "x")
    tick(conn, topic)
    with pytest.raises(ZeroDivisionError), conn.transaction():
        assert take(conn, topic) == ["x"]
        raise ZeroDivisionError
    (message,) = receive(conn, topic)
    assert (message.payload, message.delivery_count) == ("x", 1)


def test_send_tick_and_receive_in_one_transaction(conn: psycopg.Connection, topic: str) -> None:
    """What a transaction sends is in no tick that it makes itself: it comes once, after it."""
    with conn.transaction():
        send(conn, topic, "x")
        tick(conn, topic)
        assert receive(conn, topic) == []
        send(conn, topic, "y")
        tick(conn, topic)
        assert receive(conn, topic) == []
    assert value(conn, "select pgque.tick_if_new(%s)", topic) is not None
    assert take(conn, topic) == ["x", "y"]


def test_unknown_queue_and_consumer(conn: psycopg.Connection, topic: str) -> None:
    """QU001 and QU002 quote the name; unsubscribing an unknown consumer is no error."""
    for call in ("receive(%s, 'c')", "subscribe(%s, 'c')", "unsubscribe(%s, 'c')"):
        with refused("QU001", "no such"):
            rows(conn, f"select pgque.{call}", "no such")
    with refused("QU002", '"nobody"', topic):
        receive(conn, topic, "nobody")
    assert value(conn, "select pgque.unsubscribe(%s, 'nobody')", topic) == 0
