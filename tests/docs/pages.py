"""The documentation's pages, and what is taken out of them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = (
    ROOT / "README.md",
    ROOT / "clients" / "python" / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)


def blocks(language: str, text: str = README) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}(?: [^\n]*)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def table(heading: str, text: str = README) -> list[tuple[str, ...]]:
    """The rows of the table whose first heading this is, by cell."""
    found = re.search(rf"^\| {heading} \|.*\n\|[-| :]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert found, f"no table {heading!r}"
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in found[1].splitlines()]
