"""Medians, percentiles, and runs that take turns."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

T = TypeVar("T")


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that at least `percent` per cent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def take_turns(rounds: int, runs: Mapping[str, Callable[[], T]]) -> list[dict[str, T]]:
    """Do each run once a round; in reverse order every other round, so that drift hits all."""
    done = []
    for number in range(rounds):
        names = list(runs) if number % 2 == 0 else list(runs)[::-1]
        results = {name: runs[name]() for name in names}
        done.append({name: results[name] for name in runs})
        say(f"  round {number + 1} of {rounds}: {rounded(done[-1])}")
    return done


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median over the rounds of each figure that they hold."""
    return {name: median(each[name] for each in rounds) for name in rounds[0]}


def median_ratio(rounds: Sequence[Mapping[str, float]], ours: str, theirs: str) -> float:
    """Return the median of the ratios of two figures of one round."""
    return median(each[ours] / each[theirs] for each in rounds)


def rounded(value: Any) -> Any:
    """Cut the numbers in a structure to four digits: what comes after them is noise."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if abs(value) < 1000 else round(value)
    if isinstance(value, Mapping):
        return {key: rounded(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(child) for child in value]
    return value


def say(text: str) -> None:
    """Report progress, beside the results on standard output."""
    print(text, file=sys.stderr, flush=True)
