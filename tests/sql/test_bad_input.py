"""Bad input: NULL in every argument, odd names and numbers; a clear error, and nothing is lost."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import psycopg.sql
import pytest

from tests.fix_db import Connect
from tests.sql.calls import drain, receive, refused, row, rows, send, subscribe, tick, value

# A good value for every argument that public functions have, by name.
GOOD = {
    "queue": "{queue}",
    "queue_name": "{queue}",
    "consumer": "c",
    "subconsumer": "m",
    "batch_id": "{batch_id}",
    "msg_id": "{msg_id}",
    "event_id": "{msg_id}",
    "msg": "({msg_id},,,,,,,,,{more})",
    "options": "{{}}",
    "param": "max_retries",
    "value": "5",
    "force": "true",
    "payload": "1",
    "payloads": '{{"1"}}',
    "partition_key": "k",
    "partition_keys": "{{k}}",
    "headers": "{headers}",
    "type_name": "t",
    "ev_type": "t",
    "ev_data": "1",
    "ev_extra1": "1",
    "ev_extra2": "2",
    "ev_extra3": "3",
    "ev_extra4": "4",
    "max_return": "10",
    "limit_count": "10",
    "retry_after": "1 s",
    "retry_time": "2020-01-01",
    "retry_seconds": "1",
    "reason": "why",
    "older_than": "1 day",
    "dead_letter_id": "{letter}",
    "waiting": "true",
    "after_id": "0",
    "tick_id": "1000000",
    "tick_pos": "{tick}",
    "orig_timestamp": "2020-01-01",
    "event_seq": "1",
    "min_lag": "0",
    "min_count": "1",
    "min_interval": "0",
    "cursor_name": "cur",
    "quick_limit": "1",
    "dead_interval": "1 hour",
    "convert_normal": "false",
    "batch_handling": "1",
    "ms": "100",
    "seconds": "true",
}

# NULL means something here: no payload, no key, the default, all of them.
NULL_IS_GOOD = {
    "payload",
    "ev_data",
    "partition_key",
    "partition_keys",
    "headers",
    "ev_extra1",
    "ev_extra2",
    "ev_extra3",
    "ev_extra4",
    "reason",
    "value",
    "min_lag",
    "min_count",
    "min_interval",
    "orig_timestamp",
    "event_seq",
    "tick_pos",
    "dead_interval",
    ("get_consumer_info", "queue"),
    ("get_consumer_info", "consumer"),
    ("get_batch_info", "batch_id"),
    ("peek", "after_id"),
    ("next_retry_at", "consumer"),
    ("drop_queue", "force"),
    ("subscribe_subconsumer", "convert_normal"),
    ("register_subconsumer", "convert_normal"),
}

# Success, or how a call with a NULL that means something fails here by its own rules.
FINE = {"00000", "QU007", "QU008", "QU014"}

# These talk to pg_cron, which has tests of its own, or commit.
ELSEWHERE = ("start", "stop", "start_statements", "set_tick_period_ms")


def functions(conn: psycopg.Connection) -> list[tuple[str, list[tuple[str, str]]]]:
    """Every public function with its arguments' names and types."""
    found = rows(
        conn,
        "select p.proname, array(select format('%%s %%s', p.proargnames[i], t::regtype)"
        "  from unnest(p.proargtypes::oid[]) with ordinality a (t, i) order by i) as args"
        " from pg_proc p where p.pronamespace = 'pgque'::regnamespace and p.prokind = 'f'"
        " and p.proname not like '\\_%%' and p.proname <> all (%s) order by 1, p.oid",
        list(ELSEWHERE),
    )
    return [(f.proname, [(a.split(" ", 1)[0], a.split(" ", 1)[1]) for a in f.args]) for f in found]


