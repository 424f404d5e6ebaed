"""Hazard 9: everything against everything, and nobody waits in a circle."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import psycopg
import pytest

from tests.fix_db import Connect
from tests.fix_wait import wait_blocked, wait_until
from tests.race.sessions import at_once, replace_body, rewrite, start
from tests.sql.calls import configure, drain, rows, send, subscribe, take, value

ROUNDS = 60
QUEUES = ("a", "b", "c")
CONSUMERS = ("x", "y")

# No failure here: somebody else dropped the queue, unsubscribed the consumer or settled the batch;
# or the tick is not there to start from.
EXPECTED = {"QU001", "QU002", "QU003", "QU004", "QU008", "QU009", "QU010"}

# One call a transaction.
CALLS = """
select pgque.create_queue('{queue}', '{{"rotation_period": "1 ms", "max_retries": 1}}')
select pgque.drop_queue('{queue}', true)
select pgque.set_queue_config('{queue}', 'max_retries', '{number}')
select pgque.set_queue_config('{queue}', 'rotation_period', '1 ms')
select pgque.pause_queue('{queue}')
select pgque.resume_queue('{queue}')
select pgque.subscribe('{queue}', '{consumer}')
select pgque.subscribe('{queue}', '{consumer}')
select pgque.subscribe('{queue}', '{consumer}')
select pgque.unsubscribe('{queue}', '{consumer}')
select pgque.register_consumer_at('{queue}', '{consumer}', {number})
select pgque.send('{queue}', 'x'::text)
select pgque.send('{queue}', 'x'::text)
select pgque.send_batch('{queue}', '{{1,2,3}}'::text[])
select pgque.ticker()
select pgque.ticker('{queue}')
select pgque.tick_if_new('{queue}')
select pgque.tick_if_new('{queue}')
select pgque.force_next_tick('{queue}')
select * from pgque.receive('{queue}', '{consumer}', 2)
select pgque.nack(batch_id, msg_id, '0') from pgque.receive('{queue}', '{consumer}', 2)
select pgque.event_dead(batch_id, msg_id, 'x') from pgque.receive('{queue}', '{consumer}', 1)
select pgque.ack(sub_batch) from pgque.subscription where sub_batch is not null
select pgque.release(sub_batch) from pgque.subscription where sub_batch is not null
select pgque.next_batch('{queue}', '{consumer}')
select pgque.maint()
select pgque.maint()
select pgque.maint_retry_events()
select pgque.maint_rotate_tables_step1('{queue}')
select pgque.maint_rotate_tables_step2()
select pgque.dlq_replay_all('{queue}')
select pgque.subscribe_subconsumer('{queue}', 'g', '{consumer}')
select pgque.unsubscribe_subconsumer('{queue}', 'g', '{consumer}', 1)
select * from pgque.receive_coop('{queue}', 'g', '{consumer}', 2, '1 ms')
select * from pgque.receive_coop('{queue}', 'g', '{consumer}', 2)
select pgque.nack(batch_id, msg_id, '0') from pgque.receive_coop('{queue}', 'g', '{consumer}', 2)
select pgque.touch_subconsumer('{queue}', 'g', '{consumer}')
select pgque.unsubscribe('{queue}', 'g')
select pgque.dlq_purge('{queue}', '0')
select * from pgque.get_consumer_info()
select * from pgque.status()
""".strip().splitlines()


def worker(connect: Connect, seed: int, errors: list[str]) -> Callable[[], None]:
    """A session that makes random calls; anything but an expected error is noted."""
    choose = random.Random(seed)
    conn = connect()
    conn.execute("set lock_timeout = '15s'; set deadlock_timeout = '200ms'")

    def work() -> None:
        for _ in range(ROUNDS):
            names = {"queue": choose.choice(QUEUES), "consumer": choose.choice(CONSUMERS)}
            call = choose.choice(CALLS).format(number=choose.randint(1, 20), **names)
            try:
                conn.execute(call.encode())
            except psycopg.Error as error:
                if error.sqlstate not in EXPECTED:
                    errors.append(f"{error.sqlstate} {call}: {error}")

    return work


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_calls_beside_each_other(conn: psycopg.Connection, connect: Connect, seed: int) -> None:
    """Ten sessions create, drop, configure, subscribe, send, tick, receive, settle, rotate and
    look, each call in a transaction of its own: no deadlock, no endless wait, no other error."""
    # state tables turn in every pass, so that their locks are part of the game
    replace_body(conn, "_has_grown", "begin return true; end")
    for queue in QUEUES:
        conn.execute(CALLS[0].format(queue=queue).encode())
        subscribe(conn, queue, *CONSUMERS)
    errors: list[str] = []
    at_once([worker(connect, seed * 100 + number, errors) for number in range(10)])
    assert errors == []


def test_first_subscriptions_of_one_consumer_at_once(
    conn: psycopg.Connection, connect: Connect
) -> None:
    """Contract: they don't deadlock and don't fail; one of them makes it."""
    for queue in QUEUES:
        value(conn, "select pgque.create_queue(%s)", queue)
    sessions = [connect() for _ in range(6)]
    for name in ("new one", "another", "third"):
        call = "select pgque.subscribe(%s, %s)"
        pairs = zip(sessions, QUEUES * 2, strict=True)
        done = at_once([partial(value, session, call, q, name) for session, q in pairs])
        assert sum(done) == len(QUEUES)
    send(conn, "a", "x")
    assert drain(conn, "a", "third") == ["x"]


def test_creating_one_queue_at_once(conn: psycopg.Connection, connect: Connect) -> None:
    """One of the sessions creates it, also when tables of dropped queues lie ready."""
    sessions = [connect() for _ in range(6)]
    for number in range(4):
        call = f"select pgque.create_queue('q{number // 2}')"
        created = at_once([partial(value, session, call) for session in sessions])
        assert sorted(created) == [0] * 5 + [1]
        if number % 2 == 0:
            value(conn, f"select pgque.drop_queue('q{number // 2}')")


def test_creating_several_queues_in_one_transaction(
    conn: psycopg.Connection, connect: Connect, guarded: bool
) -> None:
    """What all workers of an application do at start-up, in the same order. Without the lock on the
    name, one is seen to wait for the other's queue with the lock that the other one needs to make
    tables: a deadlock, where one free set of tables is left."""
    if not guarded:
        name_lock = "perform pg_advisory_xact_lock(1346851150, hashtext(queue));"
        rewrite(conn, "create_queue(text)", name_lock, "")
    value(conn, "select pgque.create_queue('free')")
    value(conn, "select pgque.drop_queue('free')")
    first, second = connect(autocommit=False), connect(autocommit=False)
    create = "select pgque.create_queue(%s) as created"
    value(first, create, "orders")
    other = start(second, create, "orders")
    wait_blocked(conn, second)
    if guarded:
        assert value(first, create, "emails") == 1
        first.commit()
        assert other.result(10)[0].created == 0
        assert value(second, create, "emails") == 0
    else:
        emails = start(first, create, "emails")
        codes = [getattr(future.exception(10), "sqlstate", None) for future in (emails, other)]
        assert "40P01" in codes


def test_subscribing_and_configuring_in_one_transaction(
    conn: psycopg.Connection, topic: str, connect: Connect, guarded: bool
) -> None:
    """What two workers do at start-up. With a share lock on the queue's row, which each then wants
    to update, they are seen to deadlock."""
    if not guarded:
        lock = "where queue_id = p_queue.queue_id for key share"
        rewrite(conn, "_register", lock, lock.replace("key share", "share"))
    first, second = connect(autocommit=False), connect(autocommit=False)
    config = "select pgque.set_queue_config(%s, 'max_retries', '3')"
    value(first, "select pgque.subscribe(%s, 'first')", topic)
    value(second, "select pgque.subscribe(%s, 'second')", topic)
    one = start(first, config, topic)
    if guarded:
        one.result(10)
        two = start(second, config, topic)
        wait_blocked(conn, second)
        first.commit()
        two.result(10)
        second.commit()
    else:
        wait_blocked(conn, first)
        two = start(second, config, topic)
        codes = [getattr(future.exception(10), "sqlstate", None) for future in (one, two)]
        assert "40P01" in codes


def test_a_long_subscriber_does_not_block_configuration(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Nor other subscribers, senders and tickers of the queue."""
    long = connect(autocommit=False)
    value(long, "select pgque.subscribe(%s, 'long')", topic)
    conn.execute("set lock_timeout = '1s'")
    configure(conn, topic, max_retries=3)
    subscribe(conn, topic, "short")
    send(conn, topic, "x")
    assert drain(conn, topic, "short") == ["x"]
    value(conn, "select pgque.maint()")
    long.commit()


