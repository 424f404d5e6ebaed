"""The consumer: receives, hands each message to its handler, and settles, until it is stopped."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

from psycopg_pool import ConnectionPool

from pgque._backoff import LONGEST_DELAY, seconds
from pgque._connections import open_connection
from pgque._dispatch import Dispatcher, H, RetryAfter
from pgque._lease import Heartbeats
from pgque._loop import ConsumerLoop
from pgque._piece import PieceSize
from pgque._runners import AtOnce, InTurn, Runner
from pgque._session import Connection, OwnConnection, PooledConnections, Session, Source
from pgque._signals import stop_on_signals
from pgque._subscription import Subscription, new_member_name
from pgque._wakeup import Alarm, Listener
from pgque._watchdog import Watchdog

_log = logging.getLogger("pgque.consumer")

# Seconds. Nobody comes back under a made-up name, so what such a member held has to go to others.
_DEAD_IF_NAMELESS = 60.0


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

    Several workers share a cooperative consumer, each as a member of its own:

    - `subconsumer`: the member's name, which stays registered; or True for one made from host,
      process and a random part, which leaves when `start` returns. Pieces are small, so that
      all members get some of a backlog.
    - `dead_interval`: seconds or a timedelta; a piece whose member was not heard of for so long
      is taken over, by the next member that asks. None: never, for a member with a name, which
      gets its piece again itself; after a minute, for one without. While a handler runs, a
      small process gives signs of life, so what is slow is not taken for dead; on Linux, a
      process that was stopped (SIGSTOP) counts as dead. Who lost a piece settles nothing of it
      any more.

    Handlers may run at once, in threads:

    - `concurrency`: so many at most; messages of one key, if they have one, still one after the
      other in their order. The next piece is received when the last message of this one is
      done; pieces are as large as keeps all threads busy for about a second. Settled is what
      is done up to the first message that is not. After a stop, messages that stand before one
      that has started are still handled.
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
        subconsumer: str | Literal[True] | None = None,
        dead_interval: float | timedelta | None = None,
        concurrency: int = 1,
    ) -> None:
        if not 0 < poll_interval <= 86_400 or not answer_timeout > 0:
            raise ValueError("poll_interval is from 0 to 86,400 seconds, answer_timeout above 0")
        if not 1 <= max_messages <= 2_147_483_647:
            raise ValueError("max_messages is from 1 to 2147483647")
        if not 1 <= concurrency <= 1000:
            raise ValueError("concurrency is from 1 to 1000")
        self.queue = queue
        self.name = name
        self._dsn = dsn
        self._subscription = Subscription(
            *(queue, name, poll_interval, max_messages),
            **_membership(subconsumer, dead_interval),
        )
        self._concurrency = concurrency
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
            at = self._subscription
            if at.passing:
                at = replace(at, member=new_member_name())
            loop = self._build(at, stack, self._alarm)
            _log.info("%s: started", at)
            loop.run()
            _log.info("%s: stopped", at)

    def stop(self) -> None:
        """Let `start` return after the message in hand; from any thread, handler, or signal.

        What is done is settled and not run again; the rest is given back undelivered. Before
        `start`, it makes that return at once.
        """
        self._stop_requested = True
        alarm = self._alarm
        if alarm is not None:
            alarm.ring()

    def _build(self, at: Subscription, stack: contextlib.ExitStack, alarm: Alarm) -> ConsumerLoop:
        watchdog = Watchdog(self._answer_timeout, self._stopping)
        stack.callback(watchdog.close)
        source = self._source(at, watchdog)
        stack.callback(source.close)
        listener = heartbeats = None
        if self._listen:
            listener = Listener(self._listening(at, source), self.queue, watchdog)
            stack.callback(listener.close)
        if at.member is not None and at.dead_interval is not None:
            heartbeats = Heartbeats(
                source.conninfo, at.queue, at.consumer, at.member, at.dead_interval
            )
            stack.callback(heartbeats.close)
        runner = self._runner()
        stack.callback(runner.close)
        shared = at.member is not None
        size = PieceSize(at.max_messages, slots=self._concurrency, shared=shared)
        session = Session(source, watchdog)
        return ConsumerLoop(at, size, runner, session, listener, heartbeats, alarm, self._stopping)

    def _runner(self) -> Runner:
        if self._concurrency == 1:
            return InTurn(self._dispatcher, self._stopping)
        return AtOnce(self._dispatcher, self._stopping, self._concurrency, self.name)

    def _source(self, at: Subscription, watchdog: Watchdog) -> Source:
        if isinstance(self._dsn, ConnectionPool):
            return PooledConnections(self._dsn, watchdog)
        return OwnConnection(self._dsn, at.session_name, self._prepare_threshold)

    def _listening(self, at: Subscription, source: Source) -> Callable[[], Connection]:
        dsn = self._listen_dsn
        if dsn is None:
            return source.open_another
        return lambda: open_connection(dsn, autocommit=True, application_name=at.session_name)

    def _stopping(self) -> bool:
        return self._stop_requested

    def _end(self) -> None:
        alarm, self._alarm = self._alarm, None
        self._stop_requested = False
        if alarm is not None:
            alarm.close()


def _membership(
    subconsumer: str | Literal[True] | None, dead_interval: float | timedelta | None
) -> dict[str, Any]:
    """Return what a `Subscription` says of the member; raise ValueError for nonsense."""
    if subconsumer is None:
        if dead_interval is not None:
            raise ValueError("dead_interval is for a subconsumer")
        return {}
    if not subconsumer:
        raise ValueError("subconsumer is a name, or True for one that is made up")
    silent = None if dead_interval is None else seconds(dead_interval)
    if silent is not None and not 0.001 <= silent <= LONGEST_DELAY:
        raise ValueError(f"dead_interval is from a millisecond to ten years, not {dead_interval!r}")
    passing = subconsumer is True
    if passing and silent is None:
        silent = _DEAD_IF_NAMELESS
    return {
        "member": None if passing else subconsumer,
        "passing": passing,
        "dead_interval": silent,
    }
