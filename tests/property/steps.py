"""The steps of a run; those of a failed one are made as few and as plain as still fail.

Hypothesis would shrink the data from which the steps were drawn, which takes minutes where each try
runs against a database. Leaving out steps takes seconds, and reads better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Protocol

import psycopg
from hypothesis.stateful import initialize, precondition, rule

Step = tuple[str, dict[str, Any]]
Rule = Callable[..., None]

FAILURES = (AssertionError, psycopg.Error)
SECONDS = 120  # for making a failed run smaller

_preconditions: dict[str, Callable[[Any], object]] = {}


class Script:
    """What a run did: the steps, and the statements they led to."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.lines: list[str] = []
        self.nested = False


class Machine(Protocol):
    """What takes steps."""

    script: Script
    healthy: bool

    def teardown(self) -> None:
        """Check the end, and clear up."""
        raise NotImplementedError


def step(*, when: Callable[[Any], object] | None = None, **drawn: Any) -> Callable[[Rule], Rule]:
    """A rule of the machine, recorded; `when` says whether it makes sense."""

    def decorate(function: Rule) -> Rule:
        condition = _preconditions[function.__name__] = when or (lambda self: True)
        decorated: Rule = rule(**drawn)(_recorded(function))  # type: ignore[no-untyped-call]
        return precondition(lambda self: bool(condition(self)))(decorated)

    return decorate


def first_step(**drawn: Any) -> Callable[[Rule], Rule]:
    """A rule that is applied once, before all others."""

    def decorate(function: Rule) -> Rule:
        _preconditions[function.__name__] = lambda self: True
        decorated: Rule = initialize(**drawn)(_recorded(function))  # type: ignore[no-untyped-call]
        return decorated

    return decorate


def _recorded(function: Rule) -> Rule:
    @wraps(function)
    def recorded(self: Machine, *args: Any, **drawn: Any) -> None:
        script = self.script
        if script.nested:
            function(self, *args, **drawn)
            return
        script.steps.append((function.__name__, drawn))
        script.lines.append(f"-- {function.__name__}: {drawn}")
        script.nested = True
        function(self, *args, **drawn)
        script.nested = False

    return recorded


def failure(make: Callable[[], Machine], steps: list[Step]) -> tuple[BaseException, Script] | None:
    """Take the steps; return how they fail, if they do."""
    machine = make()
    found = None
    try:
        for name, drawn in steps:
            if _preconditions[name](machine):
                getattr(machine, name)(**drawn)
    except FAILURES as error:
        machine.healthy = False
        found = error
    try:
        machine.teardown()
    except FAILURES as error:
        found = found or error
    return (found, machine.script) if found else None


def smaller(steps: list[Step]) -> Iterator[list[Step]]:
    """The same steps without some, then with plainer arguments."""
    size = len(steps)
    while size := size // 2:
        for start in range(len(steps) - size, -1, -size):
            yield steps[:start] + steps[start + size :]
    for n, (name, drawn) in enumerate(steps):
        for key, value in drawn.items():
            for other in plainer(key, value):
                yield [*steps[:n], (name, {**drawn, key: other}), *steps[n + 1 :]]


def plainer(key: str, value: Any) -> list[Any]:
    """What an argument could be instead."""
    if isinstance(value, list):
        return [value[:i] + value[i + 1 :] for i in range(len(value))]
    return [0] if value and key in ("pick", "which", "message") else []


def minimal(make: Callable[[], Machine], steps: list[Step]) -> str:
    """The script of the smallest failure that is found in reasonable time."""
    deadline = time.monotonic() + SECONDS
    best = failure(make, steps)
    if best is None:
        return f"It did not fail again: {steps}"
    progress = True
    while progress:
        progress = False
        for fewer in smaller(steps):
            if time.monotonic() > deadline:
                break
            if found := failure(make, fewer):
                steps, best, progress = fewer, found, True
                break
    error, script = best
    return "\n".join([*script.lines, f"-- {type(error).__name__}: {error}"])
