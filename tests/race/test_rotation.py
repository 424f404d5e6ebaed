"""Hazards 5 and 6: rotation takes nothing that is unread, waits for nobody, and nobody for it."""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_db import Connect
from tests.fix_wait import wait_blocked
from tests.race.sessions import (
    at_once,
    replace_body,
    rewrite,
    start,
    stopped_at,
)
from tests.sql.calls import ack, configure, drain, receive, send, subscribe, take, tick, value


@pytest.fixture
def topic(conn: psycopg.Connection, topic: str) -> str:
    """A queue that rotates in every pass of upkeep that it can."""
    configure(conn, topic, rotation_period="1 ms")
    return topic


def rotate(conn: psycopg.Connection, times: int = 1) -> int:
    """So many passes of upkeep, a rotation period apart; how many things they did."""
    done = 0
    for _ in range(times):
        conn.execute("select pg_sleep(0.002)")
        done += value(conn, "select pgque.maint()")
    return done


def stored(conn: psycopg.Connection) -> int:
    """Rows in all event tables."""
    return int(value(conn, "select count(*) from pgque.event"))


def old_producer(connect: Connect) -> psycopg.Connection:
    """A session whose snapshot, for as long as it is open, shows the queue as it is now."""
    conn = connect(autocommit=False)
    conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    conn.execute("select * from pgque.queue")
    return conn


def test_read_messages_are_truncated_and_unread_ones_kept(
    conn: psycopg.Connection, topic: str, guarded: bool
) -> None:
    """Hazard 5. Without the look for unread ones the slow consumer's messages are gone: []."""
    if not guarded:
        replace_body(conn, "_has_unread", "begin return false; end")
    subscribe(conn, topic, "slow")
    for number in range(5):
        send(conn, topic, str(number))
        assert drain(conn, topic) == [str(number)]
        rotate(conn, 2)
    assert drain(conn, topic, "slow") == (["0", "1", "2", "3", "4"] if guarded else [])
    rotate(conn, 4)
    assert stored(conn) == 0


def test_an_open_batch_keeps_its_messages(conn: psycopg.Connection, topic: str) -> None:
    """Handed out is not read: the batch comes again after any number of rotations."""
    value(conn, "select pgque.send_batch(%s, '{1,2,3}'::text[])", topic)
    tick(conn, topic)
    ack(conn, receive(conn, topic, limit=1)[0].batch_id)
    first = receive(conn, topic)
    rotate(conn, 5)
    assert [m._replace(delivery_count=2) for m in first] == receive(conn, topic)


