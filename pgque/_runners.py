"""Running the handlers of a piece: in turn in this thread, or many at once in threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol

from pgque._dispatch import Dispatcher, Nack
from pgque._piece import Piece, Schedule
from pgque.errors import PgqueError
from pgque.messages import Message

# Seconds; so often there is a look at the time while no handler returns.
_LOOK_EVERY = 0.5


class Runner(Protocol):
    """Runs a piece's handlers and records what is done, until a stop or the loss of the piece."""

    def run(self, piece: Piece, progress: Callable[[], None]) -> None:
        """Call `progress` now and then, from this thread; what it raises ends the run."""
        ...

    def close(self) -> None: ...


class InTurn:
    """One after the other; a stop waits for the one in hand."""

    def __init__(self, dispatcher: Dispatcher, stopping: Callable[[], bool]) -> None:
        self._dispatcher = dispatcher
        self._stopping = stopping

    def run(self, piece: Piece, progress: Callable[[], None]) -> None:
        for index, message in enumerate(piece.messages):
            if self._stopping() or piece.lost:
                return
            piece.record(index, self._dispatcher.handle(message, self._stopping))
            progress()

    def close(self) -> None:
        pass


class AtOnce:
    """Up to so many at once, each in a thread; those of one key one after the other.

    This thread alone knows the piece; the others get one message at a time and say what became
    of it. After a stop, what is earlier in the piece than something that has started is still
    handled: a batch is settled from its start, and what is done must not be run again.
    """

    def __init__(
        self, dispatcher: Dispatcher, stopping: Callable[[], bool], threads: int, name: str
    ) -> None:
        self._dispatcher = dispatcher
        self._stopping = stopping
        self._tasks: queue.SimpleQueue[tuple[int, Message] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[int, Nack | None, BaseException | None]]
        self._results = queue.SimpleQueue()
        self._idle = threads
        # Daemons: the end of the process does not wait for handlers after a KeyboardInterrupt.
        self._threads = [
            threading.Thread(target=self._work, name=f"pgque-{name}-{number}", daemon=True)
            for number in range(threads)
        ]

    def run(self, piece: Piece, progress: Callable[[], None]) -> None:
        self._ensure_threads()
        schedule = Schedule(piece.messages)
        failure: BaseException | None = None
        while self._start_some(piece, schedule, failure):
            error = self._take_result(piece, schedule)
            failure = failure or error
            if failure is None:
                try:
                    progress()
                except PgqueError as error:  # raised when no handler runs any more
                    failure = error
        if failure is not None:
            raise failure

    def _start_some(self, piece: Piece, schedule: Schedule, failure: BaseException | None) -> bool:
        """Start what may start; False if there is nothing to wait for."""
        ending = failure is not None or self._stopping()
        broken = piece.lost or not isinstance(failure, PgqueError | None)
        while self._idle and not broken:
            index = schedule.next(only_gaps=ending)
            if index is None:
                break
            self._idle -= 1
            self._tasks.put((index, piece.messages[index]))
        return self._idle < len(self._threads)

    def _take_result(self, piece: Piece, schedule: Schedule) -> BaseException | None:
        """Wait for a handler to return, but not for long; return what only ends the process."""
        try:
            index, nack, error = self._results.get(timeout=_LOOK_EVERY)
        except queue.Empty:
            return None
        self._idle += 1
        if error is None:
            piece.record(index, nack)
            schedule.done(index)
        return error

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            index, message = task
            try:
                result = index, self._dispatcher.handle(message, self._stopping), None
            except BaseException as error:  # noqa: BLE001  (raised in the consumer's own thread)
                self._results.put((index, None, error))
            else:
                self._results.put(result)

    def _ensure_threads(self) -> None:
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def close(self) -> None:
        """End the threads; those whose handler still runs end with it."""
        for _ in self._threads:
            self._tasks.put(None)
        if self._idle == len(self._threads):
            for thread in self._threads:
                if thread.ident is not None:
                    thread.join()
