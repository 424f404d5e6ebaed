"""The machine finds engines from which a guard was taken out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import Phase, settings

from tests.property.database import Database
from tests.property.guards import GUARDS
from tests.property.machine import explain, search

BOUNDS = settings(
    max_examples=400,
    stateful_step_count=80,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("guard", GUARDS)
def test_an_engine_without_its_guard_is_found_out(
    db: Database,
    guard: str,
    record_property: Callable[[str, object], None],
    request: pytest.FixtureRequest,
) -> None:
    """Always by the same runs, so that the result does not depend on luck."""
    db.patch(*GUARDS[guard])
    steps = search(db, BOUNDS)
    record_property("machine", f"{guard}: {db.examples} runs, {db.steps} steps")
    assert steps is not None, "not found out"
    if request.config.get_verbosity() > 1:
        print(explain(db, steps))
