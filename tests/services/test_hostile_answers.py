"""Strange answers that are taken: stored, read again, and no hindrance to the session's next turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.domain.types import TurnStatus
from app.services.views.turns import get_turn
from tests.providers.hostile import HOSTILE, Hostile
from tests.providers.playing import threaded_serving
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
