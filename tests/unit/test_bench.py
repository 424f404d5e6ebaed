"""`python -m bench` knows its scenarios and options. Nothing is measured here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import RESULTS, parse
from bench.figures import median_ratio, percentile, take_turns
from bench.report import Demand, Result, document
from bench.scenarios import SCENARIOS


def test_all_scenarios_run_where_none_is_named() -> None:
    options = parse([])
    assert options.scenario == list(SCENARIOS)
    assert set(SCENARIOS) == {"send", "send_batch", "drain", "flat", "idle", "latency"}
    assert options.output == RESULTS
    assert options.rounds is None


def test_a_comparison_has_at_least_five_rounds() -> None:
    assert all(scenario.rounds >= 5 for scenario in SCENARIOS.values())


def test_a_quick_run_writes_no_results_unless_told_where() -> None:
    assert parse(["--quick", "send"]).output is None
    assert parse(["--quick", "--output", "here"]).output == Path("here")


@pytest.mark.parametrize("wrong", [["sned"], ["--rounds", "0"], ["--rounds", "x"]])
def test_wrong_arguments_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse(wrong)
    assert end.value.code == 2


def test_turns_are_taken_in_alternate_order_and_ratios_within_a_round() -> None:
    order: list[str] = []

    def run(name: str, result: float) -> float:
        order.append(name)
        return result

    rounds = take_turns(2, {"a": lambda: run("a", 3.0), "b": lambda: run("b", 4.0)})
    assert order == ["a", "b", "b", "a"]
    assert median_ratio(rounds, "a", "b") == 0.75


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile(range(1, 101), 99) == 99
    assert percentile([5.0], 99) == 5.0


def test_a_document_says_which_demands_were_met() -> None:
    demands = [Demand("rate", 0.712345, at_least=0.7), Demand("memory", 201.0, at_most=200)]
    text = document("send", Result(demands, {}, []), {}, quick=True)
    assert [(each["value"], each["met"]) for each in json.loads(text)["demands"]] == [
        (0.7123, True),
        (201.0, False),
    ]
