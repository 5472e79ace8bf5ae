"""`/v1/chat/completions` as the unmodified `openai` client sees it, with a scripted model behind real sockets."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, cast

import openai
import pytest

from app.engine.window.plan import assert_tool_pairing
from tests.api.chatting import TOOLS, chat_service, openai_at, say
from tests.api.conftest import assert_problem, new_session
from tests.api.test_auth import make_key
from tests.providers.server import Answer

SYSTEM: Any = {"role": "system", "content": "Answer in one line."}


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def assistant(text: str) -> Any:
    return {"role": "assistant", "content": text}


def test_without_a_session_one_is_made_and_the_next_message_alone_goes_on_with_it(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say("Hello Anna."), say("Anna.")) as at:
        raw = at.client.chat.completions.with_raw_response.create(model="main", messages=[SYSTEM, user("I am Anna.")])
        session_id = raw.headers["x-session-id"]
        completion = raw.parse()
        assert completion.choices[0].message.content == "Hello Anna."
        assert completion.choices[0].finish_reason == "stop"
        assert completion.object == "chat.completion"
        assert completion.usage is not None
        assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (20, 7)
        assert (completion.usage.total_tokens, completion.model) == (27, "main")
        again = at.client.chat.completions.with_raw_response.create(
            model="main", messages=[user("Who am I?")], extra_headers={"X-Session-Id": session_id}
        )
        assert again.headers["x-session-id"] == session_id
        assert again.parse().choices[0].message.content == "Anna."
        assert at.sent() == [user("I am Anna."), assistant("Hello Anna."), user("Who am I?")]
        assert [turn["status"] for turn in at.turns(session_id)] == ["completed", "completed"]
        assert at.http.get(f"/v1/sessions/{session_id}").json()["model_alias"] == "main"


def test_a_resent_history_is_stored_once_and_its_instructions_are_the_turns_own(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say("One."), say("Two."), say("Three.")) as at:
        session_id = new_session(at.http, instructions="Of the session.")
        history: list[Any] = [SYSTEM]
        for text in ("First", "Second", "Third"):
            history.append(user(text))
            completion = at.client.chat.completions.create(
                model="main", messages=history, metadata={"session_id": session_id}
            )
            history.append(completion.choices[0].message)
        said = [user("First"), assistant("One."), user("Second"), assistant("Two."), user("Third")]
        assert at.sent() == [{"role": "system", "content": "Of the session."}, SYSTEM, *said]
        turns = at.turns(session_id)
        assert [turn["user_input"] for turn in turns] == ["First", "Second", "Third"]
        address = f"/v1/sessions/{session_id}/turns/{turns[2]['id']}"
        prompt, audit = at.http.get(f"{address}/prompt").json(), at.http.get(f"{address}/audit").json()
        assert prompt["messages"] == at.sent()
        assert audit["prompt_sha256"] == prompt["prompt_sha256"]
        plain = at.http.post(f"/v1/sessions/{session_id}/turns", json={"content": "Without"}).json()["context"]
        assert 0 < plain["regions"]["system"] < audit["regions"]["system"]
        assert SYSTEM not in at.sent()


def test_a_new_session_stores_the_history_that_the_client_sends(database_url: str, tmp_path: Path) -> None:
    call: Any = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    past: list[Any] = [
        assistant("How can I help?"),
        user("Look up 1"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        assistant("It is found."),
    ]
    with chat_service(database_url, tmp_path, say("You are welcome.")) as at:
        raw = at.client.chat.completions.with_raw_response.create(model="main", messages=[*past, user("Thanks")])
        assert at.sent() == [*past, user("Thanks")]
        turns = at.turns(raw.headers["x-session-id"])
        assert [(turn["status"], turn["user_input"], turn["assistant_output"]) for turn in turns] == [
            ("completed", "", "How can I help?"),
            ("completed", "Look up 1", "It is found."),
            ("completed", "Thanks", "You are welcome."),
        ]


@pytest.mark.parametrize("resends", [True, False], ids=["resending all", "sending the outputs alone"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_tool_loop_is_one_turn(database_url: str, tmp_path: Path, resends: bool, stream: bool) -> None:
    script = [say("Let me see.", "a", "b"), say(None, "c"), say("All paid.")]
    with chat_service(database_url, tmp_path, *script) as at:
        session_id = new_session(at.http)
        history: list[Any] = [SYSTEM, user("Are a, b and c paid?")]
        message = _ask(at.client, session_id, history, stream=stream)
        assert [call["id"] for call in message["tool_calls"]] == ["a", "b"]
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"id": "a"}
        assert message["content"] == "Let me see."
        assert at.turns(session_id)[0]["status"] == "awaiting_tools"
        rounds = 0
        while message.get("tool_calls"):
            outputs = [
                {"role": "tool", "tool_call_id": call["id"], "content": f"{call['id']} is paid"}
                for call in message["tool_calls"]
            ]
            history += [message, *outputs]
            message = _ask(at.client, session_id, history if resends else outputs, stream=stream)
            rounds += 1
        assert (rounds, message["content"]) == (2, "All paid.")
        (turn,) = at.turns(session_id)
        assert (turn["status"], turn["assistant_output"]) == ("completed", "All paid.")
        roles = ["user", "assistant", "tool", "tool", "assistant", "tool"]
        assert [sent["role"] for sent in at.sent() if sent["role"] != "system"] == roles
        assert (at.sent()[0] == SYSTEM) is resends
        assert at.model.seen[-1].json["tools"] == TOOLS


def _ask(client: openai.OpenAI, session_id: str, messages: list[Any], *, stream: bool) -> dict[str, Any]:
    """The assistant's message as the client would resend it."""
    asked: dict[str, Any] = {"model": "main", "messages": messages, "tools": TOOLS}
    headers = {"X-Session-Id": session_id}
    if not stream:
        completion = cast(Any, client.chat.completions.create)(**asked, extra_headers=headers)
        return completion.choices[0].message.model_dump(exclude_none=True)
    with client.chat.completions.stream(**asked, extra_headers=headers) as events:
        for _ in events:
            pass
        final: Any = events.get_final_completion()
        return final.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"})


