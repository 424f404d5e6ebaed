"""Links between the pages lead somewhere, and the index leads everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def links(path: Path) -> Iterator[tuple[Path, str]]:
    """The file and the anchor of each link of a page that stays within the project."""
    text = re.sub(r"```.*?```|`[^`]*`", "", path.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"\w+:", target):
            file, _, anchor = target.partition("#")
            yield (path.parent / file).resolve() if file else path, anchor


def anchors(path: Path) -> set[str]:
    """What a page's headings are called in links to them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """To a file that is there, and to a heading that it has."""
    for file, anchor in links(path):
        assert file.exists(), file
        assert not anchor or anchor in anchors(file), f"{file}#{anchor}"


def test_index_leads_everywhere() -> None:
    """No page of docs/ stands alone."""
    index = ROOT / "docs/index.md"
    linked = {file for file, _ in links(index)}
    assert set((ROOT / "docs").rglob("*.md")) - {index} <= linked
