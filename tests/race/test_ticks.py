"""Hazards 1, 2 and 3: what a tick's snapshot, position and number have to do with each other.

Each scenario runs twice: on the engine, where every message comes once, and on one whose guard was
taken out in the test's own database, where it is seen to be lost, or to come twice, or not at all.
"""

from __future__ import annotations

import psycopg
import pytest

from tests.fix_db import Connect
from tests.fix_wait import wait_blocked
from tests.race.sessions import (
    replace_body,
    rewrite,
    start,
    stopped_at,
    use_up_transaction_numbers,
)
from tests.sql.calls import configure, drain, refused, send, take, tick, value

LOCK = "perform pg_advisory_lock(1346851156, p_queue.queue_id);"
USE_UP = "perform pgque._use_up_transaction_number();"
READ_SEQUENCE = "v_tick.tick_event_seq := pgque._last_event_id(p_queue);"


def test_the_upper_position_is_read_after_the_snapshot(
    conn: psycopg.Connection, topic: str, connect: Connect, guarded: bool
) -> None:
    """Hazard 1. Read before it, a message that commits in between is shown by the snapshot and lies
    beyond the position: no window ever holds it. Seen: [] instead of ["between"]."""
    rewrite(conn, "_take_tick", USE_UP, f"perform public.stop(1); {USE_UP}")
    if not guarded:
        rewrite(
            conn, "_take_tick", READ_SEQUENCE, "v_tick.tick_event_seq := v_tick.tick_event_low;"
        )
    ticker = connect()
    value(conn, "select pgque.force_next_tick(%s)", topic)
    with stopped_at(conn, 1, ticker, "select pgque.ticker(%s)", topic):
        send(conn, topic, "between")
    assert drain(conn, topic) == (["between"] if guarded else [])


def test_the_lower_position_is_read_before_the_snapshot(
    conn: psycopg.Connection, topic: str, connect: Connect, guarded: bool
) -> None:
    """Hazard 1 from the other side. Read after it, it covers a message of a transaction that began
    after the snapshot, which nothing else remembers. Seen: [] instead of ["later"]."""
    stop = f"perform public.stop(2); {READ_SEQUENCE}"
    late_read = " v_tick.tick_event_low := v_tick.tick_event_seq;"
    rewrite(conn, "_take_tick", READ_SEQUENCE, stop + ("" if guarded else late_read))
    ticker, sender = connect(), connect(autocommit=False)
    value(conn, "select pgque.force_next_tick(%s)", topic)
    with stopped_at(conn, 2, ticker, "select pgque.ticker(%s)", topic):
        use_up_transaction_numbers(sender)
        send(sender, topic, "later")
    sender.commit()
    assert drain(conn, topic) == (["later"] if guarded else [])


def test_a_running_sender_above_the_snapshots_end_is_seen(
    conn: psycopg.Connection, topic: str, connect: Connect, guarded: bool
) -> None:
    """Hazard 1. A snapshot ends after the highest finished transaction and does not list running
    ones above it, so the tick uses up a number first. Without that: [] instead of ["running"]."""
    if not guarded:
        replace_body(conn, "_use_up_transaction_number", "begin end")
    sender = connect(autocommit=False)
    send(sender, topic, "running")
    tick(conn, topic)
    sender.commit()
    assert drain(conn, topic) == (["running"] if guarded else [])


def test_a_tick_from_an_old_snapshot_is_refused(
    conn: psycopg.Connection, topic: str, connect: Connect, guarded: bool
) -> None:
    """Hazard 1. In REPEATABLE READ it would get a new number and position for an old snapshot, and
    what was sent since then would lie between the windows. Seen: [] instead of ["since"]."""
    old = connect(autocommit=False)
    old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    old.execute("select 1")
    send(conn, topic, "since")
    value(conn, "select pgque.force_next_tick(%s)", topic)
    if guarded:
        with refused("QU011"):
            value(old, "select pgque.ticker(%s)", topic)
        old.rollback()
    else:
        replace_body(conn, "_require_read_committed", "begin end")
        value(old, "select pgque.ticker(%s)", topic)
        old.commit()
    assert drain(conn, topic) == (["since"] if guarded else [])


def test_two_tickers_number_their_snapshots_in_order(
    conn: psycopg.Connection, topic: str, connect: Connect, guarded: bool
) -> None:
    """Hazard 2. The second ticker waits while the first stands between snapshot and number. Without
    the lock the older snapshot gets the newer number. Seen: the message comes a second time."""
    rewrite(conn, "_take_tick", "v_tick.tick_id :=", "perform public.stop(3); v_tick.tick_id :=")
    if not guarded:
        rewrite(conn, "_take_tick", LOCK, "")
    first, second = connect(), connect()
    value(conn, "select pgque.force_next_tick(%s)", topic)
    with stopped_at(conn, 3, first, "select pgque.ticker(%s)", topic):
        send(conn, topic, "once")
        ticked = start(second, "select pgque.tick_if_new(%s)", topic)
        if guarded:
            assert wait_blocked(conn, second) == [first.info.backend_pid]
        else:
            ticked.result(10)
            assert take(conn, topic) == ["once"]
    ticked.result(10)
    taken = take(conn, topic) + drain(conn, topic) + drain(conn, topic)
    assert taken == ["once"]  # guarded: the first time, else one more


