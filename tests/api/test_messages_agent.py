"""Agents that use many tools and resend everything, in a small window, and that search for tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.domain.content import tool_calls_from_json
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, message_tokens
from app.engine.window.plan import assert_tool_pairing
from app.tokenizers.counters import Tokenizers
from tests.api.chatting import chat_service, say
from tests.api.messaging import TOOLS, anthropic_at, create, post, result, text, user
from tests.providers.server import Seen, Step
from tests.services.service import is_summary, sound_summary

ROUNDS = (*(1,) * 40, 30)
"""Of tools, by turn."""
WINDOW = 8192
OUTPUT = "ledger row 4711 of the bank statement does not match the invoice; " * 8


def test_an_agent_of_many_turns_and_many_rounds_stays_within_the_window(database_url: str, tmp_path: Path) -> None:
    steps = (number for rounds in ROUNDS for number in range(rounds, -1, -1))

    def agent(request: Seen) -> Step:
        if is_summary(request):
            return sound_summary(request)
        calls = [f"call-{at.model.hits}-{n}" for n in range(3)] if next(steps) else []
        reply = say("Looking." if calls else "It is settled.", *calls)
        assert callable(reply)
        return reply(request)

    estimate = Tokenizers().estimator("o200k_base")
    with chat_service(database_url, tmp_path, agent, window=WINDOW) as at, anthropic_at(at) as client:
        history: list[Any] = []
        sessions: set[str] = set()
        for number in range(len(ROUNDS)):
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
        assert [turn["status"] for turn in turns] == ["completed"] * len(ROUNDS)
    prompts = [seen.json["messages"] for seen in at.model.seen if not is_summary(seen)]
    assert len(prompts) == sum(ROUNDS) + len(ROUNDS)
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
    assert f"Settle row {len(ROUNDS) - 1}." in str(prompts[-1])


def test_tools_that_an_agents_own_search_found_are_named_to_the_model_and_the_turn_goes_on(
    database_url: str, tmp_path: Path
) -> None:
    # As Claude Code 2.1.332 sends them: a tool of which it knew only the name is in `tools` from then on.
    monitor = {**TOOLS[0], "name": "Monitor", "defer_loading": True}
    with chat_service(database_url, tmp_path, say(None, "a"), say("Done.")) as at:
        thinking = {"type": "adaptive", "display": "updates"}
        asked = [user("Watch the log.")]
        first = post(at, {"messages": asked, "tools": TOOLS, "thinking": thinking})
        assert first.status_code == 200, first.text
        found = [{"type": "tool_reference", "tool_name": "Monitor"}, {"type": "tool_reference", "tool_name": "Send"}]
        answered = [*asked, {"role": "assistant", "content": first.json()["content"]}, user(result("a", found))]
        second = post(at, {"messages": answered, "tools": [*TOOLS, monitor], "thinking": thinking})
        assert second.status_code == 200, second.text
        assert second.headers["x-session-id"] == first.headers["x-session-id"]
        assert at.sent()[-1]["content"] == "The tool Monitor is available.\n\nThe tool Send is available."
        assert [tool["function"]["name"] for tool in at.model.seen[-1].json["tools"]] == ["look_up", "Monitor"]
