"""The delivery contract as a program without a database: who sees what.

Everything that transactions may undo is in one store of keys and values: what is committed, and on
top of it what each open transaction has written, one layer for each savepoint. One statement runs
after the other, so a snapshot is a number: how many transactions had committed by then.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

START = dt.datetime(2040, 1, 1, tzinfo=dt.timezone.utc)


@dataclass(eq=False)
class Layer:
    """What a transaction did since its begin or its last savepoint."""

    writes: dict[Hashable, Any] = field(default_factory=dict)
    locks: set[Hashable] = field(default_factory=set)
    made: list[Made] = field(default_factory=list)


@dataclass(eq=False)
class Transaction:
    """One transaction; `commit_no` is its place in the order of commits."""

    isolated: bool = False
    notifies: bool = False
    prepared: str | None = None
    commit_no: int | None = None
    layers: list[Layer] = field(default_factory=lambda: [Layer()])

    @property
    def locks(self) -> set[Hashable]:
        """The locks that it holds."""
        return {lock for layer in self.layers for lock in layer.locks}

    @property
    def writes(self) -> dict[Hashable, Any]:
        """What it wrote, the newest value of each key."""
        return {key: value for layer in self.layers for key, value in layer.writes.items()}

    def merge(self) -> None:
        """Make the newest layer part of the one below it."""
        top = self.layers.pop()
        self.layers[-1].writes |= top.writes
        self.layers[-1].locks |= top.locks
        self.layers[-1].made += top.made

    def lock(self, lock: Hashable) -> None:
        """Take a lock; it goes with its savepoint."""
        self.layers[-1].locks.add(lock)


@dataclass(eq=False, kw_only=True)
class Made:
    """Something that exists if its transaction committed, savepoints included."""

    tx: Transaction
    queue: str
    undone: bool = False

    @property
    def commit_no(self) -> int | None:
        """When it came into being; None: not yet, or never."""
        return None if self.undone else self.tx.commit_no

    def seen_by(self, tx: Transaction) -> bool:
        """Say whether a statement of `tx` sees it."""
        return not self.undone and (tx is self.tx or self.tx.commit_no is not None)


@dataclass(eq=False, kw_only=True)
class Message(Made):
    """A message in the log: sent, come back after a nack, or replayed."""

    ev_id: int
    msg_id: int
    payload: str
    retry: int | None = None
    owner: int | None = None


@dataclass(eq=False, kw_only=True)
class Waiting(Made):
    """A message that was nacked and waits for its time."""

    message: Message
    owner: int
    due: dt.datetime
    retry: int


@dataclass(eq=False, kw_only=True)
class Tick(Made):
    """A tick: all that had committed when `at` transactions had."""

    tick_id: int
    at: int
    time: dt.datetime


@dataclass(frozen=True)
class Letter:
    """A dead letter that is there; replayed and purged ones are None in the store."""

    queue: str
    consumer: str
    payload: str


class World(NamedTuple):
    """Where a consumer may stand: settled up to `cursor`, and in (cursor, end] up to `position`."""

    cursor: int
    end: int | None = None
    position: int = 0


@dataclass(frozen=True)
class Batch:
    """What the latest hand-out of an open batch handed out, without what is settled."""

    batch_id: int
    messages: tuple[Message, ...]
    handed_to: int


@dataclass(frozen=True)
class Subscription:
    """A subscription; `uid` tells it from earlier ones of the same name."""

    uid: int
    queue: str
    consumer: str
    begin: int
    worlds: frozenset[World]
    batch: Batch | None = None
    deliveries: int = 0  # how often what comes next was handed out before; -99 is unknown

    @property
    def key(self) -> Hashable:
        """Where it is in the store."""
        return ("subscription", self.queue, self.consumer)

    @property
    def lock(self) -> Hashable:
        """What receive, ack and nack hold until their transaction ends."""
        return ("lock", self.uid)


class Model:
    """The whole state, and what each transaction sees of it."""

    def __init__(self) -> None:
        self.committed: dict[Hashable, Any] = {}
        self.commits = 0
        self.open: list[Transaction] = []
        self.log: list[Message] = []
        self.waiting: list[Waiting] = []
        self.ticks: list[Tick] = []
        self.paused: set[str] = set()
        self.max_retries = 5
        self.now = START

    def begin(self, *, isolated: bool = False) -> Transaction:
        """Open a transaction."""
        tx = Transaction(isolated=isolated)
        self.open.append(tx)
        return tx

    def commit(self, tx: Transaction) -> None:
        """Make all that it did come true."""
        self.open.remove(tx)
        self.commits += 1
        tx.commit_no = self.commits
        self.committed.update(tx.writes)

    def rollback(self, tx: Transaction, to: int = 0) -> None:
        """Undo all layers from `to` on; 0 ends the transaction."""
        for made in [made for layer in tx.layers[to:] for made in layer.made]:
            made.undone = True
        del tx.layers[to:]
        if to == 0:
            self.open.remove(tx)

    def get(self, tx: Transaction | None, key: Hashable) -> Any:
        """The value that `tx` sees; None if there is none. Without `tx`: what is committed."""
        for layer in reversed(tx.layers if tx else ()):
            if key in layer.writes:
                return layer.writes[key]
        return self.committed.get(key)

    def put(self, tx: Transaction, key: Hashable, value: Any) -> None:
        """Write a value; nobody else may have an uncommitted one."""
        assert not self.written(key, tx), f"two open transactions changed {key}"
        tx.layers[-1].writes[key] = value

    def written(self, key: Hashable, tx: Transaction | None) -> bool:
        """Say whether a transaction other than `tx` has an uncommitted value."""
        return any(key in other.writes for other in self.open if other is not tx)

    def locked(self, lock: Hashable, tx: Transaction | None) -> bool:
        """Say whether a transaction other than `tx` holds the lock."""
        return any(lock in other.locks for other in self.open if other is not tx)

    def make(self, tx: Transaction, made: Made) -> None:
        """Note what came into being; it goes with its savepoint."""
        tx.layers[-1].made.append(made)
        if isinstance(made, Message):
            self.log.append(made)
        elif isinstance(made, Waiting):
            self.waiting.append(made)
        elif isinstance(made, Tick):
            self.ticks.append(made)

    def subscriptions(self, tx: Transaction | None = None) -> list[Subscription]:
        """All that `tx` sees, in a fixed order."""
        keys = {*self.committed, *(tx.writes if tx else ())}
        names = sorted(key for key in keys if isinstance(key, tuple) and key[0] == "subscription")
        return [found for name in names if (found := self.get(tx, name))]

    def letters(self, tx: Transaction | None, queue: str) -> list[int]:
        """The dead letters of a queue that `tx` sees, by their ids."""
        keys = {*self.committed, *(tx.writes if tx else ())}
        ids = sorted(key[1] for key in keys if isinstance(key, tuple) and key[0] == "letter")
        found = ((dl_id, self.get(tx, ("letter", dl_id))) for dl_id in ids)
        return [dl_id for dl_id, letter in found if letter and letter.queue == queue]

    def newest_tick(self, tx: Transaction, queue: str) -> Tick | None:
        """The newest one that `tx` sees."""
        seen = [tick for tick in self.ticks if tick.queue == queue and tick.seen_by(tx)]
        return max(seen, key=lambda tick: tick.tick_id, default=None)

    def unseen(self, tx: Transaction, queue: str) -> list[Message]:
        """Committed messages that no tick shows yet that `tx` sees."""
        newest = self.newest_tick(tx, queue)
        at = newest.at if newest else 0
        return [m for m in self.log if m.queue == queue and (m.commit_no or 0) > at]

    def due(self, tx: Transaction | None, queue: str) -> list[Waiting]:
        """What a mover in `tx` has to move: committed, due, and its consumer still there."""
        uids = {sub.uid for sub in self.subscriptions(tx)}
        return [
            w
            for w in self.waiting
            if w.queue == queue
            and w.commit_no
            and w.due <= self.now
            and w.owner in uids
            and not self.get(tx, ("moved", w))
        ]
