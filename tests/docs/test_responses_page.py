"""The page about responses: its program runs, its fields are the ones that are taken, its routes the ones there are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from fastapi.routing import APIRoute

from app.api.routes import conversations, responses
from app.api.schemas.responses import ResponseIn
from tests.api.conftest import serving, settings_for
from tests.docs.pages import ROOT, blocks, table

PAGE = (ROOT / "docs" / "responses.md").read_text()
(PROGRAM,) = blocks("python", PAGE)


def test_its_program_is_answered_out_of_the_conversation(database_url: str, tmp_path: Path) -> None:
    with serving(settings_for(database_url)) as address:
        program = PROGRAM.replace("http://127.0.0.1:8000", address)
        assert program != PROGRAM
        said = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=300, check=True
        ).stdout
    assert "My name is Anna." in said
    assert "['message', 'message', 'message']" in said


def test_its_table_has_every_field() -> None:
    rows = [re.findall(r"`(\w+)`", re.sub(r"\(.*\)", "", cell)) for cell, _ in table("field", PAGE)]
    assert {name for row in rows for name in row} == set(ResponseIn.model_fields)


def test_its_table_has_every_route() -> None:
    listed: set[tuple[str, str]] = set()
    for cell, _ in table("route", PAGE):
        for route in re.findall(r"`([^`]+)`", cell):
            *methods, path = route.split()
            listed |= {(method, path) for method in methods}
    served = {
        (method, route.path)
        for router in (responses.router, conversations.router)
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    assert listed == served
