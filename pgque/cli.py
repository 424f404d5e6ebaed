"""The ``pgque`` command: its arguments, exit codes, and what people read when it fails.

Exit codes: 0 done; 1 it failed, or `status` found an error; 2 usage; 130 Ctrl-C, except of `ticker`
and `worker`, which it stops as SIGTERM does; 141 the reader of the output went away.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import pgque
from pgque import _commands as commands
from pgque.errors import PgqueError

_DESCRIPTION = """\
A message queue inside PostgreSQL.

The database is that of --dsn, else of the variable PGQUE_DSN, else of libpq's own variables
(PGHOST, PGDATABASE, PGSERVICE, ...). A --dsn with a password in it can be seen by all users of
the machine while the command runs; PGQUE_DSN or ~/.pgpass can not."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = _parse(argv)
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        code = run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Nobody reads any more; keep the interpreter from complaining when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001  (what a user's module raises can be anything)
        if args.debug:
            traceback.print_exc()
        else:
            print(f"pgque: {mask(describe(error))}", file=sys.stderr)
        return 1


def _parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse, and let an optional PAYLOAD or ID stand after options, which argparse does not."""
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    late = getattr(args, "late", None)
    if late and len(rest) == 1 and getattr(args, late) is None and rest[0][:2] != "--":
        setattr(args, late, rest.pop())
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def describe(error: Exception) -> str:
    """Say what went wrong in one line, with the server's hint if it gave one."""
    text = str(error) if isinstance(error, PgqueError) else f"{type(error).__name__}: {error}"
    hint = error.hint if isinstance(error, PgqueError) else None
    return " ".join((f"{text} ({hint})" if hint else text).split())


def mask(text: str) -> str:
    """Replace by stars what looks like the password of a connection string."""
    text = re.sub(r"(://[^\s/:@]*:)[^\s/]*@", r"\1***@", text)
    password = r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)"
    return re.sub(password, r"\1***", text, flags=re.IGNORECASE)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if re.search(r"://|password|\w=", message) and message.startswith("unrecognized"):
            message = "unrecognized arguments; is --dsn missing before a connection string?"
        super().error(mask(message))


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: that reads the package's metadata."""

    def __init__(self, **kw: Any) -> None:
        super().__init__(nargs=0, **kw)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"pgque {pgque.__version__}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Parser(
        prog="pgque",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, help="show the version and end")
    _add_common(parser, default=None)
    commands_ = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_schema_commands(commands_)
    _add_looking_commands(commands_)
    _add_message_commands(commands_)
    _add_processes(commands_)
    _add_dlq(commands_)
    return parser


def _add_common(parser: argparse.ArgumentParser, default: Any = argparse.SUPPRESS) -> None:
    parser.add_argument("--dsn", default=default, help="connection string or URI")
    debug = False if default is None else default
    parser.add_argument("--debug", action="store_true", default=debug, help="show tracebacks")


def _command(group: Any, name: str, run: Callable[[argparse.Namespace], int], **kw: Any) -> Any:
    """Add a subcommand whose help is the first sentence of the function that runs it."""
    text = (run.__doc__ or "").partition("\n")[0]
    parser = group.add_parser(name, help=text[:1].lower() + text[1:-1], description=text, **kw)
    parser.set_defaults(run=run, usage=parser.error)
    _add_common(parser)
    return parser


def _add_json(parser: Any, text: str = "print JSON instead of a table") -> None:
    parser.add_argument("--json", action="store_true", help=text)


def _add_schema_commands(group: Any) -> None:
    _command(group, "install", commands.install)
    uninstall = _command(group, "uninstall", commands.uninstall)
    uninstall.add_argument("--yes", action="store_true", help="do not ask")


def _add_looking_commands(group: Any) -> None:
    _add_json(_command(group, "status", commands.status))
    _add_json(_command(group, "queues", commands.queues))
    consumers = _command(group, "consumers", commands.consumers)
    consumers.add_argument("queue", nargs="?", help="default: all queues")
    _add_json(consumers)


