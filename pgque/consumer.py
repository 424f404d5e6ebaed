"""The consumer: receives, hands each message to its handler, and settles, until it is stopped."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Literal

from psycopg_pool import ConnectionPool

from pgque._connections import open_connection
from pgque._dispatch import Dispatcher, H, RetryAfter
from pgque._loop import ConsumerLoop, Subscription
from pgque._session import Connection, OwnConnection, PooledConnections, Session, Source
from pgque._signals import stop_on_signals
from pgque._wakeup import Alarm, Listener
from pgque._watchdog import Watchdog

_log = logging.getLogger("pgque.consumer")


class Consumer:
    """Handles a queue's messages in the name of one subscribed consumer.

    `dsn` is a connection string or a `psycopg_pool.ConnectionPool`; no connection is in a
    transaction while a handler runs. Times are in seconds.

    - `poll_interval`: the longest wait when nothing is heard; without `listen`, every wait.
    - `max_messages`: the most to receive at once. Larger batches come piece by piece, and less
      is asked for where payloads are large.
    - `retry_after`: when a message whose handler raised comes again; a number, a timedelta or
      a `Backoff`.
    - `unknown_handler_policy`: what becomes of types that have no handler, where "*" has none.
    - `listen`: wake up by NOTIFY, on a second connection; `listen_dsn` is for that one, where
      `dsn` leads to a PgBouncer in transaction mode.
    - `prepare_threshold`: psycopg's, for connections opened here; None turns prepared
      statements off.
    - `answer_timeout`: a connection on which no answer came for so long counts as lost.
    """

    def __init__(
        self,
        dsn: str | ConnectionPool[Any] = "",
        *,
        queue: str,
        name: str,
        poll_interval: float = 30,
        max_messages: int = 2_147_483_647,
        retry_after: RetryAfter = 60,
        unknown_handler_policy: Literal["nack", "ack"] = "nack",
        listen: bool = True,
        listen_dsn: str | None = None,
        install_signal_handlers: bool = True,
        prepare_threshold: int | None = 5,
        answer_timeout: float = 60,
    ) -> None:
        if not 0 < poll_interval <= 86_400 or not answer_timeout > 0:
            raise ValueError("poll_interval is from 0 to 86,400 seconds, answer_timeout above 0")
        if not 1 <= max_messages <= 2_147_483_647:
            raise ValueError("max_messages is from 1 to 2147483647")
        self.queue = queue
        self.name = name
        self._dsn = dsn
        self._subscription = Subscription(queue, name, poll_interval, max_messages)
        self._dispatcher = Dispatcher(unknown_handler_policy, retry_after)
        self._listen = listen
        self._listen_dsn = listen_dsn
        self._install_signal_handlers = install_signal_handlers
        self._prepare_threshold = prepare_threshold
        self._answer_timeout = answer_timeout
        self._stop_requested = False
        self._alarm: Alarm | None = None

    def __repr__(self) -> str:
        return f"<pgque.Consumer {self.name!r} of queue {self.queue!r}>"

    def on(self, event_type: str) -> Callable[[H], H]:
        """Register the decorated function for messages of a type; "*" takes all other types.

        It gets the `Message`, and what it returns is ignored. Returning means done; an exception
        nacks the message; `Retry` and `DeadLetter` decide themselves.
        """

        def register(handler: H) -> H:
            return self._dispatcher.add(event_type, handler)

        return register

    def start(self) -> None:
        """Handle messages until `stop`, SIGTERM or SIGINT; then settle what is done and return.

        A lost connection is made again for ever. Raises what no new try heals, such as
        `PgqueQueueNotFound` and `PgqueConsumerNotFound` (the consumer is not subscribed).
        """
        if self._alarm is not None:
            raise RuntimeError(f"{self!r} is running already")
        with contextlib.ExitStack() as stack:
            self._alarm = Alarm()
            stack.callback(self._end)
            if self._install_signal_handlers:
                stack.enter_context(stop_on_signals(self.stop))
            loop = self._build(stack, self._alarm)
            _log.info("consumer %r of queue %r: started", self.name, self.queue)
            loop.run()
            _log.info("consumer %r of queue %r: stopped", self.name, self.queue)

    def stop(self) -> None:
        """Let `start` return after the message in hand; from any thread, handler, or signal.

        What is done is settled and not run again; the rest is given back undelivered. Before
        `start`, it makes that return at once.
        """
        self._stop_requested = True
        alarm = self._alarm
        if alarm is not None:
            alarm.ring()

    def _build(self, stack: contextlib.ExitStack, alarm: Alarm) -> ConsumerLoop:
        watchdog = Watchdog(self._answer_timeout, self._stopping)
        stack.callback(watchdog.close)
        source = self._source(watchdog)
        stack.callback(source.close)
        listener = None
        if self._listen:
            listener = Listener(self._listening(source), self.queue, watchdog)
            stack.callback(listener.close)
        session = Session(source, watchdog)
        return ConsumerLoop(
            self._subscription, self._dispatcher, session, listener, alarm, self._stopping
        )

    def _source(self, watchdog: Watchdog) -> Source:
        if isinstance(self._dsn, ConnectionPool):
            return PooledConnections(self._dsn, watchdog)
        return OwnConnection(self._dsn, self._application_name(), self._prepare_threshold)

    def _listening(self, source: Source) -> Callable[[], Connection]:
        dsn = self._listen_dsn
        if dsn is None:
            return source.open_another
        name = self._application_name()
        return lambda: open_connection(dsn, autocommit=True, application_name=name)

    def _application_name(self) -> str:
        return f"pgque {self.name}"

    def _stopping(self) -> bool:
        return self._stop_requested

    def _end(self) -> None:
        alarm, self._alarm = self._alarm, None
        self._stop_requested = False
        if alarm is not None:
            alarm.close()
