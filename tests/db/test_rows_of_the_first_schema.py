"""What the service stored in its first tables is read, rebuilt, copied and continued by this version.

`rows_of_the_first_schema.json` has one session as the version of the revision `2026_11_22_summary_leases` stored it: a
goal, a pin, a turn with two tool calls, a failed one, and a summary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID

import asyncpg
import pytest

from app.api.routes.sessions import spooled
from app.db.migrate import downgrade, upgrade
from app.domain.types import SessionId, TurnId
from app.services.archive.transfer import export_session, fork_session
from app.services.turn.take import prepare_regeneration, regenerate_turn
from app.services.turn.types import TurnRequest
from app.services.views.search import search_session
from app.services.views.simulation import Variant, simulate
from app.services.views.turns import get_audit, get_expanded_audit, get_prompt
from tests.engine.prompt_hash import prompt_sha256
from tests.providers.server import serving
from tests.services.service import TENANT, Service, model, models_toml, ref_of, service

ROWS: Final[dict[str, list[dict[str, Any]]]] = json.loads(
    Path(__file__).with_name("rows_of_the_first_schema.json").read_text()
)
SESSION: Final = SessionId(UUID(ROWS["sessions"][0]["id"]))
TURNS: Final = [TurnId(UUID(turn["id"])) for turn in sorted(ROWS["turns"], key=lambda turn: turn["seq"])]


@pytest.fixture
async def migrated_url(database_url: str) -> str:
    """A database with these rows that was migrated from the revision they are of."""
    await downgrade(database_url, "2026_11_22_summary_leases")
    connection = await cast(Any, asyncpg).connect(database_url)
    try:
        for table, rows in ROWS.items():
            await connection.execute(
                f"INSERT INTO {table} SELECT * FROM json_populate_recordset(NULL::{table}, $1::json)",  # noqa: S608 - names of the file beside this one
                json.dumps(rows),
            )
    finally:
        await connection.close()
    await upgrade(database_url)
    return database_url


async def _check_prompts(at: Service, session_id: SessionId) -> None:
    """That every prompt is rebuilt as it was sent."""
    by_turn = {TurnId(UUID(audit["turn_id"])): audit for audit in ROWS["turn_context_audit"]}
    assert by_turn.keys() == set(TURNS)
    for audit in ROWS["turn_context_audit"]:
        session, turn_id = ref_of(session_id), TurnId(UUID(audit["turn_id"]))
        prompt = await get_prompt(at.rt, session, turn_id, audit["round"])
        assert prompt_sha256(prompt.messages, prompt.tools) == audit["prompt_sha256"]
        assert (await get_audit(at.rt, session, turn_id, audit["round"])).prompt_sha256 == audit["prompt_sha256"]
        await get_expanded_audit(at.rt, session, turn_id, audit["round"])


async def test_a_session_of_the_first_schema_is_rebuilt_copied_and_continued(migrated_url: str, tmp_path: Path) -> None:
    async with (
        serving(model("Yes.")) as server,
        service(migrated_url, models_toml(server, window=6000), folder=tmp_path) as at,
    ):
        await _check_prompts(at, SESSION)
        with await spooled(export_session(at.rt, ref_of(SESSION))) as file:
            imported = await at.imported(json.load(file))
        fork = await fork_session(at.rt, ref_of(SESSION), None)
        await _check_prompts(at, fork.id)
        prepared = await prepare_regeneration(at.rt, ref_of(fork.id), TURNS[-1], TurnRequest(None, "0" * 64))
        assert (await regenerate_turn(at.rt, TENANT, prepared)).turn.assistant_output == "Yes."
        for session_id in (SESSION, fork.id, imported.id):
            server.seen.clear()
            await at.turn(session_id, "What did Anna say of the budget?")
            sent = json.dumps(server.seen[0].json["messages"], ensure_ascii=False)
            for text in ("Never open valve 7.", "Empty the depot by May.", "Use short sentences.", "Which antenna"):
                assert text in sent, text
            assert (await search_session(at.rt, ref_of(session_id), "antenna", 10)).items
            assert (await simulate(at.rt, ref_of(session_id), [Variant("same", {})]))["turns"] == len(TURNS) + 1
        await _check_prompts(at, SESSION)
