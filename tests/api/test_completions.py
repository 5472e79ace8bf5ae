"""OpenAI's older form of completions: a prompt is a turn, in the session that is named or in a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api.chatting import chat_service, say
from tests.api.test_chat import user


def test_a_prompt_is_a_turn_of_the_session_that_is_named(database_url: str, tmp_path: Path) -> None:
    named: dict[str, Any] = {"extra_headers": {"X-Session-Id": "notes"}}
    with chat_service(database_url, tmp_path, say("Noted."), say("You did.")) as at:
        create: Any = at.client.completions.create
        create(model="main", prompt="Say it.", **named)
        answer = create(model="main", prompt=["Say it."], max_tokens=50, temperature=0.0, **named)
        assert answer.object == "text_completion"
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("You did.", "stop")
        assert answer.usage is not None
        assert at.sent() == [user("Say it."), {"role": "assistant", "content": "Noted."}, user("Say it.")]
        assert (at.model.seen[-1].json["max_tokens"], at.model.seen[-1].json["temperature"]) == (50, 0)
        create(model="main", prompt="Alone.")
        assert at.sent() == [user("Alone.")]


def test_a_prompt_is_streamed(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Noted it down.")) as at:
        options: Any = {"include_usage": True}
        chunks: list[Any] = list(
            at.client.completions.create(model="main", prompt="Hi", stream=True, stream_options=options)
        )
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "Noted it down."
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage is not None


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {"prompt": "Hi"}), ("/v1/chat/completions", {"messages": [user("Hi")]})]
)
def test_the_events_of_a_stream_have_the_fields_of_the_openapi_document(
    database_url: str, tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    with chat_service(database_url, tmp_path, say("Noted it down.")) as at:
        answer = at.http.post(path, json={"model": "main", "stream": True, **body})
        described = at.http.get("/openapi.json").json()["paths"][path]["post"]["responses"]["200"]["content"]
        fields = set(described["text/event-stream"]["schema"]["required"])
        assert answer.text.endswith("data: [DONE]\n\n")
        for event in answer.text.removesuffix("\n\n").split("\n\n"):
            assert {line.partition(":")[0] for line in event.splitlines()} == fields


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 2), ("echo", True), ("suffix", "end"), ("prompt", ["a", "b"]), ("prompt", [1, 2]), ("prompt", "")],
)
def test_a_parameter_without_effect_is_refused_by_name(
    database_url: str, tmp_path: Path, field: str, value: Any
) -> None:
    with chat_service(database_url, tmp_path) as at:
        body: dict[str, Any] = {"model": "main", "prompt": "Hi", field: value}
        with pytest.raises(openai.BadRequestError) as refused:
            at.client.completions.create(**body)
        assert (refused.value.param or "").startswith(field)
        assert at.model.hits == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit_is_a_400_of_the_prompt(database_url: str, tmp_path: Path, stream: bool) -> None:
    with chat_service(database_url, tmp_path) as at:
        with pytest.raises(openai.BadRequestError) as refused:
            at.client.completions.create(model="main", prompt="word " * 9000, stream=stream)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt")
