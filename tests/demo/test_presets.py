"""docs/policies.md is true: its tables are what the command prints and what the presets have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from app.engine.policy.policy import PRESETS
from tests.docs.pages import ROOT, table

PAGE = (ROOT / "docs" / "policies.md").read_text()


def test_the_pages_table_is_what_the_command_prints_and_its_pictures_are_drawn(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "plimsoll_demo.presets", "--pictures", str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    printed, documented = table("preset", ended.stdout), table("preset", PAGE)
    assert [row[:6] for row in printed] == [row[:6] for row in documented], f"the table should be\n{ended.stdout}"
    # The summarizer reads ids, which are random, and so a few tokens more or less.
    for is_now, says in zip(printed, documented, strict=True):
        assert [_tokens(cell) for cell in is_now[6:]] == pytest.approx([_tokens(cell) for cell in says[6:]], rel=1e-3)
    drawn = {path.name: ET.fromstring(path.read_text()) for path in tmp_path.iterdir()}  # noqa: S314 - written by ourselves
    assert len(drawn) == len(PRESETS)
    assert all(f"](images/{name})" in PAGE for name in drawn)


def test_the_fields_the_page_names_have_the_values_it_gives() -> None:
    for preset, _, field, value in table("preset \\| the design says", PAGE):
        has = getattr(PRESETS[preset.strip("`")].policy, field.strip("`"))
        first = value.split(" ")[0]
        if isinstance(has, float):
            assert float(first) == has
        elif isinstance(has, bool):
            assert first == str(has).lower()
        elif isinstance(has, (int, str)) and has:
            assert first == str(has)
        else:
            assert field in ("`allocation`", "`context_priority`", "`summary_model`")


def _tokens(cell: str) -> int:
    return int(cell.replace(",", ""))
