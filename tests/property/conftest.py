"""The machine's database, and how long it runs: `make soak` runs for an evening."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.property.database import Database

COMMON = settings(
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking is in steps.py
)

settings.register_profile("default", COMMON, max_examples=100, stateful_step_count=50)
settings.register_profile("soak", COMMON, max_examples=3000, stateful_step_count=80)
settings.load_profile("default")


@pytest.fixture
def db(dsn: str) -> Iterator[Database]:
    """A database with a clock of its own."""
    db = Database(dsn)
    yield db
    db.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how far the machine came."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == "machine":
                    terminalreporter.write_line(f"machine: {value}")
