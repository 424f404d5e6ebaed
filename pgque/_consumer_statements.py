"""Statements that only the consumer's loop runs. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pgque._dispatch import Nack
from pgque._piece import Settlement
from pgque._statements import (
    MESSAGE,
    RECEIVE_COOP,
    Call,
    ack,
    ack_to,
    interval,
    messages,
    nothing,
    release,
    value,
)
from pgque.messages import Message


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


_LAZY = MESSAGE + " from set_config('synchronous_commit', 'off', true), "


def tick(queue: str) -> Call[int | None]:
    query = "select set_config('synchronous_commit', 'off', true), pgque.tick_if_new(%s::text)"
    return Call(query, (queue,), lambda rows: rows[0][1])


def receive(queue: str, consumer: str, max_messages: int) -> Call[list[Message]]:
    query = _LAZY + "pgque.receive(%s::text, %s::text, %s::int)"
    return Call(query, (queue, consumer, max_messages), messages)


def receive_coop(
    queue: str, consumer: str, member: str, max_messages: int, dead_interval: float | None
) -> Call[list[Message]]:
    params = (queue, consumer, member, max_messages, interval(dead_interval))
    return Call(_LAZY + RECEIVE_COOP, params, messages)


def seconds_to_next_retry(queue: str, consumer: str) -> Call[float | None]:
    query = """
        select extract(epoch from due - clock_timestamp())::float8
          from pgque.next_retry_at(%s::text, %s::text) as due"""
    return Call(query, (queue, consumer), value)


def mark_waiting(queue: str, waiting: bool) -> Call[None]:
    return Call("select pgque.mark_waiting(%s::text, %s::boolean)", (queue, waiting), nothing)


def probe() -> Call[int]:
    return Call("select 1", (), value)
