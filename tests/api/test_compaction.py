"""Compaction as the unmodified `openai` client asks for it and gives it back, over a scripted model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api.chatting import Chat, chat_service, openai_at, say
from tests.api.test_auth import make_key
from tests.api.test_chat import user
from tests.api.test_limits import limit_tenant

LONG = "The order of the harbour office names a crane, a quay and a date of delivery. " * 12
FOLD = {"type": "compaction", "compact_threshold": 1000}


def ask(at: Chat, given: Any, **fields: Any) -> Any:
    create: Any = at.client.responses.create
    return create(**{"model": "main", "input": given, **fields})


def filled(at: Chat, turns: int = 6) -> Any:
    """The last response of a conversation that is longer than the threshold."""
    response = ask(at, f"1. {LONG}")
    for number in range(2, turns + 1):
        response = ask(at, f"{number}. {LONG}", previous_response_id=response.id)
    return response


def summaries(at: Chat, session_id: str) -> list[Any]:
    return at.http.get(f"/v1/sessions/{session_id}/summaries").json()["items"]


def sessions(at: Chat) -> list[Any]:
    return at.http.get("/v1/sessions").json()["items"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_summary_at_the_threshold_is_an_item_that_the_next_input_goes_on_behind(
    database_url: str, tmp_path: Path, stream: bool
) -> None:
    with chat_service(database_url, tmp_path, say("Noted."), window=16_384) as at:
        before = filled(at)
        (session,) = sessions(at)
        assert not summaries(at, session["id"])
        fields: dict[str, Any] = {"previous_response_id": before.id, "context_management": [FOLD]}
        if stream:
            with at.client.responses.stream(model="main", input="And now?", **fields) as events:
                response: Any = events.get_final_response()
        else:
            response = ask(at, "And now?", **fields)
        compaction, message = response.output
        (made,) = summaries(at, session["id"])
        assert (compaction.type, message.type) == ("compaction", "message")
        assert made["id"].replace("-", "") in compaction.encrypted_content
        stored = at.client.responses.retrieve(response.id)
        assert stored.output[0].to_dict() == compaction.to_dict()
        assert [item.id for item in stored.output] == [item.id for item in response.output]
        history: list[Any] = [user("Not read."), compaction.to_dict(), message.to_dict(), user("More?")]
        after = ask(at, history)
        assert [item.type for item in after.output] == ["message"]
        assert at.sent()[-1] == user("More?")
        assert len(at.turns(session["id"])) == 8
        assert len(sessions(at)) == 1


def test_a_request_that_says_nothing_of_compaction_is_shown_none(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Noted.")) as at:
        response = filled(at, 9)
        (session,) = sessions(at)
        assert summaries(at, session["id"])
        assert [item.type for item in response.output] == ["message"]
        assert "context_management" not in response.to_dict()


def test_behind_the_threshold_no_other_trigger_makes_a_summary(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Noted."), window=16_384) as at:
        response = filled(at, 4)
        above = [{"type": "compaction", "compact_threshold": 9000}]
        for number in range(5, 12):
            response = ask(at, f"Turn {number}", previous_response_id=response.id, context_management=above)
        (session,) = sessions(at)
        assert not summaries(at, session["id"])


def test_a_compacted_list_goes_on_in_its_session_and_branches_fork(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Noted."), window=16_384) as at:
        past: list[Any] = []
        for number in range(7):
            past += [user(f"{number}. {LONG}"), {"role": "assistant", "content": f"Answer {number}."}]
        compacted = at.client.responses.compact(model="main", input=past)
        assert (compacted.object, [item.type for item in compacted.output]) == ("response.compaction", ["compaction"])
        assert compacted.usage.input_tokens == 20
        (session,) = sessions(at)
        assert len(at.turns(session["id"])) == 7
        output: list[Any] = [item.to_dict() for item in compacted.output]
        first = ask(at, [*output, user("First?")])
        assert len(at.turns(session["id"])) == 8
        assert LONG not in str(at.sent()[0])
        # Summarized again, it is the same session; taken back, the summary's turns are raw and the item still stands.
        again = at.client.responses.compact(model="main", input=[*output, user("First?"), *_given(first)])
        assert _session_of(again) == session["id"].replace("-", "")
        for made in summaries(at, session["id"]):
            undone = at.http.post(f"/v1/sessions/{session['id']}/summaries/active/undo").json()
            assert (undone["id"], undone["status"]) == (made["id"], "undone")
        ask(at, [*output, user("First?"), *_given(first), user("Second?")])
        assert len(at.turns(session["id"])) == 9
        assert f"0. {LONG}".strip() in str(at.sent())
        # The session has gone on: another question behind the item is a branch.
        ask(at, [*output, user("Other?")])
        fork = next(each for each in sessions(at) if each["forked_from"])
        assert [turn["user_input"] for turn in at.turns(fork["id"])][-1] == "Other?"
        assert len(at.turns(fork["id"])) == 8
        assert len(at.turns(session["id"])) == 9


def test_a_short_conversation_is_compacted_to_an_item_that_stands_for_it_as_it_is(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say("Anna.")) as at:
        first = ask(at, "I am Anna.")
        compacted = at.client.responses.compact(model="main", previous_response_id=first.id)
        assert compacted.usage.total_tokens == 0
        ask(at, [compacted.output[0].to_dict(), user("Who am I?")])
        assert at.sent() == [user("I am Anna."), {"role": "assistant", "content": "Anna."}, user("Who am I?")]
        assert len(sessions(at)) == 1


def test_a_tool_loop_goes_on_behind_a_compaction(database_url: str, tmp_path: Path) -> None:
    tools: list[Any] = [{"type": "function", "name": "look_up", "parameters": {"type": "object"}, "strict": False}]
    script = (*(say("Noted.") for _ in range(7)), say(None, "a"), say("Paid."))
    with chat_service(database_url, tmp_path, *script, window=16_384) as at:
        before = filled(at)
        fields: dict[str, Any] = {"tools": tools, "context_management": [FOLD]}
        called = ask(at, "Is it paid?", previous_response_id=before.id, **fields)
        assert [item.type for item in called.output] == ["compaction", "function_call"]
        outputs: list[Any] = [{"type": "function_call_output", "call_id": "a", "output": "paid"}]
        history: list[Any] = [*(item.to_dict() for item in called.output), *outputs]
        after = ask(at, history, **fields)
        assert after.output_text == "Paid."
        assert [item.type for item in at.client.responses.retrieve(after.id).output] == ["message"]
        (session,) = sessions(at)
        assert at.turns(session["id"])[-1]["assistant_output"] == "Paid."


def test_an_item_is_of_the_session_that_the_request_names_and_of_the_tenant(database_url: str, tmp_path: Path) -> None:
    key, other = make_key(database_url, "one")[1], make_key(database_url, "two")[1]
    with chat_service(database_url, tmp_path, key=key) as at, openai_at(at.address, other) as stranger:
        item: Any = at.client.responses.compact(model="main", input="I am Anna.").output[0].to_dict()
        elsewhere = ask(at, "Else.")
        given: list[Any] = [item, user("Who am I?")]
        with pytest.raises(openai.NotFoundError) as missing:
            stranger.responses.create(model="main", input=given)
        assert missing.value.code == "compaction_not_found"
        with pytest.raises(openai.NotFoundError):
            stranger.responses.compact(model="main", input=given)
        conversation = at.client.conversations.create()
        refused: list[dict[str, Any]] = [
            {"previous_response_id": elsewhere.id},
            {"conversation": conversation.id},
            {"extra_headers": {"X-Session-Id": "a-name-of-mine"}},
            {"store": False, "context_management": [FOLD]},
            {"truncation": "disabled", "context_management": [FOLD]},
            {"context_management": [{"type": "other"}]},
            {"given": [{"type": "compaction", "encrypted_content": "gAAAA"}, user("Hi")]},
            {"given": [item]},
        ]
        for fields in refused:
            with pytest.raises(openai.BadRequestError):
                ask(at, **{"given": given, **fields})
        with pytest.raises(openai.BadRequestError):
            at.client.conversations.items.create(conversation.id, items=[item])
        with pytest.raises(openai.BadRequestError):
            at.client.responses.compact(model="main")
        with pytest.raises(openai.BadRequestError):
            at.client.responses.compact(model="main", input="Hi", extra_body={"temperature": 1})
        assert at.http.get("/v1/sessions").status_code == 200


def test_what_is_not_to_be_stored_leaves_the_session_of_the_item_as_it_is(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path) as at:
        item: Any = at.client.responses.compact(model="main", input="I am Anna.").output[0].to_dict()
        ask(at, [item, user("Who am I?")], store=False)
        assert [sent["content"] for sent in at.sent()] == ["I am Anna.", "Who am I?"]
        (session,) = sessions(at)
        assert len(at.turns(session["id"])) == 1


@pytest.mark.parametrize("key", [None, "k"], ids=["without a key", "with a key"])
@pytest.mark.parametrize("door", ["compact", "pause", "pause before a short list", "branch"])
def test_a_compaction_over_a_limit_leaves_no_session_and_no_fork(
    database_url: str, tmp_path: Path, door: str, key: str | None
) -> None:
    with chat_service(database_url, tmp_path, say("Noted."), window=16_384) as at:
        listed: list[Any] = [
            each for at in range(6) for each in (user(f"{at}. {LONG}"), {"role": "assistant", "content": LONG})
        ]
        pause = {"type": "compact_20260112", "pause_after_compaction": True}
        edits = {"edits": [pause | {"trigger": {"type": "input_tokens", "value": 1000}}]}
        message = {"model": "main", "max_tokens": 9, "context_management": edits}
        first = ask(at, listed)
        compacted = at.client.responses.compact(
            model="main", input=[*listed, {"role": "assistant", "content": "Noted."}]
        )
        item = compacted.output[0].to_dict()
        ask(at, [item, user("A later turn.")])
        left = {session["id"] for session in sessions(at)}
        assert len(left) == 1, first
        path, body = {
            "compact": ("/v1/responses/compact", {"model": "main", "input": [*listed[2:], user("Now?")]}),
            "pause": ("/v1/messages", message | {"messages": [*listed[2:], user("Now?")]}),
            "pause before a short list": ("/v1/messages", message | {"messages": [*listed[2:4], user("Now?")]}),
            "branch": ("/v1/responses", {"model": "main", "input": [item, user("Another turn.")]}),
        }[door]
        limit_tenant(database_url, turns_total=0)
        refused = at.http.post(path, json=body, headers={"Idempotency-Key": key} if key else {})
        assert refused.status_code == 429, refused.text
        assert {session["id"] for session in sessions(at)} == left


def test_a_key_that_was_used_for_a_compaction_never_mixes_two_conversations(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Noted.")) as at:
        keyed: dict[str, Any] = {"extra_headers": {"Idempotency-Key": "k"}}

        def compacted(text: str) -> str:
            answer = at.client.responses.compact(model="main", input=[user(text)], **keyed)
            return _session_of(answer)

        one = compacted("One.")
        assert compacted("One.") == one
        assert compacted("Two.") != one
        ask(at, [user("Three.")], **keyed)
        assert {tuple(turn["user_input"] for turn in at.turns(session["id"])) for session in sessions(at)} == {
            ("One.",),
            ("Two.",),
            ("Three.",),
        }


def _given(response: Any) -> list[Any]:
    return [item.to_dict() for item in response.output]


def _session_of(compacted: Any) -> str:
    return compacted.output[0].encrypted_content.split("_")[1]
