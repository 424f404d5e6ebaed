"""What the latency programs share. Only the standard library: rivals run it in their own venv.

Each of them takes one of
    install             make the schema
    consume COUNT NAME  print "ready", then the milliseconds of COUNT messages
    produce COUNT RATE  send COUNT messages, RATE a second; the payload is the time of sending
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator


class Recorder:
    """Takes the times of `count` messages, then prints how long they took and ends the process."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._milliseconds: list[float] = []
        print("ready", flush=True)

    def record(self, sent: float) -> None:
        self._milliseconds.append((time.time() - sent) * 1000)
        if len(self._milliseconds) == self._count:
            print(json.dumps(self._milliseconds), flush=True)
            os._exit(0)


def send_times(count: int, rate: float) -> Iterator[float]:
    """Yield the time, `count` times, `rate` times a second."""
    started = time.perf_counter()
    for number in range(count):
        time.sleep(max(started + number / rate - time.perf_counter(), 0))
        yield time.time()


def main(
    install: Callable[[], None],
    consume: Callable[[int, str], None],
    produce: Callable[[int, float], None],
) -> None:
    """Do what the command line says."""
    match sys.argv[1:]:
        case ["install"]:
            install()
        case ["consume", count, name]:
            consume(int(count), name)
        case ["produce", count, rate]:
            produce(int(count), float(rate))
        case _:
            raise SystemExit(__doc__)
