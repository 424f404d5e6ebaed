"""Handlers at once in the threads of one consumer: keys, settling, stopping."""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgque import DeadLetter, Event, Message, PgqueClient, Retry
from tests.client.consuming import recording, running, sessions
from tests.client.working import TABLES, Work, most_at_once, work, workers
from tests.fix_wait import wait_until


@pytest.fixture
def queue(client: PgqueClient, queue: str) -> str:
    """A queue with one consumer, "c"."""
    client.subscribe(queue, "c")
    return queue


def settled(client: PgqueClient, queue: str) -> bool:
    """Say whether nothing is left to be delivered to "c"."""
    client.tick_if_new(queue)
    return not client.receive(queue, "c")


class Clock:
    """A handler that notes when it worked on what."""

    def __init__(self, seconds: float) -> None:
        self.done: list[Work] = []
        self._seconds = seconds

    def __call__(self, message: Message) -> None:
        began = time.monotonic()
        time.sleep(self._seconds)
        self.done.append(Work(message.msg_id, str(message.key), began, time.monotonic()))


def test_so_many_run_at_once_and_no_more(dsn: str, client: PgqueClient, queue: str) -> None:
    """Each in another thread than the one that called start(); busy most of the time."""
    clock = Clock(0.05)
    threads = set()

    def handle(message: Message) -> None:
        threads.add(threading.get_ident())
        clock(message)

    consumer, seen = recording(dsn, queue, handle, concurrency=8)
    client.send_batch(queue, "t", range(400))
    with running(consumer):
        wait_until(lambda: len(clock.done) == 400, timeout=30)
    assert sorted(seen) == list(range(400))
    assert len(threads) == 8
    assert most_at_once(clock.done) == 8
    busy = sum((w.ended or 0) - w.began for w in clock.done)
    assert busy / ((clock.done[-1].ended or 0) - clock.done[0].began) > 0.6 * 8
    assert settled(client, queue)


def test_messages_of_a_key_run_in_order_and_never_at_once(
    dsn: str, client: PgqueClient, queue: str
) -> None:
    """Others run meanwhile; those without a key are free."""
    keys = [*"aabbabacbc", None, None, ""] * 10
    sent = client.send_batch(queue, "t", [Event(n, "t", key=key) for n, key in enumerate(keys)])
    clock = Clock(0.005)
    consumer, _ = recording(dsn, queue, clock, concurrency=6)
    with running(consumer):
        wait_until(lambda: len(clock.done) == len(keys), timeout=30)
    by_key: dict[str, list[Work]] = defaultdict(list)
    for done in clock.done:
        by_key[done.worker].append(done)
    for key in ("a", "b", "c", ""):
        assert most_at_once(by_key[key]) == 1
        expected = [id for id, of in zip(sent, keys, strict=True) if of == key]
        assert [w.msg_id for w in by_key[key]] == expected
    assert most_at_once(clock.done) > 1
    assert settled(client, queue)


