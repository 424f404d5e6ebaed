"""The part of a batch in hand: what may start, what is done, what to write for it. No I/O."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgque._dispatch import Nack
from pgque.messages import Message

_LARGEST = 1000
_FIRST = 16
_CHARACTERS = 8_000_000
# Seconds that a piece is to take, where another one waits for its end: the threads of one
# consumer, or the members of a group, which also want their share of what is there.
_SECONDS_AT_ONCE = 1.0
_SECONDS_SHARED = 0.25
_FIRST_SHARED = 4


@dataclass(frozen=True, slots=True)
class Settlement:
    """What to write for a batch: first the nacks, then the ack.

    `ack_to` is the last message up to which all are done, None if that is none. `complete` acks
    all that was handed out; else what follows `ack_to` is given back, if `release` says so.
    """

    batch_id: int
    nacks: tuple[Nack, ...]
    ack_to: int | None
    complete: bool
    release: bool


class Piece:
    """Its messages, which of them are done, and what failed. `lost`: it is not ours any more."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self.messages = tuple(messages)
        self.batch_id = self.messages[0].batch_id
        self.lost = False
        self._done = bytearray(len(self.messages))
        self._done_up_to = 0
        self._settled_up_to = 0
        self._nacks: dict[int, Nack] = {}

    def record(self, index: int, nack: Nack | None) -> None:
        """Note that one of the messages is done, with or without a nack."""
        self._done[index] = 1
        if nack is not None:
            self._nacks[index] = nack
        gap = self._done.find(0, self._done_up_to)
        self._done_up_to = len(self._done) if gap < 0 else gap

    def pending(self, *, leaving: bool) -> Settlement:
        """Return what is to be written now; with `leaving`, the last thing to be written.

        What is given back comes again, so then a nack of it is not written.
        """
        all_done = self._done_up_to == len(self.messages)
        news = self._done_up_to > self._settled_up_to
        release = leaving and not all_done
        return Settlement(
            batch_id=self.batch_id,
            nacks=tuple(
                self._nacks[index]
                for index in sorted(self._nacks)
                if not release or index < self._done_up_to
            ),
            ack_to=self.messages[self._done_up_to - 1].msg_id if news else None,
            complete=news and all_done,
            release=release,
        )

    def settled(self) -> None:
        """Note that what `pending` returned is written."""
        self._settled_up_to = self._done_up_to
        self._nacks.clear()


class Schedule:
    """Which message of a piece to start next: the earliest, but one of a key at a time."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._ready: list[int] = []  # a heap
        self._behind: dict[str, deque[int]] = {}  # by key, while one of that key is not done
        self._last_started = -1
        for index, message in enumerate(messages):
            if message.key is None:
                self._ready.append(index)
            elif message.key in self._behind:
                self._behind[message.key].append(index)
            else:
                self._behind[message.key] = deque()
                self._ready.append(index)

    def next(self, *, only_gaps: bool = False) -> int | None:
        """Take the next one, None if none may start; `only_gaps`: if a later one has started."""
        if not self._ready or (only_gaps and self._ready[0] > self._last_started):
            return None
        index = heapq.heappop(self._ready)
        self._last_started = max(self._last_started, index)
        return index

    def done(self, index: int) -> None:
        """Let the one behind it start, if it has a key."""
        key = self._messages[index].key
        if key is None:
            return
        if self._behind[key]:
            heapq.heappush(self._ready, self._behind[key].popleft())
        else:
            del self._behind[key]


class PieceSize:
    """How many messages to ask for: many small ones, few large ones, so that memory is bounded.

    With `slots` handlers at once, or `shared` with other members, also few slow ones: as many as
    keep all busy for a while.
    """

    def __init__(self, limit: int, *, slots: int = 1, shared: bool = False) -> None:
        self._limit = min(limit, _LARGEST)
        self._slots = slots
        self._smallest = 1 if slots == 1 else slots * (2 if shared else 4)
        self._seconds = _SECONDS_SHARED if shared else _SECONDS_AT_ONCE if slots > 1 else None
        self._fast_enough = self._limit
        first = _FIRST_SHARED if shared else _FIRST
        self.value = min(self._limit, max(first, self._smallest))

    def learn(self, messages: int, characters: int) -> None:
        """Adapt to the payloads' length in the piece just received."""
        fitting = _CHARACTERS * messages // max(characters, 1)
        wanted = max(min(self.value * 2, self._fast_enough), self._smallest)
        self.value = max(1, min(fitting, wanted, self._limit))

    def took(self, messages: int, seconds: float) -> None:
        """Adapt to the time that the handlers of a piece needed."""
        if self._seconds is None:
            return
        fitting = round(self._seconds * messages / max(seconds, 1e-9))
        rounded = -(-fitting // self._slots) * self._slots
        self._fast_enough = max(rounded, self._smallest)
        self.value = max(1, min(self.value, self._fast_enough))
