"""Growing pauses between tries, and delays that any input can't break. No I/O."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import timedelta

LONGEST_DELAY = 10 * 365 * 86400.0
"""Seconds; longer delays are cut to this."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow by `factor` from `first` to `maximum` seconds.

    `jitter` spreads each by that share up and down, so that what failed together does not come
    back together; `maximum` is never exceeded.
    """

    first: float = 1.0
    factor: float = 2.0
    maximum: float = 3600.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.maximum <= LONGEST_DELAY:
            raise ValueError("Backoff: 0 < first <= maximum <= ten years must hold")
        if not 1 <= self.factor < math.inf or not 0 <= self.jitter <= 1:
            raise ValueError("Backoff: factor >= 1 and 0 <= jitter <= 1 must hold")

    def delay(self, tries: int) -> float:
        """Return the seconds to wait after `tries` earlier failures (0 for the first)."""
        try:
            pause = min(self.first * self.factor**tries, self.maximum)
        except OverflowError:
            pause = self.maximum
        spread = random.uniform(-self.jitter, self.jitter)  # not a secret
        return float(min(pause * (1 + spread), self.maximum))


def seconds(value: object) -> float:
    """Return a number or timedelta as seconds; raise ValueError or TypeError if it is neither."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"a delay is a number of seconds or a timedelta, not {value!r:.100}")
    try:
        delay = float(value)
    except OverflowError:
        delay = math.inf if value > 0 else -math.inf
    if math.isnan(delay):
        raise ValueError("a delay can't be NaN")
    return delay


def sane_delay(value: object) -> float:
    """As `seconds`, brought into the range from 0 to `LONGEST_DELAY`."""
    return min(max(seconds(value), 0.0), LONGEST_DELAY)
