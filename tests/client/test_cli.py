"""The `pgque` command, as people and scripts meet it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pgque
from pgque._table import table
from pgque._tail import TailCursor
from pgque.cli import main
from tests.fix_wait import wait_until

ROOT = Path(__file__).parents[2]


@dataclass
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output as JSON."""
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run the command within this process; `given` is its standard input."""

    def run(*args: str, given: str = "") -> Result:
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        capsys.readouterr()
        try:
            code = main(list(args))
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def on(dsn: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command on a database of the test's own, named by the environment."""
    monkeypatch.setenv("PGQUE_DSN", dsn)
    return cli


def start(*args: str, dsn: str, **kw: Any) -> subprocess.Popen[str]:
    """Start the command as a process of its own."""
    env = {
        **os.environ,
        "PGQUE_DSN": dsn,
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        ),
    }
    return subprocess.Popen([sys.executable, "-m", "pgque", *args], env=env, text=True, **kw)


def deliver(conn: psycopg.Connection, queue: str) -> list[tuple[Any, ...]]:
    """Tick and receive as consumer c: (batch_id, msg_id, type, payload, key, headers)."""
    conn.execute("select pgque.force_next_tick(%s)", [queue])
    conn.execute("select pgque.ticker(%s)", [queue])
    return conn.execute(
        "select batch_id, msg_id, type, payload, key, headers from pgque.receive(%s, 'c')", [queue]
    ).fetchall()


def bury(conn: psycopg.Connection, queue: str, number: int = 1) -> list[int]:
    """Make so many dead letters of consumer c; returns their ids."""
    conn.execute("select pgque.subscribe(%s, 'c')", [queue])
    for i in range(number):
        conn.execute("select pgque.send(%s, %s::text)", [queue, json.dumps(i)])
    rows = deliver(conn, queue)
    for batch_id, msg_id, *_ in rows:
        conn.execute("select pgque.event_dead(%s, %s, 'no good')", [batch_id, msg_id])
    conn.execute("select pgque.ack(%s)", [rows[0][0]])
    found = conn.execute("select dl_id from pgque.dlq_inspect(%s) order by 1", [queue])
    return [row[0] for row in found]


# install, uninstall


def test_install_and_uninstall(cli: Cli, empty_dsn: str) -> None:
    """Twice each: what is there already is fine, and so is what is gone already."""
    at = ("--dsn", empty_dsn)
    for _ in range(2):
        done = cli("install", *at)
        assert (done.code, done.err) == (0, "")
        assert f"pgque {pgque.__version__} installed" in done.out
    assert "dropped" in cli("uninstall", "--yes", *at).out
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("select to_regnamespace('pgque')").fetchone() == (None,)
    done = cli("uninstall", "--yes", *at)
    assert (done.code, "not installed" in done.out) == (0, True)


def test_uninstall_asks(on: Cli, conn: psycopg.Connection) -> None:
    """Where nobody can answer it refuses."""
    done = on("uninstall")
    assert done.code == 1
    assert "--yes" in done.err
    assert conn.execute("select to_regnamespace('pgque')").fetchone() != (None,)


def test_uninstall_sql_is_guarded(conn: psycopg.Connection) -> None:
    """The plain SQL file asks for a setting, and then drops the schema."""
    text = (ROOT / "sql/uninstall.sql").read_bytes()
    with pytest.raises(psycopg.errors.RaiseException, match="refusing"):
        conn.execute(text)
    conn.execute("set pgque.confirm_uninstall = 'yes'")
    conn.execute(text)
    assert conn.execute("select to_regnamespace('pgque')").fetchone() == (None,)
    conn.execute(text)


# looking


def test_queues_and_consumers(on: Cli, conn: psycopg.Connection, queue: str) -> None:
    """Aligned for people, complete as JSON, and a word where there is nothing."""
    assert on("consumers").out == "no consumers\n"
    conn.execute("select pgque.subscribe(%s, 'c')", [queue])
    lines = on("queues").out.splitlines()
    assert lines[0].startswith("queue_name")
    assert lines[2].startswith(queue)
    (found,) = on("queues", "--json").json
    assert found["queue_name"] == queue
    assert found["queue_rotation_period"] == 7200
    assert "c" in on("consumers", queue).out.split()
    assert [row["consumer_name"] for row in on("consumers", "--json").json] == ["c"]


