"""What a provider states beside its answer: every door shows it, streamed or not, and in a repeated answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.api.chatting import chat_service
from tests.api.messaging import anthropic_at, said, user
from tests.providers.wires import ANTHROPIC, OPENAI, ModelReply, Wire

REPLY = ModelReply("One, two", stop="stop_sequence", ended_at="three", thought_tokens=2)
WIRES = pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC], ids=lambda wire: wire.name)
ASKED: dict[str, Any] = {"model": "main", "messages": [user("Count")]}


@WIRES
@pytest.mark.parametrize("stream", [False, True])
def test_messages_name_the_stop_sequence_and_count_the_thoughts(
    database_url: str, tmp_path: Path, wire: Wire, stream: bool
) -> None:
    with chat_service(database_url, tmp_path, said(wire, REPLY), provider=wire.name) as at, anthropic_at(at) as client:
        messages: Any = client.messages
        asked = {**ASKED, "max_tokens": 100, "stop_sequences": ["four", "three"]}
        for _ in range(2):
            message: Any
            if stream:
                with messages.stream(**asked, extra_headers={"Idempotency-Key": "k"}) as events:
                    message = events.get_final_message()
            else:
                message = messages.create(**asked, extra_headers={"Idempotency-Key": "k"})
            assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "three")
            assert message.usage.output_tokens == 3
            assert message.usage.output_tokens_details.thinking_tokens == 2
            assert message.usage.cache_read_input_tokens == 4
        assert at.model.hits == 1


@WIRES
@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions_and_responses_count_the_reasoning(
    database_url: str, tmp_path: Path, wire: Wire, stream: bool
) -> None:
    with chat_service(database_url, tmp_path, said(wire, REPLY), provider=wire.name) as at:
        create: Any = at.client.chat.completions.create
        key = {"Idempotency-Key": "k"}
        for _ in range(2):
            if stream:
                chunks = create(**ASKED, stream=True, stream_options={"include_usage": True}, extra_headers=key)
                usage = list(chunks)[-1].usage
            else:
                usage = create(**ASKED, extra_headers=key).usage
            assert (usage.completion_tokens, usage.completion_tokens_details.reasoning_tokens) == (3, 2)
            assert usage.prompt_tokens_details.cached_tokens == 4
        respond: Any = at.client.responses.create
        asked: dict[str, Any] = {"input": "Count", "stream": stream, "extra_headers": {"Idempotency-Key": "r"}}
        answers = [respond(model="main", **asked) for _ in range(2)]
        first, again = (list(answer)[-1].response if stream else answer for answer in answers)
        assert first.usage.output_tokens_details.reasoning_tokens == 2
        assert again.usage == at.client.responses.retrieve(first.id).usage == first.usage
        assert at.model.hits == 2


def test_a_stop_sequence_that_nobody_asked_for_is_not_named(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, said(OPENAI, REPLY)) as at, anthropic_at(at) as client:
        messages: Any = client.messages
        message = messages.create(**ASKED, max_tokens=100, stop_sequences=["four"])
        assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
