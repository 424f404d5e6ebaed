"""Sending: what goes in comes out, in order, if its transaction committed."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.sql.calls import (
    configure,
    drain,
    receive,
    refused,
    rows,
    send,
    subscribe,
    take,
    tick,
    value,
)

ODD_TEXTS = [
    "",
    " ",
    '{"b": 1,   "a": 2.50}',
    "not json",
    "'; drop table x; --",
    "%s %d %",
    "a\nb\tc\\n\\u0000",
    "snow \N{SNOWMAN} and \N{GRINNING FACE}",
    "null",
    "x" * 3_000_000,
]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=lambda text: repr(text[:12]))
def test_text_is_kept_byte_for_byte(conn: psycopg.Connection, topic: str, text: str) -> None:
    """Whatever the text is, JSON or not."""
    send(conn, topic, text)
    assert drain(conn, topic) == [text]


@pytest.mark.parametrize(
    "document", ['{"b": 1,   "a": 2.50}', "[1,2]", "null", '"text"', "1e3", "true", "{}"]
)
def test_jsonb_is_kept_in_canonical_form(
    conn: psycopg.Connection, topic: str, document: str
) -> None:
    """As PostgreSQL writes it, which is the same value; JSON null is not SQL NULL."""
    canonical = value(conn, "select %s::jsonb::text", document)
    value(conn, "select pgque.send(%s, %s::jsonb)", topic, document)
    value(conn, "select pgque.send(%s, 't', %s::jsonb)", topic, document)
    value(conn, "select pgque.send_batch(%s, array[%s::jsonb])", topic, document)
    value(conn, "select pgque.send_batch(%s, 't', array[%s::jsonb])", topic, document)
    assert drain(conn, topic) == [canonical] * 4
    assert json.loads(canonical) == json.loads(document)


def test_an_untyped_literal_is_taken_as_text(conn: psycopg.Connection, topic: str) -> None:
    """So `select pgque.send('q', '{"a":1}')` works and keeps its bytes."""
    value(conn, "select pgque.send('" + topic + """', '{"a":1}')""")
    value(conn, "select pgque.send('" + topic + """', 'kind', '{"a":1}')""")
    tick(conn, topic)
    found = [(message.type, message.payload) for message in receive(conn, topic)]
    assert found == [("default", '{"a":1}'), ("kind", '{"a":1}')]


def test_null_payloads_are_delivered_as_null(conn: psycopg.Connection, topic: str) -> None:
    """In every form of sending."""
    for call in (
        "select pgque.send(%s, null::text)",
        "select pgque.send(%s, null::jsonb)",
        "select pgque.send(%s, 't', null::text)",
        "select pgque.send(%s, 't', null::jsonb)",
        "select pgque.insert_event(%s, 't', null)",
        "select pgque.insert_event(%s, 't', null, null, null, null, null)",
        "select pgque.send_batch(%s, array[null::text, null])",
        "select pgque.send_batch(%s, 't', array[null::jsonb])",
    ):
        value(conn, call, topic)
    assert drain(conn, topic) == [None] * 9


def test_type_key_headers_and_extras_arrive(conn: psycopg.Connection, topic: str) -> None:
    """Each in its field of the message; named calls work."""
    value(
        conn,
        "select pgque.send(queue_name => %s, type_name => 'order', payload => 'p'::text,"
        """ partition_key => 'k', headers => '{"h": 1}')""",
        topic,
    )
    value(
        conn,
        "select pgque.insert_event(queue_name => %s, ev_type => 't', ev_data => 'd',"
        " ev_extra1 => '1', ev_extra2 => '2', ev_extra3 => '3', ev_extra4 => '4')",
        topic,
    )
    tick(conn, topic)
    first, second = receive(conn, topic)
    assert (first.type, first.payload, first.key, first.headers) == ("order", "p", "k", {"h": 1})
    assert (first.extra1, first.retry_count, first.delivery_count) == (None, None, 1)
    assert second[6:10] == ("1", "2", "3", "4")
    assert (second.type, second.payload, second.key, second.headers) == ("t", "d", None, None)


@pytest.mark.parametrize("type_name", ["", "*", "Ünïcode", "a.b%c", "t" * 1_000_000])
def test_any_type_name_is_taken(conn: psycopg.Connection, topic: str, type_name: str) -> None:
    """Also an empty one and one of a megabyte."""
    value(conn, "select pgque.send(%s, %s, 'x'::text)", topic, type_name)
    tick(conn, topic)
    assert [message.type for message in receive(conn, topic)] == [type_name]


def test_a_batch_keeps_the_order_and_its_fields(conn: psycopg.Connection, topic: str) -> None:
    """Ids come in input order; keys and headers stand at their payload's place."""
    payloads = [str(number) for number in range(1000)]
    keys = [f"k{number}" if number % 3 else None for number in range(1000)]
    headers = [json.dumps({"n": number}) if number % 2 else None for number in range(1000)]
    ids = value(
        conn,
        "select pgque.send_batch(%s, 't', %s::text[], %s::text[], %s::jsonb[])",
        topic,
        payloads,
        keys,
        headers,
    )
    assert ids == sorted(set(ids))
    tick(conn, topic)
    messages = receive(conn, topic, limit=1000)
    assert [message.msg_id for message in messages] == ids
    assert [message.payload for message in messages] == payloads
    assert [message.key for message in messages] == keys
    found = [message.headers and json.dumps(message.headers) for message in messages]
    assert found == headers


def test_an_empty_batch_sends_nothing(conn: psycopg.Connection, topic: str) -> None:
    """And returns an empty array; it still wants a topic that exists."""
    for array in ("'{}'::text[]", "'{}'::jsonb[]"):
        assert value(conn, f"select pgque.send_batch(%s, {array})", topic) == []
        assert value(conn, f"select pgque.send_batch(%s, 't', {array})", topic) == []
    assert drain(conn, topic) == []
    with refused("QU001", "nowhere"):
        value(conn, "select pgque.send_batch('nowhere', '{}'::text[])")


