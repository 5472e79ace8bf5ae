"""Anthropic's edit that clears tool results, as the unmodified `anthropic` client asks for it, over any provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.api.chatting import Chat, chat_service, say
from tests.api.messaging import TOOLS, anthropic_at, post, result, user

BETAS = ["context-management-2025-06-27"]
FOUND = "The crane stands at quay 7 and was paid for in May. " * 20
USES = 6


def edit(**fields: Any) -> dict[str, Any]:
    return {"edits": [{"type": "clear_tool_uses_20250919", **fields}]}


def uses(count: int) -> dict[str, Any]:
    return {"type": "tool_uses", "value": count}


def worked(number: int) -> list[Any]:
    """A history with so many tool calls, and a new message."""
    messages: list[Any] = [user("Look them all up.")]
    for at in range(number):
        call = {"type": "tool_use", "id": f"call_{at}", "name": "look_up", "input": {"id": f"order {at}"}}
        messages += [{"role": "assistant", "content": [call]}, user(result(f"call_{at}", FOUND))]
    return [*messages, {"role": "assistant", "content": "Done."}, user("And now?")]


def ask(client: anthropic.Anthropic, *, stream: bool, **fields: Any) -> Any:
    messages: Any = client.beta.messages
    asked = {"model": "main", "max_tokens": 100, "messages": worked(USES), "tools": TOOLS, "betas": BETAS, **fields}
    if not stream:
        return messages.create(**asked)
    with messages.stream(**asked) as events:
        return events.get_final_message()


def marked(at: Chat) -> list[bool]:
    """Of each tool result that the model got, whether it was cleared."""
    results = [message["content"] for message in at.sent() if message["role"] == "tool"]
    assert all(content == FOUND.strip() or "left out" in content for content in map(str.strip, results))
    return ["left out" in content for content in results]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_older_results_are_cleared_for_the_model_and_the_answer_says_so(
    database_url: str, tmp_path: Path, stream: bool
) -> None:
    with chat_service(database_url, tmp_path, say("Noted."), window=32_768) as at, anthropic_at(at) as client:
        clearing = edit(trigger=uses(3), keep=uses(2), clear_at_least={"type": "input_tokens", "value": 100})
        message = ask(client, stream=stream, context_management=clearing)
        assert marked(at) == [True] * 4 + [False] * 2
        (applied,) = message.context_management.applied_edits
        assert (applied.type, applied.cleared_tool_uses) == ("clear_tool_uses_20250919", 4)
        (session,) = at.http.get("/v1/sessions").json()["items"]
        (turn,) = at.http.get(f"/v1/sessions/{session['id']}/turns?order=desc&limit=1").json()["items"]
        audit = at.http.get(f"/v1/sessions/{session['id']}/turns/{turn['id']}/audit").json()
        (action,) = audit["context_trim_log"]["actions"]
        assert (action["reason"], action["count"]) == ("clear_tool_results", 4)
        assert action["tokens_removed_est"] == applied.cleared_input_tokens
        # What is stored is whole, and a request without the edit has it again.
        ask(client, stream=stream, messages=[*worked(USES), {"role": "assistant", "content": "Noted."}, user("So?")])
        assert marked(at) == [False] * USES


def test_inputs_leave_with_the_results_and_the_prompt_can_be_read_again(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Noted."), window=32_768) as at, anthropic_at(at) as client:
        clearing = edit(trigger={"type": "input_tokens", "value": 500}, clear_tool_inputs=True)
        ask(client, stream=False, context_management=clearing)
        sent = at.sent()
        inputs = [call["function"]["arguments"] for each in sent for call in each.get("tool_calls", ())]
        assert [given == "{}" for given in inputs] == [True] * 3 + [False] * 3
        (session,) = at.http.get("/v1/sessions").json()["items"]
        exported = at.http.get(f"/v1/sessions/{session['id']}/export").json()
        assert {ref[0] for audit in exported["audits"] for ref in audit["prompt_refs"]["items"]} >= {"c", "l"}
        imported = at.http.post("/v1/sessions/import", json=exported).json()
        for session_id in (session["id"], imported["id"]):
            (turn,) = at.http.get(f"/v1/sessions/{session_id}/turns?order=desc&limit=1").json()["items"]
            prompt = at.http.get(f"/v1/sessions/{session_id}/turns/{turn['id']}/prompt").json()
            assert prompt["messages"] == sent


def test_below_the_trigger_and_with_an_exception_nothing_is_cleared(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Noted."), window=32_768) as at, anthropic_at(at) as client:
        for clearing in (edit(), edit(trigger=uses(1), exclude_tools=["look_up"])):
            message = ask(client, stream=False, context_management=clearing)
            assert message.context_management.applied_edits == []
            assert marked(at) == [False] * USES
        assert "context_management" not in ask(client, stream=False).to_dict()


def test_what_can_not_be_carried_out_is_refused_by_name(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path) as at:
        for field, value in {
            "clear_tool_inputs": ["look_up"],
            "keep": {"type": "input_tokens", "value": 3},
            "trigger": {"type": "messages", "value": 3},
            "clear_at_least": uses(3),
            "clear_images": True,
        }.items():
            refused = post(at, {"messages": [user("Hi")], "context_management": edit(**{field: value})})
            assert refused.status_code == 400
            assert field in refused.json()["error"]["message"]
