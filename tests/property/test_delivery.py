"""The delivery contract under everything that the machine thinks of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.property.database import Database
from tests.property.machine import explain, search


@pytest.mark.timeout(0)
def test_the_engine_keeps_the_contract(
    db: Database, record_property: Callable[[str, object], None]
) -> None:
    """Whatever hypothesis strings together."""
    steps = search(db)
    record_property("machine", f"{db.examples} runs, {db.steps} steps")
    if steps:
        pytest.fail(explain(db, steps), pytrace=False)
