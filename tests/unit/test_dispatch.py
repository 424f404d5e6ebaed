"""What becomes of a message. No server needed."""

from __future__ import annotations

import datetime as dt
import logging
import math
from collections.abc import Callable
from typing import Any, Literal

import pytest

from pgque import Backoff, DeadLetter, Message, Retry
from pgque._backoff import LONGEST_DELAY
from pgque._dispatch import LONGEST_REASON, Dispatcher, Nack

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def message(msg_id: int = 1, type: str = "t", retry_count: int | None = None) -> Message:
    return Message(msg_id, 9, type, None, retry_count, NOW)


def outcome(
    handler: Callable[[Message], object],
    *,
    retry_after: Any = 60,
    retry_count: int | None = None,
    stopping: bool = False,
) -> Nack | None:
    dispatcher = Dispatcher("nack", retry_after)
    dispatcher.add("t", handler)
    return dispatcher.handle(message(retry_count=retry_count), lambda: stopping)


def raising(error: BaseException) -> Callable[[Message], object]:
    def handler(_: Message) -> None:
        raise error

    return handler


def test_returning_means_done() -> None:
    """Whatever is returned, also something false."""
    assert outcome(lambda _: None) is None
    assert outcome(lambda _: False) is None


def test_an_exception_is_a_nack_with_its_name_and_text() -> None:
    """After the default delay."""
    assert outcome(raising(ValueError("bad price"))) == Nack(1, 60, "ValueError: bad price")
    assert outcome(raising(KeyError())) == Nack(1, 60, "KeyError")


def test_retry_and_dead_letter_decide_themselves() -> None:
    """Retry without a delay takes the default."""
    assert outcome(raising(Retry("later", after=5))) == Nack(1, 5, "later")
    assert outcome(raising(Retry(after=dt.timedelta(hours=1)))) == Nack(1, 3600, "retry requested")
    assert outcome(raising(Retry("later"))) == Nack(1, 60, "later")
    assert outcome(raising(DeadLetter("no such order"))) == Nack(1, None, "no such order")


@pytest.mark.parametrize(
    ("after", "delay"),
    [
        (math.inf, LONGEST_DELAY),
        (dt.timedelta(days=-365), 0),
        (1e13, LONGEST_DELAY),
        (math.nan, 60),
        ("soon", 60),
    ],
)
def test_an_odd_delay_stops_nobody(
    after: Any, delay: float, caplog: pytest.LogCaptureFixture
) -> None:
    """It is cut or replaced, and a warning says so."""
    assert outcome(raising(Retry("later", after=after))) == Nack(1, delay, "later")
    assert [r.levelno for r in caplog.records if r.levelno > logging.INFO] == [logging.WARNING]


def test_backoff_grows_with_the_retries() -> None:
    """retry_count is None the first time."""
    backoff = Backoff(first=10, factor=2, maximum=100, jitter=0)
    delays = [
        outcome(raising(ValueError()), retry_after=backoff, retry_count=n) for n in (None, 1, 2, 50)
    ]
    assert [d.delay for d in delays if d] == [10, 20, 40, 100]


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("a\0b"), "ValueError: a\ufffdb"),
        (ValueError("\ud800"), "ValueError: ?"),
        (UnprintableError(), "UnprintableError: (its text can't be shown)"),
        (DeadLetter("nul \0"), "nul \ufffd"),
    ],
)
def test_a_reason_can_always_be_stored(
    error: Exception, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception's text is anybody's input."""
    caplog.set_level(logging.CRITICAL, "pgque.consumer")  # xdist can't carry such a traceback
    nack = outcome(raising(error))
    assert nack is not None
    assert nack.reason == reason


def test_a_reason_is_not_huge() -> None:
    """The start of it is kept."""
    nack = outcome(raising(ValueError("x" * 10**6)))
    assert nack is not None
    assert len(nack.reason) == LONGEST_REASON


def test_system_exit_is_a_failure_like_others() -> None:
    """Unless a stop was asked for: then it ends the consumer."""
    assert outcome(raising(SystemExit(3))) == Nack(1, 60, "SystemExit: 3")
    with pytest.raises(SystemExit):
        outcome(raising(SystemExit(3)), stopping=True)


def test_keyboard_interrupt_comes_through() -> None:
    """It is not the message's fault."""
    with pytest.raises(KeyboardInterrupt):
        outcome(raising(KeyboardInterrupt()))


@pytest.mark.parametrize("policy", ["nack", "ack"])
def test_types_without_handler(
    policy: Literal["nack", "ack"], caplog: pytest.LogCaptureFixture
) -> None:
    """Nacked, or acked; a warning either way."""
    result = Dispatcher(policy, 60).handle(message(type="new"), lambda: False)
    assert result == (None if policy == "ack" else Nack(1, 60, "no handler for type 'new'"))
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_star_takes_the_rest() -> None:
    """A type's own handler goes first."""
    seen = []
    dispatcher = Dispatcher("nack", 60)
    dispatcher.add("*", lambda m: seen.append(("*", m.type)))
    dispatcher.add("t", lambda m: seen.append(("t", m.type)))
    for type in ("t", "u", "*", ""):
        dispatcher.handle(message(type=type), lambda: False)
    assert seen == [("t", "t"), ("*", "u"), ("*", "*"), ("*", "")]


def test_mistakes_in_registering_are_errors() -> None:
    """An async handler would silently do nothing; a second one would replace the first."""
    dispatcher = Dispatcher("nack", 60)

    async def handler(_: Message) -> None: ...

    with pytest.raises(TypeError):
        dispatcher.add("t", handler)
    dispatcher.add("t", print)
    with pytest.raises(ValueError):
        dispatcher.add("t", print)


@pytest.mark.parametrize("retry_after", [-1, math.inf, dt.timedelta(days=9999)])
def test_a_default_delay_out_of_range_is_refused(retry_after: Any) -> None:
    """At once: it would be cut for each message."""
    with pytest.raises(ValueError):
        Dispatcher("nack", retry_after)