def test_a_slow_message_holds_back_none_of_its_piece(
    dsn: str, client: PgqueClient, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All the others are handled while it is not done; a nack among them is written at once."""
    monkeypatch.setattr("pgque._loop._SETTLE_EVERY", 0)
    others_done = threading.Event()

    def handle(message: Message) -> None:
        if message.payload == 0:
            assert others_done.wait(20)
        if message.payload == 3:
            raise Retry(after=3600)

    consumer, seen = recording(dsn, queue, handle, concurrency=2)
    client.send_batch(queue, "t", range(8))
    with running(consumer):
        wait_until(lambda: sorted(seen) == list(range(8)))
        count = "select count(*) from pgque.retry_queue"
        wait_until(lambda: client.conn.execute(count).fetchone() == (1,))
        others_done.set()
    assert settled(client, queue)


def test_failures_are_settled_as_ever(dsn: str, client: PgqueClient, queue: str) -> None:
    """An exception, Retry and DeadLetter; the others are done."""
    kinds = [ValueError("bad"), Retry(after=3600), DeadLetter("no such order")]

    def fail(message: Message) -> None:
        if message.payload < len(kinds):
            raise kinds[message.payload]

    consumer, seen = recording(dsn, queue, fail, concurrency=4, retry_after=3600)
    client.send_batch(queue, "t", range(12))
    with running(consumer):
        wait_until(lambda: len(seen) == 12)
    count = "select count(*) from pgque.retry_queue"
    assert client.conn.execute(count).fetchone() == (2,)
    assert [d.reason for d in client.dlq_inspect(queue)] == ["no such order"]
    assert settled(client, queue)


def test_a_stop_waits_for_what_runs_and_gives_back_the_rest(
    dsn: str, client: PgqueClient, queue: str
) -> None:
    """Also what stands before something done is done; nothing is run twice or lost."""
    keys = ["a", "a", "b", *"cccccc"]
    client.send_batch(queue, "t", [Event(n, "t", key=key) for n, key in enumerate(keys)])
    third_done, stopped = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if message.payload == 0:
            assert third_done.wait(10)
            consumer.stop()
            stopped.set()
        elif message.payload == 2:
            third_done.set()
        else:
            assert stopped.wait(10)

    consumer, seen = recording(dsn, queue, handle, concurrency=2)
    consumer.start()
    assert seen[:2] in ([0, 2], [2, 0])
    assert 1 in seen
    rest = client.receive(queue, "c")
    assert sorted([*seen, *(m.payload for m in rest)]) == list(range(len(keys)))
    assert {m.delivery_count for m in rest} == {1}


def test_many_graceful_stops_run_nothing_twice(dsn: str, client: PgqueClient, queue: str) -> None:
    """Stopped in the midst of several handlers, and started again."""
    events = [Event(n, "t", key="k" if n % 3 else None) for n in range(60)]
    client.send_batch(queue, "t", events)
    seen: list[Any] = []
    while len(seen) < 60:

        def stop(message: Message) -> None:
            if message.payload % 5 == 4:
                consumer.stop()  # noqa: B023

        consumer, some = recording(dsn, queue, stop, listen=False, concurrency=4)
        consumer.start()
        seen += some
    assert sorted(seen) == list(range(60))
    assert settled(client, queue)


def test_keyboard_interrupt_in_a_handler_ends_the_consumer(
    dsn: str, client: PgqueClient, queue: str
) -> None:
    """When the other handlers have returned; its message is given back."""
    both = threading.Barrier(2, timeout=10)
    finished: list[Any] = []

    def interrupt(message: Message) -> None:
        both.wait()
        if message.payload == 1:
            raise KeyboardInterrupt
        time.sleep(0.2)
        finished.append(message.payload)

    consumer, _ = recording(dsn, queue, interrupt, install_signal_handlers=False, concurrency=2)
    client.send_batch(queue, "t", [0, 1, 2])
    with pytest.raises(KeyboardInterrupt):
        consumer.start()
    assert finished == [0]
    assert [m.payload for m in client.receive(queue, "c")] == [1, 2]


def test_a_lost_connection_runs_nothing_twice(
    dsn: str,
    client: PgqueClient,
    conn: psycopg.Connection,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is noticed while handlers run: they are waited for, and settled on a new connection."""
    monkeypatch.setattr("pgque._loop._SETTLE_EVERY", 0)

    def cut(message: Message) -> None:
        if message.payload == 3:
            for pid in sessions(conn, listening=False):
                conn.execute("select pg_terminate_backend(%s)", [pid])
        time.sleep(0.02)

    consumer, seen = recording(dsn, queue, cut, concurrency=4)
    client.send_batch(queue, "t", range(40))
    with running(consumer):
        wait_until(lambda: len(seen) >= 40)
        client.send(queue, "last")
        wait_until(lambda: "last" in seen)
    assert sorted(seen[:-1]) == list(range(40))
    assert settled(client, queue)


def test_threads_end_with_the_consumer(dsn: str, client: PgqueClient, queue: str) -> None:
    """None is left, and none was started before there was a message."""
    consumer, seen = recording(dsn, queue, concurrency=3)

    def threads() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("pgque-c-")]

    with running(consumer):
        assert threads() == []
        client.send(queue, 1)
        wait_until(lambda: seen)
        assert len(threads()) == 3
    assert threads() == []


def test_sigterm_lets_all_running_handlers_finish(
    dsn: str, client: PgqueClient, conn: psycopg.Connection, queue: str, tmp_path: Path
) -> None:
    """In a process of its own, as a member of a group."""
    conn.execute(TABLES.encode())
    client.subscribe_subconsumer(queue, "g", "other")
    sent = client.send_batch(queue, "sleep", [0.5] * 20)
    with workers(dsn, queue, tmp_path) as start:
        worker = start("a", concurrency=4, dead_interval=30)
        wait_until(lambda: len(work(conn)) == 4)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(10) == 0
    done = work(conn)
    assert all(w.ended for w in done)
    assert len(done) < 20
    rest: list[int] = []
    while messages := client.receive_coop(queue, "g", "other"):
        assert {m.delivery_count for m in messages} == {1}
        rest += [m.msg_id for m in messages]
        client.ack(messages[0].batch_id)
    assert sorted([*(w.msg_id for w in done), *rest]) == sent
