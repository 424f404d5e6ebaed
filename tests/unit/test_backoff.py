"""Pauses and delays that no input breaks."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgque import Backoff
from pgque._backoff import LONGEST_DELAY, sane_delay


def test_pauses_grow_to_the_maximum() -> None:
    """By the factor, and not beyond."""
    backoff = Backoff(first=1, factor=3, maximum=10, jitter=0)
    assert [backoff.delay(n) for n in range(4)] == [1, 3, 9, 10]
    assert backoff.delay(10**6) == 10


@given(st.integers(0, 10_000))
def test_jitter_stays_within_its_share(tries: int) -> None:
    """And never lifts a pause above the maximum."""
    spread = Backoff(first=1, factor=2, maximum=100, jitter=0.5)
    plain = Backoff(first=1, factor=2, maximum=100, jitter=0).delay(tries)
    assert plain / 2 <= spread.delay(tries) <= min(plain * 1.5, 100)


@pytest.mark.parametrize(
    "bad",
    [
        {"first": 0},
        {"first": -1},
        {"first": 2, "maximum": 1},
        {"maximum": math.inf},
        {"factor": 0.5},
        {"factor": math.nan},
        {"jitter": 2},
    ],
)
def test_nonsense_is_refused(bad: dict[str, float]) -> None:
    """When it is written down, not when the first message fails."""
    with pytest.raises(ValueError):
        Backoff(**bad)


@pytest.mark.parametrize(
    ("given_delay", "delay"),
    [
        (5, 5),
        (0.5, 0.5),
        (timedelta(minutes=1), 60),
        (-1, 0),
        (timedelta(days=-400), 0),
        (math.inf, LONGEST_DELAY),
        (-math.inf, 0),
        (10**400, LONGEST_DELAY),
        (timedelta.max, LONGEST_DELAY),
        (300_000 * 366 * 86400.0, LONGEST_DELAY),
    ],
)
def test_delays_are_cut_to_what_a_server_can_add(given_delay: Any, delay: float) -> None:
    """From now to ten years."""
    assert sane_delay(given_delay) == delay


@pytest.mark.parametrize("bad", [math.nan, "60", None, True, [1]])
def test_what_is_no_delay_is_refused(bad: Any) -> None:
    """The caller takes the default then."""
    with pytest.raises((TypeError, ValueError)):
        sane_delay(bad)
