"""The part of the client that manages and looks."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pgque import _admin_statements as statements
from pgque._statements import Call, T
from pgque.records import ComponentStatus, ConsumerInfo, DeadLetterRecord, QueueInfo, ReplayResult


class AdminMethods(ABC):
    """Queues, ticks, upkeep, monitoring and dead letters: one method for one SQL function."""

    @abstractmethod
    def _run(self, call: Call[T]) -> T: ...

    # queues

    def create_queue(self, queue: str, options: Mapping[str, Any] | None = None) -> int:
        """Create a queue: 1, or 0 if it is there already. Options as in `set_queue_config`.

        Raises `PgqueInvalidName`, `PgqueInvalidConfig`.
        """
        return self._run(statements.create_queue(queue, options))

    def drop_queue(self, queue: str, force: bool = False) -> int:
        """Drop a queue with its messages; `PgqueQueueInUse` if it has consumers and not `force`."""
        return self._run(statements.drop_queue(queue, force))

    def set_queue_config(self, queue: str, param: str, value: object) -> int:
        """Set one parameter of a queue; None takes the default back.

        Durations may be timedeltas. Raises `PgqueInvalidConfig` with the range allowed.
        """
        return self._run(statements.set_queue_config(queue, param, value))

    def pause_queue(self, queue: str) -> None:
        """Stop delivery; sending goes on."""
        self._run(statements.pause_queue(queue))

    def resume_queue(self, queue: str) -> None:
        """Let delivery go on."""
        self._run(statements.resume_queue(queue))

    # ticks and upkeep

    def ticker(self, queue: str) -> int | None:
        """Make a tick if the queue's settings call for one now: its id, else None."""
        return self._run(statements.ticker(queue))

    def ticker_all(self) -> int:
        """Make the ticks that are due in all queues, and return their number."""
        return self._run(statements.ticker_all())

    def tick_if_new(self, queue: str) -> int | None:
        """Make a tick at once if there is anything new to be seen: its id, else None.

        It must be a READ COMMITTED transaction of its own.
        """
        return self._run(statements.tick_if_new(queue))

    def force_next_tick(self, queue: str) -> int | None:
        """Make the next `ticker` call tick; the id of the last tick, None if there is none."""
        return self._run(statements.force_next_tick(queue))

    def force_tick(self, queue: str) -> int | None:
        """Deprecated name of `force_next_tick`."""
        warnings.warn("force_tick is now force_next_tick", DeprecationWarning, stacklevel=2)
        return self.force_next_tick(queue)

    def maint(self) -> int:
        """Do one pass of upkeep: due retries, rotation, state."""
        return self._run(statements.maint())

    # looking

    def version(self) -> str:
        """Return the version of the installed schema; raise `PgqueNotInstalled` without one."""
        return self._run(statements.version())

    def status(self) -> list[ComponentStatus]:
        """Say for each part of the installation how it does and what to call."""
        return self._run(statements.status())

    def queue_info(self, queue: str | None = None) -> list[QueueInfo]:
        """Describe one queue, or all. Calls `pgque.get_queue_info`."""
        return self._run(statements.queue_info(queue))

    def consumer_info(
        self, queue: str | None = None, consumer: str | None = None
    ) -> list[ConsumerInfo]:
        """Describe one subscription, a queue's, or all. Calls `pgque.get_consumer_info`."""
        return self._run(statements.consumer_info(queue, consumer))

    # dead letters

    def dlq_inspect(self, queue: str, limit: int = 100) -> list[DeadLetterRecord]:
        """Return up to `limit` of a queue's dead letters."""
        return self._run(statements.dlq_inspect(queue, limit))

    def dlq_replay(self, dead_letter_id: int) -> int:
        """Give a dead letter back to the consumer that failed; the id of the new message.

        Raises `PgqueDeadLetterNotFound`, also where another replay was faster.
        """
        return self._run(statements.dlq_replay(dead_letter_id))

    def dlq_replay_all(self, queue: str) -> ReplayResult:
        """Replay all dead letters of a queue; one that can't be replayed does not stop the rest."""
        return self._run(statements.dlq_replay_all(queue))

    def dlq_purge(self, queue: str, older_than: timedelta = timedelta(days=30)) -> int:
        """Delete a queue's older dead letters, and return their number."""
        return self._run(statements.dlq_purge(queue, older_than))
