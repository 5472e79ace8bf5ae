"""What operators read is whole: every code a client can meet."""

from __future__ import annotations

import re

from app.api.problems import KINDS
from tests.docs.pages import ROOT

_PAGE = (ROOT / "docs" / "operations.md").read_text()


def test_every_problem_code_is_documented_with_its_status() -> None:
    rows = re.findall(r"^\| (`.+?) \| ([\d ]+) \|", _PAGE, re.MULTILINE)
    documented = {code: statuses.split() for codes, statuses in rows for code in re.findall(r"`(\w+)`", codes)}
    assert KINDS.keys() <= documented.keys()
    for code, kind in KINDS.items():
        assert str(kind.status) in documented[code], code
