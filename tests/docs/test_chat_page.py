"""The page about chat completions: its program runs, and its fields are the ones that are taken."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from app.api.schemas.chat import ChatIn
from app.domain.types import CHAT_OPTIONS
from tests.api.conftest import serving, settings_for
from tests.docs.pages import ROOT, blocks, table

PAGE = (ROOT / "docs" / "chat-completions.md").read_text()
(PROGRAM,) = blocks("python", PAGE)


def test_its_program_is_answered_out_of_the_session(database_url: str, tmp_path: Path) -> None:
    with serving(settings_for(database_url)) as address:
        program = PROGRAM.replace("http://127.0.0.1:8000", address)
        assert program != PROGRAM
        said = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=300, check=True
        ).stdout
    assert "My name is Anna." in said


def test_its_table_has_every_field() -> None:
    rows = [re.findall(r"`(\w+)`", cell) for cell, _ in table("field", PAGE)]
    assert {name for row in rows for name in row} | {"metadata"} == set(ChatIn.model_fields)
    assert set(rows[2]) == CHAT_OPTIONS