def test_status_tells_by_its_exit_code(on: Cli, conn: psycopg.Connection) -> None:
    """1 if a component is in error, whatever else is fine."""
    done = on("status", "--json")
    assert done.code == int(any(row["status"] == "error" for row in done.json))
    conn.execute("alter function pgque.status() rename to real_status")
    conn.execute(
        "create function pgque.status() returns table"
        " (component text, status text, detail text, action text)"
        " language sql as $$ values ('a', 'ok', 'fine', null), ('b', 'error', 'bad', 'call x') $$"
    )
    done = on("status")
    assert done.code == 1
    assert "call x" in done.out


# send


def test_send_one(on: Cli, conn: psycopg.Connection, queue: str) -> None:
    """It prints the id; type, key and headers arrive; the payload is stored as it was given."""
    conn.execute("select pgque.subscribe(%s, 'c')", [queue])
    options = ("--type", "t", "--key", "k", "--header", "a=1", "--header", "b=x=y")
    done = on("send", queue, '{"n":  1.50}', *options)
    ((_, msg_id, kind, payload, key, headers),) = deliver(conn, queue)
    assert done.out == f"{msg_id}\n"
    assert (kind, payload, key) == ("t", '{"n":  1.50}', "k")
    assert headers == {"a": "1", "b": "x=y"}


@pytest.mark.parametrize("args", [[], ["-"]])
def test_send_standard_input(
    on: Cli, conn: psycopg.Connection, queue: str, args: list[str]
) -> None:
    """One payload, over as many lines as it likes."""
    conn.execute("select pgque.subscribe(%s, 'c')", [queue])
    assert on("send", queue, *args, given='{"a":\n1}\n').code == 0
    assert deliver(conn, queue)[0][3] == '{"a":\n1}'


def test_send_lines_is_all_or_nothing(on: Cli, conn: psycopg.Connection, queue: str) -> None:
    """A bad line far down takes back what was sent before it, and is named."""
    conn.execute("select pgque.subscribe(%s, 'c')", [queue])
    good = "\n".join(str(number) for number in range(2500))
    done = on("send", queue, "--lines", given=f"{good}\n{{bad\n")
    assert done.code == 1
    assert "line 2501" in done.err
    assert deliver(conn, queue) == []
    done = on("send", queue, "--lines", given=f"{good}\n\n")
    assert done.out == f"sent 2500 messages to {queue}\n"
    conn.execute("select pgque.force_next_tick(%s), pgque.ticker(%s)", [queue, queue])
    count = "select count(*) from pgque.receive(%s, 'c', 10000)"
    assert conn.execute(count, [queue]).fetchone() == (2500,)


def test_send_text(on: Cli, conn: psycopg.Connection, queue: str) -> None:
    """Any text goes with --text, as the JSON string that gives a handler this text."""
    conn.execute("select pgque.subscribe(%s, 'c')", [queue])
    on("send", queue, "--text", '42 "x"')
    assert json.loads(deliver(conn, queue)[0][3]) == '42 "x"'


def test_send_refuses(on: Cli, queue: str) -> None:
    """What is not JSON; a queue that is not there; senseless arguments."""
    assert "not JSON" in on("send", queue, "{").err
    done = on("send", "no such queue", "1")
    assert (done.code, done.out) == (1, "")
    assert "no such queue" in done.err
    assert len(done.err.splitlines()) == 1
    assert on("send", queue, "1", "--header", "novalue").code == 2
    assert on("send", queue, "1", "--lines").code == 2


# tail


def test_tail_shows_without_disturbing(on: Cli, conn: psycopg.Connection, queue: str) -> None:
    """No tick, no consumer needed; what a consumer has not read it still gets."""
    conn.execute("select pgque.subscribe(%s, 'c')", [queue])
    for number in range(3):
        on("send", queue, json.dumps({"n": number}), "--key", "k")
    done = on("tail", queue, "--last", "2", "--count", "2", "--json")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [(row["payload"], row["key"]) for row in rows] == [({"n": 1}, "k"), ({"n": 2}, "k")]
    lines = on("tail", queue, "--last", "3", "--count", "3").out.splitlines()
    assert [line.rpartition("  ")[2] for line in lines] == ['{"n": 0}', '{"n": 1}', '{"n": 2}']
    assert [row["consumer_name"] for row in on("consumers", "--json").json] == ["c"]
    assert len(deliver(conn, queue)) == 3


