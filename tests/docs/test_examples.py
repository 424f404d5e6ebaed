"""Every fenced example of README.md and docs/ is run, page by page, on a fresh database.

The blocks of a page run in their order: `python` as a script, `sql` through psql, `bash`; in a
folder that has the checkout's `sql/`. All reach the page's database through libpq's environment; it
is the one that the text calls `mydb`. Blocks in QUIET languages are not run, others are refused.
An HTML comment on the line above a block changes that (several may stand one below the other):

    <!-- example: continues -->         after the code of the python block before it, as one script
    <!-- example: until TEXT -->        goes on until its output shows TEXT, then gets SIGTERM
    <!-- example: fails with TEXT -->   ends with an error that says TEXT
    <!-- example: output -->            is what the block before it prints, `...` being anything
    <!-- example: not run: REASON -->   what a test can't do
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fix_wait import wait_until

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])
RUN = {"python", "sql", "bash"}
QUIET = {"text", "json", "toml", "ini", "yaml", "mermaid"}
DIRECTIVES = ("continues", "until", "fails with", "output", "not run:")

FENCE = re.compile(
    r"(?P<comments>(?:^[ ]*<!--[ ]example:[^\n]*-->\n)*)"
    r"^(?P<indent>[ ]*)(?P<fence>```+)(?P<language>[^\n]*)\n(?P<code>.*?)^[ ]*(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Example:
    """One fenced block and what its comments say."""

    place: str
    language: str
    code: str
    directives: dict[str, str]


def examples(text: str, page: str) -> Iterator[Example]:
    """The blocks of a page."""
    for found in FENCE.finditer(text):
        place = f"{page}:{text.count(chr(10), 0, found.start('fence')) + 1}"
        directives = {}
        for comment in re.findall(r"<!-- example: *(.*?) *-->", found["comments"]):
            name = next((name for name in DIRECTIVES if comment.startswith(name)), None)
            assert name, f"{place}: unknown: {comment}"
            directives[name] = comment.removeprefix(name).strip()
            assert bool(directives[name]) == (name not in {"continues", "output"}), place
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        yield Example(place, found["language"].strip(), code, directives)


class Page:
    """Runs the examples of one page in their order."""

    def __init__(self, dsn: str, psql: str, folder: Path) -> None:
        given = conninfo_to_dict(dsn)
        programs = [str(Path(sys.executable).parent), os.environ["PATH"], str(Path(psql).parent)]
        self.env = {**os.environ, "PATH": os.pathsep.join(programs), "PYTHONUNBUFFERED": "1"}
        self.env.pop("PGQUE_DSN", None)
        for option in psycopg.pq.Conninfo.get_defaults():
            if option.envvar and (value := given.get(option.keyword.decode())) is not None:
                self.env[option.envvar.decode()] = str(value)
        self.database = str(given["dbname"])
        self.folder = folder
        (folder / "sql").symlink_to(ROOT / "sql")
        self.script = ""
        self.printed = ""

    def run(self, example: Example) -> None:
        """Run one block and see that it does what its comments say."""
        assert example.language in RUN | QUIET, f"{example.place}: language {example.language!r}"
        if "output" in example.directives:
            self.compare(example)
        elif example.language in RUN and "not run:" not in example.directives:
            self.execute(example)

    def execute(self, example: Example) -> None:
        """Run the block as a process, keep what it prints, and judge how it ended."""
        until = example.directives.get("until", "")
        failure = example.directives.get("fails with", "")
        code = self.process(self.command(example), until)
        said = f"{example.place} returned {code}:\n{self.printed}"
        assert until in self.printed, said
        assert failure in self.printed, said
        if until and example.language == "bash" and code == -signal.SIGTERM:
            code = 0  # no handler of its own; a Python example has to end well by itself
        assert (code != 0) == bool(failure), said

    def process(self, command: list[str], until: str) -> int:
        """Run to the end, or stop with SIGTERM when `until` was printed."""
        output = self.folder / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            if until:
                wait_until(lambda: process.poll() is not None or until in output.read_text(), 30)
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)
            return process.wait(60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self.printed = output.read_text()

    def command(self, example: Example) -> list[str]:
        """The block as a file, and what runs it."""
        code = re.sub(r"\bmydb\b", self.database, example.code)
        if example.language == "python":
            self.script = self.script + code if "continues" in example.directives else code
            code = self.script
        file = self.folder / f"example.{example.language}"
        file.write_text(code)
        return {
            "python": [sys.executable, str(file)],
            "sql": ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(file)],
            "bash": ["bash", "-eu", str(file)],
        }[example.language]

    def compare(self, example: Example) -> None:
        """See that the block before printed this."""
        expected, printed = (
            "\n".join(line.rstrip() for line in text.strip().splitlines())
            for text in (example.code, self.printed.replace(self.database, "mydb"))
        )
        pattern = re.escape(expected).replace(re.escape("..."), ".*?")
        assert re.fullmatch(pattern, printed, re.DOTALL), (
            f"{example.place} says\n{expected}\nbut it printed\n{printed}"
        )


@pytest.fixture
def page(dsn: str, psql: str, tmp_path: Path) -> Page:
    """A page with a database of its own."""
    return Page(dsn, psql, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_of_a_page_run(path: Path, page: Page) -> None:
    """Each block, in the order in which a reader meets them."""
    for example in examples(path.read_text("utf-8"), str(path.relative_to(ROOT))):
        page.run(example)


GOOD = """
<!-- example: fails with division by zero -->
```sql
select 1 / 0;
```
```python
import os
```
<!-- example: continues -->
```python
print(os.environ["PGDATABASE"], "and more")
```
<!-- example: output -->
```text
mydb and ...
```
- in a list
  <!-- example: until ready -->
  ```bash
  psql -X -At -c 'select 6 * 7' mydb
  echo ready
  exec sleep 1000
  ```
  <!-- example: output -->
  ```text
  42
  ready
  ```
<!-- example: not run: never -->
```bash
exit 1
```
"""


def test_the_convention(page: Page) -> None:
    """The page above shows each of its forms."""
    found = list(examples(GOOD, "page"))
    assert len(found) == 7
    for example in found:
        page.run(example)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```sql\nselect nothing;\n```\n", "page:1 returned 3"),
        ("```shell\nls\n```\n", "page:1: language 'shell'"),
        ("<!-- example: sometimes -->\n```sql\nselect 1;\n```\n", "page:2: unknown: sometimes"),
        ("<!-- example: not run: -->\n```sql\nselect 1;\n```\n", "page:2"),
        ("<!-- example: fails with x -->\n```bash\necho x\n```\n", "page:2 returned 0"),
        ("<!-- example: until x -->\n```bash\necho y\n```\n", "page:2 returned 0"),
        (
            "```bash\necho x\n```\n<!-- example: output -->\n```text\ny\n```\n",
            "page:5 says",
        ),
    ],
)
def test_what_the_convention_refuses(page: Page, text: str, complaint: str) -> None:
    """So that no example goes unnoticed."""
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        for example in examples(text, "page"):
            page.run(example)
