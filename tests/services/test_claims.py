"""What a turn is claimed for: by whom, in which state, and with all that its request gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.domain.errors import TurnInProgress
from app.domain.types import RecordedReply, ToolCall, TurnStatus
from app.services.turn.claim import claim_drafted, draft_turn
from app.services.turn.take import retry_turn
from app.services.turn.types import TurnOptions, TurnRequest
from tests.providers.server import serving
from tests.services.service import chat, models_toml, ref_of, service
from tests.services.test_tools import TOOLS, calls


@pytest.mark.parametrize("state", ["running", "awaiting_tools", "completed"])
async def test_a_turn_that_runs_or_waits_or_has_its_answer_is_not_tried_again(database_url: str, state: str) -> None:
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        if state == "running":  # in another process
            draft = await draft_turn(at.rt, TurnRequest(content="Hi", request_sha256="x"), None)
            await claim_drafted(at.rt, session, draft, TurnOptions())
        elif state == "awaiting_tools":
            reply = RecordedReply(None, (ToolCall("a", "look_up", "{}"),))
            await at.turn(session.id, "Look.", tools=TOOLS, recorded_reply=reply)
        else:
            await at.turn(session.id, "Hi")
        before = await at.rows("SELECT id, status, fence, assistant_output FROM turns")
        assert [row["status"] for row in before] == [state]
        with pytest.raises(TurnInProgress):
            await retry_turn(at.rt, session, before[0]["id"], TurnOptions(), "offline")
        assert await at.rows("SELECT id, status, fence, assistant_output FROM turns") == before


async def test_a_long_option_that_is_neither_a_system_prompt_nor_a_tool_is_sent_in_every_round(
    database_url: str, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {f"line_{at}": {"type": "string"} for at in range(100)}}
    options = {"response_format": {"type": "json_schema", "json_schema": {"name": "lines", "schema": schema}}}
    async with (
        serving(calls("a"), calls("b"), chat("{}")) as server,
        service(database_url, models_toml(server, window=65_536), folder=tmp_path) as at,
    ):
        session = await at.session()
        turn = (await at.turn(session.id, "Look.", tools=TOOLS, provider_options=options)).turn
        turn = (await at.outputs(session.id, turn.id, {"a": "Nothing."})).turn
        turn = (await at.outputs(session.id, turn.id, {"b": "Nothing."})).turn
        assert turn.status is TurnStatus.COMPLETED
        assert [seen.json["response_format"] for seen in server.seen] == [options["response_format"]] * 3