def prepare(conn: psycopg.Connection, queue: str) -> dict[str, object]:
    """An open batch, a dead letter and a tick; ids to be put into GOOD."""
    subscribe(conn, queue)
    send(conn, queue, "1", "2")
    made = tick(conn, queue)
    first, second = receive(conn, queue)
    value(conn, "select pgque.event_dead(%s, %s, 'x')", first.batch_id, second.msg_id)
    letter = row(conn, "select * from pgque.dlq_inspect(%s)", queue)
    ids = {"queue": queue, "batch_id": first.batch_id, "msg_id": first.msg_id, "tick": made}
    return ids | {"letter": letter.dl_id}


def literal(name: str, kind: str, ids: dict[str, object]) -> str:
    """SQL of a good value of this argument."""
    headers = '{"{}"}' if kind.endswith("[]") else "{}"
    more = ",,," if kind.endswith("received_message") else ""
    return f"'{GOOD[name].format(**ids, headers=headers, more=more)}'::{kind}"


def outcome(conn: psycopg.Connection, call: str) -> str:
    """Run it and roll back; its SQLSTATE."""
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(f"select * from pgque.{call}".encode())
    except psycopg.Error as error:
        return error.sqlstate or "?"
    return "00000"


def test_null_in_every_argument_of_every_function(conn: psycopg.Connection, queue: str) -> None:
    """QU013, or it means what the contract says; nothing else ever comes out."""
    ids = prepare(conn, queue)
    wrong: list[str] = []
    tried = 0
    for name, args in functions(conn):
        for position, (null, _) in enumerate(args):
            values = [
                f"null::{kind}" if i == position else literal(arg, kind, ids)
                for i, (arg, kind) in enumerate(args)
            ]
            call = f"{name}({', '.join(values)})"
            good = null in NULL_IS_GOOD or (name, null) in NULL_IS_GOOD
            tried += 1
            if (found := outcome(conn, call)) not in (FINE if good else {"QU013"}):
                wrong.append(f"{found} {call}")
    assert not wrong, "\n".join(wrong)
    assert tried > 100


def test_the_values_of_the_test_above_are_good(conn: psycopg.Connection, queue: str) -> None:
    """Without a NULL every call succeeds, or fails by its own rules."""
    ids = prepare(conn, queue)
    own_rules = {"uninstall", "ticker", "touch_subconsumer", "receive_coop"} | {
        f"{verb}_subconsumer" for verb in ("subscribe", "register", "unsubscribe", "unregister")
    }
    for name, args in functions(conn):
        call = f"{name}({', '.join(literal(arg, kind, ids) for arg, kind in args)})"
        found = outcome(conn, call)
        assert found == "00000" or (name in own_rules and re.match("QU0", found)), f"{found} {call}"


QUEUE_NAMES = [
    "a",
    "Upper Case",
    "with.dots.and-dashes",
    "quo'te",
    'double"quote',
    "per%cent %s %I",
    "semi;colon --",
    "back\\slash",
    "Ünïcödé \N{SNOWMAN}",
    "new\nline",
    " ",
    "$$",
    "x" * 57,
    "é" * 28 + "x",
    "select",
    "null",
]


@pytest.mark.parametrize("name", QUEUE_NAMES)
def test_any_name_up_to_57_bytes_is_a_queue(
    conn: psycopg.Connection, connect: Connect, name: str
) -> None:
    """Sent, waited for, received, looked at, configured and dropped under its exact name."""
    assert value(conn, "select pgque.create_queue(%s)", name) == 1
    subscribe(conn, name, name)
    listener = connect()
    channel = psycopg.sql.Identifier(f"pgque_{name}")
    listener.execute(psycopg.sql.SQL("listen {}").format(channel))
    value(listener, "select pgque.mark_waiting(%s, true)", name)
    send(conn, name, "x")
    (heard,) = listener.notifies(timeout=10, stop_after=1)
    assert heard.channel == f"pgque_{name}"
    assert drain(conn, name, name) == ["x"]
    info = row(conn, "select * from pgque.get_consumer_info(%s, %s)", name, name)
    assert (info.queue_name, info.consumer_name) == (name, name)
    assert row(conn, "select * from pgque.get_queue_info(%s)", name).queue_name == name
    assert value(conn, "select pgque.set_queue_config(%s, 'max_retries', '3')", name) == 1
    components = [part.component for part in rows(conn, "select * from pgque.status()")]
    assert f'queue "{name}"' in components
    value(conn, "select pgque.maint()")
    assert value(conn, "select pgque.drop_queue(%s, true)", name) == 1


