"""The demo: what it shows is true, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgque.demo import report as reports
from pgque.demo.orders import generate, load
from pgque.demo.stage import CONSUMERS, Stage, set_up
from tests.fix_wait import wait_until

ROOT = Path(__file__).parents[2]
SIZE = 300


def command(*args: str) -> list[str]:
    """A demo of a few seconds."""
    options = ["--orders", str(SIZE), "--rate", "300"]
    return [sys.executable, "-m", "pgque", "demo", *options, *args]


def leftovers(conn: psycopg.Connection) -> list[str]:
    """Schemas and queues of the demo."""
    rows = conn.execute(
        "select nspname from pg_namespace where nspname like 'pgque_demo%'"
        " union all select queue_name from pgque.get_queue_info()"
    ).fetchall()
    return [row[0] for row in rows]


def attempt(stage: Stage, order_id: int, consumer: str, msg_id: int = 1) -> None:
    """Note a handling that succeeded."""
    stage.conn.execute(
        "insert into attempt (consumer, order_id, msg_id, attempt, channel, latency_ms)"
        " values (%s, %s, %s, 1, 'shop', 1.0)",
        (consumer, order_id, msg_id),
    )


def run_report(stage: Stage, sent: int) -> reports.Report:
    """The report of a run that sent so many."""
    report = reports.first_act(stage, {"shop": sent, "imported": 0})
    reports.second_act(stage, report)
    return report


def test_orders_are_those_of_the_generator() -> None:
    """The file that is shipped can be made again, and is small."""
    assert load() == generate()
    assert (ROOT / "pgque/demo/orders.jsonl").stat().st_size < 1_000_000


@pytest.mark.slow
def test_demo_on_a_given_server(dsn: str, conn: psycopg.Connection) -> None:
    """All parts of the show happen; the figures add up; queue and tables are gone."""
    done = subprocess.run(
        command("--dsn", dsn, "--json"), cwd=ROOT, capture_output=True, text=True, timeout=55
    )
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    orders = load(SIZE)
    assert figures["sent"] == sum(order["payment"] == "card" for order in orders) < SIZE
    assert figures["problems"] == []
    assert figures["replayed"] == sum(c["dead"] for c in figures["consumers"].values())
    for consumed in figures["consumers"].values():
        assert consumed["handled"] == figures["sent"]
        assert consumed["after_retry"] > 0
        assert consumed["dead"] == consumed["after_replay"] > 0
        assert consumed["failures"] == consumed["after_retry"] + 3 * consumed["dead"]
        assert 0 < consumed["speed"]["shop"]["p50"] <= consumed["speed"]["shop"]["p99"]
    assert leftovers(conn) == []


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_demo_on_a_server_of_its_own() -> None:
    """It starts PostgreSQL, tells its story in words, and leaves no file behind."""
    # Not below pytest's folder: that is closed to the user that the server runs as.
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "TMPDIR": folder, "PGQUE_DSN": "host=nowhere.invalid"}
        done = subprocess.run(
            command(), cwd=ROOT, env=env, capture_output=True, text=True, timeout=140
        )
        left = list(Path(folder).iterdir())
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for words in ("sent", "handled after a retry", "dead letter", "latency p99", "exactly once"):
        assert words in done.stdout
    assert left == []


@pytest.mark.slow
def test_an_interrupted_demo_cleans_up(dsn: str, conn: psycopg.Connection) -> None:
    """Ctrl-C in the middle: no queue, no table, no session stays."""
    demo = subprocess.Popen(
        command("--dsn", dsn, "--rate", "20"), cwd=ROOT, stdout=subprocess.DEVNULL
    )
    wait_until(lambda: _stored(conn), timeout=20)
    demo.send_signal(signal.SIGINT)
    assert demo.wait(20) == 130
    assert leftovers(conn) == []
    row = conn.execute(
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
        " and backend_type = 'client backend'"
    ).fetchone()
    assert row == (0,)


def _stored(conn: psycopg.Connection) -> bool:
    """Whether the producer has begun."""
    row = conn.execute(
        "select n_live_tup > 0 or pg_relation_size(relid) > 0 from pg_stat_user_tables"
        " where schemaname like 'pgque_demo%' and relname = 'orders'"
    ).fetchone()
    return bool(row and row[0])


def test_check_finds_what_is_missing_doubled_or_made_up(dsn: str) -> None:
    """The closing check can fail: it was not written to please."""
    with set_up(dsn) as stage:
        for order_id in (1, 2, 3):
            stage.conn.execute("insert into orders values (%s, 'C1', 1, 'EUR')", (order_id,))
            attempt(stage, order_id, "shipping")
        attempt(stage, 1, "billing")
        attempt(stage, 1, "billing", msg_id=2)
        attempt(stage, 9, "billing")
        problems = run_report(stage, 3).problems()
    assert problems == [
        "billing: 2 order(s) never handled",
        "billing: 1 order(s) handled more than once",
        "billing: 1 order(s) handled that nobody placed",
    ]


def test_check_is_content_with_once_each(dsn: str) -> None:
    """And it does pass."""
    with set_up(dsn) as stage:
        stage.conn.execute("insert into orders values (1, 'C1', 1, 'EUR')")
        for consumer in CONSUMERS:
            attempt(stage, 1, consumer)
        assert run_report(stage, 1).problems() == []
