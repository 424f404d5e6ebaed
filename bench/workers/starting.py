"""Starting programs of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from psycopg.pq import Conninfo

Process = subprocess.Popen[str]

_ROOT = Path(__file__).parents[2]
_PATIENCE = 600.0  # seconds until a worker is given up


def start(module: str, *arguments: str, dsn: str, python: str = sys.executable) -> Process:
    """Start a module as a process whose output is to be read."""
    return subprocess.Popen(
        [python, "-m", module, *arguments],
        cwd=_ROOT,
        env=_environment(dsn),
        stdout=subprocess.PIPE,
        text=True,
    )


def output(process: Process) -> str:
    """Wait for the end of a process and return what it has printed since it was last read."""
    try:
        text, _ = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    if process.returncode != 0:
        raise RuntimeError(f"{process.args!r} returned {process.returncode}")
    return text


def _environment(dsn: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PGQUE_DSN"}
    for option in Conninfo.parse(dsn.encode()):
        if option.val is not None and option.envvar is not None:
            environment[option.envvar.decode()] = option.val.decode()
    return environment
