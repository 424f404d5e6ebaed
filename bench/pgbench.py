"""Running pgbench: from beside the server, from the embedded wheel, or from the PATH."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from tests.fix_server import embedded_bin, pg_bin


def rate(dsn: str, script: str, *, seconds: int, clients: int, **variables: str) -> float:
    """Run the script for so long and return its transactions a second."""
    return _run(dsn, script, ["-T", str(seconds)], clients, variables)


def repeat(dsn: str, script: str, *, times: int, clients: int, **variables: str) -> float:
    """Run the script so many times in all and return its transactions a second."""
    return _run(dsn, script, ["-t", str(times // clients)], clients, variables)


def _run(
    dsn: str, script: str, extent: list[str], clients: int, variables: dict[str, str]
) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        command = [_program(), "-n", "-M", "prepared", "-c", str(clients), "-j", str(clients)]
        command += [*extent, "-f", file.name]
        command += [f"-D{name}={value}" for name, value in variables.items()]
        process = subprocess.run(
            [*command, dsn],
            env=os.environ | {"PGOPTIONS": "-c synchronous_commit=off"},
            capture_output=True,
            text=True,
            check=False,
        )
    found = re.search(r"tps = ([0-9.]+) \(without", process.stdout)
    if process.returncode != 0 or found is None:
        raise RuntimeError(f"pgbench: {process.stderr or process.stdout}")
    return float(found[1])


def _program() -> str:
    for folder in (pg_bin(), embedded_bin(), *map(Path, os.get_exec_path())):
        if os.access(folder / "pgbench", os.X_OK):
            return str(folder / "pgbench")
    raise FileNotFoundError("pgbench")
