"""Every prompt that does not go on from the one before it has the cause in its audit, and is counted by it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.domain.errors import ProviderRefused
from app.domain.types import Pin
from app.services.sessions import change_session, put_pin
from tests.providers.server import Answer, Seen, serving
from tests.services.service import Service, chat, is_summary, model, models_toml, ref_of, service
from tests.services.test_tools import TOOLS, calls

_OTHER = '[models.other]\nprovider = "openai"\nmodel = "other"\nbase_url = "{url}"\ncontext_window = 4096\n'
_LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 8


def _answer(request: Seen) -> Answer:
    last = request.json["messages"][-1]
    if last["role"] == "user" and "look" in last["content"]:
        return calls("one", "two")
    if last["role"] == "user" and "break" in last["content"]:
        return Answer({"error": {"message": "no such thing"}}, status=400)
    return chat(f"Noted. {_LONG}")


def _goes_on(before: Any, now: Any) -> bool:
    same = all(before.get(name) == now.get(name) for name in ("model", "tools"))
    return same and now["messages"][: len(before["messages"])] == before["messages"]


async def _talk(at: Service) -> None:
    """Turns that change everything that a prompt begins with."""
    session = await at.session(policy={"mandatory_summary_turn": 5, "look_back": "off"})
    await at.turn(session.id, "My sister Ottilie keeps bees behind the lighthouse.")
    for number in range(9):
        await at.turn(session.id, f"Point {number}. {_LONG}")
    await at.turn(session.id, "Where does Ottilie keep her bees?")
    await at.turn(session.id, "And the honey?")
    outcome = await at.turn(session.id, "Please look.", tools=TOOLS)
    await at.outputs(session.id, outcome.turn.id, {"one": "1", "two": "2"})
    await at.turn(session.id, "No more tools.")
    await put_pin(at.rt, ref_of(session.id), Pin("notes", "Bees sleep at night."))
    await at.turn(session.id, "A pin.")
    await change_session(at.rt, ref_of(session.id), {"instructions": "Be short."})
    await at.turn(session.id, "Other instructions.")
    await at.turn(session.id, "Another model.", model_alias="other")
    await at.turn(session.id, "Nothing but this.")
    with pytest.raises(ProviderRefused):
        await at.turn(session.id, "This will break.")
    await at.turn(session.id, "Again.")


async def test_a_break_is_noted_with_its_cause_where_the_wire_shows_one_and_nowhere_else(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(model(_answer)) as server:
        models = models_toml(server, extra=_OTHER.format(url=server.base_url))
        async with service(database_url, models, folder=tmp_path) as at:
            await _talk(at)
            causes = [
                row["cache_break"] for row in await at.rows("SELECT cache_break FROM turn_context_audit ORDER BY id")
            ]
            sent = [request.json for request in server.seen if not is_summary(request)]
            assert len(sent) == len(causes)
            broken = [not _goes_on(before, now) for before, now in pairwise(sent)]
            assert [cause is not None for cause in causes] == [False, *broken]
            assert {"summary", "recall", "tools", "pins", "system", "model"} <= set(causes)
            counted = {
                sample.labels["cause"]: sample.value
                for family in text_string_to_metric_families(at.rt.telemetry.render()[0].decode())
                for sample in family.samples
                if sample.name == "prompt_cache_breaks_total" and sample.value
            }
            assert counted == Counter(cause for cause in causes if cause)


async def test_a_prompt_after_one_that_another_process_sent_is_held_against_none(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model(_answer)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
        service(database_url, models_toml(server), folder=tmp_path) as elsewhere,
    ):
        session = await at.session()
        await at.turn(session.id, "Begin.")
        await change_session(at.rt, ref_of(session.id), {"instructions": "Be short."})
        await elsewhere.turn(session.id, "Go on.")
        await at.turn(session.id, "And on.")
        await change_session(at.rt, ref_of(session.id), {"instructions": "Be long."})
        await at.turn(session.id, "And on.")
        rows = await at.rows(
            "SELECT a.cache_break FROM turn_context_audit a JOIN turns t ON t.session_id = a.session_id"
            " AND t.id = a.turn_id ORDER BY t.seq"
        )
        assert [row["cache_break"] for row in rows] == [None, None, None, "system"]
