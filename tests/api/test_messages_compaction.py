"""Compaction as the unmodified `anthropic` client asks for it and gives it back, over a scripted model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.api.chatting import Chat, chat_service, say
from tests.api.messaging import TOOLS, anthropic_at, post, result, text, user

LONG = "The order of the harbour office names a crane, a quay and a date of delivery. " * 12
BETAS = ["compact-2026-01-12"]


def edit(**fields: Any) -> dict[str, Any]:
    trigger = {"type": "input_tokens", "value": 1000}
    return {"edits": [{"type": "compact_20260112", "trigger": trigger, **fields}]}


def ask(client: anthropic.Anthropic, messages: list[Any], **fields: Any) -> Any:
    create: Any = client.beta.messages.create
    return create(model="main", max_tokens=100, messages=messages, betas=BETAS, **fields)


def count(client: anthropic.Anthropic, messages: list[Any], **fields: Any) -> int:
    count_tokens: Any = client.messages.count_tokens
    return count_tokens(model="main", messages=messages, **fields).input_tokens


def filled(turns: int = 6) -> list[Any]:
    """A history that is longer than the trigger."""
    messages: list[Any] = []
    for number in range(turns):
        messages += [user(f"{number}. {LONG}"), {"role": "assistant", "content": f"Answer {number}."}]
    return messages


def given(message: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [block.to_dict() for block in message.content]}


def sessions(at: Chat) -> list[Any]:
    return at.http.get("/v1/sessions").json()["items"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_summary_at_the_trigger_is_a_block_that_the_next_list_goes_on_behind(
    database_url: str, tmp_path: Path, stream: bool
) -> None:
    with chat_service(database_url, tmp_path, say("Noted."), window=16_384) as at, anthropic_at(at) as client:
        messages = [*filled(), user("And now?")]
        asked: dict[str, Any] = {"context_management": edit(instructions="the crane")}
        if stream:
            with client.beta.messages.stream(
                model="main", max_tokens=100, messages=messages, betas=BETAS, **asked
            ) as events:
                message: Any = events.get_final_message()
        else:
            message = ask(client, messages, **asked)
        assert [block.type for block in message.content] == ["compaction", "text"]
        (session,) = sessions(at)
        (made,) = at.http.get(f"/v1/sessions/{session['id']}/summaries").json()["items"]
        assert made["summary_text"] in message.content[0].content
        assert "the crane" in str(at.model.seen[0].json["messages"])
        retried = post(at, {"messages": messages, **asked}, **{"x-session-id": session["id"]}).json()
        assert retried["content"] == given(message)["content"]
        behind = [*messages, given(message), user("More?")]
        counted = count(client, behind)
        after = ask(client, behind, **asked)
        assert after.content[0].text == "Noted."
        turn = at.turns(session["id"])[-1]
        audit = at.http.get(f"/v1/sessions/{session['id']}/turns/{turn['id']}/audit").json()
        assert counted == audit["estimated_wire_tokens"]
        assert len(sessions(at)) == 1
        assert [turn["user_input"] for turn in at.turns(session["id"])][-2:] == ["And now?", "More?"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_pause_answers_with_the_summary_alone_and_the_same_list_goes_on_behind_it(
    database_url: str, tmp_path: Path, stream: bool
) -> None:
    with chat_service(database_url, tmp_path, say("Noted."), window=16_384) as at, anthropic_at(at) as client:
        messages = [*filled(), user("And now?")]
        asked: dict[str, Any] = {"context_management": edit(pause_after_compaction=True)}
        if stream:
            with client.beta.messages.stream(
                model="main", max_tokens=100, messages=messages, betas=BETAS, **asked
            ) as events:
                paused: Any = events.get_final_message()
        else:
            paused = ask(client, messages, **asked)
        assert (paused.stop_reason, [block.type for block in paused.content]) == ("compaction", ["compaction"])
        (session,) = sessions(at)
        assert len(at.turns(session["id"])) == 6
        assert len(at.model.seen) == 1  # the summarizer's
        answered = ask(client, [*messages, given(paused)], **asked)
        assert (answered.stop_reason, answered.content[0].text) == ("end_turn", "Noted.")
        assert at.turns(session["id"])[-1]["user_input"] == "And now?"
        assert messages[0] not in at.sent()
        # The other way that clients go on: the block, and the messages that they want to keep, behind it.
        again = ask(client, [given(paused), *messages[-2:], given(answered), user("More?")], **asked)
        assert again.content[0].text == "Noted."
        assert [turn["user_input"] for turn in at.turns(session["id"])][-2:] == ["And now?", "More?"]
        assert len(sessions(at)) == 1


def test_a_repeated_key_gets_its_answer_and_no_summary_though_the_session_has_gone_on(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say("Noted."), window=16_384) as at, anthropic_at(at) as client:
        asked: dict[str, Any] = {"context_management": edit(pause_after_compaction=True)}
        keyed: dict[str, Any] = {"extra_headers": {"X-Session-Id": "mine", "Idempotency-Key": "k"}}
        first = ask(client, [user("First.")], **asked, **keyed)
        ask(client, [*filled(), user("And now?")], extra_headers={"X-Session-Id": "mine"})
        seen = len(at.model.seen)
        again = ask(client, [user("First.")], **asked, **keyed)
        assert (again.content[0].text, again.stop_reason) == (first.content[0].text, "end_turn")
        assert len(at.model.seen) == seen
        reused = post(
            at,
            {"messages": [user("Other.")], **asked},
            **{"x-session-id": "mine", "idempotency-key": "k", "anthropic-beta": BETAS[0]},
        )
        assert (reused.status_code, "idempotency key" in reused.json()["error"]["message"]) == (422, True)
        assert reused.headers.get("x-session-id") == sessions(at)[0]["id"]
        assert len(at.model.seen) == seen


def test_a_tool_loop_goes_on_behind_a_compaction(database_url: str, tmp_path: Path) -> None:
    script = (say("Noted."), say(None, "a"), say("Paid."))
    with chat_service(database_url, tmp_path, *script, window=16_384) as at, anthropic_at(at) as client:
        asked: dict[str, Any] = {"context_management": edit(), "tools": TOOLS}
        messages = [*filled(), user("Is it paid?")]
        called = ask(client, messages, **asked)
        assert [block.type for block in called.content] == ["compaction", "tool_use"]
        behind = [*messages, given(called), user(result("a"))]
        assert count(client, behind, tools=TOOLS) < count(client, messages, tools=TOOLS)
        done = ask(client, [*messages, given(called), user(result("a"))], **asked)
        assert (done.content[0].text, len(sessions(at))) == ("Paid.", 1)


def test_what_can_not_be_kept_of_a_compaction_is_refused_by_name(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Noted.")) as at:
        foreign = {"type": "compaction", "content": "They spoke of cranes.", "encrypted_content": "EuYB"}
        refused = post(at, {"messages": [{"role": "assistant", "content": [foreign]}, user("Hi")]})
        assert refused.status_code == 400
        assert "messages.0.content" in refused.json()["error"]["message"]
        for bad in (
            {"type": "compact_20990101"},
            {"type": "compact_20260112", "trigger": {"type": "tool_uses", "value": 5000}},
            {"type": "compact_20260112", "instructions": "x" * 501},
        ):
            assert post(at, {"messages": [user("Hi")], "context_management": {"edits": [bad]}}).status_code == 400
        failed = {"type": "compaction", "content": None}
        taken = post(
            at, {"messages": [user("Hi"), {"role": "assistant", "content": [failed, text("Ho")]}, user("So?")]}
        )
        assert taken.status_code == 200
        assert [sent["content"] for sent in at.sent()] == ["Hi", "Ho", "So?"]