def test_a_tool_loop_that_began_with_another_service_continues_here(database_url: str, tmp_path: Path) -> None:
    call: Any = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    loop: list[Any] = [
        user("Look up 1"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ]
    with chat_service(database_url, tmp_path, say("It is found.")) as at:
        raw = at.client.chat.completions.with_raw_response.create(model="main", messages=loop, tools=TOOLS)
        assert raw.parse().choices[0].message.content == "It is found."
        assert at.sent() == loop
        (turn,) = at.turns(raw.headers["x-session-id"])
        assert (turn["status"], turn["user_input"]) == ("completed", "Look up 1")


@pytest.mark.parametrize("answered", [False, True], ids=["instead of the outputs", "after the outputs"])
def test_a_user_who_speaks_while_tools_are_open_ends_that_turn_and_later_prompts_stay_valid(
    database_url: str, tmp_path: Path, answered: bool
) -> None:
    with chat_service(database_url, tmp_path, say(None, "a"), say("Never mind then."), say("Done.")) as at:
        session_id = new_session(at.http)
        first = _ask(at.client, session_id, [user("Look up a")], stream=False)
        output = {"role": "tool", "tool_call_id": "a", "content": "found"}
        history = [user("Look up a"), first, output] if answered else []
        _ask(at.client, session_id, [*history, user("Forget it")], stream=False)
        ended = "completed" if answered else "cancelled"
        assert [turn["status"] for turn in at.turns(session_id)] == [ended, "completed"]
        group = ["assistant", "tool"] if answered else []
        assert [sent["role"] for sent in at.sent()] == ["user", *group, "user"]
        _ask(at.client, session_id, [user("Next")], stream=False)
        for number in range(3):
            assert_tool_pairing(at.sent(number))


def test_outputs_that_do_not_answer_exactly_the_open_calls_are_refused(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say(None, "a", "b")) as at:
        session_id = new_session(at.http)
        first = _ask(at.client, session_id, [user("Go")], stream=False)
        output = {"role": "tool", "tool_call_id": "a", "content": "1"}
        stranger = {"role": "tool", "tool_call_id": "x", "content": "1"}
        for tail in ([output], [output, stranger], [stranger], [output, user("and?")]):
            with pytest.raises(openai.BadRequestError) as refused:
                _ask(at.client, session_id, [user("Go"), first, *tail], stream=False)
            assert refused.value.param == "messages"
        assert at.turns(session_id)[0]["status"] == "awaiting_tools"
        with pytest.raises(openai.BadRequestError) as refused:
            at.client.chat.completions.create(model="main", messages=cast(Any, [user("Go"), first, user("No output")]))
        assert refused.value.param == "messages[1]"
        with pytest.raises(openai.BadRequestError) as refused:
            at.client.chat.completions.create(model="main", messages=cast(Any, [user("Go"), first, user(cast(Any, 5))]))
        assert refused.value.param == "messages[2].content"
        assert at.model.hits == 1


def test_a_stream_has_role_deltas_reason_usage_and_end_mark(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("One two three.")) as at:
        stream = at.client.chat.completions.create(
            model="main", messages=[user("Count")], stream=True, stream_options={"include_usage": True}
        )
        session_id = stream.response.headers["x-session-id"]
        chunks = list(stream)
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "One two three."
        assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) > 1
        assert [chunk.choices[0].finish_reason for chunk in chunks[-2:] if chunk.choices] == ["stop"]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 27
        assert len({chunk.id for chunk in chunks}) == 1
        assert at.turns(session_id)[0]["assistant_output"] == "One two three."
        body = {"model": "main", "messages": [user("Count again")], "stream": True}
        raw = at.http.post("/v1/chat/completions", json=body).text
        assert raw.endswith("data: [DONE]\n\n")
        assert "usage" not in raw


