"""What the subcommands of ``pgque`` do; each takes the parsed arguments, returns the exit code."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import pgque
from pgque import schema
from pgque._payload import decode, encode
from pgque._signals import stop_on_signals
from pgque._table import as_json, table, text
from pgque._tail import TailCursor
from pgque.errors import PgqueError, PgquePayloadError, translated
from pgque.ticker import Ticker

_CHUNK = 1000  # messages in one statement


def dsn_of(args: argparse.Namespace) -> str:
    """Return --dsn, else PGQUE_DSN, else the empty DSN, which means libpq's environment."""
    given: str | None = args.dsn
    return given if given is not None else os.environ.get("PGQUE_DSN", "")


def connect(args: argparse.Namespace, *, autocommit: bool = True) -> pgque.PgqueClient:
    """Connect to the database that the arguments or the environment name."""
    return pgque.connect(dsn_of(args), autocommit=autocommit)


def install(args: argparse.Namespace) -> int:
    """Install or upgrade the schema."""
    with connect(args) as client:
        before = schema.installed_version(client.conn)
        version = schema.install(client.conn)
        done = f"upgraded from {before}" if before not in (None, version) else "installed"
        print(f"pgque {version} {done} in database {client.conn.info.dbname}")
    return 0


def uninstall(args: argparse.Namespace) -> int:
    """Drop the schema, after asking."""
    with connect(args) as client:
        database = client.conn.info.dbname
        if not args.yes and not _confirmed(f"Drop pgque with all its messages from {database}?"):
            return 1
        was_there = schema.uninstall(client.conn)
    print(f"pgque {'dropped from' if was_there else 'was not installed in'} database {database}")
    return 0


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise PgqueError("refusing to drop pgque unasked: say --yes")
    return input(f"{question} Type yes: ").strip() == "yes"


def status(args: argparse.Namespace) -> int:
    """Show the state of each part; 1 if one of them is in error."""
    with connect(args) as client:
        rows = client.status()
    _show(args, rows, "no component reported")
    return int(any(row.status == "error" for row in rows))


def queues(args: argparse.Namespace) -> int:
    """List the queues."""
    with connect(args) as client:
        rows = client.queue_info()
    columns = ("queue_name", "ticker_lag", "ev_new", "ev_per_sec", "last_tick_id")
    _show(args, rows, "no queues", columns)
    return 0


def consumers(args: argparse.Namespace) -> int:
    """List the subscriptions of one queue or of all."""
    with connect(args) as client:
        rows = client.consumer_info(args.queue)
    columns = ("queue_name", "consumer_name", "lag", "last_seen", "pending_events")
    _show(args, rows, "no consumers", columns)
    return 0


def _show(
    args: argparse.Namespace, rows: Sequence[Any], empty: str, columns: Sequence[str] | None = None
) -> None:
    """Print dataclass rows: all their fields as JSON, or some as a table."""
    plain = [asdict(row) for row in rows]
    if args.json:
        print(as_json(plain))
    elif plain:
        print(table(plain, columns))
    else:
        print(empty)


def send(args: argparse.Namespace) -> int:
    """Send one payload, or one for each line of standard input."""
    if args.lines and args.payload not in (None, "-"):
        args.usage("--lines reads standard input: no PAYLOAD")
    if args.payload is None and sys.stdin.isatty():
        args.usage("no PAYLOAD, and standard input is a terminal")
    headers = dict(args.header) if args.header else None
    with connect(args, autocommit=False) as client:
        if args.lines:
            sent = _send_lines(client, args, headers)
            print(f"sent {sent} {'message' if sent == 1 else 'messages'} to {args.queue}")
        else:
            given = args.payload
            payload = sys.stdin.read().removesuffix("\n") if given in (None, "-") else given
            event = pgque.Event(_payload(payload, args), args.type, args.key, headers)
            print(client.send(args.queue, event))
        client.conn.commit()
    return 0


def _payload(given: str, args: argparse.Namespace) -> object:
    return given if args.text else pgque.RawJson(given)


def _send_lines(
    client: pgque.PgqueClient, args: argparse.Namespace, headers: dict[str, Any] | None
) -> int:
    events = (
        pgque.Event(_line(line, number, args), args.type, args.key, headers)
        for number, line in enumerate(sys.stdin, 1)
        if args.text or line.strip()
    )
    sent = 0
    while chunk := list(islice(events, _CHUNK)):
        sent += len(client.send_batch(args.queue, args.type, chunk))
    return sent


def _line(line: str, number: int, args: argparse.Namespace) -> object:
    payload = _payload(line.removesuffix("\n"), args)
    try:
        encode(payload)
    except PgquePayloadError as error:
        raise PgquePayloadError(f"nothing was sent: line {number}: {error}") from error
    return payload


def tail(args: argparse.Namespace) -> int:
    """Print the messages of a queue as they are committed; no consumer is registered."""
    with connect(args) as client:
        end = _last_event_id(client, args.queue)
        cursor = TailCursor(max(end - args.last, 0))
        printed = 0
        while True:
            for row in _peek(client, args.queue, cursor):
                print(as_json(row, indent=None) if args.json else _tail_line(row))
                printed += 1
                if printed == args.count:
                    return 0
            sys.stdout.flush()
            time.sleep(args.interval)


