"""Regular expressions mean the same with every Python that the project supports."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{[\d,]+\})\+")


def test_no_group_is_repeated_possessively() -> None:
    """Python before 3.11.5 then matches what the group does not: `(?:ab?c)*+` matches "a". An atomic group is right."""
    assert _POSSESSIVE_GROUP.search("(?:ab?c)*+")
    sources = [*ROOT.glob("apps/api/app/**/*.py"), *ROOT.glob("clients/python/**/*.py")]
    assert len(sources) > 200
    found = [
        f"{source.relative_to(ROOT)}:{number}"
        for source in sources
        for number, line in enumerate(source.read_text().splitlines(), 1)
        if _POSSESSIVE_GROUP.search(line)
    ]
    assert found == []
