"""Workers of a group in processes of their own, which write down what they do and when."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

WORKER = """
import ctypes, json, logging, sys, time
import psycopg
import pgque

dsn, queue, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
gated = options.pop("gated", False)
logging.basicConfig(level=logging.INFO, format="%(message)s")
conn = psycopg.connect(dsn, autocommit=True)
consumer = pgque.Consumer(dsn, queue=queue, name="g", poll_interval=5, **options)

def wait_for_gate():
    while gated and not conn.execute("select from gate").fetchall():
        time.sleep(0.02)

ACTIONS = {
    "sleep": time.sleep,
    "hold the GIL": lambda seconds: ctypes.PyDLL(None).usleep(int(seconds * 1e6)),
    "gate": lambda _: wait_for_gate(),
}

@consumer.on("*")
def handle(message):
    insert = "insert into work (msg_id, worker) values (%s, %s) returning id"
    (work,) = conn.execute(insert, [message.msg_id, options["subconsumer"]]).fetchone()
    ACTIONS[message.type](message.payload)
    conn.execute("update work set ended = clock_timestamp() where id = %s", [work])

consumer.start()
"""

TABLES = """
create table work (
    id serial,
    msg_id bigint,
    worker text,
    began timestamptz default clock_timestamp(),
    ended timestamptz
);
create table gate ();
"""


class Work(NamedTuple):
    """What one worker did with one message; seconds, `ended` None while it is at it."""

    msg_id: int
    worker: str
    began: float
    ended: float | None


def work(conn: psycopg.Connection) -> list[Work]:
    """All that was begun, in that order."""
    rows = conn.execute(
        "select msg_id, worker, extract(epoch from began)::float8,"
        " extract(epoch from ended)::float8 from work order by began"
    )
    return [Work(*row) for row in rows]


def most_at_once(done: list[Work]) -> int:
    """How many handlers ran at one moment, at most."""
    steps = sorted([(w.began, 1) for w in done] + [(w.ended or 0.0, -1) for w in done])
    running = most = 0
    for _, step in steps:
        running += step
        most = max(most, running)
    return most


class Worker:
    """One process; `log` is what it has logged."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8")


Start = Callable[..., Worker]


@contextlib.contextmanager
def workers(dsn: str, queue: str, folder: Path) -> Iterator[Start]:
    """Start workers by the name of their member, with options of the Consumer; all end here."""
    with contextlib.ExitStack() as stack:

        def start(member: str, **options: Any) -> Worker:
            log = folder / f"{member}.log"
            given = json.dumps({"subconsumer": member, **options})
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-c", WORKER, dsn, queue, given], stderr=output
                )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return Worker(process, log)

        yield start
