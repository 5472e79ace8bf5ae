"""Who said a message and when, over a real database: kept, searched, shown to models, and carried by every copy."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.api.routes.sessions import spooled
from app.domain.types import SessionId
from app.engine.recall.index import packed_terms
from app.engine.window.recalled import RECALL_NOTE
from app.services.archive.transfer import export_session, fork_session
from app.services.pasts import Pasts
from app.services.turn.take import prepare_regeneration, regenerate_turn, take_turn
from app.services.turn.types import TurnOptions, TurnOutcome, TurnRequest
from app.services.views.preview import preview_turn
from app.services.views.search import search_messages, search_session
from app.services.views.turns import get_audit, get_prompt, list_messages, list_turns
from app.telemetry.metrics import Telemetry
from tests.providers.server import serving
from tests.services.service import OLDEST, TENANT, Service, is_summary, model, models_toml, ref_of, service

BEGAN = datetime(2026, 5, 1, 9, 30, tzinfo=UTC)
REPLY = "Noted, and the clouds drift on while nobody minds. " * 5


def _request(content: Any, name: str | None = None, said_at: datetime | None = None, **policy: Any) -> TurnRequest:
    options = TurnOptions(policy=policy or None)
    return TurnRequest(content, f"{content}{name}{said_at}{policy}", options, name=name, said_at=said_at)


async def _said(at: Service, session_id: SessionId, request: TurnRequest) -> TurnOutcome:
    return await take_turn(at.rt, ref_of(session_id), request, None)


async def _diary(at: Service, days: int = 14, **policy: Any) -> SessionId:
    """A session with a turn a day, in which two people speak in turn."""
    session = await at.session(policy=policy)
    for day in range(days):
        name = ("Anna", "Ben")[day % 2]
        await _said(at, session.id, _request(f"I was at place p{day} then.", name, BEGAN + timedelta(days=day)))
    return session.id


async def test_a_message_keeps_who_said_it_and_when_and_is_found_by_both(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(REPLY)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _diary(at, 3)
        messages = (await list_messages(at.rt, ref_of(session_id), OLDEST)).items
        assert [message.name for message in messages] == ["Anna", None, "Ben", None, "Anna", None]
        days = [BEGAN + timedelta(days=day) for day in range(3)]
        assert [message.said_at for message in messages[::2]] == days
        turns = (await list_turns(at.rt, ref_of(session_id), OLDEST)).items
        assert [(turn.name, turn.said_at) for turn in turns] == list(zip(["Anna", "Ben", "Anna"], days, strict=True))
        assert all(message.said_at == message.created_at for message in messages[1::2])
        rows = await at.rows("SELECT role, content, name, terms FROM messages ORDER BY seq")
        assert all(row["terms"] == packed_terms(row["role"], row["content"], name=row["name"]) for row in rows)
        assert server.seen[-1].json["messages"][-1] == {
            "role": "user",
            "name": "Anna",
            "content": "I was at place p2 then.",
        }
        by_name = await search_session(at.rt, ref_of(session_id), "Ben", 5)
        assert [(hit.name, hit.excerpt) for hit in by_name.items] == [("Ben", "I was at place p1 then.")]
        by_day = await search_session(at.rt, ref_of(session_id), "on 2 May 2026", 5)
        assert next(hit.name for hit in by_day.items) == "Ben"
        assert [hit.name for hit in (await search_messages(at.rt, TENANT, "ben place", 5, None)).items] == ["Ben"]


async def test_a_name_is_counted_and_a_count_in_another_encoding_counts_it_too(
    database_url: str, tmp_path: Path
) -> None:
    models = (
        'default = "main"\n[models.main]\nprovider = "offline"\nmodel = "offline"\ncontext_window = 8192\n'
        '[models.other]\nprovider = "offline"\nmodel = "offline"\nencoding = "cl100k_base"\ncontext_window = 8192\n'
    )
    async with service(database_url, models, folder=tmp_path) as at:
        session = await at.session()
        await _said(at, session.id, _request("Hello.", "Konstantina-Evangelia"))
        await _said(at, session.id, _request("Hello."))
        first, second = await at.rows("SELECT token_estimate AS tokens FROM messages WHERE role = 'user' ORDER BY seq")
        assert first["tokens"] > second["tokens"] + 3
        await at.turn(session.id, "And you?", model_alias="other")
        counts = await at.rows(
            "SELECT c.token_estimate FROM message_token_counts c"
            " JOIN messages m ON m.session_id = c.session_id AND m.id = c.message_id"
            " WHERE m.role = 'user' ORDER BY m.seq"
        )
        assert counts[0]["token_estimate"] > counts[1]["token_estimate"] + 3


async def test_a_day_that_the_user_names_brings_back_what_was_said_then(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(REPLY)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _diary(at)
        today = BEGAN + timedelta(days=14)
        for asked in ("Where were we on 3 May?", "And where twelve days ago?"):
            outcome = await _said(at, session_id, _request(asked, "Anna", today))
            sent = [message["content"] for message in server.seen[-1].json["messages"]]
            assert "I was at place p2 then." in sent[sent.index(RECALL_NOTE) :]
            words = {word for row in outcome.context["context_trim_log"]["recalled"] for word in row.get("matched", ())}
            assert words & {"on 3 May", "3 May", "twelve days ago"}
            audit = await get_audit(at.rt, ref_of(session_id), outcome.turn.id, None)
            assert audit.context_trim_log["recalled"] == outcome.context["context_trim_log"]["recalled"]


async def test_a_summarizer_reads_who_spoke_and_on_which_day(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(REPLY)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        await _diary(at)
        asked = next(json.loads(seen.json["messages"][-1]["content"]) for seen in server.seen if is_summary(seen))
        first = asked["messages"][0]
        assert (first["date"], first["text"]) == ("1 May 2026", "Anna: I was at place p0 then.")


async def test_days_are_shown_alike_by_a_process_that_keeps_the_past_and_one_that_reads_it(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model(REPLY)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        warm = await _diary(at, 20, show_time=True, mandatory_summary_turn=18)
        request = _request("Where was I on 2 May?", "Ben", BEGAN + timedelta(days=20))
        shown = await preview_turn(at.rt, ref_of(warm), request)
        forgetful = Service(replace(at.rt, pasts=Pasts(0, lambda: 0.0, Telemetry(()))))
        cold = await preview_turn(forgetful.rt, ref_of(warm), request)
        assert cold.context == shown.context
        assert list(cold.messages) == list(shown.messages)
        outcome = await _said(at, warm, request)
        assert outcome.context["prompt_sha256"] == shown.context["prompt_sha256"]
        sent = [message["content"] for message in server.seen[-1].json["messages"]]
        assert sent == [message["content"] for message in shown.messages]
        assert "[2 May 2026]" in sent[sent.index(RECALL_NOTE) :]
        assert sent[-2] == "[21 May 2026]"
        prompt = await get_prompt(at.rt, ref_of(warm), outcome.turn.id, None)
        assert [message["content"] for message in prompt.messages] == sent


@pytest.mark.parametrize("copied_by", ["export", "fork", "regeneration"])
async def test_a_copy_has_who_said_what_and_when(database_url: str, tmp_path: Path, copied_by: str) -> None:
    async with (
        serving(model(REPLY)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        source = await _diary(at, 3)
        if copied_by == "export":
            with await spooled(export_session(at.rt, ref_of(source))) as file:
                copy = (await at.imported(json.load(file))).id
        elif copied_by == "fork":
            copy = (await fork_session(at.rt, ref_of(source), None)).id
        else:
            last = (await at.rows("SELECT id FROM turns ORDER BY seq DESC LIMIT 1"))[0]["id"]
            prepared = await prepare_regeneration(at.rt, ref_of(source), last, TurnRequest(None, "again"))
            await regenerate_turn(at.rt, TENANT, prepared)
            copy = prepared[0].id
        ours, theirs = [(await list_messages(at.rt, ref_of(each), OLDEST)).items for each in (source, copy)]
        assert [(each.name, each.said_at) for each in theirs[::2]] == [(each.name, each.said_at) for each in ours[::2]]


async def test_messages_of_elsewhere_bring_their_names_and_times(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(REPLY)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        messages = [
            {"role": "user", "name": "Anna", "content": "The pump is broken.", "said_at": "2026-05-08T13:56:00Z"},
            {"role": "assistant", "name": "planner", "content": "Noted."},
            {"role": "user", "content": "And the valve?"},
        ]
        session = await at.imported({"messages": messages})
        stored = (await list_messages(at.rt, ref_of(session.id), OLDEST)).items
        assert [each.name for each in stored] == ["Anna", "planner", None]
        assert stored[0].said_at == datetime(2026, 5, 8, 13, 56, tzinfo=UTC)
        assert stored[1].said_at == stored[1].created_at