def test_tail_follows(dsn: str, conn: psycopg.Connection, queue: str) -> None:
    """Also a message whose transaction commits after later ids were shown."""
    tail = start("tail", queue, "--count", "3", "--json", dsn=dsn, stdout=subprocess.PIPE)
    waiting = "select 1 from pg_stat_activity where datname = current_database() and query like %s"
    wait_until(lambda: conn.execute(waiting, ["%pgque.peek%from%"]).fetchall() or _seen(conn))
    assert tail.stdout is not None
    with psycopg.connect(dsn) as slow:
        slow.execute("select pgque.send(%s, '1'::text)", [queue])
        conn.execute("select pgque.send(%s, '2'::text)", [queue])
        assert json.loads(tail.stdout.readline())["payload"] == 2
        slow.commit()
    assert json.loads(tail.stdout.readline())["payload"] == 1
    conn.execute("select pgque.send(%s, '3'::text)", [queue])
    assert json.loads(tail.stdout.readline())["payload"] == 3
    assert tail.wait(10) == 0
    tail.stdout.close()


def _seen(conn: psycopg.Connection) -> bool:
    row = conn.execute(
        "select exists (select from pg_stat_activity where pid <> pg_backend_pid()"
        " and datname = current_database() and query like '%pgque.peek(%')"
    ).fetchone()
    return bool(row and row[0])


def test_tail_cursor_shows_each_id_once_in_any_order_of_commits() -> None:
    """Behind a gap it waits for the grace, then gives the gap up."""
    cursor = TailCursor(0, grace=10)
    assert cursor.new([1, 2, 4], now=0) == [1, 2, 4]
    assert cursor.position == 2
    assert cursor.new([4, 5], now=1) == [5]
    assert cursor.new([3, 4, 5], now=2) == [3]
    assert cursor.position == 5
    assert cursor.new([7], now=3) == [7]
    assert cursor.new([7], now=14) == []
    assert cursor.position == 7


# dead letters


def test_dlq(on: Cli, conn: psycopg.Connection, queue: str) -> None:
    """List, replay one, replay all, purge."""
    first, *_ = bury(conn, queue, 3)
    assert "no good" in on("dlq", "list", queue).out
    assert len(on("dlq", "list", queue, "--json").json) == 3
    assert on("dlq", "replay", queue, str(first)).out == "replayed 1, failed 0\n"
    assert on("dlq", "replay", queue, "--all", "--json").json["replayed"] == 2
    assert on("dlq", "list", queue).out == "no dead letters\n"
    assert len(deliver(conn, queue)) == 3


def test_dlq_purge(on: Cli, conn: psycopg.Connection, queue: str) -> None:
    """Only what is old enough."""
    bury(conn, queue)
    assert on("dlq", "purge", queue, "--older-than", "1h").out == "purged 0\n"
    assert on("dlq", "purge", queue, "--older-than", "0", "--json").json == {"purged": 1}


def test_dlq_replay_needs_the_right_queue(on: Cli, conn: psycopg.Connection, queue: str) -> None:
    """A dead letter of another queue is not replayed by a slip."""
    (dead,) = bury(conn, queue)
    conn.execute("select pgque.create_queue('other')")
    assert on("dlq", "replay", "other", str(dead)).code == 1
    assert on("dlq", "replay", queue).code == 2
    assert on("dlq", "replay", queue, "--json", "x").code == 2
    assert on("dlq", "replay", queue, "9" * 30).code == 1
    assert len(on("dlq", "list", queue, "--json").json) == 1


# processes


def test_ticker_process_stops_cleanly(dsn: str, conn: psycopg.Connection) -> None:
    """SIGTERM ends it with 0; it says what it does."""
    ticker = start("ticker", dsn=dsn, stderr=subprocess.PIPE)
    wait_until(
        lambda: conn.execute(
            "select 1 from pg_locks where locktype = 'advisory' and granted and objsubid = 2"
            " and classid = 1346851152"
        ).fetchall(),
        timeout=20,
    )
    ticker.send_signal(signal.SIGTERM)
    _, err = ticker.communicate(timeout=10)
    assert ticker.returncode == 0
    assert "active" in err


def test_ticker_once(on: Cli, cli: Cli, empty_dsn: str) -> None:
    """For other schedulers; 1 where there is nothing to tick."""
    assert on("ticker", "--once").code == 0
    done = cli("ticker", "--once", "--dsn", empty_dsn)
    assert done.code == 1
    assert "pgque install" in done.err


MODULE = """
import os
import pgque

made = pgque.Consumer(os.environ["PGQUE_DSN"], queue="q", name="c")

@made.on("*")
def handle(msg: pgque.Message) -> None:
    print(msg.payload, flush=True)

def factory():
    return made

nothing = 42
"""


