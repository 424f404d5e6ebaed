"""The delivery contract as a program without a database: what is handed out, and what is settled.

Where a window ends, the contract leaves to the engine: at any tick that the consumer can see. So a
subscription is a set of possible worlds, and each hand-out strikes out those that it cannot come
from. If none is left, the engine broke its word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.property.model import Batch, Message, Model, Subscription, Transaction, World

END = 2**62


def content(model: Model, sub: Subscription, world: World) -> list[Message]:
    """What is left of a window, in the order in which it has to come."""
    found = [
        m
        for m in model.log
        if m.queue == sub.queue
        and m.commit_no is not None
        and world.cursor < m.commit_no <= (world.end or 0)
        and m.ev_id > world.position
        and m.owner in (None, sub.uid)
    ]
    return sorted(found, key=lambda m: m.ev_id)


def rounded(model: Model, queue: str, number: int) -> int:
    """The last commit up to `number` that brought something into the queue."""
    numbers = (m.commit_no or 0 for m in model.log if m.queue == queue)
    return max((n for n in numbers if n <= number), default=0)


def windows(model: Model, tx: Transaction, sub: Subscription, cursor: int) -> list[World]:
    """The windows that begin at `cursor`: up to each tick. Those without a difference are one."""
    begin = rounded(model, sub.queue, cursor)
    ends = {
        rounded(model, sub.queue, tick.at)
        for tick in model.ticks
        if tick.queue == sub.queue and tick.seen_by(tx)
    }
    return [World(begin, end) for end in sorted(ends) if end >= begin]


def hand_outs(
    model: Model, tx: Transaction, sub: Subscription
) -> Iterator[tuple[World, World, list[Message]]]:
    """Each world, with each window that its next hand-out may be of, and what is left there."""
    for world in sub.worlds:
        if rest := content(model, sub, world):
            yield world, world, rest
        else:
            cursor = world.cursor if world.end is None else world.end
            for window in windows(model, tx, sub, cursor):
                yield world, window, content(model, sub, window)


def received(
    model: Model, tx: Transaction, sub: Subscription, batch_id: int, ids: list[int], limit: int
) -> Subscription:
    """The subscription after a hand-out, or AssertionError."""
    if sub.batch and sub.batch.messages:  # comes again, perhaps less of it
        piece = sub.batch.messages[:limit]
        assert (batch_id, ids) == (sub.batch.batch_id, [m.msg_id for m in piece])
        return replace(
            sub, batch=Batch(batch_id, piece, piece[-1].ev_id), deliveries=sub.deliveries + 1
        )
    assert not sub.batch or batch_id != sub.batch.batch_id, "a settled batch comes again"
    pieces = {window: rest[:limit] for _, window, rest in hand_outs(model, tx, sub) if rest}
    fit = {w: piece for w, piece in pieces.items() if [m.msg_id for m in piece] == ids}
    wanted = [[m.msg_id for m in piece] for piece in pieces.values()]
    assert fit, f"handed out {ids}, instead of one of {wanted}"
    piece = tuple(next(iter(fit.values())))
    return replace(
        sub,
        worlds=frozenset(fit),
        batch=Batch(batch_id, piece, piece[-1].ev_id),
        deliveries=sub.deliveries + 1,
    )


def received_nothing(model: Model, tx: Transaction, sub: Subscription) -> Subscription:
    """The subscription after a receive that gave nothing, or AssertionError."""
    busy = {world for world, _, rest in hand_outs(model, tx, sub) if rest}
    worlds = {World(w.cursor if w.end is None else w.end) for w in sub.worlds - busy}
    assert worlds, "handed out nothing, although a tick shows more"
    return replace(sub, worlds=frozenset(worlds), batch=None, deliveries=0)


def opened(
    model: Model, tx: Transaction, sub: Subscription, batch_id: int | None, ids: list[int]
) -> Subscription:
    """The subscription after a next_batch, which opens the rest of a window, or AssertionError."""
    if batch_id is None:
        received_nothing(model, tx, sub)
        assert not sub.batch, "next_batch gives nothing, although a batch is open"
        return sub
    assert sub.batch is None or sub.batch.batch_id == batch_id
    worlds, handed = set(), list[Message]()
    for world in sub.worlds:
        for window in windows(model, tx, sub, world.cursor) if world.end is None else [world]:
            whole = content(model, sub, window)
            if [m.msg_id for m in whole] == ids:
                worlds.add(window)
                handed = whole
    assert worlds, f"batch {batch_id} is {ids}"
    batch = Batch(batch_id, tuple(handed), END)
    return replace(sub, worlds=frozenset(worlds), batch=batch, deliveries=-99)


def settled_to(sub: Subscription, ev_id: int) -> Subscription:
    """The subscription after an ack_to."""
    assert sub.batch
    worlds = {World(w.cursor, w.end, max(w.position, ev_id)) for w in sub.worlds}
    rest = tuple(m for m in sub.batch.messages if m.ev_id > ev_id)
    return replace(
        sub,
        worlds=frozenset(worlds),
        batch=replace(sub.batch, messages=rest),
        deliveries=sub.deliveries if rest else 0,
    )


def settled(model: Model, sub: Subscription) -> Subscription:
    """The subscription after an ack: what the batch handed out is done, not more."""
    assert sub.batch
    moved = settled_to(sub, sub.batch.handed_to)
    worlds = {w if content(model, sub, w) else World(w.end or w.cursor) for w in moved.worlds}
    return replace(moved, worlds=frozenset(worlds), batch=None)


def released(sub: Subscription) -> Subscription:
    """The subscription after a release: as if the batch had not been handed out."""
    return replace(sub, batch=None, deliveries=sub.deliveries - 1 if sub.deliveries else 0)
