"""Where a reader that follows a queue by message id stands. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class TailCursor:
    """Tells new message ids from those already shown, though they commit out of order.

    A transaction can commit its messages after later ids have been shown. So `position`, above
    which one asks again, stays below the first gap in the ids, for at most `grace` seconds.
    """

    def __init__(self, position: int, *, grace: float = 10.0) -> None:
        self.position = position
        self._grace = grace
        self._shown: set[int] = set()  # above position
        self._highest: deque[tuple[float, int]] = deque()  # (when, highest id shown by then)

    def new(self, ids: Iterable[int], now: float) -> list[int]:
        """Return those of `ids` that were not returned before, and note them as shown."""
        new = [i for i in ids if i > self.position and i not in self._shown]
        self._shown.update(new)
        if new:
            self._highest.append((now, max(new)))
        self._advance(now)
        return new

    def _advance(self, now: float) -> None:
        while self._highest and self._highest[0][0] <= now - self._grace:
            given_up = self._highest.popleft()[1]
            if given_up > self.position:
                self.position = given_up
                self._shown = {i for i in self._shown if i > given_up}
        while self.position + 1 in self._shown:
            self.position += 1
            self._shown.remove(self.position)