def test_the_reasoning_of_a_model_is_a_member_of_its_own_that_a_resent_list_may_have(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say("<think>Which port? </think> It is 8443.")) as at:
        create = partial(at.client.chat.completions.create, model="main")
        answer = create(messages=[user("The port?")])
        message = answer.choices[0].message.model_dump(exclude_none=True)
        assert message == {"role": "assistant", "content": "It is 8443.", "reasoning_content": "Which port? "}
        resent: list[Any] = [user("The port?"), message, user("Again?")]
        deltas = [chunk.choices[0].delta.model_dump() for chunk in create(messages=resent, stream=True)]
        assert "".join(delta["content"] or "" for delta in deltas) == "It is 8443."
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Which port? "
        assert at.sent() == [user("The port?"), {"role": "assistant", "content": "It is 8443."}, user("Again?")]
        of_text = at.client.completions.create(model="main", prompt="?", stream=True)
        assert "".join(chunk.choices[0].text for chunk in of_text) == "It is 8443."


def test_the_end_of_a_stream_names_the_alias_that_answered(database_url: str, tmp_path: Path) -> None:
    """Frameworks read the model, and the price of its tokens, from the chunks with the finish reason and the usage."""
    down = Answer({"error": {"message": "away"}}, status=503)
    with chat_service(database_url, tmp_path, down, of_main='fallbacks = ["offline"]') as at:
        create = partial(at.client.chat.completions.create, model="main", messages=[user("Hi")])
        assert create(extra_headers={"X-Session-New": "true"}).model == "offline"
        *_, end, usage = create(stream=True, stream_options={"include_usage": True})
        assert end.choices[0].finish_reason == "stop"
        assert [end.model, usage.model] == ["offline", "offline"]


async def test_the_asynchronous_client_asks_and_streams_too(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Hello."), say("Again.")) as at:
        async with openai.AsyncOpenAI(base_url=f"{at.address}/v1", api_key="none") as client:
            raw = await client.chat.completions.with_raw_response.create(model="main", messages=[user("Hi")])
            assert raw.parse().choices[0].message.content == "Hello."
            headers = {"X-Session-Id": raw.headers["x-session-id"]}
            stream = await client.chat.completions.create(
                model="main", messages=[user("More")], stream=True, extra_headers=headers
            )
            texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(texts) == "Again."
            models = [model.id async for model in client.models.list()]
            assert models == ["main", "offline"]
        assert at.sent() == [user("Hi"), assistant("Hello."), user("More")]


def test_options_reach_the_provider_and_the_output_limit_is_clamped(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path) as at:
        options: dict[str, Any] = {
            "temperature": 0.0,
            "top_p": 0.5,
            "stop": ["END"],
            "seed": 7,
            "response_format": {"type": "json_object"},
        }
        of_servers: dict[str, Any] = {"top_k": 40, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}}
        at.client.chat.completions.create(
            model="main",
            messages=[user("Hi")],
            max_tokens=50,
            user="u1",
            n=1,
            presence_penalty=0,
            extra_body=of_servers,
            **options,
        )
        sent = at.model.seen[-1].json
        assert (options | of_servers).items() <= sent.items()
        assert sent["max_tokens"] == 50
        assert not {"user", "n", "presence_penalty"} & sent.keys()
        at.client.chat.completions.create(model="main", messages=[user("Hi")], max_completion_tokens=100_000)
        assert at.model.seen[-1].json["max_tokens"] == 819


