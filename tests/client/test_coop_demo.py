"""bench/coop_demo.py: two workers share a consumer, for everybody to see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_demo_of_two_workers(dsn: str, conn: psycopg.Connection) -> None:
    """Both get something, one takes over from the other, and nothing is left behind."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.coop_demo", "--parcels", "30"],
        cwd=ROOT,
        env={**os.environ, "PGQUE_TEST_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "KILLED" in done.stdout
    assert "All 30 parcels were packed: anna " in done.stdout
    assert conn.execute("select count(*) from pgque.queue").fetchone() == (0,)