@pytest.mark.parametrize(
    "call",
    [
        "send_batch(%s, 't', '{{a,b},{c,d}}'::text[])",
        "send_batch(%s, 't', '{a,b}'::text[], '{k}')",
        "send_batch(%s, 't', '{a}'::text[], '{}')",
        "send_batch(%s, 't', '{a}'::text[], '{k}', array[null::jsonb, null])",
        "send_batch(%s, 't', '{}'::text[], '{k}')",
        "send_batch(%s, 't', null::text[])",
        "send_batch(%s, null::jsonb[])",
        "send_batch(%s, null, '{a}'::text[])",
        "send(%s, null, 'x'::text)",
        "insert_event(%s, null, 'x')",
    ],
)
def test_misshapen_calls_send_nothing(conn: psycopg.Connection, topic: str, call: str) -> None:
    """QU013 names the argument."""
    with refused("QU013"):
        value(conn, f"select pgque.{call}", topic)
    assert drain(conn, topic) == []


def test_an_array_with_other_bounds_is_as_good(conn: psycopg.Connection, topic: str) -> None:
    """PostgreSQL arrays may start anywhere."""
    value(conn, "select pgque.send_batch(%s, '[5:6]={a,b}'::text[])", topic)
    assert drain(conn, topic) == ["a", "b"]


SENDS = [
    "send(%s, 'x'::text)",
    "send(%s, '1'::jsonb)",
    "send(%s, 't', 'x'::text)",
    "send(%s, 't', '1'::jsonb)",
    "send_batch(%s, '{x}'::text[])",
    "send_batch(%s, array['1'::jsonb])",
    "send_batch(%s, 't', '{x}'::text[])",
    "send_batch(%s, 't', array['1'::jsonb])",
    "insert_event(%s, 't', 'x')",
    "insert_event(%s, 't', 'x', null, null, null, null)",
]


@pytest.mark.parametrize("call", SENDS)
def test_unknown_and_disabled_queues_are_errors(
    conn: psycopg.Connection, topic: str, call: str
) -> None:
    """QU001 and QU006 name the queue; enabled again it takes messages."""
    with refused("QU001", "no such"):
        value(conn, f"select pgque.{call}", "no such")
    with refused("QU013", "queue"):
        value(conn, f"select pgque.{call}", None)
    configure(conn, topic, disable_insert=True)
    with refused("QU006", topic):
        value(conn, f"select pgque.{call}", topic)
    configure(conn, topic, disable_insert=False)
    value(conn, f"select pgque.{call}", topic)
    assert len(drain(conn, topic)) == 1


def test_every_way_of_sending_is_tried_above(conn: psycopg.Connection) -> None:
    """A new overload of send, send_batch or insert_event belongs into SENDS."""
    count = value(
        conn,
        "select count(*) from pg_proc where pronamespace = 'pgque'::regnamespace"
        " and proname in ('send', 'send_batch', 'insert_event')",
    )
    assert count == len(SENDS)


def test_what_is_rolled_back_was_never_sent(conn: psycopg.Connection, topic: str) -> None:
    """Whole transactions, savepoints, and exception blocks of PL/pgSQL."""
    with conn.transaction():
        send(conn, topic, "first")
        with pytest.raises(ZeroDivisionError), conn.transaction():
            send(conn, topic, "lost with its savepoint")
            raise ZeroDivisionError
        with conn.transaction():
            send(conn, topic, "released savepoint")
        conn.execute(
            "do $$ begin"
            f" perform pgque.send('{topic}', 'lost with its block'); perform 1 / 0;"
            " exception when division_by_zero then"
            f" perform pgque.send('{topic}', 'from the handler'); end $$".encode()
        )
    with pytest.raises(ZeroDivisionError), conn.transaction():
        send(conn, topic, "lost")
        raise ZeroDivisionError
    assert drain(conn, topic) == ["first", "released savepoint", "from the handler"]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_sending_works_at_every_isolation_level(
    conn: psycopg.Connection, topic: str, level: str
) -> None:
    """Only ticking, receiving and settling need READ COMMITTED."""
    with conn.transaction():
        conn.execute(f"set transaction isolation level {level}".encode())
        send(conn, topic, "x")
        value(conn, "select pgque.send_batch(%s, '{y,z}'::text[])", topic)
    assert drain(conn, topic) == ["x", "y", "z"]


def test_each_subscriber_gets_its_own_copy(conn: psycopg.Connection, topic: str) -> None:
    """A consumer's pace does not matter to another's."""
    subscribe(conn, topic, "d")
    send(conn, topic, "1", "2")
    assert drain(conn, topic, "c") == ["1", "2"]
    send(conn, topic, "3")
    tick(conn, topic)
    assert take(conn, topic, "d") == ["1", "2", "3"]
    assert take(conn, topic, "c") == ["3"]


@pytest.mark.slow
def test_a_message_of_a_hundred_megabytes(conn: psycopg.Connection, topic: str) -> None:
    """Comes out as it went in; the next one follows."""
    half = "ab" * 25_000_000
    value(conn, "select pgque.send(%s, %s || %s)", topic, half, half)
    send(conn, topic, "small")
    tick(conn, topic)
    found = rows(
        conn,
        "select length(payload) as length, md5(payload) as sum from pgque.receive(%s, 'c')",
        topic,
    )
    expected = value(conn, "select md5(repeat('ab', 50000000))")
    assert [message.length for message in found] == [100_000_000, 5]
    assert found[0].sum == expected
