"""Strange answers that are taken: stored, read again, and no hindrance to the session's next turn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from app.domain.types import ToolCall, TurnStatus
from app.services.views.turns import get_turn
from tests.providers.hostile import HOSTILE, Hostile
from tests.providers.playing import threaded_serving
from tests.providers.server import Answer, Seen, Step, serving
from tests.providers.wires import ANTHROPIC, OPENAI, RESPONSES, ModelReply, Wire
from tests.services.service import chat, models_toml, ref_of, service

_TAKEN = [hostile for hostile in HOSTILE if hostile.code is None]


@pytest.mark.parametrize("hostile", _TAKEN, ids=lambda hostile: hostile.name)
async def test_a_strange_answer_is_stored_and_the_session_goes_on(
    hostile: Hostile, database_url: str, tmp_path: Path
) -> None:
    with threaded_serving(hostile.step()) as strange, threaded_serving(chat("Fine.")) as sound:
        alias = f'[models.strange]\n{hostile.wire.toml}model = "m"\nbase_url = "{strange.base_url}"\n'
        extra = f"{alias}context_window = 65536\ntimeout_s = 60\n"
        async with service(database_url, models_toml(sound, window=65536, extra=extra), folder=tmp_path) as own:
            session = await own.session(model_alias="strange", policy={"summarize_when": "never"})
            first = await own.turn(session.id, "Hello", listen=(lambda _: None) if hostile.stream else None)
            stored = await get_turn(own.rt, ref_of(session.id), first.turn.id)
            assert (stored.assistant_output, stored.tool_calls) == (first.turn.assistant_output, first.turn.tool_calls)
            assert stored.prompt_tokens is None or 0 <= stored.prompt_tokens < 2**31
            if stored.tool_calls:
                assert stored.status is TurnStatus.AWAITING_TOOLS
                return
            assert stored.status is TurnStatus.COMPLETED
            second = await own.turn(session.id, "And now?", model_alias="main")
            assert second.turn.assistant_output == "Fine."


def _called(value: Any) -> list[str]:
    """The names of all calls in a request's body, on any wire."""
    if isinstance(value, list):
        return [name for each in cast("list[Any]", value) for name in _called(each)]
    if not isinstance(value, dict):
        return []
    fields = cast("dict[str, Any]", value)
    is_call = fields.get("type") in ("tool_use", "function_call") or "arguments" in fields
    return [fields["name"]] if is_call else _called([*fields.values()])


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC, RESPONSES], ids=lambda wire: wire.name)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["functions.look", "look it up\n", "n" * 200])
async def test_a_session_goes_on_after_a_call_by_a_name_that_no_provider_takes_back(
    name: str, wire: Wire, database_url: str, tmp_path: Path, *, stream: bool
) -> None:
    """OpenAI and Anthropic refuse every later prompt with such a call, also when another model made it."""

    def play(request: Seen) -> Step:
        called = _called(request.json)
        if not all(re.fullmatch("[A-Za-z0-9_-]{1,64}", each) for each in called):
            return Answer({"error": {"message": "Invalid 'function.name': string does not match pattern."}}, 400)
        reply = ModelReply("Fine.") if called else ModelReply("", calls=(ToolCall("c1", name, "{}"),))
        return wire.stream(reply) if request.json.get("stream") else wire.whole(reply)

    async with serving(play) as server:
        alias = f'[models.strict]\n{wire.toml}model = "m"\nbase_url = "{server.base_url}"\n'
        extra = f"{alias}context_window = 65536\ntimeout_s = 60\n"
        async with service(database_url, models_toml(server, extra=extra), folder=tmp_path) as own:
            session = await own.session(model_alias="strict")
            waiting = await own.turn(session.id, "Hello", listen=(lambda _: None) if stream else None)
            assert waiting.turn.status is TurnStatus.AWAITING_TOOLS
            done = await own.outputs(session.id, waiting.turn.id, {"c1": "No such tool."})
            assert done.turn.assistant_output == "Fine."
            assert (await own.turn(session.id, "And now?")).turn.assistant_output == "Fine."
