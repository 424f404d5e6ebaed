"""The tables of ticks, positions and retries are reclaimed by TRUNCATE, and lose nothing by it."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_db import Connect
from tests.race.sessions import (
    at_once,
    replace_body,
    rewrite,
    start,
    stopped_at,
)
from tests.sql.calls import (
    ack,
    bring_back,
    drain,
    move_clock,
    nack,
    receive,
    row,
    rows,
    send,
    subscribe,
    take,
    tick,
    value,
)

TABLES = ("tick", "subscription_state", "delayed_event", "delayed_pass")


@pytest.fixture
def topic(conn: psycopg.Connection, topic: str) -> str:
    """A queue in a database whose state tables are reclaimed in each pass, however small."""
    replace_body(conn, "_has_grown", "begin return true; end")
    return topic


def turn(conn: psycopg.Connection) -> int:
    """Reclaim all state tables; returns how many could be."""
    return int(value(conn, "select pgque.maint_rotate_tables_step2()"))


def test_a_turn_keeps_cursor_batch_and_position(conn: psycopg.Connection, topic: str) -> None:
    """An open batch half settled goes on where it was, under its id; and so does what follows."""
    value(conn, "select pgque.send_batch(%s, '{1,2,3,4}'::text[])", topic)
    tick(conn, topic)
    ack(conn, receive(conn, topic, limit=1)[0].batch_id)
    batch = receive(conn, topic, limit=2)
    statement = "select pgque.ack_to(%s, %s)"
    value(conn, statement, batch[0].batch_id, batch[0].msg_id)
    for _ in range(3):
        assert turn(conn) >= len(TABLES)
        again = receive(conn, topic, limit=1)
        assert [(m.batch_id, m.payload) for m in again] == [(batch[0].batch_id, "3")]
    send(conn, topic, "5")
    assert ack(conn, batch[0].batch_id) == 1
    assert drain(conn, topic) == ["4", "5"]


def test_a_turn_keeps_the_ticks_that_somebody_has_before_him(
    conn: psycopg.Connection, topic: str
) -> None:
    """And reclaims the others."""
    subscribe(conn, topic, "quick")
    sent = [str(number) for number in range(30)]
    for text in sent:
        send(conn, topic, text)
        tick(conn, topic)
    take(conn, topic, "quick")
    turn(conn)
    assert value(conn, "select count(*) from pgque.tick") >= 30
    assert take(conn, topic) == sent
    turn(conn)
    assert value(conn, "select count(*) from pgque.tick") == 1


def test_a_long_backlog_of_ticks_is_thinned_and_loses_nothing(
    conn: psycopg.Connection, topic: str
) -> None:
    """A window may be wide; every second or third tick is enough of ten thousand and more."""
    send(conn, topic, "first")
    last = tick(conn, topic)
    conn.execute(
        "insert into pgque.tick select t.tick_id + n, t.tick_time, t.tick_queue, t.state_slot,"
        " t.tick_event_seq, t.tick_event_low, t.tick_snapshot, t.tick_pending"
        " from (select * from pgque.tick order by tick_id desc limit 1) t,"
        " generate_series(1, 25000) n"
    )
    value(
        conn,
        "select setval((select queue_tick_seq from pgque.queue where queue_name = %s), %s)",
        topic,
        last + 25000,
    )
    send(conn, topic, "last")
    newest = tick(conn, topic)
    turn(conn)
    count, highest = conn.execute("select count(*), max(tick_id) from pgque.tick").fetchall()[0]
    assert 5_000 < count < 15_000
    assert highest == newest
    assert take(conn, topic) == ["first", "last"]


def test_a_turn_keeps_retries_that_wait(conn: psycopg.Connection, topic: str) -> None:
    """Each comes back once, however many turns lie between; those that came back are reclaimed."""
    send(conn, topic, "now", "later")
    tick(conn, topic)
    soon, late = receive(conn, topic)
    nack(conn, soon)
    nack(conn, late, "1 hour")
    ack(conn, soon.batch_id)
    turn(conn)
    bring_back(conn, topic)
    assert take(conn, topic) == ["now"]
    for _ in range(3):
        turn(conn)
    assert [r.ev_data for r in rows(conn, "select * from pgque.retry_queue")] == ["later"]
    assert value(conn, "select count(*) from pgque.delayed_event") == 1
    move_clock(conn, "2 hours")
    bring_back(conn, topic)
    turn(conn)
    bring_back(conn, topic)
    assert take(conn, topic) == ["later"]


def test_a_turn_does_not_forget_nacks_of_an_open_batch(
    conn: psycopg.Connection, topic: str
) -> None:
    """The second nack still has no effect, also after the first one's message was moved back."""
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    nack(conn, message)
    value(conn, "select pgque.maint_retry_events()")
    for _ in range(2):
        turn(conn)
    nack(conn, message)
    ack(conn, message.batch_id)
    bring_back(conn, topic)
    turn(conn)
    bring_back(conn, topic)
    assert take(conn, topic) == ["x"]
    turn(conn)
    assert value(conn, "select count(*) from pgque.delayed_event") == 0


