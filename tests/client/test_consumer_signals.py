"""Signals to a consumer in a process of its own: the first stops it, the second ends it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pgque import PgqueClient

WORKER = """
import sys, time
import pgque
class Consumer(pgque.Consumer):
    def stop(self):
        super().stop()
        print("stopping", flush=True)
consumer = Consumer(sys.argv[1], queue=sys.argv[2], name="c", poll_interval=600)
@consumer.on("slow")
def slow(message):
    print("handling", message.payload, flush=True)
    time.sleep(message.payload)
    print("handled", message.payload, flush=True)
@consumer.on("idle")
def idle(message):
    print("idle", flush=True)
try:
    consumer.start()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
print("returned", flush=True)
"""


@pytest.fixture
def queue(client: PgqueClient, queue: str) -> str:
    """A queue with one consumer, "c"."""
    client.subscribe(queue, "c")
    return queue


@contextlib.contextmanager
def working(dsn: str, queue: str) -> Iterator[subprocess.Popen[str]]:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, dsn, queue],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield worker
    finally:
        worker.kill()
        worker.communicate()


def line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_the_handler_finish(
    dsn: str, client: PgqueClient, queue: str, signum: int
) -> None:
    """Then start() returns, with what is done settled and the rest given back."""
    client.send_batch(queue, "slow", [0.5, 60])
    with working(dsn, queue) as worker:
        assert line(worker) == "handling 0.5"
        worker.send_signal(signum)
        assert [line(worker) for _ in range(3)] == ["stopping", "handled 0.5", "returned"]
        assert worker.wait(10) == 0
    [rest] = client.receive(queue, "c")
    assert (rest.payload, rest.delivery_count) == (60, 1)


def test_a_signal_ends_an_idle_consumer(dsn: str, client: PgqueClient, queue: str) -> None:
    """It does not wait for the next poll."""
    client.send(queue, 1, type="idle")
    with working(dsn, queue) as worker:
        assert line(worker) == "idle"
        worker.send_signal(signal.SIGTERM)
        assert [line(worker), line(worker)] == ["stopping", "returned"]
        assert worker.wait(10) == 0


def test_a_second_sigterm_ends_at_once(dsn: str, client: PgqueClient, queue: str) -> None:
    """As if nothing had been installed; the message comes again."""
    client.send(queue, 60, type="slow")
    with working(dsn, queue) as worker:
        assert line(worker) == "handling 60"
        worker.send_signal(signal.SIGINT)
        assert line(worker) == "stopping"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(10) == -signal.SIGTERM
    assert [m.payload for m in client.receive(queue, "c")] == [60]


def test_a_second_sigint_interrupts_the_handler(dsn: str, client: PgqueClient, queue: str) -> None:
    """KeyboardInterrupt comes out of start(), the message in hand is given back."""
    client.send(queue, 60, type="slow")
    with working(dsn, queue) as worker:
        assert line(worker) == "handling 60"
        worker.send_signal(signal.SIGTERM)
        assert line(worker) == "stopping"
        worker.send_signal(signal.SIGINT)
        assert line(worker) == "interrupted"
        assert worker.wait(10) != 0
    [again] = client.receive(queue, "c")
    assert (again.payload, again.delivery_count) == (60, 1)
