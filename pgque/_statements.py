"""Statements that send and consume, their parameters and what their rows mean. No I/O.

A `Call` is one statement with one decoder; the client and the consumer only run it. Arguments are
cast to the types of the functions, so that a number out of range is named as such and nothing is
left to the choice among overloaded functions. Arrays go in binary (`%b`): psycopg writes them ten
times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pgque._backoff import seconds
from pgque._dispatch import Nack, Settlement, clean_reason
from pgque._payload import Dumps, encode
from pgque.errors import PgqueInvalidArgument
from pgque.messages import Event, Message, message_from_row

if TYPE_CHECKING:
    from typing_extensions import LiteralString

T = TypeVar("T")
Row = tuple[Any, ...]


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
_MESSAGE = """
    select msg_id, batch_id, type, payload, retry_count, created_at,
           extra1, extra2, extra3, extra4, key, headers::text, delivery_count"""


def receive(queue: str, consumer: str, max_messages: int) -> Call[list[Message]]:
    query = _MESSAGE + " from pgque.receive(%s::text, %s::text, %s::int)"
    return Call(query, (queue, consumer, max_messages), _messages)


def _messages(rows: list[Row]) -> list[Message]:
    return [message_from_row(row) for row in rows]


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


def settle(settlement: Settlement) -> Iterator[Call[int]]:
    """Yield what has to run in one transaction; only the last two answer 0 for a closed batch."""
    batch = settlement.batch_id
    retries = [nack for nack in settlement.nacks if nack.delay is not None]
    dead = [nack for nack in settlement.nacks if nack.delay is None]
    if retries:
        yield _nack_all(batch, retries)
    if dead:
        yield _bury_all(batch, dead)
    if settlement.complete:
        yield ack(batch)
    elif settlement.ack_to is not None:
        yield ack_to(batch, settlement.ack_to)
    if settlement.release:
        yield release(batch)


def _nack_all(batch_id: int, nacks: Iterable[Nack]) -> Call[int]:
    query = """
        select pgque.nack(%s::bigint, n.msg_id, make_interval(secs => n.delay), n.reason)
          from unnest(%b::bigint[], %b::float8[], %b::text[]) as n (msg_id, delay, reason)"""
    columns = zip(*((nack.msg_id, nack.delay, nack.reason) for nack in nacks), strict=True)
    return Call(query, (batch_id, *map(list, columns)), len)


def _bury_all(batch_id: int, nacks: Iterable[Nack]) -> Call[int]:
    query = """
        select pgque.event_dead(%s::bigint, n.msg_id, n.reason)
          from unnest(%b::bigint[], %b::text[]) as n (msg_id, reason)"""
    columns = zip(*((nack.msg_id, nack.reason) for nack in nacks), strict=True)
    return Call(query, (batch_id, *map(list, columns)), len)


# What only says "here is a tick" or "this was handed out" need not wait for the disk: it is
# flushed before whatever commits later and depends on it, and a crash before that redelivers.


def consumer_tick(queue: str) -> Call[int | None]:
    query = "select set_config('synchronous_commit', 'off', true), pgque.tick_if_new(%s::text)"
    return Call(query, (queue,), lambda rows: rows[0][1])


def consumer_receive(queue: str, consumer: str, max_messages: int) -> Call[list[Message]]:
    query = (
        _MESSAGE
        + " from set_config('synchronous_commit', 'off', true),"
        + " pgque.receive(%s::text, %s::text, %s::int)"
    )
    return Call(query, (queue, consumer, max_messages), _messages)


def seconds_to_next_retry(queue: str) -> Call[float | None]:
    query = "select extract(epoch from pgque.next_retry_at(%s::text) - clock_timestamp())::float8"
    return Call(query, (queue,), value)


def mark_waiting(queue: str, waiting: bool) -> Call[None]:
    return Call("select pgque.mark_waiting(%s::text, %s::boolean)", (queue, waiting), nothing)


def probe() -> Call[int]:
    return Call("select 1", (), value)