def test_a_producer_open_for_longer_than_two_rotations_is_delivered(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Hazard 5, field case 7. It slows nobody, and its messages come with its commit, those that it
    sent before the rotations and those after them."""
    long = connect(autocommit=False)
    send(long, topic, "early")
    for number in range(6):
        send(conn, topic, str(number))
        assert drain(conn, topic) == [str(number)]
        rotate(conn)
    send(long, topic, "late")
    long.commit()
    rotate(conn, 5)
    assert drain(conn, topic) == ["early", "late"]
    rotate(conn, 5)
    assert stored(conn) == 0


def test_a_producer_that_found_its_table_before_the_switch(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Hazard 5. It inserts into a table that was switched from and truncated since; the message is
    found there, and the table waits until it is read."""
    for commit_first in (True, False):
        send(conn, topic, "x")
        old = old_producer(connect)
        assert drain(conn, topic) == ["x"]
        assert rotate(conn, 3) >= 2
        assert stored(conn) == 0
        send(old, topic, "into the old table")
        if commit_first:
            old.commit()
        rotate(conn, 3)
        old.commit()
        rotate(conn, 3)
        assert drain(conn, topic) == ["into the old table"]
        rotate(conn, 4)
        assert stored(conn) == 0


def test_a_message_that_comes_between_the_look_and_the_lock(
    conn: psycopg.Connection, topic: str, connect: Connect, guarded: bool
) -> None:
    """Hazard 5. Upkeep looks once more when it has the lock. Without the second look a message of
    an old producer, sent between the first look and the lock, is truncated: []."""
    upkeep = connect()
    send(conn, topic, "x")
    old = old_producer(connect)
    assert drain(conn, topic) == ["x"]
    conn.execute("select pg_sleep(0.002)")
    assert value(conn, "select pgque.maint()") == 1  # switched; "x" is still in the old table
    rewrite(
        conn, "_lock_at_once", "    execute format", "    perform public.stop(4); execute format"
    )
    if not guarded:
        look = "pgque._has_unread(p_queue, p_table)"
        rewrite(conn, "_truncate_if_read", f"\n        or {look}", "")
    with stopped_at(conn, 4, upkeep, "select pgque.maint()"):
        send(old, topic, "between")
        old.commit()
    assert drain(conn, topic) == (["between"] if guarded else [])


@pytest.mark.parametrize("mode", ["access share", "share update exclusive"])
def test_rotation_does_not_queue_behind_a_reader(
    conn: psycopg.Connection, topic: str, connect: Connect, mode: str, guarded: bool
) -> None:
    """Hazard 6, field case 33: pg_dump's lock, and a vacuum's, held on all event tables. A truncate
    that waited would make everybody wait behind it: seen without NOWAIT, receive is blocked."""
    if not guarded:
        rewrite(conn, "_lock_at_once", " nowait", "")
    send(conn, topic, "x")
    assert drain(conn, topic) == ["x"]
    rotate(conn)
    send(conn, topic, "y")
    tick(conn, topic)
    holder, upkeep, receiver = connect(autocommit=False), connect(), connect()
    for number in range(3):
        holder.execute(f"lock table pgque.event_1_{number} in {mode} mode".encode())
    done = start(upkeep, "select pgque.maint() as done")
    if guarded:
        done.result(10)
        assert stored(conn) == 2
        receiver.execute("set lock_timeout = '1s'")
        send(receiver, topic, "z")
        assert drain(receiver, topic) == ["y", "z"]
        holder.commit()
        rotate(conn, 3)
        assert stored(conn) == 0
    else:
        assert wait_blocked(conn, upkeep) == [holder.info.backend_pid]
        received = start(receiver, "select pgque.receive(%s, 'c')", topic)
        assert upkeep.info.backend_pid in wait_blocked(conn, receiver)
        holder.commit()
        done.result(10)
        received.result(10)


def test_many_senders_beside_rotation_and_a_reader_never_wait(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Field case 33: eight senders, a rotation in every pass, and one who sits on all tables. No
    sender may wait for a lock: its lock_timeout is a twentieth of a second."""
    holder = connect(autocommit=False)
    holder.execute("lock table pgque.event in access share mode")
    senders = [connect() for _ in range(8)]
    for sender in senders:
        sender.execute("set lock_timeout = '50ms'")
    upkeep, consumer = connect(), connect()
    taken: list[str] = []

    def produce(number: int) -> None:
        for i in range(60):
            send(senders[number], topic, f"{number}.{i}")

    def keep_up() -> None:
        for _ in range(30):
            rotate(upkeep)

    def consume() -> None:
        for _ in range(30):
            value(consumer, "select pgque.tick_if_new(%s)", topic)
            taken.extend(take(consumer, topic))

    at_once([*(lambda n=n: produce(n) for n in range(8)), keep_up, consume])
    taken += drain(conn, topic)
    assert sorted(taken) == sorted(f"{n}.{i}" for n in range(8) for i in range(60))
    holder.commit()
    rotate(conn, 5)
    assert stored(conn) == 0


def test_a_subscription_and_rotation_at_once(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """A consumer whose subscription commits late gets all that was sent after it."""
    new = connect(autocommit=False)
    new.execute("select pgque.subscribe(%s, 'new')", [topic])
    send(conn, topic, "1")
    assert drain(conn, topic) == ["1"]
    rotate(conn, 2)
    new.commit()
    send(conn, topic, "2")
    rotate(conn, 3)
    assert drain(conn, topic, "new")[-1:] == ["2"]


def test_upkeep_passes_over_queues_that_are_dropped_meanwhile(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Not an error that undoes the whole pass."""
    value(conn, "select pgque.create_queue('doomed')")
    configure(conn, "doomed", rotation_period="1 ms")
    for queue in (topic, "doomed"):
        send(conn, queue, "x")
    drain(conn, topic)
    rotate(conn)
    holder, upkeep = connect(autocommit=False), connect()
    holder.execute("lock table pgque.event_1_1 in access exclusive mode")
    done = start(upkeep, "select pgque.maint() as done")
    wait_blocked(conn, upkeep)
    value(conn, "select pgque.drop_queue('doomed')")
    holder.commit()
    assert done.result(10)[0].done >= 0


def test_upkeep_never_clears_tables_that_were_claimed_meanwhile(
    conn: psycopg.Connection, topic: str, connect: Connect, guarded: bool
) -> None:
    """Tables of a dropped queue are cleared only while no new queue has them. Without the lock on
    their row: the new queue's message is truncated."""
    if not guarded:
        rewrite(conn, "_clear_dropped", "for update of s skip locked", "")
    for queue in ("a", "b"):
        value(conn, "select pgque.create_queue(%s)", queue)
        send(conn, queue, "old")
    for queue in ("a", "b"):
        value(conn, "select pgque.drop_queue(%s)", queue)
    holder, upkeep = connect(autocommit=False), connect()
    holder.execute("lock table pgque.event_2_0 in access exclusive mode")
    done = start(upkeep, "select pgque.maint()")
    wait_blocked(conn, upkeep)
    for queue in ("c", "d"):
        value(conn, "select pgque.create_queue(%s)", queue)
        subscribe(conn, queue)
    send(conn, "d", "new")
    holder.commit()
    done.result(10)
    assert drain(conn, "d") == (["new"] if guarded else [])
