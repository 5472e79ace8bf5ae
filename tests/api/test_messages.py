"""`/v1/messages` as the unmodified `anthropic` client sees it, with a scripted model behind real sockets."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import anthropic
import pytest
from anthropic.types import Message, MessageTokensCount

from app.domain.types import ToolCall
from tests.api.chatting import chat_service, say
from tests.api.messaging import TOOLS, anthropic_at, create, post, result, said, text, user
from tests.api.test_auth import make_key
from tests.providers.server import Answer, Seen
from tests.providers.wires import ANTHROPIC, OPENAI, ModelReply

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 16).decode()


def test_a_client_that_resends_everything_has_one_session_and_the_sdks_own_types(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say("Hello Anna."), say("Anna.")) as at, anthropic_at(at) as client:
        history: list[Any] = [user("I am Anna.")]
        headers, message = create(client, system="Be brief.", messages=history)
        assert (message.stop_reason, message.model, message.role) == ("end_turn", "main", "assistant")
        usage = message.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (12, 8, 7)
        assert headers["request-id"] == headers["x-request-id"]
        history += [{"role": "assistant", "content": message.content}, user("Who am I?")]
        again, reply = create(client, system="Be brief.", messages=history)
        session_id = headers["x-session-id"]
        assert again["x-session-id"] == session_id
        assert cast(Any, reply.content[0]).text == "Anna."
        assert at.sent() == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "I am Anna."},
            {"role": "assistant", "content": "Hello Anna."},
            {"role": "user", "content": "Who am I?"},
        ]
        named, _ = create(client, messages=[user("Alone")], extra_headers={"X-Session-Id": session_id})
        assert named["x-session-id"] == session_id
        assert [turn["user_input"] for turn in at.turns(session_id)] == ["I am Anna.", "Who am I?", "Alone"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_tool_loop_is_one_turn_with_what_the_agent_says_beside_its_results(
    database_url: str, tmp_path: Path, stream: bool
) -> None:
    script = [say("Let me see.", "a", "b"), say(None, "c"), say("All paid."), say("Bye.")]
    with chat_service(database_url, tmp_path, *script) as at, anthropic_at(at) as client:
        history: list[Any] = [user("Are a, b and c paid?")]
        message = _ask(client, history, stream=stream)
        assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
        assert (message.stop_reason, cast(Any, message.content[1]).input) == ("tool_use", {"id": "a"})
        while message.stop_reason == "tool_use":
            results = [result(block.id) for block in message.content if block.type == "tool_use"]
            reminder = text("<system-reminder>Mind the gap.</system-reminder>")
            history += [{"role": "assistant", "content": message.content}, user(*results, reminder)]
            message = _ask(client, history, stream=stream)
        assert cast(Any, message.content[0]).text == "All paid."
        outputs = [sent["content"] for sent in at.sent() if sent["role"] == "tool"]
        reminded = "found\n\n<system-reminder>Mind the gap.</system-reminder>"
        assert outputs == ["found", reminded, reminded]
        history += [{"role": "assistant", "content": message.content}, user("Thanks")]
        _ask(client, history, stream=stream)
        (session,) = at.http.get("/v1/sessions").json()["items"]
        assert [turn["status"] for turn in at.turns(session["id"])] == ["completed", "completed"]
        assert at.model.seen[-1].json["tools"][0]["function"]["parameters"] == TOOLS[0]["input_schema"]


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "mine"}])
def test_a_message_without_an_answer_stands_once_before_the_next_one(
    database_url: str, tmp_path: Path, headers: dict[str, str]
) -> None:
    def refuse(_request: Seen) -> Answer:
        return Answer({"error": {"message": "no"}}, status=400)

    script = [say(None, "a"), refuse, say("Done.")]
    with chat_service(database_url, tmp_path, *script) as at:
        use = {"type": "tool_use", "id": "a", "name": "look_up", "input": {"id": "a"}}
        messages = [user("One"), {"role": "assistant", "content": [use]}, user(result("a")), user("Two"), user("Three")]
        statuses = [post(at, {"messages": messages[:end], "tools": TOOLS}, **headers).status_code for end in (1, 4, 5)]
        assert statuses == [200, 400, 200]
        assert [message["content"] for message in at.sent()] == ["One", None, "found", "Two", "Three"]


def test_results_that_do_not_answer_exactly_the_open_calls_are_refused(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say(None, "a", "b")) as at, anthropic_at(at) as client:
        history: list[Any] = [user("Are a and b paid?")]
        message = _ask(client, history, stream=False)
        ids = [cast(Any, block).id for block in message.content]
        history.append({"role": "assistant", "content": message.content})
        for wrong in ([ids[0]], [*ids, ids[0]], [ids[0], "toolu_of_nobody"]):
            with pytest.raises(anthropic.BadRequestError) as refused:
                _ask(client, [*history, user(*map(result, wrong))], stream=False)
            assert cast(Any, refused.value.body)["error"]["message"].startswith("messages: The outputs must answer")
        assert at.model.hits == 1


def _ask(client: anthropic.Anthropic, messages: list[Any], *, stream: bool) -> Message:
    asked: dict[str, Any] = {"model": "main", "max_tokens": 100, "messages": messages, "tools": TOOLS}
    if not stream:
        return create(client, **asked)[1]
    with client.messages.stream(**cast(Any, asked)) as events:
        return events.get_final_message()


def test_the_clients_own_tool_runner_goes_on_without_a_thread(database_url: str, tmp_path: Path) -> None:
    @anthropic.beta_tool
    def look_up(id: str) -> str:  # noqa: A002 - the model's name for it
        """Looks an order up."""
        return f"{id} is paid"

    with chat_service(database_url, tmp_path, say(None, "a", "b"), say("Paid.")) as at, anthropic_at(at) as client:
        messages: list[Any] = [user("Are a and b paid?")]
        runner = client.beta.messages.tool_runner(model="main", max_tokens=100, tools=[look_up], messages=messages)
        assert cast(Any, runner.until_done().content[0]).text == "Paid."
        assert [sent["content"] for sent in at.sent() if sent["role"] == "tool"] == ["a is paid", "b is paid"]
        (session,) = at.http.get("/v1/sessions").json()["items"]
        assert [turn["status"] for turn in at.turns(session["id"])] == ["completed"]


def test_words_of_the_user_beside_tool_results_end_the_loop(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say(None, "a"), say("Stopped.")) as at:
        first = post(at, {"messages": [user("Is a paid?")], "tools": TOOLS})
        session_id = first.headers["x-session-id"]
        body = {"messages": [user(result("a"), text("Never mind."))], "tools": TOOLS}
        assert post(at, body, **{"X-Session-Id": session_id}).json()["content"][0]["text"] == "Stopped."
        assert [turn["user_input"] for turn in at.turns(session_id)] == ["Is a paid?", "Never mind."]
        assert [sent["role"] for sent in at.sent()] == ["user", "assistant", "tool", "user"]


def test_images_documents_and_failed_tools_reach_the_model(database_url: str, tmp_path: Path) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": PIXEL}
    notes = {"type": "text", "media_type": "text/plain", "data": "The port is 8443."}
    with chat_service(database_url, tmp_path, say("Seen."), window=32768) as at:
        listed = [
            user(image, {"type": "document", "source": pdf, "title": "a.pdf"}, text("What is it?")),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look_up", "input": {"id": 1}}]},
            user(result("a", [text("no such order"), image], is_error=True)),
            {"role": "assistant", "content": "Nothing."},
            user({"type": "document", "source": notes}, text("Read this.", cache_control={"type": "ephemeral"})),
            {"role": "assistant", "content": "Read."},
            user(
                {"type": "document", "source": {"type": "content", "content": [text("Page 1."), image]}, "title": "b"}
            ),
            {"role": "assistant", "content": "Read."},
            user({"type": "document", "source": {"type": "content", "content": "Page 2."}, "title": "c"}),
        ]
        assert post(at, {"messages": listed}).status_code == 200
        url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
        file = {"file_data": f"data:application/pdf;base64,{PIXEL}", "filename": "a.pdf"}
        sent = at.sent()
        assert sent[0]["content"] == [url, {"type": "file", "file": file}, {"type": "text", "text": "What is it?"}]
        assert sent[1]["tool_calls"][0]["function"] == {"name": "look_up", "arguments": '{"id":1}'}
        assert sent[2]["content"].startswith("The tool failed.\n\nno such order\n\n")
        assert (sent[3]["role"], sent[3]["content"][1:]) == ("user", [url])
        assert sent[5]["content"] == "The port is 8443.\n\nRead this."
        assert sent[7]["content"] == [{"type": "text", "text": "b"}, {"type": "text", "text": "Page 1."}, url]
        assert sent[9]["content"] == "c\n\nPage 2."


def test_what_a_client_says_about_a_document_reaches_the_model_before_it(database_url: str, tmp_path: Path) -> None:
    pdf = {"type": "base64", "media_type": "application/pdf", "data": PIXEL}
    notes = {"type": "text", "media_type": "text/plain", "data": "The port is 8443."}
    pages = {"type": "content", "content": "Page 2."}
    with chat_service(database_url, tmp_path, say("Seen."), window=32768) as at:
        about = {"type": "document", "title": "a.pdf", "context": "Signed in May.", "citations": {"enabled": True}}
        for source, expected in (
            (notes, "a.pdf\n\nSigned in May.\n\nThe port is 8443.\n\n?"),
            (pages, "a.pdf\n\nSigned in May.\n\nPage 2.\n\n?"),
        ):
            assert post(at, {"messages": [user({**about, "source": source}, text("?"))]}).status_code == 200
            assert at.sent()[0]["content"] == expected
        assert post(at, {"messages": [user({**about, "source": pdf})]}).status_code == 200
        note, file = at.sent()[0]["content"]
        assert note == text("Signed in May.")
        assert file["file"]["filename"] == "a.pdf"


def test_thinking_is_answered_to_who_wants_it_and_goes_back_signed_in_the_loop(
    database_url: str, tmp_path: Path
) -> None:
    called = ModelReply(text="", reasoning="They ask for a.", calls=(ToolCall("a", "look_up", '{"id": "a"}'),))
    script = [said(ANTHROPIC, called), said(ANTHROPIC, ModelReply("Paid.")), said(ANTHROPIC, called)]
    with chat_service(
        database_url,
        tmp_path,
        *script,
        window=32768,
        provider="anthropic",
        of_main='parameters = {thinking = {type = "adaptive"}}',
    ) as at:
        asked: dict[str, Any] = {"tools": TOOLS, "thinking": {"type": "enabled", "budget_tokens": 2000}}
        first = post(at, {"messages": [user("Is a paid?")], **asked}).json()
        thinking = {"type": "thinking", "thinking": "They ask for a.", "signature": "sig"}
        assert first["content"][0] == thinking
        history = [user("Is a paid?"), {"role": "assistant", "content": first["content"]}, user(result("a"))]
        second = post(at, {"messages": history, **asked}).json()
        assert [block["type"] for block in second["content"]] == ["text"]
        assert at.sent()[1]["content"][0] == thinking
        unseen = post(at, {"messages": [user("Is a paid?")], "tools": TOOLS}).json()
        assert [block["type"] for block in unseen["content"]] == ["tool_use"]


def test_requests_as_claude_code_sends_them_are_taken_and_stay_in_one_session(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say("Hello."), say(None, "a"), say("Done.")) as at:
        history: list[Any] = [user(text("<system-reminder>Today.</system-reminder>"), text("Hi", **_CACHED))]
        first = _as_agent(at, history, "c1")
        history += [{"role": "assistant", "content": first.json()["content"]}, user("Is a paid?")]
        second = _as_agent(at, history, "c2")
        history += [
            {"role": "assistant", "content": second.json()["content"]},
            user(result("a", [text("yes")]), text("<system-reminder>Use the list.</system-reminder>", **_CACHED)),
            {"role": "system", "content": "Be quick."},
        ]
        third = _as_agent(at, history, "c3")
        assert {answer.headers["x-session-id"] for answer in (first, second, third)} == {first.headers["x-session-id"]}
        assert [turn["status"] for turn in at.turns(first.headers["x-session-id"])] == ["completed", "completed"]
        assert at.sent()[0]["content"] == "You are an agent.\n\nEnvironment."
        assert at.sent()[-1]["content"].endswith("<system-reminder>\nBe quick.\n</system-reminder>")
        subagent = _as_agent(at, [user("You are a subagent.")], "c4")
        assert subagent.headers["x-session-id"] != first.headers["x-session-id"]


_CACHED: dict[str, Any] = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def _as_agent(at: Any, messages: list[Any], nonce: str) -> Any:
    body: dict[str, Any] = {
        "model": "main",
        "max_tokens": 32000,
        "messages": messages,
        "system": [
            text(f"x-anthropic-billing-header: cc_version=2.1.177.{nonce}; cc_entrypoint=cli; cch={nonce};"),
            text("You are an agent.", **_CACHED),
            text("Environment."),
        ],
        "tools": [{**TOOLS[0], "input_schema": {**TOOLS[0]["input_schema"], "$schema": "x"}, **_CACHED}],
        "metadata": {
            "user_id": '{"device_id":"d","account_uuid":"","session_id":"7d0c7b57-0000-4000-8000-00000000000a"}'
        },
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "diagnostics": {"previous_message_id": None},
        "temperature": 1,
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219", "x-app": "cli"}
    answer = at.http.post("/v1/messages?beta=true", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def test_count_tokens_counts_as_the_turn_and_leaves_nothing_behind(database_url: str, tmp_path: Path) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    asked: dict[str, Any] = {
        "model": "main",
        "system": "Be brief.",
        "tools": TOOLS,
        "messages": [
            user("Is a paid?"),
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "a", "name": "look_up", "input": {"id": "a"}}],
            },
            user(result("a", "It is paid. " * 50)),
            {"role": "assistant", "content": "It is paid."},
            user(image, text("And this?")),
        ],
    }
    with chat_service(database_url, tmp_path, say("Yes."), window=32768) as at, anthropic_at(at) as client:
        raw = client.messages.with_raw_response.count_tokens(**cast(Any, asked))
        counted = MessageTokensCount.model_validate(raw.http_response.json(), strict=True)
        assert at.http.get("/v1/sessions").json()["items"] == []
        assert not at.model.seen
        session_id = create(client, **asked)[0]["x-session-id"]
        turn = at.turns(session_id)[-1]
        audit = at.http.get(f"/v1/sessions/{session_id}/turns/{turn['id']}/audit").json()
        assert counted.input_tokens == audit["estimated_wire_tokens"] > 1600


def test_an_address_that_is_not_there_is_answered_in_the_form_of_the_caller(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path) as at, anthropic_at(at) as client:
        with pytest.raises(anthropic.NotFoundError) as refused:
            client.beta.files.list()
        assert cast(Any, refused.value.body)["error"]["type"] == "not_found_error"


def test_a_key_is_taken_from_either_header(database_url: str, tmp_path: Path) -> None:
    key = make_key(database_url, "acme")[1]
    with chat_service(database_url, tmp_path, say("Hello."), key=key) as at:
        history: list[Any] = [user("Hi")]
        with anthropic_at(at, key) as by_key, anthropic_at(at, None, auth_token=key) as by_token:
            first, message = create(by_key, messages=history)
            history += [{"role": "assistant", "content": message.content}, user("More")]
            assert create(by_token, messages=history)[0]["x-session-id"] == first["x-session-id"]
        with anthropic_at(at, "plk_unknown") as stranger, pytest.raises(anthropic.AuthenticationError) as refused:
            create(stranger, messages=history)
        assert cast(Any, refused.value.body)["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"inference_geo": "eu"}, "inference_geo: There is no such field"),
        ({"mcp_servers": []}, "mcp_servers: There is no such field"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools.0.type: Anthropic defines or runs this tool; this service does not. Offer tools of your own",
        ),
        ({"context_management": {"edits": [{"type": "compact_20990101"}]}}, "context_management.edits.0.type"),
        ({"messages": [user({"type": "container_upload", "file_id": "f"})]}, "messages.0.content.0"),
        (
            {
                "messages": [
                    user(result("x", [{"type": "image", "source": {"type": "base64", "media_type": "image/png"}}]))
                ]
            },
            "messages.0.content.0.content.0.source.data",
        ),
        ({"messages": [user("a"), user(result("x"))]}, "messages.1: This answers no open tool call."),
        ({"messages": [user("a"), {"role": "assistant", "content": "It is"}]}, "messages.1"),
        ({"messages": [user(text(" "))]}, "messages.0: The content is empty."),
        ({"tool_choice": {"type": "tool", "name": "none"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [*TOOLS, *TOOLS]}, "tools.1: Another tool has this name."),
    ],
)
def test_a_parameter_that_cannot_be_honoured_is_refused_by_name(
    database_url: str, tmp_path: Path, body: dict[str, Any], named: str
) -> None:
    with chat_service(database_url, tmp_path) as at:
        answer = post(at, {"messages": [user("Hi")], **body})
        assert answer.status_code == 400
        error = answer.json()
        assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
        assert named in error["error"]["message"]
        assert error["request_id"] == answer.headers["request-id"]


def test_errors_are_the_sdks_own(database_url: str, tmp_path: Path) -> None:
    down = Answer({"error": {"message": "no"}}, status=404)
    with chat_service(database_url, tmp_path, down) as at, anthropic_at(at) as client:
        asked = {"messages": [user("Hi")]}
        with pytest.raises(anthropic.NotFoundError):
            create(client, model="claude-nowhere", **asked)
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum"):
            create(client, messages=[user("word " * 6000)])
        with pytest.raises(anthropic.InternalServerError) as failed:
            create(client, **asked)
        assert failed.value.status_code == 502
        assert cast(Any, failed.value.body)["error"]["type"] == "api_error"
        assert len(at.model.seen) == 1
        wrong = at.http.get("/v1/messages")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
        assert at.http.head("/").status_code == 200
        lost = at.http.get("/v1/messages/batches")
        assert (lost.status_code, lost.json()["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_the_schema_of_an_answer_is_passed_on_also_under_its_older_name(
    database_url: str, tmp_path: Path, place: str
) -> None:
    """LiteLLM sends `output_format`."""
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {"paid": {"type": "boolean"}}}}
    with chat_service(database_url, tmp_path, say('{"paid": true}')) as at:
        given = {place: {"format": form} if place == "output_config" else form}
        answer = post(at, {"messages": [user("Is a paid?")], **given})
        assert answer.json()["content"] == [text('{"paid": true}')]
        sent = at.model.seen[0].json["response_format"]["json_schema"]
        assert (sent["schema"], sent["strict"]) == (form["schema"], False)
        refused = post(at, {"messages": [user("Is a paid?")], place: {"format": {"type": "x"}, "type": "x"}})
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")


def test_a_schema_is_sent_to_anthropics_api_and_a_form_that_it_does_not_have_is_refused(
    database_url: str, tmp_path: Path
) -> None:
    """Of the three doors that have it, under each one's name; at Anthropic only with a schema."""
    schema = {"type": "object", "properties": {"paid": {"type": "boolean"}}, "additionalProperties": False}
    form = {"type": "json_schema", "schema": schema}
    asked: list[Any] = [user("Is a paid?")]
    with chat_service(
        database_url,
        tmp_path,
        said(ANTHROPIC, ModelReply('{"paid": true}')),
        provider="anthropic",
        of_main='parameters = {output_config = {effort = "low"}}',
    ) as at:
        chat = {"model": "main", "messages": asked}
        named = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
        text_format = {**form, "name": "answer"}
        for path, body in (
            ("/v1/messages", {**chat, "max_tokens": 100, "output_config": {"format": form}}),
            ("/v1/chat/completions", {**chat, "response_format": named}),
            ("/v1/responses", {"model": "main", "input": "Is a paid?", "text": {"format": text_format}}),
        ):
            assert at.http.post(path, json=body).status_code == 200
            assert at.model.seen[-1].json["output_config"] == {"effort": "low", "format": form}
        refused = at.http.post("/v1/chat/completions", json={**chat, "response_format": {"type": "json_object"}})
        assert refused.status_code == 400
        assert "only of the type json_schema" in refused.json()["error"]["message"]
        assert len(at.model.seen) == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("calls", [(), (ToolCall("a", "look_up", '{"id": "a"}'),)])
