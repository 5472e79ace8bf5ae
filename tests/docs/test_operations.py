"""What operators read is whole: every code a client can meet, and what the runbook of an alert looks at."""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import asyncpg
import httpx
from prometheus_client.parser import text_string_to_metric_families

from app.api.problems import KINDS
from app.telemetry.metrics import Telemetry
from tests.api.conftest import PATIENCE_S, serving, settings_for
from tests.docs.pages import ROOT

_PAGE = (ROOT / "docs" / "operations.md").read_text()


def test_every_problem_code_is_documented_with_its_status() -> None:
    rows = re.findall(r"^\| (`.+?) \| ([\d ]+) \|", _PAGE, re.MULTILINE)
    documented = {code: statuses.split() for codes, statuses in rows for code in re.findall(r"`(\w+)`", codes)}
    assert KINDS.keys() <= documented.keys()
    for code, kind in KINDS.items():
        assert str(kind.status) in documented[code], code


def test_every_series_is_described() -> None:
    families = text_string_to_metric_families(Telemetry(()).render()[0].decode())
    described = set(re.findall(r"\w+", _PAGE))
    assert [family.name for family in families if not {family.name, f"{family.name}_total"} & described] == []


def test_what_the_runbook_of_overflows_looks_at_is_in_a_refused_turn(database_url: str) -> None:
    looked_at = re.search(r"\*\*Look\*\* at `(\w+)` in the `(\w+)` of a refused turn \(`GET …/turns/\{tid\}`\)", _PAGE)
    assert looked_at
    with serving(settings_for(database_url)) as address, httpx.Client(base_url=address, timeout=PATIENCE_S) as client:
        session = client.post("/v1/sessions", json={"policy": {"max_context_tokens": 2048}}).json()["id"]
        assert client.post(f"/v1/sessions/{session}/turns", json={"content": "word " * 2000}).status_code == 422
        (turn,) = client.get(f"/v1/sessions/{session}/turns").json()["items"]
        read = client.get(f"/v1/sessions/{session}/turns/{turn['id']}").json()
    assert read[looked_at[2]][looked_at[1]][0]["region"] == "user"


def test_the_statements_of_runbooks_are_of_these_tables(database_url: str) -> None:
    statements = re.findall(r"`(SELECT [^`]+)`", _PAGE)
    assert statements

    async def run() -> None:
        connection = await cast(Any, asyncpg).connect(database_url)
        try:
            for statement in statements:
                await connection.fetch(statement)
        finally:
            await connection.close()

    asyncio.run(run())