def _last_event_id(client: pgque.PgqueClient, queue: str) -> int:
    with translated():
        row = client.conn.execute("select pgque.last_event_id(%s)", (queue,)).fetchone()
    return row[0] or 0 if row else 0


def _peek(client: pgque.PgqueClient, queue: str, cursor: TailCursor) -> Iterator[dict[str, Any]]:
    """Yield what has become visible since the last call, in pages."""
    names = ("msg_id", "created_at", "type", "key", "payload", "headers")
    after = cursor.position
    while True:
        with translated():
            rows = client.conn.execute(
                "select msg_id, created_at, type, key, payload, headers::text"
                " from pgque.peek(%s::text, %s::bigint, %s::int)",
                (queue, after, _CHUNK),
            ).fetchall()
        new = set(cursor.new([row[0] for row in rows], time.monotonic()))
        for row in rows:
            if row[0] in new:
                message = dict(zip(names, row, strict=True))
                yield message | {n: decode(message[n]) for n in ("payload", "headers")}
        if len(rows) < _CHUNK:
            return
        after = rows[-1][0]


def _tail_line(row: dict[str, Any]) -> str:
    key = f" key={text(row['key'])}" if row["key"] is not None else ""
    payload = json.dumps(row["payload"], ensure_ascii=False)
    return f"{text(row['created_at'])}  {row['msg_id']}  {text(row['type'])}{key}  {payload}"


def ticker(args: argparse.Namespace) -> int:
    """Keep the database ticking until SIGTERM or Ctrl-C."""
    process = Ticker(dsn_of(args), interval=args.interval, idle_interval=args.idle_interval)
    if args.once:
        print(f"ticked {process.run_once()} queue(s)")
        return 0
    _log_to_stderr(args)
    with stop_on_signals(process.stop):
        process.run()
    return 0


def worker(args: argparse.Namespace) -> int:
    """Run a consumer of the user's until SIGTERM or Ctrl-C."""
    if args.dsn is not None:
        os.environ["PGQUE_DSN"] = args.dsn  # for the module to read
    _log_to_stderr(args)
    consumer = _load(args.consumer)
    if not isinstance(consumer, pgque.Consumer) and callable(consumer):
        consumer = consumer()
    if not isinstance(consumer, pgque.Consumer):
        raise PgqueError(f"{args.consumer} is no pgque.Consumer, and returns none")
    consumer.start()
    return 0


def _load(target: str) -> Any:
    """Import MODULE:NAME, looking in the current folder first."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise PgqueError(f"not MODULE:CONSUMER: {target}")
    sys.path.insert(0, str(Path.cwd()))
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise PgqueError(f"module {module} has no {name}")
        found = getattr(found, part)
    return found


def _log_to_stderr(args: argparse.Namespace) -> None:
    level = logging.DEBUG if args.debug else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def dlq_list(args: argparse.Namespace) -> int:
    """List the dead letters of a queue."""
    with connect(args) as client:
        rows = client.dlq_inspect(args.queue, args.limit)
    columns = ("id", "consumer_name", "dead_since", "msg_id", "type", "reason")
    _show(args, rows, "no dead letters", columns)
    return 0


def dlq_replay(args: argparse.Namespace) -> int:
    """Send dead letters back to the consumers that failed; 1 if one could not be."""
    if args.all == (args.id is not None):
        args.usage("name either an ID or --all")
    if args.id is not None and not (args.id.isascii() and args.id.isdigit()):
        args.usage(f"not the ID of a dead letter: {args.id}")
    with connect(args) as client:
        if args.all:
            result = client.dlq_replay_all(args.queue)
            failed, error = result.failed, result.first_error
            report: dict[str, Any] = asdict(result)
        else:
            message_id = _replay_one(client, args.queue, int(args.id))
            failed, error = 0, None
            report = {"replayed": 1, "failed": 0, "first_error": None, "msg_id": message_id}
    print(as_json(report) if args.json else f"replayed {report['replayed']}, failed {failed}")
    if failed:
        print(f"pgque: {error}", file=sys.stderr)
    return int(failed > 0)


def _replay_one(client: pgque.PgqueClient, queue: str, dead_letter_id: int) -> int:
    """Replay one, if it belongs to the queue that was named."""
    with translated():
        row = client.conn.execute(
            "select exists (select from pgque.dlq_inspect(%s::text, 2147483647)"
            " where dl_id = %s::numeric)",
            (queue, dead_letter_id),
        ).fetchone()
    if row is None or not row[0]:
        raise PgqueError(f"queue {queue} has no dead letter {dead_letter_id}")
    return client.dlq_replay(dead_letter_id)


def dlq_purge(args: argparse.Namespace) -> int:
    """Delete dead letters that are older than --older-than."""
    with connect(args) as client:
        purged = client.dlq_purge(args.queue, args.older_than)
    print(as_json({"purged": purged}) if args.json else f"purged {purged}")
    return 0


def demo(args: argparse.Namespace) -> int:
    """Run the demo."""
    from pgque.demo.run import run

    return run(dsn=args.dsn, orders=args.orders, rate=args.rate, as_json=args.json)
