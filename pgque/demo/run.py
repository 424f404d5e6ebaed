"""The story that the demo tells: send, consume, fail, retry, bury, fix, replay, check."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pgque._table import as_json as to_json
from pgque.demo import report as reports
from pgque.demo.processes import Program
from pgque.demo.server import embedded_server
from pgque.demo.stage import CONSUMERS, Stage, install_if_missing, set_up
from pgque.errors import PgqueError, translated

_PATIENCE = 30.0  # seconds without any progress after which the demo gives up

Say = Callable[[str], None]


def run(*, dsn: str | None, orders: int, rate: float, as_json: bool) -> int:
    """Run the demo; return 0 if every order was handled exactly once by each consumer, else 1."""
    say: Say = (lambda _: None) if as_json else _say
    # Whoever ends us shall not leave a server and four processes behind.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with translated(), ExitStack() as stack:
            if dsn is None:
                say("Starting a PostgreSQL of the demo's own ...")
                dsn = stack.enter_context(embedded_server())
            stage = _prepare(stack, dsn, say)
            report = _play(stage, orders, rate, say)
            say("\nCleaning up: the demo's queue, tables and processes go away.\n")
    finally:
        signal.signal(signal.SIGTERM, before)
    return _close(report, as_json, say)


def _say(text: str) -> None:
    print(text, flush=True)


def _prepare(stack: ExitStack, dsn: str, say: Say) -> Stage:
    installed = install_if_missing(dsn)
    if installed:
        say(f"Installed schema pgque, version {installed}: one SQL file, no extension.")
    else:
        say("Schema pgque is installed already; it stays as it is.")
    stage = stack.enter_context(set_up(dsn))
    row = stage.conn.execute("show server_version").fetchone()
    say(f"PostgreSQL {row[0] if row else '?'}. Queue {stage.name} has two consumers,")
    say("billing and shipping, each with a cursor of its own over the one stored copy.")
    return stage


def _play(stage: Stage, orders: int, rate: float, say: Say) -> reports.Report:
    with ExitStack() as workers:
        _start_workers(workers, stage)
        with Program("producer", stage.name, str(orders), str(rate), dsn=stage.dsn) as producer:
            produced = _produce(stage, producer, say)
        _await_settled(stage, produced["shop"] + produced["imported"], say)
    report = reports.first_act(stage, produced)
    _tell_failures(stage, report, say)
    with ExitStack() as workers:
        _start_workers(workers, stage, "--fixed")
        _replay(stage, report, say)
    reports.second_act(stage, report)
    return report


def _start_workers(stack: ExitStack, stage: Stage, *options: str) -> None:
    workers = [
        stack.enter_context(Program("worker", name, stage.name, *options, dsn=stage.dsn))
        for name in CONSUMERS
    ]
    for worker in workers:
        worker.read_line()  # "ready"


def _produce(stage: Stage, producer: Program, say: Say) -> dict[str, Any]:
    say("\nA producer stores orders and sends them, each in one transaction: first the shop's,")
    say("one by one, then those of a marketplace, 50 in a transaction. No ticker runs.\n")
    while producer.running:
        _tell_progress(stage, say)
        time.sleep(1)
    produced: dict[str, Any] = json.loads(producer.read_line())
    say(f"\nSent {produced['shop']} orders one by one, and {produced['imported']} in batches")
    say(f"({_rate(produced['imported'], produced['import_seconds'])} a second).")
    say(f"{produced['declined']} payments were declined: those transactions were rolled back, and")
    say("their messages with them.")
    return produced


def _rate(number: int, seconds: float) -> str:
    return f"{number / seconds:.0f}" if seconds > 0 else "-"


def _tell_progress(stage: Stage, say: Say) -> None:
    parts = [f"{name} handled {number:>5}" for name, number in stage.handled().items()]
    say("  " + "   ".join([f"stored {stage.orders_stored():>5}", *parts]))


def _await_settled(stage: Stage, sent: int, say: Say) -> None:
    """Wait until each consumer has handled or buried all that was sent."""
    _await(stage, say, lambda: min(_settled(stage).values()) >= sent)


def _settled(stage: Stage) -> dict[str, int]:
    dead = stage.dead()
    return {name: number + dead[name] for name, number in stage.handled().items()}


def _await(stage: Stage, say: Say, done: Callable[[], bool]) -> None:
    """Poll until done, and give up after a long time without progress."""
    seen, since, told = _settled(stage), time.monotonic(), time.monotonic()
    while not done():
        time.sleep(0.05)
        now = time.monotonic()
        if (current := _settled(stage)) != seen:
            seen, since = current, now
        if now - since > _PATIENCE:
            raise PgqueError(f"no progress for {_PATIENCE:.0f} s; settled so far: {seen}")
        if now - told > 1:
            _tell_progress(stage, say)
            told = now


def _tell_failures(stage: Stage, report: reports.Report, say: Say) -> None:
    say("\nSome attempts failed; the consumers went on meanwhile:")
    for name, consumed in report.consumers.items():
        say(f"  {name}: {consumed.after_retry} orders handled after a retry")
    say("What failed at each of 3 attempts is now a dead letter of the consumer that failed:")
    for consumer, number, reason in stage.dead_reasons():
        say(f"  {consumer}: {number} x {reason}")


def _replay(stage: Stage, report: reports.Report, say: Say) -> None:
    say("\nThe bugs are fixed, new workers run; the dead letters are replayed.")
    handled = {name: c.at_once + c.after_retry for name, c in report.consumers.items()}
    result = stage.client.dlq_replay_all(stage.name)
    if result.failed:
        raise PgqueError(f"{result.failed} dead letters can't be replayed: {result.first_error}")
    report.replayed = result.replayed
    say(f"Replayed {result.replayed}, each to the consumer that failed.")
    goal = {name: handled[name] + c.dead for name, c in report.consumers.items()}
    _await(stage, say, lambda: all(n >= goal[name] for name, n in stage.handled().items()))


def _close(report: reports.Report, as_json: bool, say: Say) -> int:
    problems = report.problems()
    if as_json:
        print(to_json(report.as_dict()))
    say(report.as_table())
    say("\nLatency is from send to handler: commit, wake-up, and waiting behind others included.")
    say("A handler commits its own row before the next one starts.\n")
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    if not problems:
        say(f"CHECKED: each of {report.sent} orders was handled exactly once by each consumer.")
    return int(bool(problems))
