"""The Responses API as it is called: what is sent of a prompt, and what its answers become."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.errors import ProviderRefused
from app.domain.frozen import replace
from app.domain.types import Completion, CompletionRequest, Delta, PromptMessage
from app.providers.responses_answer import ResponseAssembly

from .server import Answer, Play, ScriptedServer, Stream, serving
from .wires import RESPONSES, ModelReply, response_event

OK = RESPONSES.whole(ModelReply())
READ: dict[str, Any] = {
    "type": "function",
    "function": {"name": "read", "description": "Reads.", "parameters": {"type": "object"}},
}
GRAMMAR = {"definition": "start: WORD", "syntax": "lark"}
PATCH = {"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar", "grammar": GRAMMAR}}}
SEALED: dict[str, Any] = {"type": "reasoning", "summary": "", "encrypted_content": "sealed"}
SENT: dict[str, Any] = {**SEALED, "summary": []}


async def answer_to(
    *script: Play, request: CompletionRequest, on_delta: Any = None, **endpoint: Any
) -> tuple[Completion, ScriptedServer]:
    async with serving(*script) as server, RESPONSES.provider_at(server.base_url, **endpoint) as provider:
        return await provider.complete(request, on_delta), server


async def sent(*messages: PromptMessage, endpoint: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    given = messages or ({"role": "user", "content": "a"},)
    request = CompletionRequest(messages=given, max_output_tokens=77, **fields)
    _, server = await answer_to(OK, request=request, **(endpoint or {}))
    assert server.seen[0].path == "/v1/responses"
    return server.seen[0].json


def call(name: str, arguments: str, call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def test_nothing_is_stored_at_the_provider_and_reasoning_comes_with_the_answer() -> None:
    body = await sent(cache_key="session")
    assert body == {
        "model": "served-model",
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 77,
        "prompt_cache_key": "session",
        "input": [{"role": "user", "content": "a"}],
    }
    assert "prompt_cache_key" not in await sent(cache_key="session", endpoint={"prompt_cache_key": False})


async def test_a_stream_is_requested_for_a_listener_alone_and_no_cache_key_without_one() -> None:
    request = CompletionRequest(messages=[{"role": "user", "content": "a"}], max_output_tokens=77)
    deltas: list[Delta] = []
    _, server = await answer_to(RESPONSES.stream(ModelReply()), request=request, on_delta=deltas.append)
    body = server.seen[0].json
    assert body.pop("stream") is True
    assert body == await sent()
    assert "prompt_cache_key" not in body


_FULL = CompletionRequest(
    messages=[
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_blocks": [SEALED]},
        {"role": "user", "content": "c"},
    ],
    max_output_tokens=77,
    tools=[READ, PATCH],
    response_schema={"type": "object"},
    cache_key="session",
    purpose="summary",
)
_ALL_PARTS = {"reasoning", "include", "prompt_cache_key", "custom", "text"}


def _parts(body: dict[str, Any]) -> set[str]:
    kinds = {item.get("type") for item in (*body["input"], *body["tools"])}
    return _ALL_PARTS & {*body, *kinds}


@pytest.mark.parametrize(
    ("error", "left_out"),
    [
        ({"message": "Encrypted content could not be verified."}, "reasoning"),
        ({"message": "No.", "code": "invalid_encrypted_content"}, "reasoning"),
        ({"message": "No.", "param": "include"}, "include"),
        ({"message": "Unknown parameter: 'prompt_cache_key'."}, "prompt_cache_key"),
        ({"message": "Invalid value: 'custom'."}, "custom"),
        ({"message": "No.", "param": "text"}, "text"),
        ({"message": "'json_schema' is not supported."}, "text"),
    ],
)
async def test_what_an_error_names_is_left_out_and_nothing_else(error: dict[str, str], left_out: str) -> None:
    refusal = Answer({"error": {"type": "invalid_request_error", **error}}, 400)
    answer, server = await answer_to(refusal, OK, request=_FULL)
    first, second = (_parts(seen.json) for seen in server.seen)
    assert (answer.text, first, first - second) == ("Hello.", _ALL_PARTS, {left_out})


@pytest.mark.parametrize("message", ["No.", "Invalid value of 'top_p'.", "'prompt_cache_key' is too long."])
async def test_a_refusal_of_something_else_is_an_error_at_once(message: str) -> None:
    with pytest.raises(ProviderRefused) as raised:
        await answer_to(Answer({"error": {"message": message}}, 400), OK, request=_FULL)
    assert raised.value.attempts == 1


async def test_a_model_that_gives_no_sealed_reasoning_is_asked_for_none_and_that_is_remembered() -> None:
    refusal = Answer({"error": {"message": "Encrypted content is not supported with this model."}}, 400)
    request = replace(_FULL, messages=[{"role": "user", "content": "a"}])
    async with serving(refusal, OK) as server, RESPONSES.provider_at(server.base_url) as provider:
        for _ in range(2):
            await provider.complete(request)
    assert ["include" in seen.json for seen in server.seen] == [True, False, False]


async def test_the_schema_of_an_answer_stands_beside_the_other_members_of_its_text() -> None:
    body = await sent(purpose="summary", response_schema={"type": "object"}, options={"verbosity": "low"})
    wanted = {"type": "json_schema", "name": "summary", "schema": {"type": "object"}, "strict": False}
    assert body["text"] == {"verbosity": "low", "format": wanted}


async def test_the_conversation_is_sent_as_items_without_ids() -> None:
    assistant: dict[str, Any] = {
        "role": "assistant",
        "content": "Let me see.",
        "reasoning_blocks": [SEALED, {"type": "thinking"}],
    }
    body = await sent(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Read a.", "name": "Anna"},
        {**assistant, "tool_calls": [call("read", '{"path": "a"}'), call("patch", '{"input": "x"}', "c2")]},
        {"role": "tool", "tool_call_id": "c1", "content": "text"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "done"}]},
        {"role": "assistant", "content": ""},
        tools=[READ, PATCH],
    )
    assert body["input"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Anna: Read a."},
        SENT,
        {"role": "assistant", "content": "Let me see."},
        {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"path": "a"}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
        {"type": "function_call_output", "call_id": "c1", "output": "text"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
    ]


async def test_ids_of_calls_are_no_longer_than_the_api_takes_and_those_of_results_are_the_same() -> None:
    """LiteLLM's ids for Gemini's calls have the signature of the thought."""
    long, longest = "call_1__thought__" + "x" * 300, "y" * 64
    calls = [call("read", "{}", long), call("read", "{}", longest)]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "text"} for each in calls]
    body = await sent({"role": "assistant", "content": None, "tool_calls": calls}, *results, tools=[READ])
    first, second, *found = [item["call_id"] for item in body["input"]]
    assert [first, second] == found
    assert (len(first), second) == (64, longest)


async def test_parts_are_sent_by_their_names_in_this_api() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}},
        sound,
    ]
    body = await sent({"role": "user", "content": parts})
    assert body["input"][0]["content"] == [
        {"type": "input_text", "text": "Look:"},
        {"type": "input_image", "image_url": "https://a.example/b.png", "detail": "auto"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="},
        sound,
    ]


async def test_tools_and_the_choice_among_them_are_flat_and_functions_are_not_strict_by_default() -> None:
    bare = {"type": "function", "function": {"name": "now", "strict": True}}
    choice = {"type": "function", "function": {"name": "patch"}}
    body = await sent(tools=[READ, bare, PATCH], tool_choice=choice, options={"parallel_tool_calls": False})
    assert body["tools"] == [
        {"type": "function", "strict": False, **READ["function"]},
        {"type": "function", "strict": True, "name": "now", "parameters": {"type": "object", "properties": {}}},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", **GRAMMAR}},
    ]
    assert body["tool_choice"] == {"type": "custom", "name": "patch"}
    assert body["parallel_tool_calls"] is False
    without = await sent(tools=[PATCH], tool_choice="required", endpoint={"custom_tools": False})
    assert (without["tools"][0]["type"], without["tool_choice"]) == ("function", "required")


async def test_options_are_sent_by_their_names_in_this_api_and_left_out_where_it_has_none() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}
    options = {"temperature": 0.5, "stop": "x", "seed": 1, "reasoning_effort": "high", "response_format": wanted}
    parameters = {"reasoning_effort": "low", "reasoning": {"summary": "auto"}, "verbosity": "low", "truncation": "auto"}
    body = await sent(options=options, endpoint={"parameters": parameters})
    assert (body["temperature"], body["truncation"]) == (0.5, "auto")
    assert body["reasoning"] == {"summary": "auto", "effort": "high"}
    named = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    assert body["text"] == {"verbosity": "low", "format": named}
    assert not {"stop", "seed", "reasoning_effort", "verbosity", "response_format"} & body.keys()


async def test_options_of_one_request_do_not_stay_for_the_next() -> None:
    parameters = {"reasoning": {"effort": "low"}, "text": {"verbosity": "low"}}
    plain = CompletionRequest(messages=[{"role": "user", "content": "a"}], max_output_tokens=77)
    given = replace(plain, options={"reasoning_effort": "high", "verbosity": "high"})
    async with serving(OK) as server, RESPONSES.provider_at(server.base_url, parameters=parameters) as provider:
        for request in (given, plain):
            await provider.complete(request)
    assert [seen.json["reasoning"]["effort"] for seen in server.seen] == ["high", "low"]
    assert [seen.json["text"]["verbosity"] for seen in server.seen] == ["high", "low"]


async def test_a_summary_is_requested_with_its_schema() -> None:
    body = await sent(purpose="summary", response_schema={"type": "object"})
    assert body["text"]["format"] == {
        "type": "json_schema",
        "name": "summary",
        "schema": {"type": "object"},
        "strict": False,
    }


@pytest.mark.parametrize(
    ("error", "dropped"),
    [
        ({"message": "Encrypted content is not supported with this model.", "param": "include"}, "include"),
        ({"message": "Unknown parameter: 'prompt_cache_key'.", "param": "prompt_cache_key"}, "prompt_cache_key"),
        ({"message": "Invalid schema for text.format", "param": "text.format.schema"}, "text"),
    ],
)
async def test_what_a_server_refuses_is_left_out_from_then_on(error: dict[str, Any], dropped: str) -> None:
    request = CompletionRequest(
        messages=[{"role": "user", "content": "a"}],
        max_output_tokens=9,
        cache_key="session",
        response_schema={"type": "object"},
    )
    refusal = Answer({"error": {"type": "invalid_request_error", **error}}, 400)
    async with serving(refusal, OK) as server, RESPONSES.provider_at(server.base_url) as provider:
        await provider.complete(request)
        await provider.complete(request)
    first, *later = (seen.json for seen in server.seen)
    assert dropped in first
    assert [dropped in body for body in later] == [False, False]
    assert all(body["max_output_tokens"] == 16 for body in later)  # the least that the API takes


async def test_reasoning_that_another_model_made_is_left_out_of_that_prompt_alone() -> None:
    message = "The encrypted content gAAA could not be verified. Reason: it could not be decrypted or parsed."
    refusal = Answer({"error": {"message": message, "code": "invalid_encrypted_content"}}, 400)
    loop: list[PromptMessage] = [
        {"role": "assistant", "content": None, "reasoning_blocks": [SEALED], "tool_calls": [call("read", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": "text"},
    ]
    request = CompletionRequest(messages=loop, max_output_tokens=77)
    async with serving(refusal, OK) as server, RESPONSES.provider_at(server.base_url) as provider:
        await provider.complete(request)
        await provider.complete(request)
    assert [SENT in seen.json["input"] for seen in server.seen] == [True, False, True]
    assert all("include" in seen.json for seen in server.seen)


def items_of(*items: dict[str, Any], **fields: Any) -> Answer:
    return Answer(RESPONSES.answer(ModelReply()) | {"output": list(items)} | fields)


async def whole(answer: Answer) -> Completion:
    request = CompletionRequest(messages=[{"role": "user", "content": "a"}], max_output_tokens=77)
    return (await answer_to(answer, request=request))[0]


def message(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(parts)}


async def test_reasoning_is_kept_as_it_can_be_sent_back() -> None:
    summary = [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}]
    thought = {"id": "rs_1", "type": "reasoning", "status": "completed", "summary": summary}
    answer = await whole(items_of({**thought, "encrypted_content": "sealed"}, thought))
    assert answer.reasoning == "One.\n\nTwo.\n\nOne.\n\nTwo."
    assert answer.reasoning_blocks == ({**SEALED, "summary": "One.\n\nTwo."},)  # the other could only be sent by its id


async def test_several_messages_are_paragraphs_and_a_refusal_is_one() -> None:
    said, refused = {"type": "output_text", "text": "I look."}, {"type": "refusal", "refusal": "No."}
    assert (await whole(items_of(message(said), message(said)))).text == "I look.\n\nI look."
    answer = await whole(items_of(message(refused)))
    assert (answer.text, answer.finish_reason) == ("No.", "refusal")


async def test_a_custom_tools_call_has_its_text_as_input() -> None:
    called = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Begin"}
    (found,) = (await whole(items_of(called))).tool_calls
    assert (found.id, found.name, found.arguments) == ("c1", "patch", '{"input":"*** Begin"}')


@pytest.mark.parametrize(("reason", "meant"), [("max_output_tokens", "length"), ("content_filter", "content_filter")])
async def test_an_incomplete_response_says_why(reason: str, meant: str) -> None:
    answer = await whole(items_of(status="incomplete", incomplete_details={"reason": reason}))
    assert answer.finish_reason == meant


FAILED = {"status": "failed", "error": {"code": "server_error", "message": "It broke."}}


@pytest.mark.parametrize(
    "failure",
    [
        items_of(**FAILED),
        Stream((*RESPONSES.begin(), response_event("failed", response={**RESPONSES.answer(ModelReply()), **FAILED}))),
        Stream((*RESPONSES.begin(), response_event("failed", response={"status": "failed"}))),
    ],
)
async def test_a_response_that_failed_is_made_again(failure: Answer | Stream) -> None:
    request = CompletionRequest(messages=[{"role": "user", "content": "a"}], max_output_tokens=77)
    deltas: list[Delta] = []
    on_delta = deltas.append if isinstance(failure, Stream) else None
    again = RESPONSES.stream(ModelReply()) if on_delta else OK
    answer, server = await answer_to(failure, again, request=request, on_delta=on_delta)
    assert (answer.text, answer.attempts, server.hits) == ("Hello.", 2, 2)


async def test_a_stream_whose_items_are_only_in_its_end_is_read_from_there() -> None:
    ended = RESPONSES.answer(ModelReply("Hello.", "They greet."))
    request = CompletionRequest(messages=[{"role": "user", "content": "a"}], max_output_tokens=77)
    deltas: list[Delta] = []
    step = Stream((*RESPONSES.begin(), response_event("completed", response=ended)))
    answer, _ = await answer_to(step, request=request, on_delta=deltas.append)
    assert (answer.text, answer.reasoning) == ("Hello.", "They greet.")
    assert deltas == [Delta("Hello.", "They greet.")]


def test_a_new_assembly_has_used_nothing() -> None:
    assert ResponseAssembly().used is None
