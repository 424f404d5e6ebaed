"""Statements that send and consume, their parameters and what their rows mean. No I/O.

A `Call` is one statement with one decoder; the client and the consumer only run it. Arguments are
cast to the types of the functions, so that a number out of range is named as such and nothing is
left to the choice among overloaded functions. Arrays go in binary (`%b`): psycopg writes them ten
times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pgque._backoff import seconds
from pgque._dispatch import clean_reason
from pgque._payload import Dumps, encode
from pgque.errors import PgqueInvalidArgument
from pgque.messages import Event, Message, message_from_row

if TYPE_CHECKING:
    from typing_extensions import LiteralString

T = TypeVar("T")
Row = tuple[Any, ...]
Interval = float | timedelta | str | None
"""Seconds, a timedelta, or PostgreSQL's way to write an interval; None for none."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One statement: run it with `params` and binary results, then `decode` all its rows."""

    query: LiteralString
    params: Sequence[Any]
    decode: Callable[[list[Row]], T]


def value(rows: list[Row]) -> Any:
    return rows[0][0]


def nothing(_rows: list[Row]) -> None:
    return None


# sending


def send(queue: str, event: Event, dumps: Dumps | None) -> Call[int]:
    query = "select pgque.send(%s::text, %s::text, %s::text, %s::text, %s::jsonb)"
    payload = encode(event.payload, dumps)
    params = (queue, event.type, payload, event.key, _headers(event.headers))
    return Call(query, params, value)


def send_batch(
    queue: str, type: str, events: Sequence[Event], dumps: Dumps | None
) -> Call[list[int]]:
    """One statement for all, so that they are sent all or not at all, also in autocommit mode."""
    payloads = [encode(event.payload, dumps) for event in events]
    keys = [event.key for event in events]
    headers = [_headers(event.headers) for event in events]
    types = {event.type for event in events} or {type}
    if len(types) > 1:
        return _send_mixed(queue, [event.type for event in events], payloads, keys, headers)
    query = (
        "select pgque.send_batch(%s::text, %s::text, %b::text[], %b::text[], %b::text[]::jsonb[])"
    )
    params = (
        *(queue, types.pop(), payloads),
        keys if any(key is not None for key in keys) else None,
        headers if any(header is not None for header in headers) else None,
    )
    return Call(query, params, value)


def _send_mixed(queue: str, *columns: Sequence[str | None]) -> Call[list[int]]:
    query = """
        select pgque.send(%s::text, e.type, e.payload, e.key, e.headers::jsonb)
          from unnest(%b::text[], %b::text[], %b::text[], %b::text[])
               as e (type, payload, key, headers)"""
    return Call(query, (queue, *columns), lambda rows: [row[0] for row in rows])


def _headers(headers: Mapping[str, Any] | None) -> str | None:
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise PgqueInvalidArgument(f"headers are a mapping, not {type(headers).__name__}")
    return encode(dict(headers))


# consuming


def subscribe(queue: str, consumer: str) -> Call[int]:
    return Call("select pgque.subscribe(%s::text, %s::text)", (queue, consumer), value)


def unsubscribe(queue: str, consumer: str) -> Call[int]:
    return Call("select pgque.unsubscribe(%s::text, %s::text)", (queue, consumer), value)


# Headers come as text: a number in them may be beyond what Python reads, and one bad message
# must not keep the driver from handing over the others.
MESSAGE = """
    select msg_id, batch_id, type, payload, retry_count, created_at,
           extra1, extra2, extra3, extra4, key, headers::text, delivery_count"""


def receive(queue: str, consumer: str, max_messages: int) -> Call[list[Message]]:
    query = MESSAGE + " from pgque.receive(%s::text, %s::text, %s::int)"
    return Call(query, (queue, consumer, max_messages), messages)


def messages(rows: list[Row]) -> list[Message]:
    return [message_from_row(row) for row in rows]


# members of a cooperative consumer


def subscribe_subconsumer(
    queue: str, consumer: str, subconsumer: str, convert_normal: bool
) -> Call[int]:
    query = "select pgque.subscribe_subconsumer(%s::text, %s::text, %s::text, %s::boolean)"
    return Call(query, (queue, consumer, subconsumer, convert_normal), value)


def unsubscribe_subconsumer(
    queue: str, consumer: str, subconsumer: str, batch_handling: int
) -> Call[int]:
    query = "select pgque.unsubscribe_subconsumer(%s::text, %s::text, %s::text, %s::int)"
    return Call(query, (queue, consumer, subconsumer, batch_handling), value)


def touch_subconsumer(queue: str, consumer: str, subconsumer: str) -> Call[int]:
    query = "select pgque.touch_subconsumer(%s::text, %s::text, %s::text)"
    return Call(query, (queue, consumer, subconsumer), value)


RECEIVE_COOP = "pgque.receive_coop(%s::text, %s::text, %s::text, %s::int, %s::interval)"


def receive_coop(
    queue: str, consumer: str, subconsumer: str, max_messages: int, dead_interval: Interval
) -> Call[list[Message]]:
    params = (queue, consumer, subconsumer, max_messages, interval(dead_interval))
    return Call(MESSAGE + " from " + RECEIVE_COOP, params, messages)


def interval(given: Interval) -> str | None:
    if given is None or isinstance(given, str):
        return given
    return f"{_finite(given):.6f} seconds"


# settling


def ack(batch_id: int) -> Call[int]:
    return Call("select pgque.ack(%s::bigint)", (batch_id,), value)


def ack_to(batch_id: int, msg_id: int) -> Call[int]:
    return Call("select pgque.ack_to(%s::bigint, %s::bigint)", (batch_id, msg_id), value)


def nack(
    batch_id: int, msg_id: int, retry_after: float | timedelta, reason: str | None
) -> Call[int]:
    query = "select pgque.nack(%s::bigint, %s::bigint, make_interval(secs => %s::float8), %s::text)"
    clean = None if reason is None else clean_reason(reason)
    return Call(query, (batch_id, msg_id, _finite(retry_after), clean), value)


def _finite(delay: float | timedelta) -> float:
    try:
        value = seconds(delay)
    except ValueError as error:
        raise PgqueInvalidArgument(str(error)) from None
    if math.isinf(value):
        raise PgqueInvalidArgument("a delay can't be infinite")
    return value


def release(batch_id: int) -> Call[int]:
    return Call("select pgque.release(%s::bigint)", (batch_id,), value)