def test_upper_case_and_lower_case_are_two_queues(conn: psycopg.Connection) -> None:
    """Names are never folded."""
    for name in ("Mixed", "mixed"):
        value(conn, "select pgque.create_queue(%s)", name)
        subscribe(conn, name)
    send(conn, "Mixed", "x")
    assert drain(conn, "mixed") == []
    assert drain(conn, "Mixed") == ["x"]


@pytest.mark.parametrize("name", ["", "x" * 58, "é" * 29, "\N{SNOWMAN}" * 20, "x" * 100_000])
def test_empty_and_longer_queue_names_are_refused(conn: psycopg.Connection, name: str) -> None:
    """QU005 at creation; elsewhere they are names of no queue."""
    with refused("QU005", name[:80]):
        value(conn, "select pgque.create_queue(%s)", name)
    with refused("QU005", name[:80]):
        value(conn, "select pgque.create_queue(%s, '{}')", name)
    for call in ("send(%s, 'x'::text)", "subscribe(%s, 'c')", "ticker(%s)", "drop_queue(%s)"):
        with refused("QU001"):
            value(conn, f"select pgque.{call}", name)


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128])
def test_empty_and_very_long_consumer_names_are_refused(
    conn: psycopg.Connection, queue: str, name: str
) -> None:
    """QU005; 255 bytes are taken."""
    for call in ("subscribe", "register_consumer"):
        with refused("QU005", name[:80]):
            value(conn, f"select pgque.{call}(%s, %s)", queue, name)
    subscribe(conn, queue, "x" * 255, "é" * 127)


def test_messages_are_lower_case_and_quote_the_name(conn: psycopg.Connection, queue: str) -> None:
    """Every error of ours has a hint that says what to do."""
    subscribe(conn, queue)
    for call in (
        "send('Nowhere', 'x'::text)",
        f"receive('{queue}', 'Nobody')",
        "nack(5, 5)",
        "create_queue('')",
        f"set_queue_config('{queue}', 'Colour', 'Red')",
        f"receive('{queue}', 'c', 0)",
        f"drop_queue('{queue}')",
        "dlq_replay(77)",
        f"ticker('{queue}', 1, now(), 1)",
    ):
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(f"select pgque.{call}".encode())
        diag = caught.value.diag
        assert re.fullmatch("QU0[01][0-9]", diag.sqlstate or ""), call
        assert (diag.message_primary or "")[0].islower(), diag.message_primary
        assert len(diag.message_hint or "") > 20, call


def test_ids_near_the_end_of_bigint(own: psycopg.Connection) -> None:
    """Message ids and tick ids past 2^31, 2^53 and up to 2^63 - 1 are handled; then it is over."""
    for start in (2**31 - 2, 2**53 - 2, 2**63 - 9):
        for sequence in ("event", "tick"):
            name = value(own, f"select queue_{sequence}_seq::text from pgque.queue")
            value(own, "select setval(%s::regclass, %s)", name, start)
        ids = send(own, "q", "1", "2", "3")
        assert ids == [start + 1, start + 2, start + 3]
        tick(own, "q")
        messages: list[Any] = receive(own, "q", limit=2)
        assert [message.msg_id for message in messages] == ids[:2]
        statement = "select pgque.ack_to(%s, %s)"
        value(own, statement, messages[0].batch_id, messages[0].msg_id)
        value(own, "select pgque.nack(%s, %s, '0')", messages[1].batch_id, messages[1].msg_id)
        value(own, "select pgque.ack(%s)", messages[0].batch_id)
        value(own, "select pgque.maint_retry_events()")
        assert drain(own, "q") == ["3", "2"]
