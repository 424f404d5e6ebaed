"""The consumer's everyday life: delivery, failures, stopping."""

from __future__ import annotations

import datetime as dt
import logging
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

import pgque
from pgque import Backoff, Consumer, DeadLetter, Message, PgqueClient, RawJson, Retry
from tests.client.consuming import recording, running, sessions, wait_for
from tests.fix_db import Connect
from tests.fix_wait import wait_until


@pytest.fixture
def queue(client: PgqueClient, queue: str) -> str:
    """A queue with one consumer, "c"."""
    client.subscribe(queue, "c")
    return queue


def settled(client: PgqueClient, queue: str) -> bool:
    """Say whether nothing is left to be delivered to "c", now or later."""
    client.tick_if_new(queue)
    left = client.receive(queue, "c")
    row = client.conn.execute("select pgque.next_retry_at(%s)", [queue]).fetchone()
    return not left and row == (None,)


def test_a_message_to_an_idle_queue_is_handled_at_once(
    dsn: str, client: PgqueClient, conn: psycopg.Connection, queue: str
) -> None:
    """No ticker runs, and the poll interval is ten minutes."""
    consumer, seen = recording(dsn, queue, poll_interval=600)
    with running(consumer):
        wait_until(lambda: sessions(conn, listening=True))
        for n in range(5):
            started = time.monotonic()
            client.send(queue, n)
            wait_for(seen, n)
            assert time.monotonic() - started < 5
    assert seen == list(range(5))
    assert settled(client, queue)


def test_a_backlog_comes_in_order_and_once(dsn: str, client: PgqueClient, queue: str) -> None:
    """In pieces of growing size, over several windows."""
    for start in range(0, 5000, 1000):
        client.send_batch(queue, "t", range(start, start + 1000))
        client.tick_if_new(queue)
    consumer, seen = recording(dsn, queue)
    with running(consumer):
        wait_until(lambda: len(seen) >= 5000)
    assert seen == list(range(5000))
    assert settled(client, queue)


def test_a_message_committed_late_does_not_wait_for_the_poll_interval(
    dsn: str, client: PgqueClient, conn: psycopg.Connection, connect: Connect, queue: str
) -> None:
    """Its sender looked for somebody waiting before this consumer was there."""
    sender = connect(autocommit=False)
    PgqueClient(sender).send(queue, "late")
    consumer, seen = recording(dsn, queue, poll_interval=600)
    with running(consumer):
        wait_until(lambda: sessions(conn, listening=True))
        time.sleep(0.2)  # the longer it waits, the rarer it polls
        sender.commit()
        wait_until(lambda: seen)
    assert settled(client, queue)


def test_no_transaction_is_open_while_a_handler_runs(
    dsn: str, client: PgqueClient, conn: psycopg.Connection, queue: str
) -> None:
    """An hour's handler keeps neither VACUUM nor the notification queue from moving on."""
    states: list[Any] = []

    def look(_: Message) -> None:
        found = conn.execute(
            "select state, xact_start, backend_xmin from pg_stat_activity"
            " where application_name = 'pgque c' and datname = current_database()"
        )
        states.extend(found)

    consumer, seen = recording(dsn, queue, look)
    client.send(queue, 1)
    with running(consumer):
        wait_until(lambda: seen)
    assert states
    assert set(states) == {("idle", None, None)}


def test_a_failed_message_comes_again_and_the_others_go_on(
    dsn: str, client: PgqueClient, queue: str
) -> None:
    """Retried after its delay, dead at the end with the reason; the rest is done meanwhile."""
    client.set_queue_config(queue, "max_retries", 2)
    tries: list[int | None] = []

    def fail(message: Message) -> None:
        if message.payload == "bad":
            tries.append(message.retry_count)
            raise ValueError("no \0 good")

    backoff = Backoff(first=0.01, factor=2, maximum=1, jitter=0)
    consumer, seen = recording(dsn, queue, fail, retry_after=backoff)
    client.send_batch(queue, "t", ["good", "bad", "better"])
    with running(consumer):
        wait_until(lambda: client.dlq_inspect(queue))
    assert seen[:3] == ["good", "bad", "better"]
    assert seen[3:] == ["bad", "bad"]
    assert tries == [None, 1, 2]
    [dead] = client.dlq_inspect(queue)
    assert (dead.payload, dead.consumer_name) == ("bad", "c")
    assert dead.reason == "ValueError: no \ufffd good"


