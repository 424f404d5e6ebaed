"""The one entry point: `python -m bench [scenario …]`. JSON goes to standard output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.figures import say
from bench.scenarios import SCENARIOS
from bench.server import machine, running_server

RESULTS = Path(__file__).parent / "results"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options; ends the program with a message where they are wrong."""
    listed = "\n".join(f"  {name:12}{each.what}" for name, each in SCENARIOS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=f"Measure, compare, and print JSON. Without a name, all of:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", nargs="*", help="the names of those to run")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to see that it runs; writes no file"
    )
    parser.add_argument("--rounds", type=_positive, help="how often each comparison is repeated")
    parser.add_argument(
        "--output", type=Path, help="folder for <scenario>.json (bench/results unless --quick)"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.scenario) - SCENARIOS.keys():
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    options.scenario = options.scenario or list(SCENARIOS)
    if options.output is None and not options.quick:
        options.output = RESULTS
    return options


def main(arguments: Sequence[str]) -> int:
    """Run scenarios; 1 if a demand was missed by a full run."""
    options = parse(arguments)
    missed = False
    with running_server() as server:
        facts = machine(server)
        for name in options.scenario:
            scenario = SCENARIOS[name]
            rounds = options.rounds or (1 if options.quick else scenario.rounds)
            say(f"{name}: {scenario.what}")
            result = scenario.run(server, rounds, options.quick)
            text = report.document(name, result, facts, quick=options.quick)
            print(text, end="", flush=True)
            if options.output is not None:
                report.write(options.output, name, text)
            for demand in result.demands:
                say(f"  {demand}")
                missed |= not demand.met
    return int(missed and not options.quick)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