def _add_message_commands(group: Any) -> None:
    send = _command(group, "send", commands.send)
    send.add_argument("queue")
    send.add_argument("payload", nargs="?", help="JSON; - or nothing: standard input")
    send.set_defaults(late="payload")
    send.add_argument("--type", default="default", help="the message's type (%(default)s)")
    send.add_argument("--key", help="the message's key")
    send.add_argument(
        "--header", action="append", type=_header, metavar="NAME=VALUE", help="may be repeated"
    )
    send.add_argument("--lines", action="store_true", help="one message a line, all or none")
    send.add_argument("--text", action="store_true", help="plain text, sent as a JSON string")

    tail = _command(group, "tail", commands.tail)
    tail.add_argument("queue")
    tail.add_argument(
        "--last",
        type=_natural,
        default=0,
        metavar="N",
        help="begin up to N messages before the end",
    )
    tail.add_argument("--count", type=_positive_int, metavar="N", help="stop after N messages")
    tail.add_argument(
        "--interval", type=_seconds, default=0.2, metavar="S", help="look every S s (%(default)s)"
    )
    _add_json(tail, "print each message as a line of JSON")


def _add_processes(group: Any) -> None:
    ticker = _command(group, "ticker", commands.ticker)
    ticker.add_argument(
        "--interval", type=_seconds, default=0.1, metavar="S", help="while busy (%(default)s)"
    )
    ticker.add_argument(
        "--idle-interval", type=_seconds, default=1.0, metavar="S", help="at most (%(default)s)"
    )
    ticker.add_argument("--once", action="store_true", help="one pass of upkeep and ticks")

    worker = _command(group, "worker", commands.worker)
    worker.add_argument(
        "consumer",
        metavar="MODULE:CONSUMER",
        help="a pgque.Consumer or a function that returns one; it brings its own DSN "
        "(--dsn is put into PGQUE_DSN before the module is imported)",
    )

    demo = _command(group, "demo", commands.demo)
    demo.description = (
        "Run the demo: on a PostgreSQL of its own, or on that of --dsn (PGQUE_DSN is not used), "
        "in queues and tables of its own that are dropped at the end."
    )
    demo.add_argument(
        "--orders", type=_positive_int, default=3000, metavar="N", help="at most 3000"
    )
    demo.add_argument(
        "--rate", type=_seconds, default=300.0, metavar="N", help="shop orders a second (300)"
    )
    _add_json(demo, "print only the closing figures, as JSON")


def _add_dlq(group: Any) -> None:
    dlq = group.add_parser("dlq", help="dead letters: list, replay, purge")
    actions = dlq.add_subparsers(title="actions", metavar="ACTION", required=True)

    list_ = _command(actions, "list", commands.dlq_list)
    list_.add_argument("queue")
    list_.add_argument("--limit", type=_natural, default=100, metavar="N", help="%(default)s")

    replay = _command(actions, "replay", commands.dlq_replay)
    replay.add_argument("queue")
    replay.add_argument("id", nargs="?", help="as `dlq list` shows it")
    replay.add_argument("--all", action="store_true", help="all of the queue")
    replay.set_defaults(late="id")

    purge = _command(actions, "purge", commands.dlq_purge)
    purge.add_argument("queue")
    purge.add_argument(
        "--older-than", type=_age, default=timedelta(days=30), metavar="AGE", help="default: 30d"
    )
    for action in (list_, replay, purge):
        _add_json(action)


def _header(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError("not NAME=VALUE")
    return name, value


def _natural(given: str) -> int:
    if not given.isascii() or not given.isdigit():
        raise argparse.ArgumentTypeError(f"not a whole number from 0: {given}")
    return int(given)


def _positive_int(given: str) -> int:
    if (number := _natural(given)) == 0:
        raise argparse.ArgumentTypeError("0 is too small")
    return number


def _seconds(given: str) -> float:
    try:
        number = float(given)
    except ValueError:
        number = 0.0
    if not 0 < number <= 3600:
        raise argparse.ArgumentTypeError(f"not a number above 0 and up to 3600: {given}")
    return number


def _age(given: str) -> timedelta:
    """Read 90s, 15min, 12h, 30d or 0."""
    found = re.fullmatch(r"(\d{1,6})(s|min|h|d)|0", given)
    if not found:
        raise argparse.ArgumentTypeError(f"not an age like 90s, 15min, 12h, 30d or 0: {given}")
    units = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}
    return timedelta(**{units[found[2]]: int(found[1])}) if found[2] else timedelta()