def test_an_answer_that_is_repeated_has_its_thinking_and_the_text_before_its_calls(
    database_url: str, tmp_path: Path, calls: tuple[ToolCall, ...], stream: bool
) -> None:
    reply = said(OPENAI, ModelReply("Let me see.", "They ask for a.", calls))
    with chat_service(database_url, tmp_path, reply) as at, anthropic_at(at) as client:
        asked: dict[str, Any] = {"messages": [user("Is a paid?")], "tools": TOOLS, "thinking": {"type": "adaptive"}}
        asked |= {"model": "main", "max_tokens": 1000, "extra_headers": {"Idempotency-Key": "k1"}}
        messages: Any = client.messages
        found: list[Any] = []
        for _ in range(2):
            if stream:
                with messages.stream(**asked) as events:
                    message = events.get_final_message()
            else:
                message = messages.create(**asked)
            found.append((message.model_dump(include={"content"}), message.stop_reason))
        assert found[0] == found[1]
        blocks = [block["type"] for block in found[0][0]["content"]]
        assert blocks == ["thinking", "text", *["tool_use" for _ in calls]]
        assert len(at.model.seen) == 1


def test_models_are_listed_for_the_client_whatever_page_it_wants(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path) as at, anthropic_at(at) as client:
        listed = {model.id: model for model in client.models.list(limit=20, after_id="main")}
        assert client.models.retrieve("main") == listed["main"]
        main = listed["main"]
        assert (main.type, main.display_name, main.created_at) == ("model", "main", datetime(1970, 1, 1, tzinfo=UTC))
        assert at.http.get("/v1/models", params={"limit": 20}).status_code == 422


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
def test_a_tool_loop_that_the_session_does_not_have_goes_on_with_the_clients_own_thoughts(
    database_url: str, tmp_path: Path, signed: bool
) -> None:
    wire = ANTHROPIC if signed else OPENAI
    of_main = 'parameters = { thinking = { type = "enabled", budget_tokens = 1024 } }' if signed else ""
    of_main = of_main or 'return_reasoning = "tool_turns"'
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    calls = (ToolCall("a", "look_up", "{}"),)
    script = said(wire, ModelReply("", "They ask for a.", calls)), said(wire, ModelReply("It is paid."))
    service = chat_service(database_url, tmp_path, *script, provider=wire.name, of_main=of_main, window=16384)
    with service as at, anthropic_at(at) as client:
        asked: dict[str, Any] = {"tools": TOOLS, "thinking": thinking, "max_tokens": 2000}
        history: list[Any] = [user("Is a paid?")]
        _, called = create(client, messages=history, **asked)
        history += [{"role": "assistant", "content": called.content}, user(result("a"))]
        headers, _ = create(client, messages=history, **asked, extra_headers={"X-Session-New": "true"})
        sent = at.model.seen[-1].json
        if signed:
            assert sent["thinking"]["type"] == "enabled"
            block = {"type": "thinking", "thinking": "They ask for a.", "signature": "sig"}
            assert sent["messages"][1]["content"][0] == block
        else:
            assert sent["messages"][1]["reasoning_content"] == "They ask for a."
        turns = at.turns(headers["x-session-id"])
        assert [(turn["status"], turn["assistant_output"]) for turn in turns] == [("completed", "It is paid.")]