def test_retry_and_dead_letter_decide_themselves(dsn: str, client: PgqueClient, queue: str) -> None:
    """Whatever the consumer's own delay."""

    def decide(message: Message) -> None:
        if message.payload == "dead":
            raise DeadLetter("no such order")
        if message.retry_count is None:
            raise Retry("later", after=dt.timedelta(milliseconds=10))

    consumer, seen = recording(dsn, queue, decide, retry_after=3600)
    client.send_batch(queue, "t", ["dead", "again"])
    with running(consumer):
        wait_until(lambda: len(seen) == 3)
    assert seen == ["dead", "again", "again"]
    assert [d.reason for d in client.dlq_inspect(queue)] == ["no such order"]
    assert settled(client, queue)


def test_failures_of_all_kinds_are_settled_together(
    dsn: str, client: PgqueClient, queue: str
) -> None:
    """Whole and broken seconds, timedeltas, capped back-offs, dead letters."""
    kinds = [Retry(after=5), Retry(after=2.5), Retry(after=dt.timedelta(hours=1)), DeadLetter()]

    def fail(message: Message) -> None:
        raise (kinds[message.payload] if message.payload < len(kinds) else ValueError("other"))

    consumer, seen = recording(dsn, queue, fail, retry_after=Backoff(first=7, maximum=7))
    client.send_batch(queue, "t", range(6))
    with running(consumer):
        wait_until(lambda: len(seen) == 6)
    count = "select count(*) from pgque.retry_queue"
    assert client.conn.execute(count).fetchone() == (5,)
    assert len(client.dlq_inspect(queue)) == 1
    assert client.receive(queue, "c") == []


@pytest.mark.parametrize("after", [float("inf"), dt.timedelta.max, 300_000 * 366 * 86400.0])
def test_an_endless_delay_stops_nobody(
    dsn: str, client: PgqueClient, queue: str, after: Any
) -> None:
    """It is cut to ten years, and what comes after it is handled and settled."""

    def postpone(message: Message) -> None:
        if message.payload == 1:
            raise Retry(after=after)

    consumer, seen = recording(dsn, queue, postpone)
    client.send_batch(queue, "t", [1, 2, 3])
    with running(consumer):
        wait_until(lambda: len(seen) == 3)
    client.tick_if_new(queue)
    assert client.receive(queue, "c") == []


def test_poison_payloads_reach_their_handler(dsn: str, client: PgqueClient, queue: str) -> None:
    """As text; SystemExit in a handler is a failure like any other."""
    insert = "select pgque.send(%s, 't', %s::text)"
    poison = ["not json", "[" * 100_000, "9" * 5000, ""]
    for text in poison:
        client.conn.execute(insert, [queue, text])
    client.send(queue, RawJson("1e400"))
    client.send(queue, "exit")

    def leave(message: Message) -> None:
        if message.payload == "exit":
            raise SystemExit(1)

    consumer, seen = recording(dsn, queue, leave)
    with running(consumer):
        wait_until(lambda: len(seen) == 6)
    assert seen == [*poison, float("inf"), "exit"]


