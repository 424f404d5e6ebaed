"""Retries: what was nacked comes back to its consumer, when it is due, once for each nack."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from tests.fix_db import Connect
from tests.sql.calls import (
    ack,
    bring_back,
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


def test_a_nacked_message_comes_back_to_its_consumer_only(
    conn: psycopg.Connection, topic: str
) -> None:
    """The same id, type, time and fields; retry_count counts; others never see it."""
    subscribe(conn, topic, "d")
    value(
        conn,
        "select pgque.send(%s, 'kind', 'x'::text, 'key', '{\"h\": 1}')",
        topic,
    )
    tick(conn, topic)
    (first,) = receive(conn, topic)
    assert first.retry_count is None
    assert nack(conn, first, reason="no luck") == 1
    assert ack(conn, first.batch_id) == 1
    for attempt in (1, 2):
        bring_back(conn, topic)
        (again,) = receive(conn, topic)
        assert again == first._replace(batch_id=again.batch_id, retry_count=attempt)
        nack(conn, again)
        ack(conn, again.batch_id)
    assert take(conn, topic, "d") == ["x"]


def test_the_rest_of_the_batch_is_not_touched(conn: psycopg.Connection, topic: str) -> None:
    """Acked as usual, and only the nacked one returns."""
    send(conn, topic, "1", "2", "3")
    tick(conn, topic)
    messages = receive(conn, topic)
    nack(conn, messages[1])
    ack(conn, messages[0].batch_id)
    bring_back(conn, topic)
    assert take(conn, topic) == ["2"]


def test_not_before_its_time_and_promptly_after_it(own: psycopg.Connection) -> None:
    """Field case 4: ticker() alone brings it back, with no job for retries."""
    send(own, "q", "x")
    tick(own, "q")
    (message,) = receive(own, "q")
    nack(own, message, "1 hour")
    ack(own, message.batch_id)
    move_clock(own, "59 minutes")
    for _ in range(3):
        value(own, "select pgque.ticker()")
    assert receive(own, "q") == []
    move_clock(own, "61 minutes")
    value(own, "select pgque.ticker()")  # moves it back
    move_clock(own, "61 minutes 4 seconds")
    value(own, "select pgque.ticker()")  # shows it
    assert take(own, "q") == ["x"]


def test_a_consumer_alone_brings_it_back(own: psycopg.Connection) -> None:
    """tick_if_new is enough, and next_retry_at says when to call it."""
    send(own, "q", "x")
    tick(own, "q")
    (message,) = receive(own, "q")
    assert value(own, "select pgque.next_retry_at('q')") is None
    nack(own, message, "1 hour")
    ack(own, message.batch_id)
    assert value(own, "select pgque.next_retry_at('q') - pgque._now() > '59 minutes'")
    assert value(own, "select pgque.tick_if_new('q')") is None
    move_clock(own, "61 minutes")
    for _ in range(2):
        assert value(own, "select pgque.next_retry_at('q') <= pgque._now()")
        value(own, "select pgque.tick_if_new('q')")
    assert take(own, "q") == ["x"]
    assert value(own, "select pgque.next_retry_at('q')") is None


def test_twice_the_same_nack_is_one_retry(conn: psycopg.Connection, topic: str) -> None:
    """Field case 2; also with other delays, and after the first retry was moved back already."""
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    assert nack(conn, message) == 1
    assert nack(conn, message, "1 hour") == 1
    value(conn, "select pgque.maint_retry_events()")
    assert nack(conn, message) == 1
    assert value(conn, "select pgque.batch_retry(%s, 0)", message.batch_id) == 0
    ack(conn, message.batch_id)
    bring_back(conn, topic)
    assert take(conn, topic) == ["x"]
    bring_back(conn, topic)
    assert take(conn, topic) == []


def test_after_max_retries_it_is_a_dead_letter(conn: psycopg.Connection, topic: str) -> None:
    """With the reason of the last nack; nothing comes any more."""
    configure(conn, topic, max_retries=2)
    send(conn, topic, "x")
    for attempt in (None, 1, 2):
        bring_back(conn, topic)
        (message,) = receive(conn, topic)
        assert message.retry_count == attempt
        assert rows(conn, "select * from pgque.dlq_inspect(%s)", topic) == []
        nack(conn, message, reason=f"attempt {attempt}")
        ack(conn, message.batch_id)
    letter = row(conn, "select * from pgque.dlq_inspect(%s)", topic)
    assert (letter.ev_id, letter.ev_data, letter.ev_retry) == (message.msg_id, "x", 2)
    assert (letter.dl_reason, letter.consumer_name) == ("attempt 2", "c")
    bring_back(conn, topic)
    assert receive(conn, topic) == []


def test_a_forged_message_is_refused_and_nothing_of_it_is_stored(
    conn: psycopg.Connection, topic: str
) -> None:
    """Field case 3: of pgque.message only msg_id is read; the stored message decides."""
    send(conn, topic, "settled")
    drain(conn, topic)
    send(conn, topic, "true")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    forged = (
        "select pgque.nack(%s, row(%s, %s, 'forged', 'forged', 99, now(), 'f', 'f', 'f', 'f')"
        "::pgque.message, '0', 'forged')"
    )
    with refused("QU004"):
        value(conn, forged, message.batch_id, message.msg_id - 1, message.batch_id)
    assert value(conn, forged, message.batch_id, message.msg_id, 1) == 1
    ack(conn, message.batch_id)
    bring_back(conn, topic)
    (again,) = receive(conn, topic)
    assert again == message._replace(batch_id=again.batch_id, retry_count=1)


def test_a_row_of_receive_can_be_nacked_as_it_is(conn: psycopg.Connection, topic: str) -> None:
    """`nack(m.batch_id, m)` in a loop of PL/pgSQL."""
    send(conn, topic, "1", "2")
    tick(conn, topic)
    statement = (
        "do $$ declare m pgque.received_message; begin"
        " for m in select * from pgque.receive('{}', 'c') loop"
        " perform pgque.nack(m.batch_id, m, '0');"
        " end loop; perform pgque.ack(m.batch_id); end $$"
    )
    conn.execute(statement.format(topic).encode())
    bring_back(conn, topic)
    assert take(conn, topic) == ["1", "2"]


@pytest.mark.parametrize("delay", ["0", "-1 year", "-300000 years", "-1 microsecond"])
def test_delays_up_to_zero_mean_at_once(conn: psycopg.Connection, topic: str, delay: str) -> None:
    """An odd value does not keep the batch from being settled."""
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    assert nack(conn, message, delay) == 1
    ack(conn, message.batch_id)
    bring_back(conn, topic)
    assert take(conn, topic) == ["x"]


def test_endless_delays_are_cut(conn: psycopg.Connection, topic: str) -> None:
    """To a hundred years: from 300,000 years, from infinity, for all functions."""
    sent = ["1", "2", "3"]
    send(conn, topic, *sent)
    tick(conn, topic)
    messages = receive(conn, topic)
    nack(conn, messages[0], "170000000 years")
    for message, when in zip(messages[1:], ("infinity", "200000-01-01"), strict=True):
        value(
            conn,
            "select pgque.event_retry(%s, %s, %s::timestamptz)",
            message.batch_id,
            message.msg_id,
            when,
        )
    ack(conn, messages[0].batch_id)
    found = rows(
        conn,
        "select ev_retry_after - now() as wait from pgque.retry_queue r"
        " join pgque.queue q on q.queue_id = r.ev_queue where q.queue_name = %s",
        topic,
    )
    waits = [retry.wait for retry in found]
    assert len(waits) == 3
    assert all(timedelta(36000) < wait < timedelta(37000) for wait in waits)


def test_a_rolled_back_nack_was_none(conn: psycopg.Connection, topic: str) -> None:
    """Nack and ack are part of the caller's transaction."""
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    with pytest.raises(ZeroDivisionError), conn.transaction():
        nack(conn, message)
        ack(conn, message.batch_id)
        raise ZeroDivisionError
    value(conn, "select pgque.maint_retry_events()")
    tick(conn, topic)
    (again,) = receive(conn, topic)
    assert again == message._replace(delivery_count=2)
    ack(conn, again.batch_id)
    assert take(conn, topic) == []


