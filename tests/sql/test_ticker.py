"""PgQ's rules for ticks, and the ticks that consumers make themselves."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_db import Connect
from tests.sql.calls import (
    configure,
    drain,
    move_clock,
    receive,
    refused,
    row,
    send,
    subscribe,
    take,
    tick,
    value,
)


def ticker(conn: psycopg.Connection, queue: str) -> int | None:
    """One call for one queue: the tick's id, or None if none was due."""
    made = value(conn, "select pgque.ticker(%s)", queue)
    assert made is None or isinstance(made, int)
    return made


def test_the_first_tick_of_a_queue_is_due_at_once(conn: psycopg.Connection, queue: str) -> None:
    """A queue without a tick has nothing to start from."""
    first = ticker(conn, queue)
    assert first is not None
    assert ticker(conn, queue) is None


def test_enough_messages_make_a_tick_due(conn: psycopg.Connection, topic: str) -> None:
    """ticker_max_count, whatever the time."""
    configure(conn, topic, ticker_max_count=3, ticker_max_lag="1 hour")
    send(conn, topic, "1", "2")
    assert ticker(conn, topic) is None
    send(conn, topic, "3")
    assert ticker(conn, topic) is not None
    assert ticker(conn, topic) is None
    assert take(conn, topic) == ["1", "2", "3"]


def test_waiting_messages_make_a_tick_due_after_a_while(own: psycopg.Connection) -> None:
    """ticker_max_lag after the last tick, and not before."""
    configure(own, "q", ticker_max_lag="10 s", ticker_idle_period="1 hour")
    send(own, "q", "x")
    assert ticker(own, "q") is None
    move_clock(own, "9 s")
    assert ticker(own, "q") is None
    move_clock(own, "11 s")
    assert ticker(own, "q") is not None
    assert take(own, "q") == ["x"]


def test_idle_queues_tick_once_in_idle_period(own: psycopg.Connection) -> None:
    """So that the lag of their consumers stays small."""
    configure(own, "q", ticker_idle_period="1 minute")
    assert ticker(own, "q") is None
    move_clock(own, "59 s")
    assert ticker(own, "q") is None
    move_clock(own, "61 s")
    assert ticker(own, "q") is not None
    assert ticker(own, "q") is None


def test_force_next_tick_makes_the_next_call_tick(conn: psycopg.Connection, topic: str) -> None:
    """It returns the last tick's id, and inserts none itself; force_tick is the same."""
    last = ticker(conn, topic) or tick(conn, topic)
    for force in ("force_next_tick", "force_tick"):
        count = value(conn, "select count(*) from pgque.tick")
        assert value(conn, f"select pgque.{force}(%s)", topic) == last
        assert value(conn, "select count(*) from pgque.tick") == count
        made = ticker(conn, topic)
        assert made is not None
        assert made > last
        assert ticker(conn, topic) is None
        last = made


def test_ticker_ticks_every_queue_that_is_due(own: psycopg.Connection) -> None:
    """It returns how many; paused and external ones are left out."""
    for name in ("a", "b", "paused", "external"):
        value(own, "select pgque.create_queue(%s)", name)
        subscribe(own, name)
        send(own, name, "x")
    configure(own, "paused", ticker_paused=True)
    configure(own, "external", external_ticker=True)
    for name in ("a", "b", "paused", "external"):
        value(own, "select pgque.force_next_tick(%s)", name)
    assert value(own, "select pgque.ticker()") == 2
    assert value(own, "select pgque.ticker()") == 0
    assert [take(own, name) for name in ("a", "b", "paused", "external")] == [["x"], ["x"], [], []]


def test_a_ticker_of_all_queues_makes_the_next_call_due_for_none(own: psycopg.Connection) -> None:
    """Its own transaction, which is in progress at its own ticks, is no news."""
    for name in ("a", "b", "c"):
        value(own, "select pgque.create_queue(%s)", name)
    assert value(own, "select pgque.ticker()") == 3
    for name in ("a", "b", "c"):
        assert value(own, "select pgque.tick_if_new(%s)", name) is None


def test_an_external_ticker_gives_ids_and_times(conn: psycopg.Connection, topic: str) -> None:
    """PgQ's ticker(queue, tick_id, orig_timestamp, event_seq); own ticks are refused meanwhile."""
    with refused("QU007", "external_ticker"):
        value(conn, "select pgque.ticker(%s, 1000, now(), 1)", topic)
    configure(conn, topic, external_ticker=True)
    send(conn, topic, "x")
    with refused("QU006", topic):
        ticker(conn, topic)
    assert value(conn, "select pgque.tick_if_new(%s)", topic) is None
    call = "select pgque.ticker(%s, %s, '2020-01-01 UTC', %s)"
    assert value(conn, call, topic, 1000, None) == 1000
    info = row(conn, "select * from pgque.get_queue_info(%s)", topic)
    assert (info.last_tick_id, info.queue_external_ticker) == (1000, True)
    assert info.ticker_lag.days > 365
    assert take(conn, topic) == ["x"]
    for late in (1000, 999, -1):
        with refused("QU013", "tick_id", str(late)):
            value(conn, call, topic, late, None)
    with refused("QU013", "tick_id"):
        value(conn, call, topic, None, None)


@pytest.mark.parametrize("tick_id", [-(2**63), -1, 0, 2**62 + 1, 2**63 - 1])
def test_external_ticks_leave_room_on_both_sides(
    conn: psycopg.Connection, queue: str, tick_id: int
) -> None:
    """The first one is above 0, and there is room for ticks after any of them."""
    configure(conn, queue, external_ticker=True)
    with refused("QU013", "tick_id", str(tick_id)):
        value(conn, "select pgque.ticker(%s, %s::bigint, now(), null)", queue, tick_id)
    assert value(conn, "select pgque.ticker(%s, %s, now(), null)", queue, 2**62) == 2**62
    configure(conn, queue, external_ticker=False)
    assert tick(conn, queue) > 2**62


