"""The shape of the repository: what stands where, and who may know of whom."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from sql import build

ROOT = Path(__file__).parents[2]

# None of these reaches one that stands on a later line, by whatever modules lie between. `pgque` is
# the package itself, what applications see: the demo and the command use it as they do.
LAYERS = [
    {"pgque.errors"},
    {"pgque.messages"},
    {"pgque._statements"},
    {"pgque.client"},
    {"pgque.consumer", "pgque.ticker", "pgque.schema"},
    {"pgque"},
    {"pgque.demo"},
    {"pgque.cli"},
    {"pgque.__main__"},
]

TOP = {
    *(".ci", ".gitignore", "LICENSE", "Makefile", "README.md", "RELEASE.md", "pyproject.toml"),
    *("bench", "docs", "pgque", "sql", "tests"),
}


def module(path: Path) -> str:
    """The dotted name of a file of the package."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports, wherever it does."""
    package = module(path) if path.name == "__init__.py" else module(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "pgque")
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            for alias in node.names if base.split(".")[0] == "pgque" else []:
                inner = f"{base}.{alias.name}"
                file = ROOT / Path(*inner.split("."))
                yield inner if file.with_suffix(".py").exists() or file.is_dir() else base


GRAPH = {module(path): set(imports(path)) for path in (ROOT / "pgque").rglob("*.py")}


def test_modules_import_only_downwards() -> None:
    """No circles, so that each module can be read without those that use it."""
    reached: dict[str, set[str]] = {}
    for name in TopologicalSorter(GRAPH).static_order():
        direct = GRAPH[name]
        reached[name] = direct.union(*(reached[other] for other in direct))
    above: set[str] = set()
    for layer in reversed(LAYERS):
        for name in layer:
            assert not reached[name] & above, name
        above |= layer


@pytest.mark.parametrize("path", sorted((ROOT / "sql/src").glob("*.sql")), ids=lambda p: p.name)
def test_sql_parts_are_short(path: Path) -> None:
    """When a part grows past 300 lines it holds two ideas."""
    assert re.fullmatch(r"\d\d_[a-z_]+\.sql", path.name)
    assert len(path.read_text("utf-8").splitlines()) < 300


def test_top_level_holds_nothing_unexpected() -> None:
    """Names that .gitignore covers aside; without git, so that it runs in an unpacked archive."""
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()]
    names = {path.name for path in ROOT.iterdir() if path.name != ".git"}
    assert {n for n in names if not any(fnmatch(n, pattern) for pattern in ignored)} <= TOP


def test_version_stands_in_one_place() -> None:
    """pyproject.toml has it; the generated SQL and the release notes repeat it."""
    texts = [
        path
        for folder in ("pgque", "sql", "tests", "docs")
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in {".py", ".sql", ".md"} and path != build.TARGET
    ]
    texts += [ROOT / "README.md", ROOT / "Makefile", ROOT / ".ci" / "run"]
    version = re.compile(rf"(?<![\w.]){re.escape(build.version())}(?![\w.])")
    assert not [path for path in texts if path.exists() and version.search(path.read_text("utf-8"))]


def test_generated_sql_is_that_of_its_sources() -> None:
    """As `make lint` checks it."""
    subprocess.run([sys.executable, ROOT / "sql" / "build.py", "--check"], check=True)