@pytest.mark.parametrize("call", ["ticker", "tick_if_new"])
def test_a_long_transaction_that_ticked_holds_no_ticker_up(
    conn: psycopg.Connection, topic: str, connect: Connect, guarded: bool, call: str
) -> None:
    """Hazard 2. The section ends before the transaction. With a lock to its end, tickers and
    consumers would be seen to wait for the user's transaction."""
    if not guarded:
        rewrite(conn, "_take_tick", LOCK, LOCK.replace("advisory", "advisory_xact"))
    long, other = connect(autocommit=False), connect()
    send(conn, topic, "x")
    value(conn, "select pgque.force_next_tick(%s)", topic)
    assert value(long, f"select pgque.{call}(%s)", topic) is not None
    ticked = start(other, "select pgque.tick_if_new(%s) as id", topic)
    if guarded:
        assert ticked.result(10)[0].id is not None
        assert take(conn, topic) == ["x"]
    else:
        assert wait_blocked(conn, other) == [long.info.backend_pid]
    long.commit()
    ticked.result(10)
    take(conn, topic)
    assert drain(conn, topic) == []


def test_ticks_that_commit_out_of_order_lose_nothing(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Hazard 2. A chain of growing snapshots is right whichever of them are visible: an early tick
    that commits late is passed over by who is beyond it, and used by who is not."""
    value(conn, "select pgque.subscribe(%s, 'late')", topic)
    long = connect(autocommit=False)
    send(conn, topic, "1")
    long.execute("select pgque.tick_if_new(%s)", [topic])
    send(conn, topic, "2")
    assert drain(conn, topic) == ["1", "2"]
    long.commit()
    send(conn, topic, "3")
    assert drain(conn, topic) == ["3"]
    assert take(conn, topic, "late") == ["1", "2", "3"]


def test_a_transaction_that_sends_and_ticks_delivers_once(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Hazard 2. Its own messages are not in its own tick, though PostgreSQL leaves it out of
    its own snapshot's list: with ticks of others before it commits, they came twice."""
    both = connect(autocommit=False)
    send(both, topic, "1")
    use_up_transaction_numbers(conn)
    tick(both, topic)
    send(both, topic, "2")
    use_up_transaction_numbers(conn)
    tick(conn, topic)
    both.commit()
    assert value(conn, "select pgque.tick_if_new(%s)", topic) is not None
    assert take(conn, topic) + drain(conn, topic) == ["1", "2"]


def test_subscribing_and_sending_in_one_busy_transaction(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """What is sent after subscribe in its transaction comes, also when others commit meanwhile."""
    both = connect(autocommit=False)
    send(both, topic, "before")
    use_up_transaction_numbers(conn)
    both.execute("select pgque.subscribe(%s, 'new')", [topic])
    use_up_transaction_numbers(conn)
    send(both, topic, "after")
    both.commit()
    assert drain(conn, topic, "new")[-1:] == ["after"]


def test_a_straggler_makes_a_tick_due(
    conn: psycopg.Connection, topic: str, connect: Connect, guarded: bool
) -> None:
    """Hazard 3. A transaction that sent before the tick and commits after it moves no sequence; the
    tick remembers it as pending. Without that: no tick is made, and ["late"] is not delivered."""
    configure(conn, topic, ticker_idle_period="1 hour", ticker_max_lag="1 ms")
    if not guarded:
        replace_body(conn, "_pending", "begin return '{}'; end")
    late = connect(autocommit=False)
    send(late, topic, "late")
    tick(conn, topic)
    assert value(conn, "select pgque.tick_if_new(%s)", topic) is None
    late.commit()
    with conn.transaction(force_rollback=True):  # a ticker sees it, as a consumer does
        conn.execute("select pg_sleep(0.01)")
        assert (value(conn, "select pgque.ticker(%s)", topic) is not None) == guarded
    conn.execute("select pgque.tick_if_new(%s)", [topic])
    assert take(conn, topic) == (["late"] if guarded else [])


def test_an_idle_queue_in_a_busy_database_makes_no_ticks(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Hazard 3, the other way round: the end of a transaction that can't have sent is no news."""
    busy = connect(autocommit=False)
    tick(conn, topic)
    for _ in range(5):
        use_up_transaction_numbers(busy)
        conn.execute("select pgque.tick_if_new(%s)", [topic])
        busy.commit()
        assert value(conn, "select pgque.tick_if_new(%s)", topic) is None