def test_consumers_of_one_queue_do_not_wait_for_each_other(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """One that keeps its transaction open around receive and handler holds up only itself."""
    subscribe(conn, topic, "d")
    send(conn, topic, "x")
    value(conn, "select pgque.tick_if_new(%s)", topic)
    slow = connect(autocommit=False)
    assert take(slow, topic) == ["x"]
    conn.execute("set lock_timeout = '1s'")
    assert take(conn, topic, "d") == ["x"]
    send(conn, topic, "y")
    assert drain(conn, topic, "d") == ["y"]
    slow.rollback()
    assert take(conn, topic) == ["x", "y"]


def test_no_session_lock_is_left_behind(conn: psycopg.Connection, topic: str) -> None:
    """Field case 19: pooled connections carry nothing from one user to the next, errors or not."""
    send(conn, topic, "x")
    drain(conn, topic)
    for call in ("ticker('nowhere')", "ticker(null)", "send('nowhere', 'x'::text)", "nack(1, 1)"):
        with pytest.raises(psycopg.Error):
            conn.execute(f"select pgque.{call}".encode())
    value(conn, "select pgque.maint()")
    held = rows(
        conn, "select * from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
    )
    assert held == []


def test_a_cancelled_ticker_leaves_no_lock(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """The tick's section is left however the call ends, so the next ticker can go on."""
    rewrite(conn, "_take_tick", "v_tick.tick_id :=", "perform pg_sleep(30); v_tick.tick_id :=")
    ticker = connect()
    send(conn, topic, "x")
    ticked = start(ticker, "select pgque.tick_if_new(%s)", topic)
    waiting = "select from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
    wait_until(lambda: rows(conn, waiting, ticker.info.backend_pid))
    ticker.cancel()
    assert isinstance(ticked.exception(10), psycopg.errors.QueryCanceled)
    rewrite(conn, "_take_tick", "perform pg_sleep(30);", "")
    conn.execute("set lock_timeout = '1s'")
    assert drain(conn, topic) == ["x"]
