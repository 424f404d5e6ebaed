"""The built wheel in a clean environment: what it holds, and that it works without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import psycopg
import pytest

from sql import build

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(*command: str | Path, cwd: Path) -> str:
    """Its output; away from the checkout and from variables that lead back to it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as for a release."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The folder with the programs of a new environment that has the wheel and nothing else."""
    run(sys.executable, "-m", "venv", "venv", cwd=wheel.parent)
    programs = wheel.parent / "venv" / "bin"
    run(programs / "pip", "install", "-q", f"{wheel}[binary]", cwd=wheel.parent)
    return programs


def test_wheel_holds_the_package_and_the_sql_only(wheel: Path) -> None:
    """The SQL byte for byte, the type marker, no tests and no build script."""
    assert wheel.name == f"pgque_driver-{build.version()}-py3-none-any.whl"
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for name in ("pgque.sql", "uninstall.sql"):
            assert archive.read(f"pgque/sql/{name}") == (ROOT / "sql" / name).read_bytes()
    assert {"pgque/__init__.py", "pgque/py.typed"} <= names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"pgque", f"pgque_driver-{build.version()}.dist-info"}
    assert not [name for name in names if name.endswith("build.py")]


def test_installed_wheel_imports_with_its_version(installed: Path, tmp_path: Path) -> None:
    """`pgque.__version__` is that of the metadata, and the import is the wheel's own."""
    script = "import pgque; print(pgque.__version__, pgque.__file__)"
    version, path = run(installed / "python", "-W", "error", "-c", script, cwd=tmp_path).split()
    assert version == build.version()
    assert Path(path).is_relative_to(installed.parent)


def test_installed_wheel_has_a_working_command(
    installed: Path, tmp_path: Path, empty_dsn: str
) -> None:
    """`pgque --help`, and `pgque install` from the SQL inside the wheel."""
    assert "install" in run(installed / "pgque", "--help", cwd=tmp_path)
    run(installed / "pgque", "install", "--dsn", empty_dsn, cwd=tmp_path)
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("select pgque.version()").fetchone() == (build.version(),)
