"""What is sent, what is received, and what a handler may raise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pgque._payload import RawJson, decode

__all__ = ["DeadLetter", "Event", "Message", "RawJson", "Retry"]


class _LazyPayload:
    """Decodes `payload` when it is first asked for."""

    __slots__ = ("_text",)

    _text: str | None

    if not TYPE_CHECKING:  # a checker would take any attribute for granted

        def __getattr__(self, name: str) -> Any:
            # only reached while the slot is empty
            if name != "payload":
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            value = decode(self._text)
            object.__setattr__(self, "payload", value)
            return value


@dataclass(frozen=True, slots=True)
class Message(_LazyPayload):
    """A message as one consumer receives it.

    `payload` is the value that was sent; a stored text that is not JSON comes as the text, and
    SQL NULL as None. `retry_count` is None until the message was nacked for the first time.
    `delivery_count` says how often this was handed out, 1 for the first time.
    """

    msg_id: int
    batch_id: int
    type: str
    payload: Any
    retry_count: int | None
    created_at: datetime
    extra1: str | None = None
    extra2: str | None = None
    extra3: str | None = None
    extra4: str | None = None
    key: str | None = None
    headers: dict[str, Any] | None = None
    delivery_count: int = 1


_PAYLOAD = 3
_HEADERS = 11
# Filling the slots is twice as fast as a frozen dataclass's own __init__, and leaves the payload.
_new = object.__new__
_setters = [getattr(Message, field.name).__set__ for field in fields(Message)]
_setters[_PAYLOAD] = _LazyPayload.__dict__["_text"].__set__


def message_from_row(row: Sequence[Any]) -> Message:
    """Build a message from a row in the order of its fields, payload and headers still text."""
    message: Message = _new(Message)
    for set_field, value in zip(_setters, row, strict=True):
        set_field(message, value)
    if row[_HEADERS] is not None:
        _setters[_HEADERS](message, decode(row[_HEADERS]))
    return message


def stored_length(messages: Iterable[Message]) -> int:
    """Return the characters of the payloads as stored, of messages from `message_from_row`."""
    return sum(len(message._text or "") for message in messages)


@dataclass(frozen=True, slots=True)
class Event:
    """A message to be sent that carries its own type, key and headers."""

    payload: Any
    type: str = "default"
    key: str | None = None
    headers: Mapping[str, Any] | None = None


class Retry(Exception):  # noqa: N818  (it is an instruction, not an error)
    """Raise it in a handler to have the message again later.

    `after` is in seconds or a timedelta; None takes the consumer's `retry_after`. Beyond the
    queue's `max_retries` the message becomes a dead letter.
    """

    def __init__(
        self, reason: str | None = None, *, after: float | timedelta | None = None
    ) -> None:
        super().__init__(reason or "retry requested")
        self.after = after


class DeadLetter(Exception):  # noqa: N818  (it is an instruction, not an error)
    """Raise it in a handler to make the message a dead letter at once."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason or "declared dead by its handler")