@pytest.mark.parametrize("target", ["made", "factory"])
def test_worker_runs_a_consumer(
    dsn: str, conn: psycopg.Connection, tmp_path: Path, target: str
) -> None:
    """Found in the current folder; SIGTERM stops it with 0."""
    conn.execute("select pgque.create_queue('q'), pgque.subscribe('q', 'c')")
    conn.execute("select pgque.send('q', '\"hello\"'::text)")
    (tmp_path / "shop.py").write_text(MODULE)
    worker = start("worker", f"shop:{target}", dsn=dsn, cwd=tmp_path, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "hello\n"
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 0
    worker.stdout.close()


@pytest.mark.parametrize("target", ["shop", "shop:absent", "shop:nothing", "absent:made"])
def test_worker_says_what_is_wrong(dsn: str, tmp_path: Path, target: str) -> None:
    """In one line."""
    (tmp_path / "shop.py").write_text(MODULE)
    worker = start("worker", target, dsn=dsn, cwd=tmp_path, stderr=subprocess.PIPE)
    _, err = worker.communicate(timeout=20)
    assert worker.returncode == 1
    assert len(err.splitlines()) == 1


# failures in general


def test_failure_is_one_line_with_the_hint(cli: Cli, empty_dsn: str) -> None:
    """And a traceback only for those who ask."""
    done = cli("queues", "--dsn", empty_dsn)
    assert done.code == 1
    assert done.err.startswith("pgque: ")
    assert "pgque install" in done.err
    assert "Traceback" in cli("--debug", "queues", "--dsn", empty_dsn).err


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:hunter2@127.0.0.1:1/db",
        "host=127.0.0.1 port=1 password=hunter2",
        "postgresql://me:hunter2@hunter2@127.0.0.1:1/db",
        "password=hunter2 hunter2",
        "postgresql://me:hunter2%zz@127.0.0.1:1/db",
    ],
)
def test_passwords_are_never_shown(cli: Cli, dsn: str) -> None:
    """Not by a failing connection, nor by a DSN that can't be read or stands in the wrong place."""
    for args in (["queues", "--dsn", dsn], ["ticker", "--once", "--dsn", dsn], ["install", dsn]):
        done = cli(*args)
        assert done.code in (1, 2)
        assert "hunter2" not in done.out + done.err


def test_dsn_comes_from_option_variable_or_libpq(
    cli: Cli, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order."""
    nowhere = "host=127.0.0.1 port=1"
    monkeypatch.setenv("PGQUE_DSN", nowhere)
    assert cli("queues", "--dsn", dsn).code == 0
    assert cli("--dsn", dsn, "queues").code == 0
    assert cli("queues").code == 1
    monkeypatch.delenv("PGQUE_DSN")
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    variables = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}
    for name, variable in variables.items():
        monkeypatch.setenv(variable, str(given[name]))
    assert cli("queues").code == 0


@pytest.mark.parametrize(
    "args", [[], ["nonsense"], ["tail"], ["dlq"], ["tail", "q", "--last", "x"]]
)
def test_usage_errors_are_2(cli: Cli, args: list[str]) -> None:
    """As everywhere."""
    assert cli(*args).code == 2


def test_version(cli: Cli) -> None:
    """That of the package."""
    assert cli("--version").out == f"pgque {pgque.__version__}\n"


def test_ctrl_c_is_130(dsn: str, conn: psycopg.Connection, queue: str) -> None:
    """Without a word."""
    tail = start("tail", queue, dsn=dsn, stderr=subprocess.PIPE)
    wait_until(lambda: _seen(conn), timeout=20)
    tail.send_signal(signal.SIGINT)
    _, err = tail.communicate(timeout=10)
    assert (tail.returncode, err) == (130, "")


def test_broken_pipe_is_silent(dsn: str, conn: psycopg.Connection, queue: str) -> None:
    """`pgque tail … | head -1` does not complain."""
    conn.execute("select pgque.send_batch(%s, array_fill('1'::text, array[9999]))", [queue])
    tail = start(
        *("tail", queue, "--last", "9999"), dsn=dsn, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert tail.stdout is not None
    tail.stdout.readline()
    tail.stdout.close()
    assert tail.stderr is not None
    assert tail.stderr.read() == ""
    assert tail.wait(10) == 141
    tail.stderr.close()


def test_table_is_aligned_and_one_line_a_row() -> None:
    """Numbers right, control characters spelled out, durations in words."""
    rows = [
        {"name": "a\nb", "n": 1, "lag": timedelta(seconds=90)},
        {"name": "c", "n": 1000, "lag": None},
    ]
    assert table(rows).splitlines() == [
        "name     n         lag",
        "----  ----  ----------",
        "a\\nb     1  1 min 30 s",
        "c     1000           -",
    ]
