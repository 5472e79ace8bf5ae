"""Clients that resend everything with `store: false`, such as the Codex CLI: what they pay for, and how they get a
session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api.chatting import Chat, chat_service, say
from tests.api.test_chat import user
from tests.api.test_responses import TOOLS, output, sessions

TURNS = 11
WORDS = " and so on" * 300


def talk(at: Chat, **options: Any) -> str:
    """A client whose every turn has a round of tools, and that sends all items with each request. The last response."""
    create: Any = at.client.responses.create
    items: list[Any] = []
    reply: Any = None
    for turn in range(TURNS):
        items.append(user(f"Question {turn}"))
        for _ in range(2):
            reply = create(model="main", input=items, tools=TOOLS, store=False, **options)
            items += [item.model_dump(exclude_none=True) for item in reply.output]
            calls = [item for item in reply.output if item.type == "function_call"]
            items += [output(call.call_id, f"{turn} is paid{WORDS}") for call in calls]
    return reply.id


def script() -> list[Any]:
    return [play for turn in range(TURNS) for play in (say(None, f"call_{turn}"), say(f"Answer {turn}"))]


@pytest.mark.parametrize("window", [8_192, 131_072], ids=["a full window", "a large one"])
def test_no_summary_is_paid_for_that_no_later_request_could_use(database_url: str, tmp_path: Path, window: int) -> None:
    with chat_service(database_url, tmp_path, *script(), window=window) as at:
        talk(at)
        assert at.model.hits == 2 * TURNS, "a summarizer was called"
        outputs_whole = [WORDS in sent["content"] for sent in at.sent() if sent["role"] == "tool"]
        assert all(outputs_whole) == (window == 131_072)
        assert sessions(at) == []


def test_what_a_user_wrote_leaves_whole_turns_rather_than_refusing_every_later_request(
    database_url: str, tmp_path: Path
) -> None:
    create: Any
    with chat_service(database_url, tmp_path, window=8_192) as at:
        create, items = at.client.responses.create, list[Any]()
        for turn in range(TURNS):
            items.append(user(f"Question {turn}{WORDS}"))
            reply = create(model="main", input=items, store=False)
            items += [item.model_dump(exclude_none=True) for item in reply.output]
        assert at.model.hits == TURNS, "a summarizer was called"
        sent = [message["content"] for message in at.sent()]
        assert f"Question {TURNS - 1}{WORDS}" in sent
        assert f"Question 0{WORDS}" not in sent


def test_a_client_that_cannot_change_store_gets_a_session_by_a_header(database_url: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"context_mandatory_summary_turn": TURNS, "summarize_ahead": False}
    with chat_service(database_url, tmp_path, *script(), say("More."), window=131_072, **changes) as at:
        last_id = talk(at, extra_headers={"X-Session-Store": "true"})
        (session,) = sessions(at)
        turns = at.turns(session["id"])
        assert [turn["user_input"] for turn in turns] == [f"Question {turn}" for turn in range(TURNS)]
        assert [turn["assistant_output"] for turn in turns] == [f"Answer {turn}" for turn in range(TURNS)]
        unstored = at.client.responses.create(model="main", input="More?", previous_response_id=last_id, store=False)
        assert unstored.output_text == "More."
        assert at.model.hits == 2 * TURNS + 1, "the next turn's summary was made for an answer that is not kept"
        assert at.http.get(f"/v1/responses/{last_id}").json()["store"] is True
        with pytest.raises(openai.NotFoundError):
            at.client.responses.retrieve(unstored.id)