def test_a_row_that_went_into_the_truncated_table(conn: psycopg.Connection, topic: str) -> None:
    """A slow writer may choose its table before a turn and write after it: the row is found there,
    by readers and by the next turns."""
    other = "update pgque.state_slot set current_slot = 1 - current_slot"
    for number in range(4):
        conn.execute(other)
        send(conn, topic, str(number))
        tick(conn, topic)
        (message,) = receive(conn, topic)
        conn.execute(other)
        ack(conn, message.batch_id)
        turn(conn)
        assert message.payload == str(number)
        assert take(conn, topic) == []


def test_a_writer_at_work_keeps_the_turn_off(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Whoever has read his position holds the table until he has written the new one."""
    slot = "select current_slot from pgque.state_slot where state_table = 'subscription_state'"
    rewrite(conn, "_append_state", "    insert into", "    perform public.stop(5); insert into")
    send(conn, topic, "1", "2")
    tick(conn, topic)
    (message, _) = receive(conn, topic)
    before = value(conn, slot)
    settler = connect()
    with stopped_at(conn, 5, settler, "select pgque.ack(%s)", message.batch_id):
        turn(conn)
        assert value(conn, slot) == before
    turn(conn)
    assert value(conn, slot) == 1 - before
    assert take(conn, topic) == []


def test_turns_wait_for_nobody_and_nobody_for_them(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """A dump holds the tables: upkeep comes back later, receive and ack go on."""
    slots = "select current_slot from pgque.state_slot where state_table = any (%s) order by 1"
    holder = connect(autocommit=False)
    for table in TABLES:
        holder.execute(f"lock table pgque.{table} in access share mode".encode())
    before = rows(conn, slots, list(TABLES))
    start(connect(), "select pgque.maint_rotate_tables_step2()").result(10)
    assert rows(conn, slots, list(TABLES)) == before
    conn.execute("set lock_timeout = '1s'")
    send(conn, topic, "x")
    assert drain(conn, topic) == ["x"]
    holder.commit()
    assert turn(conn) >= len(TABLES)


def settle(conn: psycopg.Connection, queue: str, consumer: str, settled: list[str]) -> None:
    """Tick, receive and ack one piece; the first time, nack every fifth message."""
    value(conn, "select pgque.tick_if_new(%s)", queue)
    messages = receive(conn, queue, consumer, limit=7)
    for message in messages:
        if int(message.payload) % 5 == 0 and message.retry_count is None:
            nack(conn, message)
        else:
            settled.append(message.payload)
    if messages:
        assert ack(conn, messages[0].batch_id) == 1


def test_consumers_work_on_while_tables_turn(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Three consumers that nack every fifth message, a sender and an upkeep that never rests: each
    message is settled once by each consumer, with exactly the retries that were asked for."""
    subscribe(conn, topic, "a", "b", "d")
    sent = [str(number) for number in range(80)]
    settled: dict[str, list[str]] = {"a": [], "b": [], "d": []}
    sender, upkeep = connect(), connect()

    def consume(name: str) -> None:
        session = connect()
        for _ in range(3000):
            if len(settled[name]) < len(sent):
                settle(session, topic, name, settled[name])

    at_once(
        [
            lambda: send(sender, topic, *sent),
            lambda: [turn(upkeep) for _ in range(60)],
            *(lambda name=name: consume(name) for name in settled),
        ]
    )
    for found in settled.values():
        assert sorted(found, key=int) == sent


def test_positions_survive_in_the_views(conn: psycopg.Connection, topic: str) -> None:
    """What dashboards read is the same before and after a turn."""
    send(conn, topic, "1")
    tick(conn, topic)
    receive(conn, topic)
    statement = "select * from pgque.subscription"
    before = row(conn, statement)
    turn(conn)
    assert row(conn, statement) == before
