"""From a message to what becomes of it. No I/O."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeVar

from pgque._backoff import LONGEST_DELAY, Backoff, sane_delay, seconds
from pgque.messages import DeadLetter, Message, Retry

_log = logging.getLogger("pgque.consumer")

Handler = Callable[[Message], object]
RetryAfter = float | timedelta | Backoff
H = TypeVar("H", bound=Handler)

LONGEST_REASON = 2000


@dataclass(frozen=True, slots=True)
class Nack:
    """Have the message again after `delay` seconds, or never (None): a dead letter."""

    msg_id: int
    delay: float | None
    reason: str


class Dispatcher:
    """The handlers by type, and what becomes of a message that none of them takes."""

    def __init__(self, unknown: Literal["nack", "ack"], retry_after: RetryAfter) -> None:
        if unknown not in ("nack", "ack"):
            raise ValueError(f"unknown_handler_policy is 'nack' or 'ack', not {unknown!r}")
        if not isinstance(retry_after, Backoff) and not 0 <= seconds(retry_after) <= LONGEST_DELAY:
            raise ValueError(f"retry_after is from 0 seconds to ten years, not {retry_after!r}")
        self._unknown = unknown
        self._retry_after = retry_after
        self._handlers: dict[str, Handler] = {}

    def add(self, event_type: str, handler: H) -> H:
        if inspect.iscoroutinefunction(handler):
            raise TypeError("an async handler would never be awaited here")
        if event_type in self._handlers:
            raise ValueError(f"there is a handler for {event_type!r} already")
        self._handlers[event_type] = handler
        return handler

    def handle(self, message: Message, stopping: Callable[[], bool]) -> Nack | None:
        """Run the message's handler; None means done.

        Only what ends the process comes out of here: KeyboardInterrupt and the like, and a
        SystemExit after a stop was asked for.
        """
        handler = self._handlers.get(message.type) or self._handlers.get("*")
        if handler is None:
            return self._no_handler(message)
        try:
            handler(message)
        except Exception as error:  # noqa: BLE001  (whatever it is, the next message goes on)
            return self._failed(message, error)
        except SystemExit as error:
            if stopping():
                raise
            return self._failed(message, error)
        return None

    def _no_handler(self, message: Message) -> Nack | None:
        _log.warning(
            "no handler for type %.200r: message %s is %sed",
            *(message.type, message.msg_id, self._unknown),
        )
        if self._unknown == "ack":
            return None
        reason = clean_reason(f"no handler for type {message.type!r}")
        return Nack(message.msg_id, self._default_delay(message), reason)

    def _failed(self, message: Message, error: BaseException) -> Nack:
        if isinstance(error, DeadLetter):
            _log.info("message %s is declared dead", message.msg_id)
            return Nack(message.msg_id, None, clean_reason(_text_of(error)))
        if isinstance(error, Retry):
            _log.info("message %s is to be retried", message.msg_id)
            reason = clean_reason(_text_of(error))
            return Nack(message.msg_id, self._asked_delay(message, error), reason)
        _log.error("message %s of type %.200r failed", message.msg_id, message.type, exc_info=error)
        return Nack(message.msg_id, self._default_delay(message), reason_of(error))

    def _asked_delay(self, message: Message, retry: Retry) -> float:
        if retry.after is None:
            return self._default_delay(message)
        try:
            delay = sane_delay(retry.after)
            if delay != seconds(retry.after):
                _log.warning("message %s: retry after %r is cut", message.msg_id, retry.after)
        except (TypeError, ValueError) as error:
            _log.warning("message %s: %s; the default is taken", message.msg_id, error)
            return self._default_delay(message)
        return delay

    def _default_delay(self, message: Message) -> float:
        if isinstance(self._retry_after, Backoff):
            return self._retry_after.delay(message.retry_count or 0)
        return sane_delay(self._retry_after)


def reason_of(error: BaseException) -> str:
    """Return `TypeName: text`, as it can be stored."""
    text = _text_of(error)
    name = type(error).__name__
    return clean_reason(f"{name}: {text}" if text else name)


def clean_reason(text: str) -> str:
    """Return a text that PostgreSQL can store, and not a huge one."""
    text = text[: LONGEST_REASON + 1].replace("\0", "\ufffd")
    text = text.encode(errors="replace").decode()
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (an exception's own __str__ may fail, too)
        return "(its text can't be shown)"
