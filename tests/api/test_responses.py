"""`/v1/responses` as the unmodified `openai` client sees it, with a scripted model behind real sockets."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
from openai.types.responses.input_token_count_response import InputTokenCountResponse

from app.domain.types import ToolCall
from tests.api.chatting import Chat, Hasty, chat_service, openai_at, say
from tests.api.conftest import new_session
from tests.api.messaging import said
from tests.api.test_auth import make_key
from tests.api.test_chat import assistant, user
from tests.api.test_limits import limit_tenant
from tests.providers.server import Answer, Stream
from tests.providers.wires import ANTHROPIC, OPENAI, ModelReply

TOOLS: list[Any] = [{"type": "function", "name": "look_up", "parameters": {"type": "object"}, "strict": False}]
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


def output(call_id: str, text: str = "paid") -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def sessions(at: Chat) -> list[Any]:
    return at.http.get("/v1/sessions").json()["items"]


def test_a_response_is_a_turn_and_the_next_goes_on_behind_it(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Hello Anna."), say("Anna.")) as at:
        raw = at.client.responses.with_raw_response.create(
            model="main", input="I am Anna.", instructions="Be brief.", metadata={"of": "a test"}, temperature=0.5
        )
        first = raw.parse()
        assert (first.status, first.output_text, first.object, first.model) == (
            "completed",
            "Hello Anna.",
            "response",
            "main",
        )
        assert first.usage is not None
        assert (first.usage.input_tokens, first.usage.output_tokens, first.usage.total_tokens) == (20, 7, 27)
        assert first.usage.input_tokens_details.cached_tokens == 8
        assert (first.instructions, first.metadata, first.temperature) == ("Be brief.", {"of": "a test"}, 0.5)
        assert at.sent() == [{"role": "system", "content": "Be brief."}, user("I am Anna.")]
        assert at.model.seen[0].json["temperature"] == 0.5
        second = at.client.responses.create(model="main", input="Who am I?", previous_response_id=first.id)
        assert (second.output_text, second.previous_response_id, second.instructions) == ("Anna.", first.id, None)
        # OpenAI says: instructions do not carry over.
        assert at.sent() == [user("I am Anna."), assistant("Hello Anna."), user("Who am I?")]
        (session,) = sessions(at)
        assert raw.headers["x-session-id"] == session["id"]
        assert [turn["status"] for turn in at.turns(session["id"])] == ["completed", "completed"]
        for response in (first, second):
            assert at.client.responses.retrieve(response.id) == response
        assert [str(item.id)[:4] for item in first.output] == ["msg_"]


def test_behind_an_older_response_a_fork_begins_and_both_go_on(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, *(say(f"Answer {number}.") for number in range(1, 6))) as at:
        ask = at.client.responses.create
        first = ask(model="main", input="One")
        second = ask(model="main", input="Two", previous_response_id=first.id)
        branch = ask(model="main", input="Other", previous_response_id=first.id)
        assert at.sent() == [user("One"), assistant("Answer 1."), user("Other")]
        ask(model="main", input="More", previous_response_id=branch.id)
        assert at.sent()[2:] == [user("Other"), assistant("Answer 3."), user("More")]
        ask(model="main", input="Three", previous_response_id=second.id)
        assert at.sent()[2:] == [user("Two"), assistant("Answer 2."), user("Three")]
        assert sorted(len(at.turns(session["id"])) for session in sessions(at)) == [3, 3]
        (fork,) = [session for session in sessions(at) if session["forked_from"]]
        assert fork["forked_from"]["turn_id"] == at.turns(fork["forked_from"]["session_id"])[0]["id"]


def test_concurrent_requests_behind_one_response_become_separate_branches(database_url: str, tmp_path: Path) -> None:
    slow = Answer({"choices": [{"index": 0, "message": {"content": "Yes."}, "finish_reason": "stop"}]}, delay_s=0.4)
    with chat_service(database_url, tmp_path, say("One."), slow) as at:
        first = at.client.responses.create(model="main", input="First")
        answers: list[str] = []

        def ask(text: str) -> None:
            with openai_at(at.address, max_retries=5) as client:
                answers.append(client.responses.create(model="main", input=text, previous_response_id=first.id).id)

        threads = [threading.Thread(target=ask, args=(f"Branch {number}",)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(answers)) == 5
        asked = {json.dumps(seen.json["messages"], sort_keys=True) for seen in at.model.seen[1:]}
        past = [user("First"), assistant("One.")]
        assert asked == {json.dumps([*past, user(f"Branch {number}")], sort_keys=True) for number in range(5)}


@pytest.mark.parametrize("by", ["previous_response_id", "conversation"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_tool_loop_with_parallel_calls_is_one_turn_and_a_response_for_each_round(
    database_url: str, tmp_path: Path, by: str, stream: bool
) -> None:
    with chat_service(database_url, tmp_path, say("Let me see.", "a", "b"), say(None, "c"), say("All paid.")) as at:
        named: dict[str, Any] = {"conversation": at.client.conversations.create().id} if by == "conversation" else {}
        given: Any = "Are a, b and c paid?"
        made: list[Any] = []
        while True:
            response = _ask(at, stream, model="main", input=given, tools=TOOLS, **named)
            made.append(response)
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                break
            given = [output(call.call_id, f"{call.call_id} is paid") for call in calls]
            if by == "previous_response_id":
                named = {by: response.id}
        assert [[item.type for item in response.output] for response in made] == [
            ["message", "function_call", "function_call"],
            ["function_call"],
            ["message"],
        ]
        assert json.loads(made[0].output[1].arguments) == {"id": "a"}
        assert made[2].output_text == "All paid."
        assert [sent["role"] for sent in at.sent()] == ["user", "assistant", "tool", "tool", "assistant", "tool"]
        assert at.model.seen[0].json["tools"][0]["function"] == {
            "name": "look_up",
            "parameters": {"type": "object"},
            "strict": False,
        }
        (session,) = sessions(at)
        (turn,) = at.turns(session["id"])
        assert (turn["status"], turn["assistant_output"]) == ("completed", "All paid.")
        for response in made:
            assert at.client.responses.retrieve(response.id) == response
        listed = at.client.responses.input_items.list(made[1].id, order="asc").data
        assert [(item.type, cast(Any, item).call_id) for item in listed] == [
            ("function_call_output", "a"),
            ("function_call_output", "b"),
        ]


def test_calls_can_be_answered_otherwise_in_a_fork_within_their_turn(database_url: str, tmp_path: Path) -> None:
    script = [say("Looking.", "a"), say("It is paid."), say("It is open."), say("Never mind.")]
    with chat_service(database_url, tmp_path, *script) as at:
        ask = at.client.responses.create
        calling = ask(model="main", input="Is a paid?", tools=TOOLS)
        ask(model="main", input=[output("a", "paid")], tools=TOOLS, previous_response_id=calling.id)
        other = ask(model="main", input=[output("a", "open")], tools=TOOLS, previous_response_id=calling.id)
        assert other.output_text == "It is open."
        assert [sent["content"] for sent in at.sent()] == ["Is a paid?", "Looking.", "open"]
        # Where the user speaks instead, the open call is in no later prompt.
        ask(model="main", input="Forget it.", previous_response_id=calling.id)
        assert at.sent() == [user("Is a paid?"), user("Forget it.")]
        assert len(sessions(at)) == 3


def test_a_request_that_can_not_be_answered_gets_the_place_and_stores_nothing(
    database_url: str, tmp_path: Path
) -> None:
    unknown = "resp_" + "0" * 44
    hosted, named = {"type": "web_search"}, {"type": "function", "name": "f", "parameters": {"type": "object"}}
    wrong: list[tuple[dict[str, Any], int, str, str | None]] = [
        ({"input": "Hi", "tools": [hosted]}, 400, "invalid_request", "tools[0]"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, 400, "invalid_request", "input[0]"),
        ({"input": [{"type": "nonsense"}]}, 400, "invalid_request", "input[0]"),
        ({"input": [output("nobody")]}, 400, "invalid_request", "input[0]"),
        ({"input": [{"id": "msg_" + "0" * 44, "type": "item_reference"}]}, 400, "invalid_request", "input[0].id"),
        ({"input": "  "}, 400, "invalid_request", "input[0]"),
        ({"input": []}, 400, "invalid_request", "input"),
        ({}, 400, "invalid_request", "input"),
        ({"input": "Hi", "prompt": {"id": "pmpt_1"}}, 400, "invalid_request", "prompt"),
        ({"input": "Hi", "truncation": "some"}, 400, "invalid_request", "truncation"),
        ({"input": "Hi", "metadata": {"a": 1}}, 400, "invalid_request", "metadata.a"),
        ({"input": "Hi", "background": True, "store": False}, 400, "invalid_request", "background"),
        ({"input": "Hi", "tool_choice": {"type": "function", "name": "f"}}, 400, "invalid_request", "tool_choice"),
        ({"input": "Hi", "tool_choice": "required"}, 400, "invalid_request", "tool_choice"),
        ({"input": "Hi", "tools": [named, named]}, 400, "invalid_request", "tools[1]"),
        ({"input": "Hi", "model": "nobody"}, 404, "model_not_found", "model"),
        ({"input": "Hi", "previous_response_id": unknown}, 400, "previous_response_not_found", "previous_response_id"),
        ({"input": "Hi", "previous_response_id": "resp_1"}, 400, "previous_response_not_found", "previous_response_id"),
        ({"input": "Hi", "conversation": "conv_" + "0" * 32}, 404, "conversation_not_found", "conversation"),
        (
            {"input": "Hi", "conversation": "conv_" + "0" * 32, "previous_response_id": unknown},
            400,
            "invalid_request",
            "previous_response_id",
        ),
    ]
    with chat_service(database_url, tmp_path) as at:
        for body, status, code, parameter in wrong:
            with pytest.raises(openai.APIStatusError) as refused:
                at.client.post("/responses", body={"model": "main"} | body, cast_to=httpx.Response)
            error = refused.value
            assert (error.status_code, error.code) == (status, code), (body, error.message)
            assert (error.param or "").startswith(parameter or ""), (body, error.param)
        with pytest.raises(openai.BadRequestError, match="hosts web_search"):
            at.client.responses.create(model="main", input="Hi", tools=[cast(Any, hosted)])
        for part in ({"type": "input_image", "file_id": "f"}, {"type": "input_file", "file_url": "https://a/b.pdf"}):
            seen: Any = {**output("nobody"), "output": [part]}
            with pytest.raises(openai.BadRequestError, match="send a data URL") as unsent:
                at.client.responses.create(model="main", input=[seen])
            assert unsent.value.param == "input[0].output[0]"
        assert (at.model.hits, sessions(at)) == (0, [])


def test_a_request_to_the_model_goes_over_the_wire_in_its_form(database_url: str, tmp_path: Path) -> None:
    schema: Any = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    with chat_service(database_url, tmp_path, say('{"a": "b"}')) as at:
        response = at.client.responses.create(
            model="main",
            input=[
                {"type": "message", "role": "developer", "content": "Speak like a pirate."},
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What is this?"},
                        {"type": "input_image", "image_url": PIXEL, "detail": "low"},
                        {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,QQ=="},
                    ],
                },
            ],
            text={"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}},
            reasoning={"effort": "low"},
            max_output_tokens=300,
            parallel_tool_calls=False,
            top_p=0.5,
            tools=[*TOOLS, cast(Any, {**TOOLS[0], "name": "other"})],
            tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]},
        )
        sent = at.model.seen[0].json
        assert sent["messages"] == [
            {"role": "system", "content": "Speak like a pirate."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
                    {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,QQ=="}},
                ],
            },
        ]
        assert sent["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        }
        assert (sent["reasoning_effort"], sent["top_p"], sent["parallel_tool_calls"]) == ("low", 0.5, False)
        assert ([tool["function"]["name"] for tool in sent["tools"]], sent["tool_choice"]) == (["other"], "required")
        assert sent.get("max_tokens") or sent.get("max_completion_tokens") == 300
        assert response.text is not None
        assert response.text.format is not None
        assert response.text.format.type == "json_schema"
        assert len(response.tools) == 2
        # A developer's message is of the conversation: it is there in the next prompt too, and once.
        at.client.responses.create(
            model="main",
            input=[{"role": "developer", "content": "Speak like a pirate."}, {"role": "user", "content": "And now?"}],
            previous_response_id=response.id,
        )
        assert [message["content"] for message in at.sent() if message["role"] == "system"] == ["Speak like a pirate."]
        items = at.client.responses.input_items.list(response.id).data
        parts = cast(Any, items[0]).content
        assert [part.type for part in parts] == ["input_text", "input_image", "input_file"]
        assert parts[1].image_url == PIXEL


def test_the_input_of_a_response_is_counted_as_it_would_be_sent_and_nothing_is_stored(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say("Noted.")) as at:
        look_up: Any = {"type": "function", "name": "look_up", "parameters": {"type": "object"}, "strict": False}
        asked: dict[str, Any] = {"model": "main", "instructions": "Be brief.", "tools": [look_up]}

        def count(**given: Any) -> int:
            raw: Any = at.client.responses.input_tokens.with_raw_response.count(**asked, **given)
            return InputTokenCountResponse.model_validate(raw.http_response.json(), strict=True).input_tokens

        create: Any = at.client.responses.create

        def estimated() -> int:
            (session,) = sessions(at)
            turn = at.turns(session["id"])[-1]
            audit = at.http.get(f"/v1/sessions/{session['id']}/turns/{turn['id']}/audit").json()
            return audit["estimated_wire_tokens"]

        counted = count(input=[user("Hello there")])
        assert (sessions(at), at.model.hits) == ([], 0)
        first: Any = create(input="Hello there", **asked)
        assert counted == estimated()
        counted = count(input="And now?", previous_response_id=first.id)
        conversation = f"conv_{sessions(at)[0]['id'].replace('-', '')}"
        assert count(input="And now?", conversation=conversation) == counted
        create(input="And now?", previous_response_id=first.id, **asked)
        assert counted == estimated()
        assert count() < count(input="Hello there")
        with pytest.raises(openai.BadRequestError) as refused:
            count(input="Otherwise", previous_response_id=first.id)
        assert refused.value.param == "previous_response_id"
        with pytest.raises(openai.NotFoundError, match="conversation"):
            count(input="Hi", conversation="conv_" + "0" * 32)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_response_with_store_false_leaves_nothing_in_the_database(
    database_url: str, tmp_path: Path, stream: bool
) -> None:
    broken = Answer({"error": {"message": "no", "type": "invalid_request_error"}}, status=400)
    script = [say("Kept."), say("Gone.", "a"), say("Gone too."), broken]
    with chat_service(database_url, tmp_path, *script) as at:
        kept = at.client.responses.create(model="main", input="Keep this")
        before = sessions(at)
        gone = _ask(at, stream, model="main", input="Do not keep", tools=TOOLS, store=False)
        assert gone.output[1].type == "function_call"
        # Whoever keeps nothing here sends everything again, reasoning and ids included.
        again: list[Any] = [
            user("Do not keep"),
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            *[item.model_dump(exclude_none=True) for item in gone.output],
            output("a"),
        ]
        behind = _ask(at, stream, model="main", input=again, tools=TOOLS, store=False, previous_response_id=kept.id)
        assert behind.output_text == "Gone too."
        assert [sent["role"] for sent in at.sent()] == ["user", "assistant", "user", "assistant", "tool"]
        with pytest.raises(openai.APIStatusError):
            at.client.responses.create(model="main", input="Neither this", store=False)
        assert sessions(at) == before
        for response in (gone, behind):
            with pytest.raises(openai.NotFoundError) as unknown:
                at.client.responses.retrieve(response.id)
            assert unknown.value.code == "response_not_found"
            with pytest.raises(openai.BadRequestError) as refused:
                at.client.responses.create(model="main", input="More", previous_response_id=response.id)
            assert refused.value.code == "previous_response_not_found"
            assert "There is no such previous response." in refused.value.message


def test_a_tool_loop_with_store_false_sends_the_clients_reasoning_back(database_url: str, tmp_path: Path) -> None:
    called = ModelReply("Let me see.", "They ask for a.", (ToolCall("a", "look_up", "{}"),))
    script = said(OPENAI, called), said(OPENAI, ModelReply("It is paid."))
    with chat_service(database_url, tmp_path, *script, of_main='return_reasoning = "tool_turns"') as at:
        items: list[Any] = [{"role": "user", "content": "Is a paid?"}]
        first = at.client.responses.create(model="main", input=items, tools=TOOLS, store=False)
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        items += [item.model_dump(exclude_none=True) for item in first.output] + [output("a")]
        second = at.client.responses.create(model="main", input=items, tools=TOOLS, store=False)
        assert second.output_text == "It is paid."
        assert at.sent()[1]["reasoning_content"] == "They ask for a."
        assert sessions(at) == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_sealed_reasoning_goes_back_with_its_signature_where_nothing_is_stored(
    database_url: str, tmp_path: Path, provider: str, stream: bool
) -> None:
    wire = OPENAI if provider == "openai" else ANTHROPIC
    of_main = 'return_reasoning = "tool_turns"' if wire is OPENAI else 'parameters = {thinking = {type = "adaptive"}}'
    called = ModelReply("", "They ask for a.", (ToolCall("a", "look_up", "{}"),))
    script = said(wire, called), said(wire, ModelReply("It is paid.")), said(wire, called)
    with chat_service(database_url, tmp_path, *script, provider=wire.name, of_main=of_main, window=16384) as at:
        asked: dict[str, Any] = {"model": "main", "tools": TOOLS, "store": False}
        asked["include"] = ["reasoning.encrypted_content"]
        items: list[Any] = [{"role": "user", "content": "Is a paid?"}]
        create: Any = at.client.responses.create
        if stream:
            events: list[Any] = list(create(input=items, stream=True, **asked))
            done = [event.item for event in events if event.type == "response.output_item.done"]
            assert events[-1].response.output == done
        else:
            done = create(input=items, **asked).output
        # As the clients of Vercel and Codex send it: without the content.
        items.append({"type": "reasoning", "summary": [], "encrypted_content": done[0].encrypted_content})
        items += [done[1].model_dump(exclude_none=True), output("a")]
        assert create(input=items, **asked).output_text == "It is paid."
        sent = at.sent()[1]
        signed = {"type": "thinking", "thinking": "They ask for a.", "signature": "sig"}
        assert (sent["reasoning_content"] if wire is OPENAI else sent["content"][0]) == (
            "They ask for a." if wire is OPENAI else signed
        )
        plain = create(**asked | {"input": "Is a paid?", "include": None}).output[0]
        assert plain.encrypted_content is None


def test_a_response_with_store_false_is_erased_also_if_its_client_disconnects(
    database_url: str, tmp_path: Path
) -> None:
    left = threading.Event()
    slow = Stream((b'data: {"choices": [{"index": 0, "delta": {"content": "A"}}]}\n\n',) * 3, after=left.is_set)
    with chat_service(database_url, tmp_path, slow) as at:
        stream = at.client.responses.create(model="main", input="Quiet", stream=True, store=False)
        next(iter(stream))
        assert len(sessions(at)) == 1
        stream.close()
        left.set()
        deadline = time.monotonic() + 60
        while sessions(at):
            assert time.monotonic() < deadline, "it was never erased"
            time.sleep(0.05)


def test_without_truncation_a_long_past_is_refused_and_with_it_the_session_goes_on(
    database_url: str, tmp_path: Path
) -> None:
    words = "The ledger row and the bank line differ by a cent, again. " * 40
    with chat_service(database_url, tmp_path, say("Noted. " * 60), window=4096) as at:
        conversation = at.client.conversations.create().id
        refused: openai.BadRequestError | None = None
        for _ in range(12):
            try:
                at.client.responses.create(model="main", input=words, conversation=conversation, truncation="disabled")
            except openai.BadRequestError as error:
                refused = error
                break
        assert refused is not None
        assert (refused.code, refused.param) == ("context_length_exceeded", "input")
        assert "maximum context length is 4096 tokens" in refused.message
        hits = at.model.hits
        turns = at.turns(sessions(at)[0]["id"])
        assert turns[-1]["status"] == "rejected"
        assert 1 < len(turns) == hits + 1, "something was sent to the model, or nothing ever fitted"
        going_on = at.client.responses.create(model="main", input=words, conversation=conversation, truncation="auto")
        assert (going_on.status, going_on.truncation) == ("completed", "auto")
        # What auto has summarized is still there for one who wants all of it or nothing.
        with pytest.raises(openai.BadRequestError, match="context_length_exceeded"):
            at.client.responses.create(model="main", input="Short.", conversation=conversation, truncation="disabled")
        assert at.client.responses.create(model="main", input="Short.", conversation=conversation).truncation == "auto"


def test_without_truncation_a_providers_refusal_is_reported_and_nothing_is_cut(
    database_url: str, tmp_path: Path
) -> None:
    error = {"message": "This model's maximum context length is 2000 tokens.", "code": "context_length_exceeded"}
    too_long = Answer({"error": error}, status=400)
    words = "The ledger row and the bank line differ by a cent, again. " * 30
    with chat_service(database_url, tmp_path, say("One."), say("Two."), too_long, too_long, say("Cut.")) as at:
        ask = at.client.responses.create
        first = ask(model="main", input=words)
        second = ask(model="main", input=words, previous_response_id=first.id)
        with pytest.raises(openai.BadRequestError) as refused:
            ask(model="main", input=words, previous_response_id=second.id, truncation="disabled")
        assert (refused.value.code, at.model.hits) == ("context_length_exceeded", 3)
        assert ask(model="main", input=words, previous_response_id=second.id).output_text == "Cut."
        assert (at.model.hits, len(at.sent(3))) == (5, 5)
        assert len(at.sent(4)) < 5


def test_a_clients_own_retry_doubles_nothing(database_url: str, tmp_path: Path) -> None:
    hasty = Hasty()
    slow = say("At last.", after=hasty.tried_again)
    with chat_service(database_url, tmp_path, say("One.", "a"), slow) as at:
        first = at.client.responses.create(model="main", input="First", tools=TOOLS)
        with hasty.at(at.address) as client:
            listed_items = client.responses.create(
                model="main", input=[output("a")], tools=TOOLS, previous_response_id=first.id
            )
        assert listed_items.output_text == "At last."
        assert at.model.hits == 2
        (session,) = sessions(at)
        assert len(at.turns(session["id"])) == 1
        conversation = f"conv_{session['id'].replace('-', '')}"
        with hasty.at(at.address) as client:
            more = client.responses.create(model="main", input="More", conversation=conversation)
        assert (more.output_text, at.model.hits, len(at.turns(session["id"]))) == ("At last.", 3, 2)


def test_an_idempotency_key_makes_one_response_wherever_it_is_sent(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("One."), say("Two."), say("Three."), say("Four.")) as at:
        body: dict[str, Any] = {"model": "main", "input": "Go on"}
        first = _keyed(at, "a", body)
        assert len({_keyed(at, "a", body)["id"], first["id"]}) == 1
        behind = {**body, "previous_response_id": first["id"]}
        assert _keyed(at, "b", behind) == _keyed(at, "b", behind)
        fork = {**body, "previous_response_id": first["id"], "input": "Otherwise"}
        assert _keyed(at, "c", fork) == _keyed(at, "c", fork)
        streamed = at.http.post("/v1/responses", json={**fork, "stream": True}, headers={"Idempotency-Key": "c"})
        events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
        assert events[-1]["response"] == _keyed(at, "c", fork)
        assert at.model.hits == 3
        reused = at.http.post("/v1/responses", json={**body, "input": "Else"}, headers={"Idempotency-Key": "a"})
        assert (reused.status_code, reused.json()["error"]["code"]) == (422, "idempotency_key_reused")


def test_an_answer_that_was_cut_off_is_incomplete_and_says_why(database_url: str, tmp_path: Path) -> None:
    for reason, listed_items in (("length", "max_output_tokens"), ("content_filter", "content_filter")):
        choice = {"index": 0, "message": {"content": "Half an"}, "finish_reason": reason}
        with chat_service(database_url, tmp_path, Answer({"choices": [choice]})) as at:
            response = at.client.responses.create(model="main", input="Tell me all")
            assert (response.status, response.output_text) == ("incomplete", "Half an")
            assert response.incomplete_details is not None
            assert response.incomplete_details.reason == listed_items
            assert response.usage is None
            assert at.client.responses.retrieve(response.id) == response


def test_a_failed_response_is_no_past_and_can_be_looked_at(database_url: str, tmp_path: Path) -> None:
    broken = Answer({"error": {"message": "no such thing", "type": "invalid_request_error"}}, status=404)
    with chat_service(database_url, tmp_path, say("One."), broken, say("Two.")) as at:
        ask = at.client.responses.create
        first = ask(model="main", input="First")
        with pytest.raises(openai.InternalServerError) as failed:
            ask(model="main", input="Second", previous_response_id=first.id)
        assert (failed.value.status_code, failed.value.code) == (502, "provider_error")
        session_id = failed.value.response.headers["x-session-id"]
        assert at.turns(session_id)[1]["status"] == "failed"
        failed_id = f"resp_{session_id.replace('-', '')}{4:012x}"
        stored = at.client.responses.retrieve(failed_id)
        assert (stored.status, stored.output) == ("failed", [])
        assert stored.error is not None
        assert stored.error.code == "server_error"
        with pytest.raises(openai.BadRequestError, match="no output to go on with"):
            ask(model="main", input="More", previous_response_id=failed_id)
        ask(model="main", input="Second", previous_response_id=first.id)
        assert at.sent() == [user("First"), assistant("One."), user("Second")]


def test_a_deleted_response_is_gone_and_its_session_with_the_last_of_them(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("One."), say("Two.")) as at:
        first = at.client.responses.create(model="main", input="First")
        second = at.client.responses.create(model="main", input="Second", previous_response_id=first.id)
        at.client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            at.client.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError):
            at.client.responses.create(model="main", input="Third", previous_response_id=first.id)
        assert at.client.responses.retrieve(second.id) == second
        at.client.responses.delete(second.id)
        assert sessions(at) == []
        conversation = at.client.conversations.create().id
        of_it = at.client.responses.create(model="main", input="Third", conversation=conversation)
        assert of_it.conversation is not None
        assert of_it.conversation.id == conversation
        at.client.responses.delete(of_it.id)
        assert at.client.conversations.retrieve(conversation).id == conversation
        with pytest.raises(openai.NotFoundError):
            at.client.responses.delete(of_it.id)


def test_what_runs_in_the_background_is_fetched_and_can_be_cancelled(database_url: str, tmp_path: Path) -> None:
    may_end = threading.Event()
    slow = say("Done.", after=may_end.is_set)
    endless = Answer({"choices": []}, delay_s=30)
    with chat_service(database_url, tmp_path, slow, endless) as at:
        begun = at.client.responses.create(model="main", input="Slowly", background=True)
        assert (begun.status, begun.output, begun.background) == ("in_progress", [], True)
        with pytest.raises(openai.ConflictError), openai_at(at.address, max_retries=0) as client:
            client.responses.create(model="main", input="Too soon", previous_response_id=begun.id)
        may_end.set()
        deadline = time.monotonic() + 60
        while (fetched := at.client.responses.retrieve(begun.id)).status == "in_progress":
            assert time.monotonic() < deadline, "it never ended"
            time.sleep(0.05)
        assert (fetched.status, fetched.output_text) == ("completed", "Done.")
        assert at.client.responses.cancel(begun.id) == fetched
        running = at.client.responses.create(model="main", input="For ever", background=True)
        with pytest.raises(openai.ConflictError), openai_at(at.address, max_retries=0) as client:
            client.responses.delete(running.id)
        assert at.client.responses.cancel(running.id).status == "cancelled"
        assert at.client.responses.retrieve(running.id).status == "cancelled"
        at.client.responses.delete(running.id)


def test_an_item_can_be_named_by_its_id_in_the_place_of_its_content(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Looking.", "a"), say("It is paid."), say("Bye.")) as at:
        asked: list[Any] = [user("Is a paid?")]
        for given in ([], [output("a")], [user("Thanks")]):
            asked += given
            response = at.client.responses.create(model="main", input=asked, tools=TOOLS)
            asked += [{"type": "item_reference", "id": item.id} for item in response.output]
        assert [sent["role"] for sent in at.sent()] == ["user", "assistant", "tool", "assistant", "user"]
        assert at.sent()[1]["content"] == "Looking."


def test_a_session_that_the_client_names_stays_whatever_is_not_to_be_stored(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Noted.")) as at:
        named: dict[str, Any] = {"model": "main", "extra_headers": {"X-Session-Id": "mine"}}
        create: Any = at.client.responses.create
        create(**named, input="Keep this")
        quiet_id: str = create(**named, input="And this", store=False).id
        (session,) = sessions(at)
        assert [turn["user_input"] for turn in at.turns(session["id"])] == ["Keep this", "And this"]
        with pytest.raises(openai.NotFoundError):
            at.client.responses.retrieve(quiet_id)


def test_a_tenant_sees_its_own_responses_alone(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Mine."), key=make_key(database_url, "anna")[1]) as at:
        conversation = at.client.conversations.create(items=[user("A secret")]).id
        mine = at.client.responses.create(model="main", input="Mine?", conversation=conversation)
        with openai_at(at.address, make_key(database_url, "bert")[1], max_retries=0) as bert:
            for look in (
                lambda: bert.responses.retrieve(mine.id),
                lambda: bert.responses.delete(mine.id),
                lambda: bert.responses.cancel(mine.id),
                lambda: bert.responses.input_items.list(mine.id),
                lambda: bert.conversations.retrieve(conversation),
                lambda: bert.conversations.update(conversation, metadata={"a": "b"}),
                lambda: bert.conversations.delete(conversation),
                lambda: bert.conversations.items.list(conversation),
                lambda: bert.conversations.items.create(conversation, items=[user("Hi")]),
                lambda: bert.conversations.items.retrieve(mine.output[0].id or "", conversation_id=conversation),
                lambda: bert.conversations.items.delete(mine.output[0].id or "", conversation_id=conversation),
                lambda: bert.responses.create(model="main", input="Hi", conversation=conversation),
            ):
                with pytest.raises(openai.NotFoundError):
                    look()
            for aimed in ({"previous_response_id": mine.id}, {"input": [{"id": mine.output[0].id}, user("Hi")]}):
                with pytest.raises(openai.BadRequestError):
                    bert.responses.create(**cast(Any, {"model": "main", "input": "Hi"} | aimed))
        assert at.client.responses.retrieve(mine.id) == mine
        assert at.model.hits == 1


def test_any_session_is_a_conversation_and_a_conversation_any_session(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("One."), say("Two.")) as at:
        session_id = new_session(at.http, instructions="Of the session.")
        at.http.post(f"/v1/sessions/{session_id}/turns", json={"content": "First"})
        conversation = f"conv_{session_id.replace('-', '')}"
        response = at.client.responses.create(model="main", input="Second", conversation=conversation)
        assert at.sent() == [
            {"role": "system", "content": "Of the session."},
            user("First"),
            assistant("One."),
            user("Second"),
        ]
        assert [item.type for item in at.client.conversations.items.list(conversation).data] == ["message"] * 4
        turn = at.turns(session_id)[1]
        assert turn["assistant_output"] == response.output_text
        audit = at.http.get(f"/v1/sessions/{session_id}/turns/{turn['id']}/audit").json()
        assert audit["actual_prompt_tokens"] == 20


def _ask(at: Chat, stream: bool, **asked: Any) -> Any:
    """The response, or the one that its stream ends with."""
    if not stream:
        return cast(Any, at.client.responses).create(**asked)
    events: list[Any] = list(at.client.responses.create(**asked, stream=True))
    assert events[-1].type == "response.completed"
    return events[-1].response


def _keyed(at: Chat, key: str, body: dict[str, Any]) -> Any:
    answer = at.http.post("/v1/responses", json=body, headers={"Idempotency-Key": key})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_session_that_was_not_made_for_a_response_stays_without_its_responses(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, *map(say, ("One.", "Two.", "Three.", "Four."))) as at:
        named = at.http.post("/v1/sessions", json={"model_alias": "main"}).json()["id"]
        at.http.post(f"/v1/sessions/{named}/turns", json={"content": "First"}).raise_for_status()
        second = at.client.responses.create(model="main", input="Second", extra_headers={"X-Session-Id": named})
        third = at.client.responses.create(model="main", input="Third", previous_response_id=second.id)
        chosen = at.client.responses.create(model="main", input="Fourth", metadata={"session_id": "mine"})
        for response in (second, third, chosen):
            at.client.responses.delete(response.id)
        assert len(sessions(at)) == 2
        assert [turn["assistant_output"] for turn in at.turns(named)] == ["One.", "Two.", "Three."]


def test_a_response_whose_items_were_all_removed_is_continued_without_them(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say(None, "a"), say("Done.")) as at:
        tools: list[Any] = [{"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}}]
        first = at.client.responses.create(model="main", input="First", tools=tools)
        (session,) = sessions(at)
        conversation = f"conv_{session['id'].replace('-', '')}"
        for item in list(at.client.conversations.items.list(conversation)):
            at.client.conversations.items.delete(item.id or "", conversation_id=conversation)
        output: Any = {"type": "function_call_output", "call_id": "a", "output": "Found."}
        with pytest.raises(openai.BadRequestError, match="answers no open tool call"):
            at.client.responses.create(model="main", input=[output], previous_response_id=first.id)
        assert len(sessions(at)) == 1
        at.client.responses.create(model="main", input="Second", previous_response_id=first.id)
        assert at.sent() == [user("Second")]


def test_a_failed_request_whose_message_was_removed_is_new_when_it_is_tried_again(
    database_url: str, tmp_path: Path
) -> None:
    broken = Answer({"error": {"message": "no", "type": "invalid_request_error"}}, status=404)
    with chat_service(database_url, tmp_path, broken, say("Done.")) as at:
        conversation = at.client.conversations.create().id
        body = {"model": "main", "input": "First", "conversation": conversation}
        assert at.http.post("/v1/responses", json=body).status_code == 502
        (item,) = list(at.client.conversations.items.list(conversation))
        at.client.conversations.items.delete(item.id or "", conversation_id=conversation)
        again = at.http.post("/v1/responses", json=body, headers={"X-Stainless-Retry-Count": "1"})
        assert again.status_code == 200, again.text
        assert at.sent() == [user("First")]


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_session_that_was_made_for_a_response_goes_with_the_last_one_whichever_that_is(
    database_url: str, tmp_path: Path, newest_first: bool
) -> None:
    with chat_service(database_url, tmp_path, say("One."), say("Two.")) as at:
        first = at.client.responses.create(model="main", input="First")
        second = at.client.responses.create(model="main", input="Second", previous_response_id=first.id)
        for response in (second, first) if newest_first else (first, second):
            at.client.responses.delete(response.id)
        assert sessions(at) == []


def test_items_that_are_refused_do_not_keep_a_session_that_was_made_for_a_response(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say("One.")) as at:
        response = at.client.responses.create(model="main", input="First")
        (session,) = sessions(at)
        unknown = {"type": "item_reference", "id": f"msg_{session['id'].replace('-', '')}{9:012x}"}
        path = f"/v1/conversations/conv_{session['id'].replace('-', '')}/items"
        assert at.http.post(path, json={"items": [unknown]}).status_code in {400, 404}
        at.client.responses.delete(response.id)
        assert sessions(at) == []


@pytest.mark.parametrize("door", ["turns", "chat", "conversation", "items", "pin", "change"])
def test_a_session_that_was_made_for_a_response_stays_once_it_was_used_otherwise(
    database_url: str, tmp_path: Path, door: str
) -> None:
    with chat_service(database_url, tmp_path, *map(say, ("One.", "Two.", "Three."))) as at:
        first = at.client.responses.create(model="main", input="First")
        (session,) = sessions(at)
        named = {"X-Session-Id": session["id"]}
        conversation = f"conv_{session['id'].replace('-', '')}"
        chat = {"model": "main", "messages": [user("Second")]}
        posted: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
            "turns": (f"/v1/sessions/{session['id']}/turns", {"content": "Second"}, {}),
            "chat": ("/v1/chat/completions", chat, named),
            "conversation": ("/v1/responses", {"model": "main", "input": "Second", "conversation": conversation}, {}),
            "items": (f"/v1/conversations/{conversation}/items", {"items": [user("Second")]}, {}),
        }
        if door == "pin":
            at.http.put(f"/v1/sessions/{session['id']}/pins/budget", json={"content": "2,000"}).raise_for_status()
        elif door == "change":
            at.http.patch(f"/v1/sessions/{session['id']}", json={"room_goal": "Plan it."}).raise_for_status()
        else:
            path, body, headers = posted[door]
            at.http.post(path, json=body, headers=headers).raise_for_status()
        third = at.client.responses.create(model="main", input="Third", extra_headers=named)
        for response in (first, third):
            at.client.responses.delete(response.id)
        assert [kept["id"] for kept in sessions(at)] == [session["id"]]


@pytest.mark.parametrize("door", ["chat", "messages", "responses"])
def test_a_request_over_a_limit_leaves_no_session(database_url: str, tmp_path: Path, door: str) -> None:
    asked: dict[str, Any] = {"model": "main", "messages": [user("Hi")], "max_tokens": 10}
    path, body = {
        "chat": ("/v1/chat/completions", asked),
        "messages": ("/v1/messages", asked),
        "responses": ("/v1/responses", {"model": "main", "input": "Hi"}),
    }[door]
    with chat_service(database_url, tmp_path, say("Hello.")) as at:
        limit_tenant(database_url, turns_total=0)
        refused = at.http.post(path, json=body)
        assert (refused.status_code, "X-Session-Id" in refused.headers) == (429, False)
        assert sessions(at) == []
        named = at.http.post(path, json=body, headers={"X-Session-Id": "mine"})
        assert (named.status_code, len(sessions(at))) == (429, 1)
        assert named.headers["X-Session-Id"] == sessions(at)[0]["id"]


def test_a_refused_response_does_not_keep_the_session_of_a_deleted_one(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("One.")) as at:
        first = at.client.responses.create(model="main", input="First")
        with pytest.raises(openai.BadRequestError, match="context_length_exceeded"):
            at.client.responses.create(model="main", input="word " * 8000, previous_response_id=first.id)
        at.client.responses.delete(first.id)
        assert sessions(at) == []
