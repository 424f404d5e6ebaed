"""Several consumers share one subscription: work in parallel, takeover, heartbeats, fencing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

import pgque
from pgque import Consumer, PgqueClient
from pgque._lease import Heartbeats
from tests.client.consuming import recording, running, wait_for
from tests.client.working import TABLES, Start, most_at_once, work, workers
from tests.fix_wait import wait_until


def members(client: PgqueClient, queue: str) -> list[str]:
    return [info.consumer_name for info in client.consumer_info(queue)]


@pytest.fixture
def start(
    dsn: str, conn: psycopg.Connection, queue: str, client: PgqueClient, tmp_path: Path
) -> Iterator[Start]:
    """Start a worker process of the group "g", which exists already."""
    conn.execute(TABLES.encode())
    client.subscribe_subconsumer(queue, "g", "founder")
    with workers(dsn, queue, tmp_path) as start:
        yield start


def settled(client: PgqueClient, queue: str) -> bool:
    """Say whether the group has nothing left, with a member or to be handed out."""
    client.tick_if_new(queue)
    left = client.receive_coop(queue, "g", "founder")
    open_pieces = [i.consumer_name for i in client.consumer_info(queue) if i.current_batch]
    return not left and not open_pieces


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 8])
def test_workers_share_a_backlog_sent_in_one_transaction(
    conn: psycopg.Connection, client: PgqueClient, queue: str, start: Start, count: int
) -> None:
    """Their handlers run at the same time, all of them, for most of the time."""
    names = [f"w{number}" for number in range(count)]
    for name in names:
        start(name)
    wait_until(lambda: len(members(client, queue)) == count + 2, timeout=20)
    sent = client.send_batch(queue, "sleep", [0.05] * 400)
    wait_until(lambda: sum(w.ended is not None for w in work(conn)) >= 400, timeout=50)
    done = work(conn)
    assert sorted(w.msg_id for w in done) == sorted(sent)
    assert {w.worker for w in done} == set(names)
    assert most_at_once(done) == count
    busy = sum((w.ended or 0) - w.began for w in done)
    span = max(w.ended or 0 for w in done) - done[0].began
    assert busy / span > 0.6 * count
    wait_until(lambda: settled(client, queue))


def test_a_killed_workers_piece_is_taken_over(
    conn: psycopg.Connection, client: PgqueClient, queue: str, start: Start
) -> None:
    """After dead_interval, by a worker that waits; and its heartbeat process is gone, too."""
    killed = start("a", gated=True, dead_interval=1)
    sent = client.send_batch(queue, "sleep", [0, 0])
    sent += client.send_batch(queue, "gate", [0, 0])
    wait_until(lambda: [w.msg_id for w in work(conn)] == sent[:3])
    sessions = "select count(*) from pg_stat_activity where application_name = 'pgque g.a'"
    wait_until(lambda: conn.execute(sessions).fetchone() == (2,), what="heartbeats connected")
    killed.process.kill()
    start("b", dead_interval=1)
    wait_until(lambda: {w.msg_id for w in work(conn) if w.ended is not None} == set(sent))
    wait_until(lambda: settled(client, queue))
    wait_until(lambda: conn.execute(sessions).fetchone() == (0,), what="heartbeats ended")


def test_a_stopped_worker_loses_its_piece_and_goes_on(
    conn: psycopg.Connection, client: PgqueClient, queue: str, start: Start
) -> None:
    """It logs the loss once, starts nothing more of the piece, and takes the next one."""
    stopped = start("a", gated=True, dead_interval=1)
    sent = client.send_batch(queue, "gate", [0, 0, 0])
    wait_until(lambda: work(conn))
    stopped.process.send_signal(signal.SIGSTOP)
    other = start("b", dead_interval=1)
    wait_until(lambda: settled(client, queue), timeout=20)
    conn.execute("insert into gate default values")
    stopped.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "taken over by another member" in stopped.log)
    other.process.terminate()
    assert other.process.wait(10) == 0
    sent += client.send_batch(queue, "sleep", [0])
    wait_until(lambda: any(w.msg_id == sent[-1] and w.ended for w in work(conn)))
    done = [(w.worker, w.msg_id) for w in work(conn)]
    assert done == [("a", sent[0]), *(("b", id) for id in sent[:3]), ("a", sent[3])]
    assert stopped.log.count("taken over") == 1
    assert "taken over" not in other.log


@pytest.mark.parametrize("how", ["sleep", "hold the GIL"])
def test_heartbeats_keep_a_piece_longer_than_dead_interval(
    conn: psycopg.Connection, client: PgqueClient, queue: str, start: Start, how: str
) -> None:
    """Whatever the handler does, no other thread of its process has to run for that."""
    start("a", dead_interval=1.2)
    client.send(queue, 4, type=how)
    wait_until(lambda: work(conn), timeout=20)
    start("b", dead_interval=1.2)
    wait_until(lambda: all(w.ended for w in work(conn)))
    wait_until(lambda: settled(client, queue))
    assert [w.worker for w in work(conn)] == ["a"]


def test_a_made_up_member_registers_itself_and_leaves(
    dsn: str, client: PgqueClient, queue: str
) -> None:
    """One with a name stays; either needs no subscription."""
    made_up, seen = recording(dsn, queue, subconsumer=True)
    named, also = recording(dsn, queue, subconsumer="fixed")
    with running(made_up, named):
        wait_until(lambda: len(members(client, queue)) == 3)
        [name] = set(members(client, queue)) - {"c", "c.fixed"}
        assert str(os.getpid()) in name
        client.send(queue, 1)
        wait_until(lambda: [*seen, *also] == [1])
    assert members(client, queue) == ["c", "c.fixed"]


def test_a_graceful_stop_gives_the_rest_to_the_others(
    dsn: str, client: PgqueClient, queue: str
) -> None:
    """What was done is settled, what was not begun counts no attempt."""
    client.subscribe_subconsumer(queue, "c", "other")
    client.send_batch(queue, "t", range(3))
    consumer, seen = recording(dsn, queue, lambda _: consumer.stop(), subconsumer=True)
    consumer.start()
    assert seen == [0]
    assert members(client, queue) == ["c", "c.other"]
    for _ in range(2):  # what a leaving member held is delivered as retries that are due are
        client.tick_if_new(queue)
    rest = client.receive_coop(queue, "c", "other")
    assert [(m.payload, m.retry_count, m.delivery_count) for m in rest] == [
        (1, None, 1),
        (2, None, 1),
    ]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_nothing_more_of_a_lost_piece_is_started(
    dsn: str,
    client: PgqueClient,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    concurrency: int,
) -> None:
    """Once the loss is noticed; that is logged once, and the next piece is handled."""
    monkeypatch.setattr("pgque._loop._SETTLE_EVERY", 0)
    client.subscribe_subconsumer(queue, "c", "thief")
    stolen: list[pgque.Message] = []

    def handle(message: pgque.Message) -> None:
        if message.payload == 0:
            stolen.extend(client.receive_coop(queue, "c", "thief", dead_interval=0.001))
        elif message.payload == 1:
            wait_until(lambda: "taken over" in caplog.text)

    consumer, seen = recording(dsn, queue, handle, subconsumer="m", concurrency=concurrency)
    client.send_batch(queue, "t", range(4))
    with running(consumer):
        wait_until(lambda: "taken over" in caplog.text)
        client.send(queue, "next")
        wait_for(seen, "next")
    assert sorted(seen[:-1]) == list(range(concurrency))
    assert [m.payload for m in stolen] == [0, 1, 2, 3]
    assert caplog.text.count("taken over") == 1
    assert client.ack(stolen[0].batch_id) == 1


def test_failures_come_back_to_the_group(dsn: str, client: PgqueClient, queue: str) -> None:
    """With the attempts counted, and to the dead letters in the end."""
    client.set_queue_config(queue, "max_retries", 1)
    client.subscribe_subconsumer(queue, "c", "m")

    def fail(_: pgque.Message) -> None:
        raise ValueError("bad")

    consumer, seen = recording(dsn, queue, fail, subconsumer="m", retry_after=0)
    client.send(queue, 1)
    with running(consumer):
        [dead] = wait_until(lambda: client.dlq_inspect(queue))
    assert seen == [1, 1]
    assert (dead.consumer_name, dead.reason) == ("c", "ValueError: bad")


def test_connections_of_a_pool(dsn: str, client: PgqueClient, queue: str) -> None:
    """The heartbeat's process connects as the pool does."""
    options = {"autocommit": True, "application_name": "from the pool"}
    with ConnectionPool(dsn, min_size=1, kwargs=options, open=True) as pool:
        beats: list[Any] = []

        def look(_: pgque.Message) -> None:
            table = "select count(*) from pgque.heartbeat"
            beats.append(
                wait_until(lambda: (client.conn.execute(table).fetchone() or [0])[0], timeout=5)
            )

        consumer, seen = recording(pool, queue, look, subconsumer="m", dead_interval=0.3)
        client.subscribe_subconsumer(queue, "c", "m")
        with running(consumer):
            client.send(queue, 1)
            wait_for(seen, 1)
            wait_until(lambda: beats)