def test_types_without_handler(
    dsn: str, client: PgqueClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Acked with a warning under that policy; else they come again."""
    consumer = Consumer(dsn, queue=queue, name="c", unknown_handler_policy="ack")
    done = threading.Event()
    consumer.on("known")(lambda _: done.set())
    client.send(queue, 1, type="unknown")
    client.send(queue, 1, type="known")
    with running(consumer):
        assert done.wait(10)
    assert settled(client, queue)
    assert "no handler for type 'unknown'" in caplog.text


def test_stopping_in_the_middle_of_a_piece(dsn: str, client: PgqueClient, queue: str) -> None:
    """The message in hand is finished; what is done is settled, the rest comes undelivered."""

    def stop_at_three(message: Message) -> None:
        if message.payload == 3:
            consumer.stop()

    consumer, seen = recording(dsn, queue, stop_at_three)
    client.send_batch(queue, "t", range(8))
    consumer.start()
    assert seen == [0, 1, 2, 3]
    rest = client.receive(queue, "c")
    assert [m.payload for m in rest] == [4, 5, 6, 7]
    assert {m.delivery_count for m in rest} == {1}


def test_many_graceful_stops_run_nothing_twice(dsn: str, client: PgqueClient, queue: str) -> None:
    """Stopped in each message, and started again."""
    client.send_batch(queue, "t", range(30))
    seen: list[Any] = []
    while len(seen) < 30:
        consumer, some = recording(dsn, queue, lambda _: consumer.stop(), listen=False)  # noqa: B023
        consumer.start()
        seen += some
    assert seen == list(range(30))
    assert settled(client, queue)


def test_stop_wakes_an_idle_consumer(dsn: str, queue: str, conn: psycopg.Connection) -> None:
    """At once; and one that is stopped before it starts does nothing."""
    consumer, _ = recording(dsn, queue, poll_interval=600)
    started = time.monotonic()
    with running(consumer):
        wait_until(lambda: sessions(conn, listening=True))
    consumer.stop()
    consumer.start()
    assert time.monotonic() - started < 10
    wait_until(lambda: not sessions(conn, listening=True))


def test_keyboard_interrupt_gives_the_message_back(
    dsn: str, client: PgqueClient, queue: str
) -> None:
    """It ends the consumer, with what was done settled."""

    def interrupt(message: Message) -> None:
        if message.payload == 1:
            raise KeyboardInterrupt

    consumer, _ = recording(dsn, queue, interrupt, install_signal_handlers=False)
    client.send_batch(queue, "t", [0, 1, 2])
    with pytest.raises(KeyboardInterrupt):
        consumer.start()
    rest = client.receive(queue, "c")
    assert [(m.payload, m.retry_count, m.delivery_count) for m in rest] == [
        (1, None, 1),
        (2, None, 1),
    ]


def test_what_is_done_is_settled_on_the_way(
    dsn: str,
    client: PgqueClient,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A slow piece is not held back to its end: neither its acks nor its nacks."""
    monkeypatch.setattr("pgque._loop._SETTLE_EVERY", 0)
    positions: list[Any] = []

    def look(message: Message) -> None:
        row = client.conn.execute(
            "select (%s, count(*))::text from pgque.retry_queue", [message.payload]
        ).fetchone()
        positions.append(row)
        if message.payload == 0:
            raise Retry(after=3600)

    consumer, seen = recording(dsn, queue, look)
    client.send_batch(queue, "t", [0, 1])
    with running(consumer):
        wait_until(lambda: len(seen) == 2)
    assert positions == [("(0,0)",), ("(1,1)",)]
    assert "settled elsewhere" not in caplog.text


def test_a_batch_that_somebody_else_settled_is_only_logged(
    dsn: str, client: PgqueClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two processes by mistake under one name: a warning, and work goes on."""

    def settle_elsewhere(message: Message) -> None:
        if message.payload == "first":
            client.ack(message.batch_id)
            raise Retry(after=0)

    consumer, seen = recording(dsn, queue, settle_elsewhere)
    with running(consumer):
        client.send(queue, "first")
        wait_until(lambda: "settled elsewhere" in caplog.text)
        client.send(queue, "second")
        wait_for(seen, "second")
    assert seen == ["first", "second"]


def test_a_paused_queue_goes_on_when_it_is_resumed(
    dsn: str, client: PgqueClient, queue: str
) -> None:
    """The consumer waits without an error."""
    client.pause_queue(queue)
    consumer, seen = recording(dsn, queue, poll_interval=0.1)
    client.send(queue, 1)
    with running(consumer):
        time.sleep(0.3)
        assert seen == []
        client.resume_queue(queue)
        wait_until(lambda: seen)


def test_unknown_queue_and_consumer_are_errors(dsn: str, queue: str) -> None:
    """Not something to try again for ever."""
    with pytest.raises(pgque.PgqueQueueNotFound):
        Consumer(dsn, queue="no such queue", name="c").start()
    with pytest.raises(pgque.PgqueConsumerNotFound):
        Consumer(dsn, queue=queue, name="not subscribed").start()


@pytest.mark.parametrize("autocommit", [True, False])
def test_connections_may_come_from_a_pool(
    dsn: str, client: PgqueClient, queue: str, autocommit: bool
) -> None:
    """One at a time, none while a handler runs; the pool stays open."""
    with ConnectionPool(
        dsn, min_size=1, max_size=1, kwargs={"autocommit": autocommit}, open=True
    ) as pool:

        def use_pool(_: Message) -> None:
            with pool.connection(timeout=5) as conn:
                conn.execute("select 1")

        consumer, seen = recording(pool, queue, use_pool)
        with running(consumer):
            client.send_batch(queue, "t", [1, 2])
            wait_until(lambda: len(seen) == 2)
        with pool.connection() as conn:
            conn.execute("select 1")
    assert settled(client, queue)


def test_without_listening_no_session_state_is_left(
    dsn: str, client: PgqueClient, conn: psycopg.Connection, queue: str
) -> None:
    """So that it works through a pooler in transaction mode."""
    client.send(queue, 1)
    found: list[Any] = []

    def look(_: Message) -> None:
        found.append(sessions(conn, listening=True))
        found.append(sessions(conn, listening=False))

    consumer, seen = recording(
        dsn, queue, look, listen=False, poll_interval=0.05, prepare_threshold=None
    )
    with running(consumer):
        wait_until(lambda: seen)
    assert found[0] == []
    assert len(found[1]) == 1


def test_listening_may_go_another_way(
    dsn: str, client: PgqueClient, conn: psycopg.Connection, queue: str
) -> None:
    """As where the pooler is in between; the name of the session tells the two apart."""
    consumer, seen = recording(
        dsn, queue, listen_dsn=f"{dsn} application_name=listener", poll_interval=600
    )
    with running(consumer):
        wait_until(
            lambda: conn.execute(
                "select from pg_stat_activity where application_name = 'listener'"
            ).fetchall()
        )
        client.send(queue, 1)
        wait_until(lambda: seen)


@pytest.fixture
def sigterm() -> Iterator[Any]:
    """SIGTERM's handler, which a test may change."""
    before = signal.getsignal(signal.SIGTERM)
    yield before
    signal.signal(signal.SIGTERM, before)


def test_signal_handlers_are_put_back(
    dsn: str, client: PgqueClient, queue: str, sigterm: object
) -> None:
    """And installed only in the main thread, where asked for."""
    during: list[Any] = []

    def look(_: Message) -> None:
        during.append(signal.getsignal(signal.SIGTERM))
        consumer.stop()

    client.send_batch(queue, "t", [1, 2, 3])
    consumer, _ = recording(dsn, queue, look)
    consumer.start()
    assert signal.getsignal(signal.SIGTERM) is sigterm
    consumer, _ = recording(dsn, queue, look, install_signal_handlers=False)
    consumer.start()
    consumer, _ = recording(dsn, queue, look)
    with running(consumer):
        wait_until(lambda: len(during) == 3)
    assert [handler is sigterm for handler in during] == [False, True, True]


def test_starting_twice_is_a_mistake(dsn: str, client: PgqueClient, queue: str) -> None:
    """The first run is not disturbed."""
    consumer, seen = recording(dsn, queue)
    client.send(queue, 1)
    with running(consumer):
        wait_until(lambda: seen)
        with pytest.raises(RuntimeError):
            consumer.start()
        client.send(queue, 2)
        wait_until(lambda: len(seen) == 2)


def test_a_consumer_can_be_started_again(dsn: str, client: PgqueClient, queue: str) -> None:
    """It goes on where it was."""
    consumer, seen = recording(dsn, queue, lambda _: consumer.stop())
    for n in range(3):
        client.send(queue, n)
        consumer.start()
    assert seen == [0, 1, 2]


@pytest.mark.parametrize(
    "bad",
    [
        {"poll_interval": 0},
        {"poll_interval": float("nan")},
        {"max_messages": 0},
        {"max_messages": 2**31},
        {"answer_timeout": -1},
        {"retry_after": -1},
        {"unknown_handler_policy": "drop"},
    ],
)
def test_nonsense_is_refused_when_the_consumer_is_made(bad: dict[str, Any]) -> None:
    """Not when the first message comes."""
    with pytest.raises(ValueError):
        Consumer("", queue="q", name="c", **bad)


def test_nothing_shows_the_password() -> None:
    """Neither repr nor the log."""
    consumer = Consumer("postgresql://u:SeCret@h/db", queue="q", name="c")
    assert "SeCret" not in repr(consumer)


def test_logs_go_to_one_logger(
    dsn: str, client: PgqueClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    """pgque.consumer, with the traceback of what a handler raised."""
    consumer, seen = recording(dsn, queue, lambda _: 1 / 0)
    client.send(queue, 1)
    with caplog.at_level(logging.INFO), running(consumer):
        wait_until(lambda: seen)
    ours = [r for r in caplog.records if r.name.startswith("pgque")]
    assert {r.name for r in ours} == {"pgque.consumer"}
    assert "ZeroDivisionError" in caplog.text
    assert "password" not in caplog.text
