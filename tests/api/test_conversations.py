"""`/v1/conversations` as the unmodified `openai` client sees it."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any, cast

import openai
import pytest

from tests.api.chatting import chat_service, openai_at, say
from tests.api.test_chat import assistant, user
from tests.api.test_chat_retries import BROKEN
from tests.api.test_responses import TOOLS, output, sessions
from tests.security.routes import openai_places, operations

CALL: Any = {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": "{}"}


def test_a_conversation_is_made_read_changed_and_erased(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path) as at:
        conversations = at.client.conversations
        made = conversations.create(metadata={"topic": "ledgers"})
        assert (made.object, made.metadata) == ("conversation", {"topic": "ledgers"})
        assert conversations.retrieve(made.id) == made
        changed = conversations.update(made.id, metadata={"topic": "banks", "more": "yes"})
        assert (changed.id, changed.metadata) == (made.id, {"topic": "banks", "more": "yes"})
        assert conversations.update(made.id, metadata=None).metadata == {}
        (session,) = sessions(at)
        assert made.id == f"conv_{session['id'].replace('-', '')}"
        deleted = conversations.delete(made.id)
        assert (deleted.deleted, deleted.object) == (True, "conversation.deleted")
        with pytest.raises(openai.NotFoundError) as gone:
            conversations.retrieve(made.id)
        assert gone.value.code == "conversation_not_found"
        assert sessions(at) == []


def test_items_are_a_past_that_the_model_is_shown(database_url: str, tmp_path: Path) -> None:
    past: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        user("Look up 1"),
        {"type": "reasoning", "id": "rs_1", "summary": []},
        CALL,
        output("c1", "found"),
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is found."}]},
    ]
    with chat_service(database_url, tmp_path, say("You are welcome.")) as at:
        made = at.client.conversations.create(items=past)
        kinds = ["message", "function_call", "function_call_output", "message"]
        items = at.client.conversations.items.list(made.id, order="asc").data
        assert [item.type for item in items] == kinds
        added = at.client.conversations.items.create(made.id, items=[user("And 2?"), assistant("Not found.")])
        assert [cast(Any, item).role for item in added.data] == ["user", "assistant"]
        assert (added.has_more, added.first_id, added.last_id) == (False, added.data[0].id, added.data[1].id)
        at.client.responses.create(model="main", input="Thanks", conversation=made.id)
        call: Any = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
        assert at.sent() == [
            {"role": "system", "content": "Be brief."},
            user("Look up 1"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "found"},
            assistant("It is found."),
            user("And 2?"),
            assistant("Not found."),
            user("Thanks"),
        ]
        for item in at.client.conversations.items.list(made.id).data:
            assert at.client.conversations.items.retrieve(item.id or "", conversation_id=made.id) == item


def test_a_call_that_was_added_waits_for_its_output(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Found."), say("Here.")) as at:
        items = at.client.conversations.items
        made = at.client.conversations.create(items=[user("Look up 1"), CALL])
        answered = at.client.responses.create(model="main", input=[output("c1", "one")], conversation=made.id)
        assert answered.output_text == "Found."
        items.create(made.id, items=[user("Look up 2"), CALL | {"call_id": "c2"}])
        items.create(made.id, items=[output("c2", "two")])
        at.client.responses.create(model="main", input="So?", conversation=made.id)
        assert [sent["role"] for sent in at.sent()][-4:] == ["user", "assistant", "tool", "user"]
        with pytest.raises(openai.BadRequestError):
            items.create(made.id, items=[output("c2", "again")])


def test_pages_of_items_hold_each_once_in_either_order(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Two at once.", "a", "b"), say("Done.")) as at:
        conversation = at.client.conversations.create().id
        at.client.responses.create(model="main", input="Both?", tools=TOOLS, conversation=conversation)
        at.client.responses.create(model="main", input=[output("a"), output("b")], conversation=conversation)
        whole = at.client.conversations.items.list(conversation, order="asc", limit=100).data
        assert [item.type for item in whole] == [
            "message",
            "message",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output",
            "message",
        ]
        for limit in range(1, 8):
            for order in ("asc", "desc"):
                paged = [item.id for item in at.client.conversations.items.list(conversation, order=order, limit=limit)]
                assert (paged if order == "asc" else paged[::-1]) == [item.id for item in whole]
        for after in ("msg_1", whole[0].id and whole[0].id.replace("msg_0", "msg_1")):
            with pytest.raises(openai.BadRequestError):
                at.client.conversations.items.list(conversation, after=after or "")


def test_an_item_that_is_taken_back_is_in_no_later_prompt_and_old_prompts_stay(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say("Looking.", "a"), say("Paid."), say("Bye."), say("Hm.")) as at:
        conversation = at.client.conversations.create().id
        ask, items = at.client.responses.create, at.client.conversations.items
        ask(model="main", input="Is a paid?", tools=TOOLS, conversation=conversation)
        ask(model="main", input=[output("a")], tools=TOOLS, conversation=conversation)
        listed = items.list(conversation, order="asc").data
        call = next(item for item in listed if item.type == "function_call")
        left = items.delete(call.id or "", conversation_id=conversation)
        assert left.id == conversation
        assert [item.type for item in items.list(conversation).data] == ["message", "message"]
        with pytest.raises(openai.NotFoundError) as gone:
            items.retrieve(call.id or "", conversation_id=conversation)
        assert gone.value.code == "item_not_found"
        items.delete(listed[0].id or "", conversation_id=conversation)
        ask(model="main", input="And?", conversation=conversation)
        assert at.sent() == [assistant("Paid."), user("And?")]
        session_id = sessions(at)[0]["id"]
        for turn, number in ((0, 1), (0, 2), (1, 1)):
            turn_id = at.turns(session_id)[turn]["id"]
            prompt = at.http.get(f"/v1/sessions/{session_id}/turns/{turn_id}/prompt?round={number}")
            assert prompt.status_code == 200
        # An export takes it along, still taken back.
        copied = at.http.post("/v1/sessions/import", json=at.http.get(f"/v1/sessions/{session_id}/export").json())
        assert copied.status_code == 201, copied.text
        forked = at.http.post(f"/v1/sessions/{session_id}/fork").json()["id"]
        for made in (copied.json()["id"], forked):
            ask(model="main", input="Once more", conversation=f"conv_{made.replace('-', '')}")
            assert at.sent()[:2] == [assistant("Paid."), user("And?")]


@pytest.mark.parametrize("taken", ["call", "output"])
@pytest.mark.parametrize("taken_round", [0, 1])
def test_of_calls_with_one_id_in_two_rounds_only_the_one_taken_back_leaves_with_its_output(
    database_url: str, tmp_path: Path, taken: str, taken_round: int
) -> None:
    """Some servers number the calls of each answer from the same beginning, and clients resend them so."""
    with chat_service(database_url, tmp_path, say("Hm.")) as at:
        ask, items = at.client.responses.create, at.client.conversations.items
        rounds: list[Any] = [user("Is a paid?"), CALL, output("c1", "First"), CALL, output("c1", "Second")]
        conversation = at.client.conversations.create(items=[*rounds, assistant("Paid.")]).id
        kind = "function_call" if taken == "call" else "function_call_output"
        found = [item for item in items.list(conversation, order="asc").data if item.type == kind]
        items.delete(found[taken_round].id or "", conversation_id=conversation)
        ask(model="main", input="And?", conversation=conversation)
        kept = ["Second", "First"][taken_round]
        assert [message["role"] for message in at.sent()] == ["user", "assistant", "tool", "assistant", "user"]
        assert at.sent()[2]["content"] == kept


def test_taking_back_an_open_call_ends_its_turn(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say(None, "a"), say("Fine.")) as at:
        conversation = at.client.conversations.create().id
        calling = at.client.responses.create(model="main", input="Is a paid?", tools=TOOLS, conversation=conversation)
        at.client.conversations.items.delete(calling.output[0].id or "", conversation_id=conversation)
        at.client.responses.create(model="main", input="Never mind", conversation=conversation)
        assert at.sent() == [user("Is a paid?"), user("Never mind")]


def test_items_that_can_not_be_stored_are_named_by_place_and_nothing_is(database_url: str, tmp_path: Path) -> None:
    wrong: list[list[Any]] = [
        [output("nobody")],
        [CALL, user("Too early")],
        [user("x"), {"type": "web_search_call", "id": "w"}],
        [{"type": "item_reference", "id": "msg_1"}],
        [user("x")] * 21,
        [{"role": "user"}],
    ]
    with chat_service(database_url, tmp_path) as at:
        conversation = at.client.conversations.create().id
        for given in wrong:
            with pytest.raises(openai.BadRequestError) as refused:
                at.client.conversations.items.create(conversation, items=given)
            assert str(refused.value.param).startswith("items"), given
            with pytest.raises(openai.BadRequestError):
                at.client.conversations.create(items=given)
        assert at.client.conversations.items.list(conversation).data == []
        assert len(sessions(at)) == 1


def test_outputs_that_do_not_answer_the_open_calls_are_refused_as_the_items_that_they_are(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path) as at:
        made = at.client.conversations.create(items=[user("Look up 1"), CALL])
        with pytest.raises(openai.BadRequestError) as refused:
            at.client.conversations.items.create(made.id, items=[output("c2", "two")])
        assert refused.value.param == "items"
        with pytest.raises(openai.BadRequestError) as unanswered:
            at.client.responses.create(model="main", input=[output("c2", "two")], conversation=made.id)
        assert unanswered.value.param == "input"


def test_a_conversation_keeps_no_directions_of_a_refused_request(database_url: str, tmp_path: Path) -> None:
    long: Any = {"role": "developer", "content": "word " * 8000}
    brief: Any = {"role": "developer", "content": "Be brief."}
    may_end = threading.Event()
    with chat_service(database_url, tmp_path, say("One."), say("Two.", after=may_end.is_set)) as at:
        conversation = at.client.conversations.create().id
        respond = at.client.responses.create
        with pytest.raises(openai.BadRequestError) as too_long:
            respond(model="main", input=[long, user("Hi")], conversation=conversation)
        assert too_long.value.code == "context_length_exceeded"
        assert respond(model="main", input=[user("Hi")], conversation=conversation).output_text == "One."
        respond(model="main", input="Slowly", conversation=conversation, background=True)
        with pytest.raises(openai.ConflictError), openai_at(at.address, max_retries=0) as client:
            client.conversations.items.create(conversation, items=[brief, user("Too soon")])
        assert sessions(at)[0]["instructions"] is None
        may_end.set()


@pytest.mark.parametrize("after", ["conversation", "previous response"])
@pytest.mark.parametrize("retries", [None, "1"], ids=["sent again", "marked as a retry"])
def test_outputs_that_a_failed_response_got_are_answered_when_they_are_sent_again(
    database_url: str, tmp_path: Path, after: str, retries: str | None
) -> None:
    headers: Any = {"X-Stainless-Retry-Count": retries} if retries else {}
    with chat_service(database_url, tmp_path, say(None, "a"), BROKEN, say("It is paid."), say("Bye.")) as at:
        respond: Any = at.client.responses.create
        place: dict[str, Any] = {"conversation": at.client.conversations.create().id}
        calling = respond(model="main", input="Is a paid?", tools=TOOLS, **place)
        if after == "previous response":
            place = {"previous_response_id": calling.id}
        with pytest.raises(openai.InternalServerError):
            respond(model="main", input=[output("a")], tools=TOOLS, **place)
        answer = respond(model="main", input=[output("a")], tools=TOOLS, **place, extra_headers=headers)
        assert answer.output_text == "It is paid."
        assert [message["role"] for message in at.sent()] == ["user", "assistant", "tool"]
        assert [item.type for item in at.client.responses.input_items.list(answer.id)] == ["function_call_output"]
        assert respond(model="main", input="Thanks", previous_response_id=answer.id).output_text == "Bye."
        assert at.model.hits == 4


@pytest.mark.parametrize("retries", [None, "1"], ids=["sent again", "marked as a retry"])
def test_a_message_whose_response_failed_is_in_the_conversation_once_when_it_is_sent_again(
    database_url: str, tmp_path: Path, retries: str | None
) -> None:
    headers: Any = {"X-Stainless-Retry-Count": retries} if retries else {}
    with chat_service(database_url, tmp_path, say("Hello."), BROKEN, BROKEN, say("It is paid."), say("Bye.")) as at:
        place: dict[str, Any] = {"model": "main", "conversation": at.client.conversations.create().id}
        respond: Any = partial(at.client.responses.create, **place)
        respond(input="Hi")
        for _ in range(2):
            with pytest.raises(openai.InternalServerError):
                respond(input="Is a paid?")
        answer = respond(input="Is a paid?", extra_headers=headers)
        assert [message["content"] for message in at.sent()] == ["Hi", "Hello.", "Is a paid?"]
        assert [item.type for item in at.client.responses.input_items.list(answer.id)] == ["message"]
        respond(input="Is a paid?")
        assert [message["content"] for message in at.sent()][3:] == ["It is paid.", "Is a paid?"]


def test_outputs_and_a_message_whose_response_failed_are_in_the_conversation_once_when_they_are_sent_again(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say(None, "a"), BROKEN, say("You are welcome.")) as at:
        asked: dict[str, Any] = {"model": "main", "tools": TOOLS, "conversation": at.client.conversations.create().id}
        respond: Any = partial(at.client.responses.create, **asked)
        respond(input="Is a paid?")
        with pytest.raises(openai.InternalServerError):
            respond(input=[output("a"), user("Thanks")])
        assert respond(input=[output("a"), user("Thanks")]).output_text == "You are welcome."
        assert [message["content"] for message in at.sent()] == ["Is a paid?", None, "paid", "Thanks"]


def test_a_list_whose_tool_round_failed_is_in_the_conversation_once_when_it_is_sent_again(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say(None, "a"), BROKEN, say("It is paid.")) as at:
        asked: dict[str, Any] = {"model": "main", "tools": TOOLS, "conversation": at.client.conversations.create().id}
        respond: Any = partial(at.client.responses.create, **asked)
        first = user("Is a paid?")
        calls = [item.model_dump(exclude_none=True) for item in respond(input=[first]).output]
        with pytest.raises(openai.InternalServerError):
            respond(input=[first, *calls, output("a")])
        assert respond(input=[first, *calls, output("a")]).output_text == "It is paid."
        assert [message["role"] for message in at.sent()] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("sent_next", "prompt"),
    [
        ([output("a", "open")], ["Is a paid?", None, "paid", "Is a paid?", None, "open"]),
        ([output("a"), user("Thanks")], ["Is a paid?", None, "paid", "Thanks"]),
    ],
    ids=["other outputs", "the next message"],
)
def test_after_a_failed_response_its_outputs_may_differ_or_be_followed_by_a_message(
    database_url: str, tmp_path: Path, sent_next: list[Any], prompt: list[str | None]
) -> None:
    with chat_service(database_url, tmp_path, say(None, "a"), BROKEN, say("It is open.")) as at:
        respond: Any = at.client.responses.create
        asked: dict[str, Any] = {"model": "main", "tools": TOOLS, "conversation": at.client.conversations.create().id}
        respond(input="Is a paid?", **asked)
        with pytest.raises(openai.InternalServerError):
            respond(input=[output("a")], **asked)
        assert respond(input=sent_next, **asked).output_text == "It is open."
        assert [message["content"] for message in at.sent()] == prompt


def test_a_conversation_keeps_no_past_of_a_refused_request(database_url: str, tmp_path: Path) -> None:
    past = [user("What is a lee shore?"), assistant("One that the wind blows towards.")]
    with chat_service(database_url, tmp_path, say("Yes."), say("Bye.")) as at:
        conversation = at.client.conversations.create().id
        respond: Any = at.client.responses.create
        with pytest.raises(openai.BadRequestError) as too_long:
            respond(model="main", input=[*past, user("word " * 8000)], conversation=conversation)
        assert too_long.value.code == "context_length_exceeded"
        assert at.client.conversations.items.list(conversation).data == []
        assert respond(model="main", input=[*past, user("Sure?")], conversation=conversation).output_text == "Yes."
        assert respond(model="main", input="Thanks", conversation=conversation).output_text == "Bye."
        said = ["What is a lee shore?", "One that the wind blows towards.", "Sure?", "Yes.", "Thanks"]
        assert [message["content"] for message in at.sent()] == said


@pytest.mark.parametrize("answered", [True, False], ids=["with its output", "without it"])
@pytest.mark.parametrize("after", ["conversation", "previous response"])
def test_a_call_still_waits_after_a_refused_request(
    database_url: str, tmp_path: Path, after: str, answered: bool
) -> None:
    with chat_service(database_url, tmp_path, say(None, "a"), say("It is paid."), say("Bye.")) as at:
        respond: Any = at.client.responses.create
        place: dict[str, Any] = {"conversation": at.client.conversations.create().id}
        calling = respond(model="main", input="Is a paid?", tools=TOOLS, **place)
        if after == "previous response":
            place = {"previous_response_id": calling.id}
        outputs = [output("a")] if answered else []
        with pytest.raises(openai.BadRequestError, match="context_length_exceeded"):
            respond(model="main", input=[*outputs, user("word " * 8000)], tools=TOOLS, **place)
        answer = respond(model="main", input=[output("a"), user("Well?")], tools=TOOLS, **place)
        assert answer.output_text == "It is paid."
        assert [message["role"] for message in at.sent()] == ["user", "assistant", "tool", "user"]
        assert respond(model="main", input="Thanks", previous_response_id=answer.id).output_text == "Bye."
        assert len(sessions(at)) == 1


@pytest.mark.parametrize("limits", [{}, {"turns_total": 0}], ids=["too long", "over a limit"])
def test_of_a_refused_request_nothing_is_in_its_session(database_url: str, tmp_path: Path, limits: Any) -> None:
    request: Any = [{"role": "developer", "content": "Be brief."}, user("One"), assistant("Two"), user("word " * 8000)]
    with chat_service(database_url, tmp_path, say("Four.")) as at:
        session_id = at.http.post("/v1/sessions", json={"model_alias": "main", "limits": limits}).json()["id"]
        respond = partial(at.client.responses.create, model="main", extra_headers={"X-Session-Id": session_id})
        with pytest.raises(openai.APIStatusError) as refused, openai_at(at.address, max_retries=0) as client:
            client.responses.create(model="main", input=request, extra_headers={"X-Session-Id": session_id})
        assert refused.value.status_code == (429 if limits else 400)
        assert sessions(at)[0]["instructions"] is None
        assert [turn["status"] for turn in at.turns(session_id)] == ([] if limits else ["rejected", "rejected"])
        at.http.patch(f"/v1/sessions/{session_id}", json={"limits": None}).raise_for_status()
        assert respond(input=[*request[:-1], user("Three")]).output_text == "Four."
        assert [message["content"] for message in at.sent()] == ["Be brief.", "One", "Two", "Three"]


_IN_PROMPTS = ("GET /v1/sessions/{session_id}/turns/{turn_id}/prompt", "GET /v1/sessions/{session_id}/export")
"""What needs a message that was taken back for the prompts that were sent with it."""


def test_no_read_shows_the_text_of_a_message_that_was_taken_back(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Your passport has the number OKAPI-2."), say("Noted.")) as at:
        session_id = at.http.post("/v1/sessions", json={}).json()["id"]
        body, key = {"content": "My passport is in the drawer ZEBRA-1."}, {"Idempotency-Key": "k"}
        turns = f"/v1/sessions/{session_id}/turns"
        turn_id = at.http.post(turns, json=body, headers=key).json()["turn"]["id"]
        at.http.post(turns, json={"content": "Thanks, and what is next to do?"})
        places = {**openai_places(session_id), "session_id": session_id, "turn_id": turn_id, "name": "a"}
        reads = [each for each in operations(at.http) if each.method == "GET" and each.name != "GET /v1/events"]

        def shown_by() -> set[str]:
            wanted = {"q": "passport", "figures": "true"}
            sent = {
                each.name: each.send(
                    at.http, places, params={name: wanted[name] for name in wanted.keys() & each.query}
                )
                for each in reads
            }
            sent["a retry"] = at.http.post(turns, json=body, headers=key)
            assert sent["a retry"].status_code == 201
            return {name for name, answer in sent.items() if "ZEBRA-1" in answer.text or "OKAPI-2" in answer.text}

        assert {"GET /v1/sessions", "GET /v1/search", "a retry", *_IN_PROMPTS} < shown_by()
        items = f"/v1/conversations/{places['conversation_id']}/items"
        for item in at.http.get(f"{items}?order=asc").json()["data"][:2]:
            assert at.http.delete(f"{items}/{item['id']}").status_code == 200
        assert shown_by() == {*_IN_PROMPTS}
        document = at.http.get(f"/v1/sessions/{session_id}/export").json()
        copies = [
            at.http.post("/v1/sessions/import", json=document).json(),
            at.http.post(f"/v1/sessions/{session_id}/fork", json={}).json(),
        ]
        for copy in (*copies, at.http.get(f"/v1/sessions/{session_id}").json()):
            first, _ = at.turns(copy["id"])
            assert (first["user_input"], first["assistant_output"], first["status"]) == ("", "", "completed")
        listed = at.http.get("/v1/sessions?figures=true").json()["items"][-1]
        assert listed["figures"]["first_input"] == "Thanks, and what is next to do?"
