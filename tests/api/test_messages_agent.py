"""An agent that uses many tools and resends everything, for 200 turns in a small window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.domain.content import tool_calls_from_json
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, message_tokens
from app.engine.window.plan import assert_tool_pairing
from app.tokenizers import Tokenizers
from tests.api.chatting import chat_service, say
from tests.api.messaging import TOOLS, anthropic_at, create, result, text, user
from tests.providers.server import Seen, Step
from tests.services.service import is_summary, sound_summary

TURNS = 200
WINDOW = 8192
OUTPUT = "ledger row 4711 of the bank statement does not match the invoice; " * 8


def test_two_hundred_turns_of_tools_stay_within_the_window(database_url: str, tmp_path: Path) -> None:
    answered = 0

    def agent(request: Seen) -> Step:
        nonlocal answered
        if is_summary(request):
            return sound_summary(request)
        answered += 1
        calls = [f"call-{answered}-{n}" for n in range(3)] if answered % 2 else []
        reply = say("Looking." if calls else f"Row {answered} is settled.", *calls)
        assert callable(reply)
        return reply(request)

    estimate = Tokenizers().estimator("o200k_base")
    with chat_service(database_url, tmp_path, agent, window=WINDOW) as at, anthropic_at(at) as client:
        history: list[Any] = []
        sessions: set[str] = set()
        for number in range(TURNS):
            history.append(
                user(text(f"Settle row {number}."), text("<env>main</env>", cache_control={"type": "ephemeral"}))
            )
            while True:
                headers, message = create(client, messages=history, tools=TOOLS, metadata={"user_id": "u"})
                sessions.add(headers["x-session-id"])
                history.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
                if message.stop_reason == "end_turn":
                    break
                results = [result(block.id, OUTPUT) for block in message.content if block.type == "tool_use"]
                history.append(user(*results, text("<system-reminder>Go on.</system-reminder>")))
        (session_id,) = sessions
        turns = at.http.get(f"/v1/sessions/{session_id}/turns", params={"limit": 200}).json()["items"]
        assert [turn["status"] for turn in turns] == ["completed"] * TURNS
    prompts = [seen.json["messages"] for seen in at.model.seen if not is_summary(seen)]
    assert len(prompts) == 2 * TURNS
    for prompt in prompts:
        assert_tool_pairing(prompt)
        tokens = sum(
            message_tokens(
                message["content"],
                estimate,
                tool_calls=tool_calls_from_json(message.get("tool_calls")),
                tool_call_id=message.get("tool_call_id"),
            )
            + MESSAGE_FRAMING_TOKENS
            for message in prompt
        )
        assert tokens + len(json.dumps(TOOLS)) < WINDOW
    assert f"Settle row {TURNS - 1}." in str(prompts[-1])
