"""The page about messages: its fields are the ones that are taken, its errors those that are answered."""

from __future__ import annotations

import re

from app.api.problems import KINDS, document, error_json, status_of
from app.api.schemas.messages import MessagesIn
from tests.docs.pages import ROOT, table

PAGE = (ROOT / "docs" / "messages.md").read_text()


def test_its_table_has_every_field() -> None:
    rows = [re.findall(r"`(\w+)`", cell) for cell, _ in table("field", PAGE)]
    assert {name for row in rows for name in row} == set(MessagesIn.model_fields)


def test_its_table_has_every_type_of_an_error() -> None:
    stated = {(int(status), kind.strip("`")) for status, kind, _ in table("status", PAGE)}
    problems = [document(code, "") for code in KINDS]
    answered = {(status_of(problem), error_json(problem)["error"]["type"]) for problem in problems}
    assert {each for each in answered if each[0] in {status for status, _ in stated}} == stated
