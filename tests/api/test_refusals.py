"""A model that declines to answer in a schema: `refusal` of OpenAI's forms, `stop_reason` of Anthropic's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from tests.api.chatting import chat_service
from tests.api.messaging import anthropic_at
from tests.providers.server import Answer, Seen

NO = "I can not help with that."
QUESTION: list[Any] = [{"role": "user", "content": "How?"}]
THANKS: Any = {"role": "user", "content": "Thanks"}


class Recipe(BaseModel):
    name: str


def refuses(request: Seen) -> Answer:
    """As OpenAI sends a refusal, whole or in two pieces."""
    if not request.json.get("stream"):
        message = {"role": "assistant", "content": None, "refusal": NO}
        return Answer({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    deltas: list[Any] = [{"role": "assistant", "content": None}, {"refusal": NO[:6]}, {"refusal": NO[6:]}, {}]
    ends = [None, None, None, "stop"]
    chunks = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
        for delta, end in zip(deltas, ends, strict=True)
    ]
    body = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
    return Answer(body + b"data: [DONE]\n\n", content_type="text/event-stream")


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions_have_it_as_a_refusal_which_may_be_sent_back(
    database_url: str, tmp_path: Path, stream: bool
) -> None:
    with chat_service(database_url, tmp_path, refuses) as at:
        asked: dict[str, Any] = {"model": "main", "messages": QUESTION, "response_format": Recipe}
        if stream:
            with at.client.chat.completions.stream(**asked) as events:
                choice = events.get_final_completion().choices[0]
        else:
            choice = at.client.chat.completions.parse(**asked).choices[0]
        message = choice.message
        assert (choice.finish_reason, message.refusal, message.parsed) == ("stop", NO, None)
        assert message.content == ("" if stream else None)
        resent: Any = {"role": "assistant", "content": None, "refusal": NO}
        at.client.chat.completions.create(model="main", messages=[*QUESTION, resent, THANKS])
        (session,) = at.http.get("/v1/sessions").json()["items"]
        turns = at.turns(session["id"])
        assert [(turn["assistant_output"], turn["finish_reason"]) for turn in turns] == [(NO, "refusal")] * 2
        assert at.sent()[1] == {"role": "assistant", "content": NO}


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_has_it_as_a_part_of_its_own_kind(database_url: str, tmp_path: Path, stream: bool) -> None:
    with chat_service(database_url, tmp_path, refuses) as at:
        if stream:
            with at.client.responses.stream(model="main", input="How?", text_format=Recipe) as events:
                seen = [event.type for event in events if "refusal" in event.type]
                answer: Any = events.get_final_response()
            assert seen == ["response.refusal.delta", "response.refusal.delta", "response.refusal.done"]
        else:
            answer = at.client.responses.parse(model="main", input="How?", text_format=Recipe)
        assert answer.status == "completed"
        for response in (answer, at.client.responses.retrieve(answer.id)):
            part = cast(Any, response.output[0]).content[0]
            assert (part.type, part.refusal) == ("refusal", NO)
        items: list[Any] = [*QUESTION, answer.output[0].model_dump(exclude_none=True, exclude={"parsed"}), THANKS]
        assert at.client.responses.create(model="main", input=items).status == "completed"
        assert at.sent()[1] == {"role": "assistant", "content": NO}


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_stops_for_it_and_a_turn_of_the_services_own_has_its_text(
    database_url: str, tmp_path: Path, stream: bool
) -> None:
    with chat_service(database_url, tmp_path, refuses) as at, anthropic_at(at) as client:
        asked: dict[str, Any] = {"model": "main", "max_tokens": 100, "messages": QUESTION}
        if stream:
            with client.messages.stream(**asked) as events:
                message: Any = events.get_final_message()
        else:
            message = cast(Any, client.messages).create(**asked)
        assert (message.stop_reason, message.content[0].text) == ("refusal", NO)
        session_id = at.http.post("/v1/sessions", json={}).json()["id"]
        turn = at.http.post(f"/v1/sessions/{session_id}/turns", json={"content": "How?", "stream": stream})
        assert NO[:6] in turn.text
        (stored,) = at.turns(session_id)
        assert (stored["assistant_output"], stored["finish_reason"]) == (NO, "refusal")