def test_own_ticks_go_on_above_the_external_ones(conn: psycopg.Connection, topic: str) -> None:
    """Where external_ticker is switched off again, nothing gets stuck below its last id."""
    configure(conn, topic, external_ticker=True)
    value(conn, "select pgque.ticker(%s, 5000000000, now(), null)", topic)
    configure(conn, topic, external_ticker=False)
    send(conn, topic, "x")
    assert tick(conn, topic) > 5000000000
    assert take(conn, topic) == ["x"]


def test_a_consumer_of_an_external_queue_starts_at_its_last_tick(
    conn: psycopg.Connection, queue: str
) -> None:
    """A tick of our own would have an id between the other's."""
    configure(conn, queue, external_ticker=True)
    value(conn, "select pgque.ticker(%s, 10, now(), null)", queue)
    subscribe(conn, queue)
    send(conn, queue, "x")
    value(conn, "select pgque.ticker(%s, 11, now(), null)", queue)
    assert take(conn, queue) == ["x"]


def test_tick_if_new_ticks_only_where_something_is_new(
    conn: psycopg.Connection, topic: str
) -> None:
    """So ten consumers that are woken by one message make one tick."""
    assert value(conn, "select pgque.tick_if_new(%s)", topic) is None
    send(conn, topic, "x")
    made = [value(conn, "select pgque.tick_if_new(%s)", topic) for _ in range(10)]
    assert made[0] is not None
    assert made[1:] == [None] * 9
    assert take(conn, topic) == ["x"]


def test_next_retry_at_says_now_where_a_tick_is_wanted(
    conn: psycopg.Connection, topic: str
) -> None:
    """And NULL where nothing is known to come."""
    assert value(conn, "select pgque.next_retry_at(%s)", topic) is None
    send(conn, topic, "x")
    assert value(conn, "select pgque.next_retry_at(%s) <= clock_timestamp()", topic)
    drain(conn, topic)
    assert value(conn, "select pgque.next_retry_at(%s)", topic) is None


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize(
    "call",
    [
        "ticker('q')",
        "ticker()",
        "tick_if_new('q')",
        "receive('q', 'c')",
        "next_batch('q', 'c')",
        "subscribe('q', 'd')",
        "register_consumer_at('q', 'd', 1)",
        "ack(1)",
        "ack_to(1, 1)",
        "nack(1, 1)",
        "release(1)",
        "event_dead(1, 1, 'x')",
        "get_batch_events(1)",
        "maint()",
        "maint_retry_events()",
        "maint_rotate_tables_step1('q')",
        "maint_rotate_tables_step2()",
    ],
)
def test_an_old_snapshot_is_refused(conn: psycopg.Connection, level: str, call: str) -> None:
    """Hazard 1: a tick from it would get a new id, a position read with it might be an old one."""
    conn.execute("select pgque.create_queue('q'), pgque.subscribe('q', 'c')")
    with refused("QU011", level), conn.transaction():
        conn.execute(f"set transaction isolation level {level}".encode())
        conn.execute("select 1")
        conn.execute(f"select pgque.{call}".encode())


def test_ticks_hold_the_snapshot_and_the_position(conn: psycopg.Connection, topic: str) -> None:
    """PgQ's columns in table tick, for those who read it."""
    (msg_id,) = send(conn, topic, "x")
    made = tick(conn, topic)
    found = row(
        conn,
        "select t.* from pgque.tick t join pgque.queue q on q.queue_id = t.tick_queue"
        " where q.queue_name = %s and t.tick_id = %s",
        topic,
        made,
    )
    assert found.tick_event_seq == msg_id
    assert value(conn, "select now() - %s < '1 minute'", found.tick_time)


def test_a_tick_notifies_the_queues_channel(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """With the tick's id; a send notifies only while somebody waits."""
    listener = connect()
    listener.execute(f'listen "pgque_{topic}"'.encode())
    made = tick(conn, topic)
    assert [n.payload for n in listener.notifies(timeout=10, stop_after=1)] == [str(made)]
    send(conn, topic, "unheard")
    value(conn, "select pgque.send_batch(%s, '{unheard}'::text[])", topic)
    assert list(listener.notifies(timeout=0)) == []
    value(listener, "select pgque.mark_waiting(%s, true)", topic)
    for call in (
        "send(%s, 'x'::text)",
        "send_batch(%s, '{x}'::text[])",
        "insert_event(%s, 't', 'x')",
    ):
        value(conn, f"select pgque.{call}", topic)
        heard = list(listener.notifies(timeout=10, stop_after=1))
        assert [n.channel for n in heard] == [f"pgque_{topic}"]
    conn.execute("set pgque.notify = off")
    send(conn, topic, "unheard")
    conn.execute("reset pgque.notify")
    value(listener, "select pgque.mark_waiting(%s, false)", topic)
    send(conn, topic, "unheard")
    assert list(listener.notifies(timeout=0)) == []


def test_pausing_stops_consumers_ticks(conn: psycopg.Connection, topic: str) -> None:
    """tick_if_new makes none; they go on with resume_queue."""
    value(conn, "select pgque.pause_queue(%s)", topic)
    send(conn, topic, "x")
    assert value(conn, "select pgque.tick_if_new(%s)", topic) is None
    value(conn, "select pgque.resume_queue(%s)", topic)
    assert value(conn, "select pgque.tick_if_new(%s)", topic) is not None
    assert [message.payload for message in receive(conn, topic)] == ["x"]
