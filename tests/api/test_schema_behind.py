"""This version over a schema whose migrations were not run yet."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from app.db.migrate import downgrade
from tests.api.conftest import PATIENCE_S, assert_problem, new_session, serving, settings_for
from torture.databases import citus_servers

_WORDS = "The job compares ledger rows with bank lines. " * 20


@pytest.mark.skipif(citus_servers() is not None, reason="a cluster's database is used by other tests afterwards")
def test_what_needs_a_column_that_is_not_there_yet_asks_for_the_migrations(database_url: str) -> None:
    with (
        serving(settings_for(database_url)) as url,
        httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False) as client,
    ):
        path = f"/v1/sessions/{new_session(client)}"
        turns = [client.post(f"{path}/turns", json={"content": f"{number}. {_WORDS}"}).json() for number in range(6)]
        turn = f"{path}/turns/{turns[-1]['turn']['id']}"
        summary = f"{path}/summaries/{client.post(f'{path}/summaries').json()['id']}"
    asyncio.run(downgrade(database_url, "2026_11_23_message_speakers"))
    with (
        serving(settings_for(database_url)) as url,
        httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False) as client,
    ):
        for method, address in (
            ("GET", f"{turn}/audit"),
            ("GET", f"{turn}/prompt"),
            ("GET", f"{path}/summaries"),
            ("GET", f"{path}/export"),
            ("POST", f"{path}/turns"),
            ("PATCH", summary),
            ("POST", f"{summary}/undo"),
        ):
            body = {"PATCH": {"summary_text": "Another."}, "POST": {"content": "Another."}}.get(method)
            answer = client.request(method, address, json=None if address.endswith("undo") else body)
            assert "run the migrations" in assert_problem(answer, 503, "database_unavailable")["detail"], address
