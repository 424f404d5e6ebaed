"""Message: frozen, lazy about its payload, and a plain value all the same."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import pickle
from typing import Any

import pytest

from pgque import Message
from pgque.messages import message_from_row, stored_length

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def row(payload: str | None = '{"a": [1]}', headers: str | None = '{"h": 1}') -> tuple[Any, ...]:
    return (7, 3, "t", payload, None, NOW, "x1", None, None, None, "k", headers, 1)


def test_a_row_becomes_a_message() -> None:
    """Field by field, payload and headers decoded."""
    expected = Message(7, 3, "t", {"a": [1]}, None, NOW, "x1", key="k", headers={"h": 1})
    assert message_from_row(row()) == expected
    assert repr(message_from_row(row())) == repr(expected)


def test_payload_is_decoded_once_and_when_asked_for() -> None:
    """Before, only the text is held; afterwards, the same value each time."""
    message = message_from_row(row())
    assert stored_length([message]) == len('{"a": [1]}')
    assert message.payload is message.payload


def test_payloads_that_do_not_decode_are_text() -> None:
    """One poison value must not keep the others from being read."""
    assert message_from_row(row("not json", "9" * 5000)).payload == "not json"
    assert message_from_row(row(None, None)).payload is None


@pytest.mark.parametrize("build", [lambda: message_from_row(row()), lambda: Message(*row())])
def test_messages_are_values(build: Any) -> None:
    """Frozen, and they survive pickle, copy, replace and asdict."""
    message: Message = build()
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.payload = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(message)) == message
    assert copy.copy(message) == message
    assert dataclasses.replace(message, msg_id=8).msg_id == 8
    assert dataclasses.asdict(message)["type"] == "t"
    assert not hasattr(message, "unheard_of")