def test_an_alias_may_pass_on_what_the_service_does_not_know(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say(None, "c1"), say("Paid."), of_main="pass_unknown = true") as at:
        extra: dict[str, Any] = {"guided_choice": ["yes", "no"], "priority": 3}
        asked: Any = [user("Is c1 paid?")]
        first = at.client.chat.completions.create(model="main", messages=asked, tools=TOOLS, extra_body=extra)
        assert extra.items() <= at.model.seen[-1].json.items()
        asked += [first.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": "c1", "content": "yes"}]
        at.client.chat.completions.create(model="main", messages=asked, tools=TOOLS, extra_body=extra)
        assert extra.items() <= at.model.seen[-1].json.items()
        with pytest.raises(openai.BadRequestError):
            at.client.chat.completions.create(model="main", messages=asked, extra_body={"n": 2})
        (session,) = at.http.get("/v1/sessions").json()["items"]
        exported = at.http.get(f"/v1/sessions/{session['id']}/export").json()
        assert at.http.post("/v1/sessions/import", json=exported).status_code == 201


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("logprobs", True),
        ("functions", [{"name": "f"}]),
        ("web_search_options", {}),
        ("temperature", 3),
        ("stop", 3),
        ("tool_choice", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}),
    ],
)
def test_a_parameter_without_effect_is_refused_by_name(
    database_url: str, tmp_path: Path, field: str, value: Any
) -> None:
    with chat_service(database_url, tmp_path) as at:
        with pytest.raises(openai.BadRequestError) as refused:
            at.client.chat.completions.create(model="main", messages=[user("Hi")], extra_body={field: value})
        assert (refused.value.param, refused.value.type) == (field, "invalid_request_error")
        assert "The provider" not in refused.value.message
        assert at.http.get("/v1/sessions").json()["items"] == []
        assert at.model.hits == 0


@pytest.mark.parametrize(
    ("door", "nulls", "body"),
    [
        ("chat/completions", ("audio", "functions"), {"messages": [user("Hi")]}),
        ("responses", ("prompt", "moderation"), {"input": "Hi"}),
        ("responses/input_tokens", ("prompt",), {"input": "Hi"}),
        ("messages", ("container", "mcp_servers"), {"messages": [user("Hi")], "max_tokens": 9}),
        ("completions", ("prompt_cache_key",), {"prompt": "Hi"}),
    ],
)
def test_a_parameter_that_is_null_was_not_given(
    database_url: str, tmp_path: Path, door: str, nulls: tuple[str, ...], body: dict[str, Any]
) -> None:
    with chat_service(database_url, tmp_path) as at:
        answer = at.http.post(f"/v1/{door}", json={"model": "main", **dict.fromkeys(nulls), **body})
        assert answer.status_code == 200, answer.text
        assert not at.model.seen or not set(nulls) & at.model.seen[0].json.keys()
        refused = at.http.post(f"/v1/{door}", json={"model": "main", nulls[0]: {}, **body})
        assert (refused.status_code, nulls[0] in refused.text) == (400, True)


def test_errors_have_openais_shape_and_the_clients_own_classes(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path) as at:
        ask = at.client.chat.completions.create
        with pytest.raises(openai.NotFoundError) as unknown_model:
            ask(model="gpt-5", messages=[user("Hi")])
        assert (unknown_model.value.code, unknown_model.value.param) == ("model_not_found", "model")
        assert "/v1/models" in str(unknown_model.value), "it does not say where the names are"
        nobody = {"X-Session-Id": f"{'0' * 8}-0000-7000-8000-{'0' * 12}"}
        with pytest.raises(openai.NotFoundError) as unknown_session:
            ask(model="main", messages=[user("Hi")], extra_headers=nobody)
        assert unknown_session.value.code == "session_not_found"
        with pytest.raises(openai.NotFoundError) as unknown_path:
            at.client.embeddings.create(model="main", input="Hi")
        assert unknown_path.value.code == "not_found"
        with pytest.raises(openai.NotFoundError) as no_model:
            at.client.models.retrieve("gpt-5")
        assert no_model.value.code == "model_not_found"
        model = at.client.models.retrieve("main")
        assert (model.id, model.object, model.owned_by) == ("main", "model", "openai")
        for messages in ([user(" ")], [{"role": "wizard", "content": "x"}]):
            with pytest.raises(openai.BadRequestError) as refused:
                ask(model="main", messages=cast(Any, messages))
            assert str(refused.value.param).startswith("messages")
        large = at.http.post("/v1/chat/completions", json={"model": "main", "messages": [user("x" * 1_100_000)]})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
        assert at.http.get("/v1/chat/completions").json()["error"]["code"] == "method_not_allowed"
        assert at.http.get("/v1/sessions").json()["items"] == []


