"""What a scenario found, and how it is written down: JSON that says nothing of the host."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.figures import rounded


@dataclass(frozen=True, slots=True)
class Demand:
    """A figure, and the bound that it must keep."""

    what: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool:
        return not (
            (self.at_least is not None and self.value < self.at_least)
            or (self.at_most is not None and self.value > self.at_most)
        )

    def __str__(self) -> str:
        verdict = "met" if self.met else "MISSED"
        bound = f"at most {self.at_most}" if self.at_least is None else f"at least {self.at_least}"
        return f"{verdict}: {self.what}: {rounded(self.value)} ({bound})"


@dataclass(frozen=True, slots=True)
class Result:
    """What a scenario found: the demands, the figures, and the runs that they come from."""

    demands: Sequence[Demand]
    figures: Mapping[str, Any]
    runs: Sequence[Any]
    setup: Mapping[str, Any] = field(default_factory=dict)


def document(scenario: str, result: Result, machine: Mapping[str, Any], *, quick: bool) -> str:
    """Return the result as JSON text."""
    demands = [
        {name: value for name, value in asdict(demand).items() if value is not None}
        | {"met": demand.met}
        for demand in result.demands
    ]
    content = {
        "scenario": scenario,
        "quick": quick,
        "demands": demands,
        "figures": result.figures,
        "setup": result.setup,
        "machine": machine,
        "runs": result.runs,
    }
    return json.dumps(rounded(content), indent=1) + "\n"


def write(folder: Path, scenario: str, text: str) -> None:
    """Keep a document as `<scenario>.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{scenario}.json").write_text(text, encoding="utf-8")
