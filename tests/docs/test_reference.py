"""The reference pages name what there is, no more and no less."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import pgque
from pgque import cli, errors

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
SOURCES = sorted((ROOT / "sql/src").glob("*.sql"))


def page(name: str) -> str:
    """A page of the reference, on one line."""
    return " ".join((REFERENCE / name).read_text("utf-8").replace("\n>", "\n").split())


def generator() -> ModuleType:
    """docs/build_reference.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("build_reference", DOCS / "build_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_sql_page_is_current() -> None:
    """docs/reference/sql.md is what the sources say."""
    command = [sys.executable, str(DOCS / "build_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_sql_page_has_every_public_function() -> None:
    """Also those that the generator might overlook: looked for in another way."""
    text = "\n".join(path.read_text("utf-8") for path in SOURCES)
    names = set(re.findall(r"(?:function|procedure) pgque\.([a-z]\w+)\s*\(", text))
    assert names == set(
        re.findall(r"^### `(\w+)`", (REFERENCE / "sql.md").read_text(), re.MULTILINE)
    )


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (
            "-- Part\n\ncreate or replace function pgque.f(a int)\nreturns int\nlanguage sql\n",
            "f(int)",
        ),
        ("create or replace function pgque.f()\nreturns int\nlanguage sql\n", "f()"),
    ],
)
def test_generator_refuses_what_has_no_comment(source: str, complaint: str) -> None:
    """A public function without `comment on` stops it."""
    with pytest.raises(Exception, match=re.escape(complaint)):
        generator().part(source, "part.sql", {})


def codes_of_sources() -> set[str]:
    """The SQLSTATEs that somebody can get."""
    text = "\n".join(path.read_text("utf-8") for path in SOURCES)
    raised = re.findall(r"(?:_fail\(\s*|errcode = )'(QU\d{3})'", text)
    return set(raised) - {"QU000"}  # caught where it is raised


def test_errors_page_has_every_code() -> None:
    """Each SQLSTATE has a section and a line in the table, with its Python class."""
    text = page("errors.md")
    table = dict(re.findall(r"\| \[(QU\d{3})\]\(#qu\d{3}\) \| [^|]+ \| `(\w+)` \|", text))
    ours = {code: kind for code, kind in errors._BY_SQLSTATE.items() if code.startswith("QU")}
    assert set(table) == codes_of_sources() | set(ours)
    assert table == {code: getattr(ours.get(code), "__name__", "PgqueError") for code in table}
    assert set(re.findall(r" ## (QU\d{3}) ", text)) == set(table)


def test_errors_page_has_the_texts_of_the_server() -> None:
    """Messages and hints as in the errors part, `%s` shown as an ellipsis."""
    text = page("errors.md")
    source = next(path for path in SOURCES if path.name.endswith("_errors.sql")).read_text("utf-8")
    calls = re.findall(r"_fail\('QU\d{3}',(.*?)(?:;\n|\n\$\$)", source, re.DOTALL)
    assert len(calls) > 12
    for literal in re.findall(r"'((?:[^']|'')*)'", "\n".join(calls)):
        if " " in literal.strip():
            said = literal.replace("''", "'").replace("%s", "…")
            assert " ".join(said.split()) in text, literal


def test_errors_page_has_every_code_of_postgresql() -> None:
    """Those that have a class of their own in the driver."""
    text = page("errors.md").replace("57P01 to 57P05", "57P01 57P02 57P03 57P04 57P05")
    for code in [*errors._BY_SQLSTATE, *(f"class {start}" for start in errors._BY_CLASS)]:
        assert code in text


def test_python_page_has_every_public_name() -> None:
    """All of pgque.__all__, every method of the client, every field of a message."""
    text = page("python.md")
    for name in pgque.__all__:
        assert re.search(rf"\b{name}\b", text), name
    for kind in (pgque.PgqueClient, pgque.Consumer):
        for name, _ in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                assert re.search(rf"\b{name}\b", text), f"{kind.__name__}.{name}"


def test_python_page_has_the_signatures_of_the_client() -> None:
    """Where the page shows arguments, they are those of the method, defaults included."""
    shown = dict(re.findall(r"`(\w+)\(([^`]*)\)`", page("python.md")))
    for name, method in inspect.getmembers(pgque.PgqueClient, inspect.isfunction):
        if name in shown and not name.startswith("_"):
            parameters = list(inspect.signature(method).parameters.values())[1:]
            assert re.findall(
                r"(\w+)(?:=[^,]+(?:\(.*\))?)?(?:, |$)", shown[name].replace("*, ", "")
            ) == [parameter.name for parameter in parameters], name


def test_settings_page_has_every_parameter() -> None:
    """Of a queue with its default, and of a consumer with its default."""
    text = page("settings.md")
    tables = next(path for path in SOURCES if path.name.endswith("_tables.sql")).read_text("utf-8")
    queues = next(path for path in SOURCES if path.name.endswith("_queues.sql")).read_text("utf-8")
    names = set(re.findall(r"'(\w+)'", " ".join(re.findall(r"when ('.*?) then", queues)))) - {
        "period|lag"
    }
    assert len(names) >= 8
    for name in names:
        default = re.search(rf"queue_{name} \w+ not null default '?([^,']+)", tables)
        assert default is not None, name
        assert f"| `{name}` | {default[1]} |" in text, name
    for parameter in list(inspect.signature(pgque.Consumer).parameters.values()):
        shown = re.search(rf"`{parameter.name}`[^|]*\|([^|]*)\|", text)
        assert shown is not None, parameter.name
        if parameter.default is not inspect.Parameter.empty:
            given = repr(parameter.default).replace("'", '"')
            assert shown[1].strip().strip("`") == given, parameter.name


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands below a parser, those of `dlq` included."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield name, child
                yield from commands(child)


def test_cli_page_has_every_command_and_option() -> None:
    """As the parser knows them."""
    text = page("cli.md")
    found = list(commands(cli.build_parser()))
    assert len(found) > 12
    for name, parser in found:
        assert re.search(rf"[` ]{name}\b", text), name
        for option in parser._option_string_actions:
            assert option in text or option in ("-h", "--help"), f"{name} {option}"
