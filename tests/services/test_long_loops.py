"""A turn of many rounds: what a round stores depends on what is new in it, not on the rounds before."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

from app.api.routes.sessions import spooled
from app.services.archive.transfer import export_session, fork_session
from app.services.views.turns import get_prompt
from tests.providers.server import Answer, Seen, serving
from tests.services.service import chat, models_toml, ref_of, service
from tests.services.test_tools import TOOLS, calls

_ROUNDS = 60
_RESULT = "The invoice 2024-118 is over 4,310 euro and was paid on the third. " * 24
"""About 450 tokens."""


async def test_a_round_stores_nothing_of_the_results_that_earlier_rounds_shortened(
    database_url: str, tmp_path: Path
) -> None:
    numbers = count()

    def answer(request: Seen) -> Answer:
        number = next(numbers)
        return calls(f"call_{number}") if number < _ROUNDS else chat("All are paid.")

    async with (
        serving(answer) as server,
        service(database_url, models_toml(server, window=16_000), folder=tmp_path) as at,
    ):
        session = await at.session()
        waiting = await at.turn(session.id, "Go through all invoices.", tools=TOOLS)
        for number in range(_ROUNDS):
            results = {call.id: f"{number}. {_RESULT}" for call in waiting.turn.tool_calls}
            waiting = await at.outputs(session.id, waiting.turn.id, results)
        rows = await at.rows(
            "SELECT pg_column_size(a.*) AS bytes, prompt_refs FROM turn_context_audit a ORDER BY round"
        )
        assert len(rows) == _ROUNDS + 1
        assert max(row["bytes"] for row in rows) < 2_000
        assert rows[-1]["prompt_refs"].count(" h 0 1") > 20, "nothing was shortened"
        (blocks,) = await at.rows("SELECT count(*) AS stored FROM prompt_blocks")
        assert blocks["stored"] <= 3  # the system prompt, and the tools with and without the look-back

        sent = [seen.json["messages"] for seen in server.seen]
        for round_number in (1, _ROUNDS // 2, _ROUNDS + 1):
            prompt = await get_prompt(at.rt, ref_of(session.id), waiting.turn.id, round_number)
            assert prompt.messages == sent[round_number - 1]
        fork = await fork_session(at.rt, ref_of(session.id), None)
        with await spooled(export_session(at.rt, ref_of(session.id))) as file:
            imported = await at.imported(json.load(file))
        for copied in (fork, imported):
            (turn,) = await at.rows("SELECT id FROM turns WHERE session_id = :id", id=copied.id)
            assert (await get_prompt(at.rt, ref_of(copied.id), turn["id"], None)).messages == sent[-1]
