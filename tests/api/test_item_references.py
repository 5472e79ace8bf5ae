"""Items of earlier replies that a list of Responses names by their ids, in the place of their content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api.chatting import chat_service, say, tool_call
from tests.api.test_responses import TOOLS, output, sessions, user
from tests.providers.server import Answer

_CALLS = [tool_call(call_id, "look_up", {"id": call_id}) for call_id in ("a", "b")]
_REPLY = {"role": "assistant", "content": "Looking.", "reasoning_content": "Where is it?", "tool_calls": _CALLS}
LOOKING = Answer({"model": "served-1", "choices": [{"index": 0, "message": _REPLY, "finish_reason": "tool_calls"}]})


@pytest.mark.parametrize("by_id", [("rs", "msg"), ("rs",), ("msg",), ("fc",), ("rs", "fc"), ("rs", "msg", "fc")])
def test_an_id_stands_for_its_own_item_and_for_no_other_of_the_same_reply(
    database_url: str, tmp_path: Path, by_id: tuple[str, ...]
) -> None:
    """The Vercel AI SDK sends the reasoning and the text of a reply by their ids, and its calls in full."""
    with chat_service(database_url, tmp_path, LOOKING, say("Both are paid.")) as at:
        asked: list[Any] = [user("Are a and b paid?")]
        reply = at.client.responses.create(model="main", input=asked, tools=TOOLS)
        assert [item.type for item in reply.output] == ["reasoning", "message", "function_call", "function_call"]
        for item in reply.output:
            is_named = item.id is not None and item.id.startswith(by_id)
            asked.append({"type": "item_reference", "id": item.id} if is_named else item.model_dump())
        asked += [output("a"), output("b")]
        answer = at.client.responses.create(model="main", input=asked, tools=TOOLS)
        assert answer.output_text == "Both are paid."
        (session,) = sessions(at)
        assert [turn["status"] for turn in at.turns(session["id"])] == ["completed"]
        roles = [(sent["role"], len(sent.get("tool_calls") or ())) for sent in at.sent()]
        assert roles == [("user", 0), ("assistant", 2), ("tool", 0), ("tool", 0)]


def test_reasoning_alone_brings_neither_the_text_nor_the_calls_of_its_reply(database_url: str, tmp_path: Path) -> None:
    """A client may leave out calls of the past and keep the reasoning before them."""
    with chat_service(database_url, tmp_path, LOOKING, say("Hello.")) as at:
        reply = at.client.responses.create(model="main", input="Are a and b paid?", tools=TOOLS)
        asked: list[Any] = [{"type": "item_reference", "id": reply.output[0].id}, user("Hello")]
        assert at.client.responses.create(model="main", input=asked).output_text == "Hello."
        assert at.sent() == [user("Hello")]


def test_an_item_that_is_named_twice_is_in_the_list_once(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, LOOKING, say("Both are paid.")) as at:
        reply = at.client.responses.create(model="main", input="Are a and b paid?", tools=TOOLS)
        named = [{"type": "item_reference", "id": item.id} for item in reply.output]
        asked: list[Any] = [user("Are a and b paid?"), *named, *named, output("a"), output("b")]
        assert at.client.responses.create(model="main", input=asked, tools=TOOLS).output_text == "Both are paid."


def test_an_id_of_an_item_that_a_message_does_not_have_is_refused(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say(None, "a")) as at:
        (call,) = at.client.responses.create(model="main", input="Is a paid?", tools=TOOLS).output
        assert call.id is not None
        reply = call.id[3:-4]
        for unknown in (f"fc_{reply}0001", f"fc_{reply}", f"msg_{reply}", f"fco_{reply}", f"rs_{reply}0000"):
            asked: list[Any] = [user("Is it?"), {"type": "item_reference", "id": unknown}]
            with pytest.raises(openai.BadRequestError, match="There is no such item"):
                at.client.responses.create(model="main", input=asked, tools=TOOLS)