def test_a_nack_that_commits_long_after_its_time_comes_at_once(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Passes that looked in between had recorded a later time; it is found by its transaction."""
    send(conn, topic, "slow", "quick")
    tick(conn, topic)
    slow = connect(autocommit=False)
    messages = receive(conn, topic)
    nack(slow, messages[0])
    subscribe(conn, topic, "d")
    send(conn, topic, "other")
    tick(conn, topic)
    (other,) = receive(conn, topic, "d")
    nack(conn, other)
    ack(conn, other.batch_id)
    value(conn, "select pgque.maint_retry_events()")
    slow.commit()
    ack(conn, messages[0].batch_id)
    value(conn, "select pgque.maint_retry_events()")
    tick(conn, topic)
    assert sorted(take(conn, topic)) == ["other", "slow"]
    assert take(conn, topic, "d") == ["other"]


def test_ticks_are_made_while_retries_become_due_all_the_time(own: psycopg.Connection) -> None:
    """With no ticker at all: moving the due ones must not put off the tick for ever."""
    value(own, "select pgque.send_batch('q', array_fill('x'::text, array[20]))")
    tick(own, "q")
    messages = receive(own, "q")
    for number, message in enumerate(messages):
        nack(own, message, f"{number} minutes")
    ack(own, messages[0].batch_id)
    send(own, "q", "new")
    taken: list[str] = []
    for minute in range(10):
        move_clock(own, f"{minute} minutes 1 second")
        value(own, "select pgque.tick_if_new('q')")
        taken += take(own, "q")
    assert "new" in taken
    assert taken.count("x") >= 8


def test_a_leavers_retries_do_not_keep_the_others_awake(own: psycopg.Connection) -> None:
    """next_retry_at does not stay in the past when a due message has no consumer any more."""
    subscribe(own, "q", "d")
    send(own, "q", "x")
    tick(own, "q")
    (left,), (kept,) = receive(own, "q"), receive(own, "q", "d")
    nack(own, left, "1 hour")
    nack(own, kept, "0")
    ack(own, left.batch_id)
    ack(own, kept.batch_id)
    value(own, "select pgque.maint_retry_events()")
    value(own, "select pgque.unsubscribe('q', 'c')")
    assert drain(own, "q", "d") == ["x"]
    move_clock(own, "2 hours")
    for _ in range(3):
        value(own, "select pgque.tick_if_new('q')")
    assert value(own, "select pgque.next_retry_at('q')") is None


def test_retry_queue_shows_what_waits(conn: psycopg.Connection, topic: str) -> None:
    """PgQ's columns; what was moved back is gone from it."""
    (msg_id,) = send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    nack(conn, message, "1 hour", "later")
    nack(conn, message, "1 hour", "once more")
    ack(conn, message.batch_id)
    statement = (
        "select r.* from pgque.retry_queue r join pgque.queue q on q.queue_id = r.ev_queue"
        " where q.queue_name = %s"
    )
    waiting = row(conn, statement, topic)
    assert (waiting.ev_id, waiting.ev_data, waiting.ev_retry) == (msg_id, "x", 1)
    assert waiting.ev_reason == "later"
    value(conn, "select pgque.unsubscribe(%s, 'c')", topic)


@pytest.mark.parametrize("reason", ["", "Ünï %s 'quoted' \\", "r" * 1_000_000, None])
def test_any_reason_is_taken(conn: psycopg.Connection, topic: str, reason: str | None) -> None:
    """And kept with the dead letter; without one there is a standard reason."""
    configure(conn, topic, max_retries=0)
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    nack(conn, message, reason=reason)
    letter = row(conn, "select * from pgque.dlq_inspect(%s)", topic)
    assert letter.dl_reason == ("max retries exceeded" if reason is None else reason)
