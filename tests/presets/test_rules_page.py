"""docs/policies.md: every rule of its tables has the test that it names."""

from __future__ import annotations

import re

import pytest

from app.engine.policy.policy import PRESETS
from tests.docs.pages import ROOT, table

PAGE = (ROOT / "docs" / "policies.md").read_text()


@pytest.mark.parametrize("design", PRESETS)
def test_every_rule_of_the_page_has_the_test_it_names_and_every_test_is_on_the_page(design: str) -> None:
    named = {cell.strip("`") for *_, cell in table(f"{design} says", PAGE)}
    assert all((ROOT / name).is_file() for name in named if "/" in name)
    code = (ROOT / "tests" / "presets" / f"test_rules_{design}.py").read_text()
    there = set(re.findall(r"^def (test_\w+)", code, re.MULTILINE))
    assert {name for name in named if "/" not in name} <= there
    # What is refused or listed for all designs alike stands above the tables.
    assert len(there - named) <= 2
