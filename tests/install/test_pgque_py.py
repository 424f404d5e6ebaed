"""An application written for the PyPI package pgque-py 0.2 runs unchanged against our SQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.fix_wait import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CLIENT = """
import json, sys
import pgque

assert pgque.__version__ == "0.2.2"
out = {}

def collect(client, queue="orders"):
    client.force_next_tick(queue)
    client.conn.commit()
    out.setdefault("ticks", []).append(client.ticker(queue))
    client.conn.commit()
    messages = client.receive(queue, "worker")
    client.conn.commit()
    return messages

with pgque.connect(sys.argv[1]) as client:
    client.conn.execute("select pgque.create_queue('orders')")
    out["subscribe"] = [client.subscribe("orders", "worker"), client.subscribe("orders", "worker")]
    client.conn.commit()

    ids = [client.send("orders", {"order_id": 42}, type="order.created")]
    ids.append(client.send("orders", '"text"'))
    ids.append(client.send("orders"))
    ids.append(client.send("orders", pgque.Event({"a": [1]}, type="order.paid")))
    ids += client.send_batch("orders", "order.many", [{"n": 1}, [2], None, '"s"'])
    client.conn.commit()

    messages = collect(client)
    out["in_order"] = [m.msg_id for m in messages] == ids
    out["messages"] = [[m.type, m.payload, m.retry_count, m.extra1] for m in messages]
    client.nack(messages[0].batch_id, messages[0], retry_after=0, reason="try again")
    out["ack"] = [client.ack(messages[0].batch_id), client.ack(messages[0].batch_id)]
    client.conn.commit()

    client.conn.execute("select pgque.maint_retry_events()")
    client.conn.commit()
    again = collect(client)
    out["again"] = [[m.type, json.loads(m.payload), m.retry_count] for m in again]
    client.ack(again[0].batch_id)
    client.conn.commit()

    out["ticker_all"] = client.ticker_all()
    client.conn.commit()
    try:
        client.send("nowhere", {})
    except pgque.PgqueError as error:
        out["error"] = str(error)
    client.conn.rollback()
    out["unsubscribe"] = client.unsubscribe("orders", "worker")
    client.conn.commit()

print(json.dumps(out))
"""

CONSUMER = """
import sys
import pgque

assert pgque.__version__ == "0.2.2"
consumer = pgque.Consumer(
    dsn=sys.argv[1], queue="orders", name="worker", poll_interval=1, retry_after=0
)

@consumer.on("order.created")
def created(msg: pgque.Message) -> None:
    print("created", msg.payload, flush=True)

@consumer.on("order.failing")
def failing(msg: pgque.Message) -> None:
    if msg.retry_count is None:
        raise RuntimeError("not yet")
    print("retried", msg.retry_count, flush=True)

@consumer.on("*")
def other(msg: pgque.Message) -> None:
    print("other", msg.type, flush=True)

consumer.start()
print("stopped", flush=True)
"""


@pytest.fixture(scope="module")
def pgque_py(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds pgque-py and nothing else."""
    folder = tmp_path_factory.mktemp("pgque-py")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    subprocess.run([*pip, "pgque-py==0.2.2"], check=True, timeout=120)
    return folder


def start(script: str, dsn: str, package: Path, output: Path) -> subprocess.Popen[bytes]:
    """Run a script that imports pgque from `package`; all it prints goes to `output`."""
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-c", script, dsn],
            env={**os.environ, "PYTHONPATH": str(package)},
            cwd=package,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def test_client(pgque_py: Path, dsn: str, tmp_path: Path) -> None:
    """send, send_batch, subscribe, ticks, receive, nack through the ten-field row, ack."""
    output = tmp_path / "output"
    code = start(CLIENT, dsn, pgque_py, output).wait(60)
    assert code == 0, output.read_text()
    out = json.loads(output.read_text())
    assert out["subscribe"] == [1, 0]
    assert out["in_order"]
    assert all(out["ticks"])
    assert out["messages"] == [
        ["order.created", '{"order_id": 42}', None, None],
        ["default", '"text"', None, None],
        ["default", "null", None, None],
        ["order.paid", '{"a": [1]}', None, None],
        ["order.many", '{"n": 1}', None, None],
        ["order.many", "[2]", None, None],
        ["order.many", "null", None, None],
        ["order.many", '"s"', None, None],
    ]
    assert out["ack"] == [1, 0]
    assert out["again"] == [["order.created", {"order_id": 42}, 1]]
    assert out["ticker_all"] >= 0
    assert "nowhere" in out["error"]
    assert out["unsubscribe"] == 1


@pytest.fixture
def ticking(conn: psycopg.Connection) -> psycopg.Connection:
    """A connection on a database with a queue `orders` and a consumer `worker`."""
    conn.execute("select pgque.create_queue('orders'), pgque.subscribe('orders', 'worker')")
    return conn


def test_consumer(pgque_py: Path, dsn: str, ticking: psycopg.Connection, tmp_path: Path) -> None:
    """Handlers, a retry, the catch-all and a graceful stop, with a ticker beside it."""
    ticking.execute("select pgque.send('orders', 'order.created', '{\"n\": 1}'::jsonb)")
    ticking.execute("select pgque.send('orders', 'order.failing', '{}'::jsonb)")
    ticking.execute("select pgque.send('orders', 'order.unheard', '{}'::jsonb)")
    output = tmp_path / "output"
    process = start(CONSUMER, dsn, pgque_py, output)

    def done() -> bool:
        assert process.poll() is None, output.read_text()
        ticking.execute("select pgque.maint_retry_events()")
        ticking.execute("select pgque.force_next_tick('orders')")
        ticking.execute("select pgque.ticker()")
        text = output.read_text()
        return all(word in text for word in ('created {"n": 1}', "retried 1", "other order.un"))

    try:
        wait_until(done, timeout=60, what="all three handlers to have run")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    lines = output.read_text().splitlines()
    assert lines[-1] == "stopped"
    assert lines.count('created {"n": 1}') == 1

    pending = "select pending_events from pgque.get_consumer_info('orders', 'worker')"
    assert ticking.execute(pending).fetchone() == (0,)
