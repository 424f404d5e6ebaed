"""The client: one method for one SQL function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psycopg

from pgque import _statements as statements
from pgque._connections import open_connection, run
from pgque._payload import Dumps
from pgque._statements import Call, Interval, T
from pgque.admin import AdminMethods
from pgque.errors import PgqueInvalidArgument, translated
from pgque.messages import Event, Message

if TYPE_CHECKING:
    from typing_extensions import Self


def connect(
    dsn: str = "", *, autocommit: bool = False, prepare_threshold: int | None = 5
) -> PgqueClient:
    """Connect and return a client that owns its connection.

    `dsn` is libpq's; what it leaves out comes from libpq's environment variables.
    `prepare_threshold` is psycopg's: None behind a PgBouncer that knows no prepared statements.
    Raises `PgqueConnectionError`.
    """
    conn = open_connection(dsn, autocommit=autocommit, prepare_threshold=prepare_threshold)
    client = PgqueClient(conn)
    client._owned = True
    return client


class PgqueClient(AdminMethods):
    """Calls the SQL functions on a connection of the caller's, within the caller's transactions.

    It never commits, closes or reconfigures that connection. A client from `connect` owns its
    connection, `conn`: as with psycopg, leaving a `with` block commits, or rolls back after an
    exception, and closes.
    """

    _owned = False

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._owned:
            with translated():
                self.conn.__exit__(kind, error, trace)

    def close(self) -> None:
        """Close the connection if this client owns it; what is not committed is lost."""
        if self._owned:
            self.conn.close()

    def _run(self, call: Call[T]) -> T:
        return run(self.conn, call)

    # sending

    def send(
        self,
        queue: str,
        payload: Any,
        *,
        type: str = "default",
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        dumps: Dumps | None = None,
    ) -> int:
        """Send one message and return its id.

        The payload is any value that JSON can hold, `RawJson`, or an `Event`, which brings its
        own type, key and headers. Tuples come back as lists; `dumps` replaces `json.dumps`.
        Raises `PgquePayloadError` before anything is sent, `PgqueQueueNotFound`,
        `PgqueQueueDisabled`.
        """
        if isinstance(payload, Event):
            if key is not None or headers is not None:
                raise PgqueInvalidArgument("an Event brings its own key and headers")
            event = payload
        else:
            event = Event(payload, type, key, headers)
        return self._run(statements.send(queue, event, dumps))

    def send_batch(
        self, queue: str, type: str, payloads: Iterable[Any], *, dumps: Dumps | None = None
    ) -> list[int]:
        """Send many messages at once, all or none, and return their ids in the same order.

        An `Event` among the payloads keeps its own type. Errors as of `send`; an empty list
        sends nothing and returns [].
        """
        events = [p if isinstance(p, Event) else Event(p, type) for p in payloads]
        return self._run(statements.send_batch(queue, type, events, dumps))

    # consuming

    def subscribe(self, queue: str, consumer: str) -> int:
        """Subscribe to what is sent after this is committed: 1, or 0 if subscribed already."""
        return self._run(statements.subscribe(queue, consumer))

    def unsubscribe(self, queue: str, consumer: str) -> int:
        """End a subscription: 1, or 0 if there was none."""
        return self._run(statements.unsubscribe(queue, consumer))

    def receive(self, queue: str, consumer: str, max_messages: int = 100) -> list[Message]:
        """Return the next messages, all of one batch; [] if no tick has made any visible.

        Until they are acked, the same come again under the same batch id.
        """
        return self._run(statements.receive(queue, consumer, max_messages))

    def subscribe_subconsumer(
        self, queue: str, consumer: str, subconsumer: str, convert_normal: bool = False
    ) -> int:
        """Make a subconsumer a member of a cooperative consumer: 1, or 0 if it is one already.

        A consumer that does not exist is subscribed. `convert_normal` makes a normal one
        cooperative, in its place; without it that is a `PgqueCooperativeMisuse`.
        """
        call = statements.subscribe_subconsumer(queue, consumer, subconsumer, convert_normal)
        return self._run(call)

    def unsubscribe_subconsumer(
        self, queue: str, consumer: str, subconsumer: str, batch_handling: int = 0
    ) -> int:
        """Remove a member: 1, or 0 if there is none of that name.

        With an open batch, `batch_handling` 0 raises `PgqueCooperativeMisuse`, and 1 sends its
        messages through retry or dead letter.
        """
        call = statements.unsubscribe_subconsumer(queue, consumer, subconsumer, batch_handling)
        return self._run(call)

    def receive_coop(
        self,
        queue: str,
        consumer: str,
        subconsumer: str,
        max_messages: int = 100,
        dead_interval: Interval = None,
    ) -> list[Message]:
        """Return a member's next messages, all of one batch; [] if there are none for it now.

        What is missing is subscribed. `dead_interval` (seconds, a timedelta, or an interval as
        PostgreSQL writes it): what a member holds that was not heard of for so long is taken
        over. Commit before working on them: until then the others may get nothing.
        """
        call = statements.receive_coop(queue, consumer, subconsumer, max_messages, dead_interval)
        return self._run(call)

    def touch_subconsumer(self, queue: str, consumer: str, subconsumer: str) -> int:
        """Give a sign of life for a member that works: 1, or 0 if there is none of that name."""
        return self._run(statements.touch_subconsumer(queue, consumer, subconsumer))

    # settling

    def ack(self, batch_id: int) -> int:
        """Settle what was handed out of a batch: 1, or 0 if that batch is not open."""
        return self._run(statements.ack(batch_id))

    def ack_to(self, batch_id: int, msg_id: int) -> int:
        """Settle a batch's messages up to and including one: 1, or 0 if it is not open.

        Raises `PgqueMessageNotInBatch`, and `PgqueLeaseLost` where another member took it over.
        """
        return self._run(statements.ack_to(batch_id, msg_id))

    def release(self, batch_id: int) -> int:
        """Give back, undelivered, what is not settled of a batch: 1, or 0 if it is not open."""
        return self._run(statements.release(batch_id))

    def nack(
        self,
        batch_id: int,
        msg: Message | int,
        retry_after: float | timedelta = 60,
        reason: str | None = None,
    ) -> int:
        """Have one message again after `retry_after` (seconds or timedelta), and return 1.

        After the queue's `max_retries` it becomes a dead letter instead. The batch is to be
        acked as usual. Raises `PgqueBatchNotFound`, `PgqueMessageNotInBatch`, `PgqueLeaseLost`.
        """
        msg_id = msg.msg_id if isinstance(msg, Message) else msg
        return self._run(statements.nack(batch_id, msg_id, retry_after, reason))