def test_a_normal_consumer_is_not_shared(dsn: str, client: PgqueClient, queue: str) -> None:
    """That is an error that says what to call."""
    client.subscribe(queue, "c")
    with pytest.raises(pgque.PgqueCooperativeMisuse):
        Consumer(dsn, queue=queue, name="c", subconsumer="m").start()


@pytest.mark.parametrize(
    "bad",
    [
        {"dead_interval": 30},
        {"subconsumer": ""},
        {"subconsumer": False},
        {"subconsumer": "m", "dead_interval": 0},
        {"subconsumer": "m", "dead_interval": float("nan")},
        {"subconsumer": True, "dead_interval": -1},
        {"concurrency": 0},
    ],
)
def test_nonsense_is_refused_when_the_consumer_is_made(bad: dict[str, Any]) -> None:
    """Such as a dead_interval that would mean nothing."""
    with pytest.raises(ValueError):
        Consumer("", queue="q", name="c", **bad)


def ignored_signals(pid: int) -> set[int]:
    lines = Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines()
    [mask] = [int(line.split()[1], 16) for line in lines if line.startswith("SigIgn:")]
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def test_the_heartbeat_process_shows_no_password_and_ends_with_its_input() -> None:
    """Neither among its arguments nor in its environment; signals do not end it."""
    beats = Heartbeats(lambda: "host=127.0.0.1 port=1 password=SeCret", "q", "c", "m", 3600)
    beats.begin()
    process = beats._process
    assert process is not None
    for name in ("cmdline", "environ"):
        assert b"SeCret" not in Path(f"/proc/{process.pid}/{name}").read_bytes()
    wait_until(lambda: signal.SIGTERM in ignored_signals(process.pid))
    process.send_signal(signal.SIGTERM)
    beats.close()
    assert process.returncode == 0


def test_a_heartbeat_process_that_died_is_replaced() -> None:
    """With the next piece."""
    beats = Heartbeats(lambda: "host=127.0.0.1 port=1", "q", "c", "m", 3600)
    beats.begin()
    first = beats._process
    assert first is not None
    first.kill()
    first.wait()
    beats.end()
    beats.begin()
    assert beats._process is not None
    assert beats._process.pid != first.pid
    beats.close()


def test_a_made_up_name_has_a_dead_interval() -> None:
    """Nobody else comes back under it, so what it held would be stuck."""
    made_up = Consumer("", queue="q", name="c", subconsumer=True)._subscription
    named = Consumer("", queue="q", name="c", subconsumer="m")._subscription
    assert (made_up.dead_interval, named.dead_interval) == (60, None)
