"""From send to handler at 100 messages a second, beside PgQueuer and procrastinate.

Producer and consumers are processes of their own, and no ticker runs. The rivals come from PyPI
into a virtual environment that is thrown away; each library has its defaults.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

from bench.figures import percentile, say, take_turns
from bench.report import Demand, Result
from bench.server import fresh_database
from bench.workers.starting import output, start

RATE = 100
RIVALS = ("pgqueuer", "procrastinate")
_PACKAGES = ("pgqueuer>=1.6,<2", "procrastinate>=3.10,<4", "asyncpg", "psycopg[binary]")

Run = dict[str, float]


def run(server: str, rounds: int, quick: bool) -> Result:
    """One consumer of each library, and ten of ours on one queue."""
    count = RATE * (3 if quick else 30)
    with _rivals() as (python, versions):
        runs = take_turns(
            rounds,
            {"pgque": partial(_measure, server, "pgque", count, sys.executable)}
            | {rival: partial(_measure, server, rival, count, python) for rival in RIVALS if python}
            | {"pgque_10": partial(_measure, server, "pgque", count, sys.executable, consumers=10)},
        )
    found = {
        name: {figure: median(each[name][figure] for each in runs) for figure in runs[0][name]}
        for name in runs[0]
    }
    return Result(
        demands=_demands(found),
        figures=found,
        setup={
            "messages": count,
            "messages_per_second": RATE,
            "left_out": "the first second of each run",
            "rivals": versions or "SKIPPED: pip could not install them, so nothing is compared",
        },
        runs=runs,
    )


def _demands(found: dict[str, Run]) -> list[Demand]:
    ours, ten = found["pgque"], found["pgque_10"]
    demands = [
        Demand("p50, ms", ours["p50_ms"], at_most=2),
        Demand("p99, ms", ours["p99_ms"], at_most=5),
        Demand("slowest p50 of ten consumers, ms", ten["p50_ms"], at_most=5),
        Demand("ticks for a message with ten consumers", ten["ticks_per_message"], at_most=1.2),
    ]
    if set(RIVALS) <= found.keys():
        for figure in ("p50_ms", "p99_ms"):
            best = min(found[rival][figure] for rival in RIVALS)
            demands.append(
                Demand(f"{figure} to the better rival's", ours[figure] / best, at_most=0.5)
            )
    return demands


def _measure(server: str, library: str, count: int, python: str, consumers: int = 1) -> Run:
    """Send for a while; of several consumers the slowest figures count."""
    module = f"bench.workers.latency_{library}"
    with fresh_database(server, pgque=False) as dsn:
        output(start(module, "install", dsn=dsn, python=python))
        workers = [
            start(module, "consume", str(count), str(number), dsn=dsn, python=python)
            for number in range(consumers)
        ]
        try:
            for worker in workers:
                assert worker.stdout is not None
                worker.stdout.readline()
            time.sleep(2)  # until they wait for messages
            output(start(module, "produce", str(count), str(RATE), dsn=dsn, python=python))
            series = [json.loads(output(worker))[RATE:] for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        ticks = {"ticks_per_message": _ticks(dsn) / count} if library == "pgque" else {}
    return {
        "p50_ms": max(percentile(each, 50) for each in series),
        "p99_ms": max(percentile(each, 99) for each in series),
        "max_ms": max(max(each) for each in series),
    } | ticks


def _ticks(dsn: str) -> int:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("select last_tick_id from pgque.get_queue_info('latency')").fetchone()
    assert row is not None
    return int(row[0])


@contextlib.contextmanager
def _rivals() -> Iterator[tuple[str, dict[str, Any]]]:
    """A Python that has the rivals, and their versions; '' and {} if pip could not get them."""
    with tempfile.TemporaryDirectory(prefix="pgque-bench-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder, "bin", "python"))
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        command = [*pip, "install", "-q", *_PACKAGES]
        installed = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if installed.returncode != 0:
            say(f"SKIPPED: PgQueuer and procrastinate, for pip says:\n{installed.stderr}")
            yield "", {}
            return
        listed = json.loads(subprocess.check_output([*pip, "list", "--format=json"], text=True))
        yield python, {each["name"]: each["version"] for each in listed if each["name"] in RIVALS}