def test_a_refusal_tells_how_much_of_what_does_not_fit_is_tools(database_url: str, tmp_path: Path) -> None:
    large: Any = [{"type": "function", "function": {"name": "look_up", "description": "word " * 5000}}]
    with chat_service(database_url, tmp_path) as at:
        with pytest.raises(openai.BadRequestError) as refused:
            at.client.chat.completions.create(model="main", messages=[user("Hi")], tools=large)
        tools = refused.value.body["regions"]["tools"]  # type: ignore[index] # the client types it as object
        assert tools > 4000
        assert f"tokens, {tools} of them for the tools (context_length_exceeded)" in refused.value.message


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_what_does_not_fit_is_a_400_that_frameworks_recognise(database_url: str, tmp_path: Path, stream: bool) -> None:
    with chat_service(database_url, tmp_path) as at:
        with pytest.raises(openai.BadRequestError) as refused:
            at.client.chat.completions.create(model="main", messages=[user("word " * 5000)], stream=stream)
        assert refused.value.code == "context_length_exceeded"
        assert "maximum context length is 4096 tokens" in refused.value.message
        assert refused.value.body["budget"]["limit"] == 4096  # type: ignore[index] # the client types it as object
        session_id = refused.value.response.headers["x-session-id"]
        assert at.turns(session_id)[0]["status"] == "rejected"
        assert at.model.hits == 0
        at.client.chat.completions.create(
            model="main", messages=[user("Shorter")], extra_headers={"X-Session-Id": session_id}
        )
        assert at.sent() == [user("Shorter")]


def test_a_providers_overflow_that_outlasts_the_reactions_is_the_same_400(database_url: str, tmp_path: Path) -> None:
    said = {"message": "This model's maximum context length is 100 tokens.", "code": "context_length_exceeded"}
    with chat_service(database_url, tmp_path, Answer({"error": said}, status=400)) as at:
        with pytest.raises(openai.BadRequestError) as refused:
            at.client.chat.completions.create(model="main", messages=[user("Hi")])
        assert refused.value.code == "context_length_exceeded"
        assert "maximum context length" in refused.value.message


def test_a_base_url_without_v1_is_told_so(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path) as at, openai_at(at.address) as client:
        lost = client.with_options(base_url=at.address)
        with pytest.raises(openai.NotFoundError, match="begin with one /v1"):
            lost.chat.completions.create(model="main", messages=[user("Hi")])
        assert_problem(at.http.post("/chat/completions"), 404, "not_found")


def test_keys_and_tenants_hold_here_as_elsewhere(database_url: str, tmp_path: Path) -> None:
    (_, anna), (_, bert) = make_key(database_url, "anna"), make_key(database_url, "bert")
    with chat_service(database_url, tmp_path, key=anna) as at:
        session_id = new_session(at.http)
        with openai_at(at.address) as nobody, pytest.raises(openai.AuthenticationError) as refused:
            nobody.chat.completions.create(model="main", messages=[user("Hi")])
        assert refused.value.code == "invalid_api_key"
        with openai_at(at.address) as nobody, pytest.raises(openai.AuthenticationError) as unlisted:
            nobody.models.list()
        assert (unlisted.value.code, str(unlisted.value)) == (refused.value.code, str(refused.value))
        with openai_at(at.address, bert) as other, pytest.raises(openai.NotFoundError) as unknown:
            other.chat.completions.create(
                model="main", messages=[user("Hi")], extra_headers={"X-Session-Id": session_id}
            )
        assert unknown.value.code == "session_not_found"
        assert at.turns(session_id) == []
