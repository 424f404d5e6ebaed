"""The tests' own server leaves no process and no folder behind, however the tests end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.fix_server import Server
from tests.fix_wait import wait_until

ROOT = Path(__file__).parents[2]

SCRIPT = """
from tests.fix_server import Server
server = Server()
print(server.folder, server.dsn, sep="|", flush=True)
input()
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_tests_are_interrupted(sent: signal.Signals) -> None:
    """The keeper sees its input end, even when nobody was able to clean up."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout
        folder, dsn = process.stdout.readline().strip().split("|")
        psycopg.connect(dsn).close()
        process.send_signal(sent)
    wait_until(lambda: not Path(folder).exists(), what="the server's folder removed")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)


def test_a_private_server_can_be_stopped_crashed_and_configured() -> None:
    """What tests of restarts and failures use, through the fixture make_server."""
    server = Server(work_mem="'5MB'")
    try:
        server.stop("immediate")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.dsn)
        server.start()
        with psycopg.connect(server.dsn) as conn:
            assert conn.execute("show work_mem").fetchone() == ("5MB",)
    finally:
        server.close()
    assert not server.folder.exists()
