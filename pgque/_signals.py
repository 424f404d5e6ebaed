"""SIGTERM and SIGINT for a loop in the main thread: the first stops it, the second ends at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first signal; outside the main thread, do nothing.

    A second SIGTERM kills the process as if nothing were installed, a second SIGINT raises
    KeyboardInterrupt. What was installed before is put back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stopping = False

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            stop()
        elif signum == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)

    before = [(number, signal.signal(number, on_signal)) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in before:
            # None: it was not installed from Python, and can't be put back from here
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
