"""What a client resends with every turn is stored once, and whatever needs a request again finds all of it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from app.api.routes.sessions import spooled
from app.api.schemas.archive import StoredRequest
from app.domain.content import canonical_json
from app.domain.errors import ProviderError
from app.domain.types import SessionId, ToolDefinition, TurnId
from app.services.archive.transfer import export_session, fork_session
from app.services.sessions import delete_session
from app.services.turn.take import prepare_regeneration, regenerate_turn, retry_turn
from app.services.turn.types import TurnOptions, TurnRequest
from app.services.views.simulation import Variant, simulate
from tests.providers.server import Answer, serving
from tests.services.service import TENANT, Service, chat, models_toml, ref_of, service
from tests.services.test_tools import calls

RULES = "Answer in one sentence, and quote “the ledger” by line. " * 400
"""A system prompt of 22 kB."""
MANY_TOOLS: tuple[ToolDefinition, ...] = tuple(
    {"type": "function", "function": {"name": f"look_up_{at}", "description": "Looks up a line of “the ledger”. " * 4}}
    for at in range(20)
)
"""Tools of 4 kB."""


OF_ONE_ROUND = {"recorded_reply", "whole_past", "is_single", "note", "list_sha256"}
"""The options that a later round, and another try, do without."""


def test_every_option_of_a_turn_is_stored_for_later_rounds_and_accepted_in_an_import_or_is_of_one_round() -> None:
    options = TurnOptions(
        MANY_TOOLS, "none", 500, instructions=RULES, provider_options={"seed": 7}, policy={"focus": "prices"}
    )
    stored = options.stored()
    assert stored is not None
    assert TurnOptions.of_stored(json.loads(canonical_json(stored))) == options
    assert stored.keys() == StoredRequest.model_fields.keys()
    left_out = {field.name for field in fields(TurnOptions) if getattr(options, field.name) == field.default}
    assert left_out == OF_ONE_ROUND
    assert TurnOptions.of_stored(None) == TurnOptions.of_stored({}) == TurnOptions()
    assert TurnOptions().stored() is None


async def _stored_bytes(at: Service, session_id: SessionId) -> int:
    """Bytes of the session's requests and blocks."""
    (row,) = await at.rows(
        """
        SELECT (SELECT coalesce(sum(length(CAST(request AS text))), 0)
                FROM turns WHERE session_id = CAST(:sid AS uuid))
             + (SELECT coalesce(sum(length(content)), 0)
                FROM prompt_blocks WHERE session_id = CAST(:sid AS uuid)) AS bytes
        """,
        sid=session_id,
    )
    return int(row["bytes"])


async def _as_older_versions_stored_them(at: Service) -> None:
    changed = await at.rows(
        "UPDATE turns SET request = request - 'instructions_sha256' - 'tools_sha256'"
        " || jsonb_build_object('instructions', CAST(:rules AS text), 'tools', CAST(:tools AS jsonb))"
        " WHERE request IS NOT NULL RETURNING id",
        rules=RULES,
        tools=list(MANY_TOOLS),
    )
    assert changed


async def _exported(at: Service, session_id: SessionId) -> dict[str, Any]:
    with await spooled(export_session(at.rt, ref_of(session_id))) as file:
        return json.load(file)


async def test_a_system_prompt_and_tools_that_come_with_every_turn_are_stored_once(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(chat("Yes.")) as server,
        service(database_url, models_toml(server, window=65_536), folder=tmp_path) as at,
    ):
        session = await at.session()
        await at.turn(session.id, "One.", instructions=RULES, tools=MANY_TOOLS)
        first = await _stored_bytes(at, session.id)
        for number in range(9):
            await at.turn(session.id, f"Next {number}.", instructions=RULES, tools=MANY_TOOLS)
        assert await _stored_bytes(at, session.id) < first + len(json.dumps(MANY_TOOLS))
        assert len(await at.rows("SELECT 1 FROM prompt_blocks WHERE content = :rules", rules=RULES)) == 1
        await delete_session(at.rt, ref_of(session.id))
        assert await at.rows("SELECT 1 FROM prompt_blocks") == []


@pytest.mark.parametrize("is_old", [False, True], ids=["as it is stored now", "as older versions stored it"])
async def test_whatever_needs_a_request_again_finds_its_long_system_prompt_and_tools(
    database_url: str, tmp_path: Path, *, is_old: bool
) -> None:
    script = [calls("a"), Answer({"error": {"message": "no"}}, status=400), chat("Yes."), chat("Again."), chat("Too.")]
    async with (
        serving(lambda _: script.pop(0)) as server,
        service(database_url, models_toml(server, window=65_536), folder=tmp_path) as at,
    ):

        def assert_sent(what: str) -> None:
            assert {"role": "system", "content": RULES} in server.seen[-1].json["messages"], what
            assert server.seen[-1].json["tools"] == list(MANY_TOOLS), what

        async def regenerate(session_id: SessionId, turn_id: TurnId) -> None:
            prepared = await prepare_regeneration(at.rt, ref_of(session_id), turn_id, TurnRequest(None, "0" * 64))
            await regenerate_turn(at.rt, TENANT, prepared)

        session = await at.session()
        turn = (await at.turn(session.id, "Look.", instructions=RULES, tools=MANY_TOOLS)).turn
        if is_old:
            await _as_older_versions_stored_them(at)
        with pytest.raises(ProviderError):
            await at.outputs(session.id, turn.id, {"a": "Nothing."})
        assert_sent("a later round")
        await retry_turn(at.rt, ref_of(session.id), turn.id, TurnOptions(instructions=RULES, tools=MANY_TOOLS), "main")
        assert_sent("another try")
        if is_old:
            await _as_older_versions_stored_them(at)
        await regenerate(session.id, turn.id)
        assert_sent("a regeneration")

        document = await _exported(at, session.id)
        (stored,) = [row["request"] for row in document["turns"]]
        assert stored == TurnOptions(instructions=RULES, tools=MANY_TOOLS).stored()
        imported = await at.imported(document)
        assert (await _exported(at, imported.id))["turns"][0]["request"] == stored
        fork = await fork_session(at.rt, ref_of(session.id), None)
        assert (await _exported(at, fork.id))["turns"][0]["request"] == stored
        await delete_session(at.rt, ref_of(session.id))
        await regenerate(fork.id, turn.id)
        assert_sent("a regeneration in a fork")
        result = await simulate(at.rt, ref_of(fork.id), [Variant("same", {})])
        assert result["full_history"][0]["wire_tokens"] > len(RULES) / 8, "a simulation"


async def test_a_turn_that_was_refused_keeps_its_long_system_prompt_and_tools_in_a_fork(database_url: str) -> None:
    """No prompt of it was sent, so that only the request refers to the texts."""
    async with service(database_url) as at:
        session = await at.session()
        await at.turn(session.id, "One.")
        with pytest.raises(Exception, match="budget"):
            await at.turn(session.id, "word " * 9000, instructions=RULES, tools=MANY_TOOLS)
        fork = await fork_session(at.rt, ref_of(session.id), None)
        _, refused = (await _exported(at, fork.id))["turns"]
        assert refused["request"]["instructions"] == RULES
        assert refused["request"]["tools"] == list(MANY_TOOLS)
