"""What single servers of the chat completions protocol send beside the documented form, as their users report it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from app.domain.content import JsonMessages, canonical_bytes
from app.domain.errors import ProviderDown, ProviderRateLimited, ProviderRefused
from app.domain.types import Completion, CompletionRequest, Delta, PromptMessage, Usage
from app.providers.openai_answer import ChatAssembly
from app.providers.stream import DeltaTap, read_stream

from .asking import OK, PROMPT, REQUEST, answer_to, chat, failure_of, provider_at, streamed
from .server import Answer, Seen, Step, Stream, serving
from .test_openai_stream import DONE, HELLO, STOP, chunk, event, text
from .wires import RESPONSES, ModelReply, Waits


@pytest.mark.parametrize(
    ("reason", "meant"),
    [
        ("content_filter: PROHIBITED_CONTENT", "content_filter"),  # Gemini
        ("RECITATION", "content_filter"),
        ("sensitive", "content_filter"),  # Zhipu
        ("model_context_window_exceeded", "length"),
        ("eos_token", "stop"),  # TGI
        ("stop_sequence", "stop"),
    ],
)
async def test_the_reasons_to_stop_of_other_vendors_are_mapped(reason: str, meant: str) -> None:
    answer, _ = await answer_to(Answer(chat(choices=[{"message": {"content": "x"}, "finish_reason": reason}])))
    assert answer.finish_reason == meant
    answer, _, _ = await streamed(Stream((text("x"), chunk(finish=reason), DONE)))
    assert answer.finish_reason == meant


async def test_a_refusal_without_any_message_is_an_empty_answer() -> None:
    """As Gemini's compatible endpoint sends it."""
    choice = {"index": 0, "finish_reason": "content_filter: PROHIBITED_CONTENT"}
    answer, _ = await answer_to(Answer(chat(choices=[choice])))
    assert (answer.text, answer.finish_reason, answer.attempts) == ("", "content_filter", 1)
    answer, deltas, _ = await streamed(Stream((event({"choices": [choice]}), DONE)))
    assert (answer.text, answer.finish_reason, deltas) == ("", "content_filter", [])


@pytest.mark.parametrize(
    "reason",
    [
        "error",
        "insufficient_system_resource",  # DeepSeek
        "network_error",  # Zhipu
        "abort",  # vLLM, SGLang
        "function_call_filter: MALFORMED_FUNCTION_CALL",  # Gemini
    ],
)
async def test_an_answer_that_its_server_did_not_finish_is_a_failure_and_is_called_again(reason: str) -> None:
    broken = Answer(chat(choices=[{"message": {"content": ""}, "finish_reason": reason}]))
    answer, server = await answer_to(broken, OK)
    assert (answer.text, server.hits) == ("Hello.", 2)
    answer, _, server = await streamed(Stream((chunk(finish=reason), DONE)), Stream(HELLO))
    assert (answer.text, server.hits) == ("Hello.", 2)


@pytest.mark.parametrize(
    ("code", "expected", "hits"),
    [(429, ProviderRateLimited, 3), ("502", ProviderDown, 3), (403, ProviderRefused, 1), ("400", ProviderRefused, 1)],
)
async def test_an_error_of_a_choice_counts_as_its_own_status(
    code: object, expected: type[Exception], hits: int
) -> None:
    """OpenRouter's form, whole and at the end of a stream."""
    choice: dict[str, Any] = {"finish_reason": "error", "error": {"code": code, "message": PROMPT}}
    whole = await failure_of(Answer(chat(choices=[{**choice, "message": {"content": "Hel"}}])), hits=hits)
    assert type(whole) is expected
    at_once = await failure_of(Stream((event({"choices": [choice]}),)), hits=hits, on_delta=lambda _: None)
    assert type(at_once) is expected


@pytest.mark.parametrize(
    ("error", "expected", "hits"),
    [
        ({"code": "401", "message": "no"}, ProviderRefused, 1),  # LiteLLM writes its codes as text
        ({"code": "429", "message": "no"}, ProviderRateLimited, 3),
        ({"code": "content_filter", "status": 400, "message": "no"}, ProviderRefused, 1),  # Azure
        ({"http_status_code": 422, "message": "no"}, ProviderRefused, 1),  # TGI
        ({"code": 7, "message": "no"}, ProviderDown, 3),
    ],
)
async def test_an_error_in_a_stream_counts_as_the_status_that_it_states(
    error: dict[str, Any], expected: type[Exception], hits: int
) -> None:
    raised = await failure_of(Stream((event({"error": error}),)), hits=hits, on_delta=lambda _: None)
    assert type(raised) is expected


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 20, "completion_tokens": 198, "total_tokens": 623},  # Gemini
        {
            "prompt_tokens": 20,
            "completion_tokens": 198,
            "total_tokens": 623,
            "completion_tokens_details": {"reasoning_tokens": 405},  # xAI
        },
        {
            "prompt_tokens": 20,
            "completion_tokens": 603,
            "total_tokens": 623,
            "completion_tokens_details": {"reasoning_tokens": 405},  # OpenAI
        },
    ],
)
async def test_reasoning_tokens_are_counted_once_whether_the_completion_includes_them_or_not(usage: Any) -> None:
    answer, _ = await answer_to(Answer(chat(usage=usage)))
    stated = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    assert answer.usage == Usage(20, 603, reasoning_completion_tokens=stated)


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time can be set forward."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


def test_a_stream_that_goes_on_after_a_reason_to_stop_is_read_to_its_end_or_to_the_deadline() -> None:
    """Some servers write a reason, such as the word "null", into each chunk. Only silence after it is bounded."""

    async def read(clock: Clock, *, is_endless: bool) -> Completion:
        async def chunks() -> AsyncGenerator[bytes]:
            for number in range(6):
                yield chunk({"content": f"{number} "}, finish="null")
                yield chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "[]"[number > 2]}}]})
                clock.ahead_s += 4.0
                await asyncio.sleep(0)
            while is_endless:
                yield chunk()
                clock.ahead_s += 1.0
                await asyncio.sleep(0)
            yield STOP + DONE

        assembly = ChatAssembly()
        await read_stream(chunks(), assembly, DeltaTap(lambda _: None), clock.time() + 60.0)
        return assembly.completion()

    with asyncio.Runner(loop_factory=Clock) as runner:
        clock = runner.get_loop()
        assert isinstance(clock, Clock)
        for is_endless in (False, True):
            began_s = clock.time()
            answer = runner.run(read(clock, is_endless=is_endless))
            assert (answer.text, answer.tool_calls[0].arguments) == ("0 1 2 3 4 5 ", "[[[]]]")
            assert clock.time() - began_s < 70.0


async def test_usage_is_taken_from_the_choice_where_a_stream_has_it_there_and_counted_once() -> None:
    """Moonshot's form; other servers report growing figures in each chunk."""
    last = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 11, "completion_tokens": 3}}
    answer, _, _ = await streamed(Stream((text("Hi"), event({"choices": [last]}), DONE)))
    assert answer.usage == Usage(11, 3)
    growing = [
        chunk({"content": piece}, usage={"prompt_tokens": 11, "completion_tokens": count, "total_tokens": 11 + count})
        for count, piece in enumerate("Hi.", 1)
    ]
    answer, _, _ = await streamed(Stream((*growing, STOP, DONE)))
    assert answer.usage == Usage(11, 3)


async def test_what_an_answer_has_beside_its_choices_is_no_error() -> None:
    notes: dict[str, Any] = {
        "error": None,
        "errors": ["a filter was skipped"],
        "detail": "x",
        "message": "ok",
        "messages": [],
    }
    answer, server = await answer_to(Answer({**chat(), **notes}))
    assert (answer.text, server.hits) == ("Hello.", 1)
    noted = {"choices": [{"index": 0, "delta": {"content": "Hi"}}], **notes}
    answer, _, _ = await streamed(Stream((event(noted), STOP, DONE)))
    assert answer.text == "Hi"


@pytest.mark.parametrize("status", [424, 425, 498])
async def test_a_server_that_cannot_answer_at_the_moment_is_called_again(status: int) -> None:
    """TGI's failed generation (424), Groq's full capacity (498)."""
    answer, server = await answer_to(Answer({"error": "later"}, status), OK)
    assert (answer.text, server.hits) == ("Hello.", 2)


async def test_a_field_that_is_refused_in_a_list_under_message_is_left_out() -> None:
    """Mistral's form of a 422."""
    detail = [
        {"type": "extra_forbidden", "loc": ["body", "messages", 1, "assistant", "reasoning_content"], "msg": "no"}
    ]
    refusal = {"object": "error", "message": {"detail": detail}, "type": "invalid_request_error", "code": None}
    request = CompletionRequest(
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "why"},
            {"role": "user", "content": "c"},
        ],
        max_output_tokens=9,
    )
    answer, server = await answer_to(Answer(refusal, 422), OK, request=request)
    assert answer.text == "Hello."
    assert ["reasoning_content" in seen.json["messages"][1] for seen in server.seen] == [True, False]


async def test_a_server_that_misses_reasoning_of_some_answers_gets_a_blank_for_them_from_then_on() -> None:
    """DeepSeek takes what follows a tool's result for the end of its loop. There may be the answer of another turn,
    which needed no reasoning: one that was recalled, or whose question was pruned."""

    def play(request: Seen) -> Answer:
        answers = [each for each in request.json["messages"] if each["role"] == "assistant"]
        sentence = "The `reasoning_content` in the thinking mode must be passed back to the API."
        refusal = Answer({"error": {"message": sentence, "type": "invalid_request_error"}}, 400)
        return OK if all(each.get("reasoning_content") for each in answers) else refusal

    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    request = CompletionRequest(
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "why"},
            {"role": "tool", "tool_call_id": "call_1", "content": "x"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
        max_output_tokens=9,
    )
    async with serving(play) as server, provider_at(server.base_url) as provider:
        for _ in range(2):
            await provider.complete(request)
    assert server.hits == 3
    for seen in server.seen[1:]:
        reasoning = [each.get("reasoning_content") for each in seen.json["messages"]]
        assert reasoning == [None, "why", None, " ", None]


SIGNED = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "read", "arguments": '{"path": "a"}'},
    "extra_content": {"google": {"thought_signature": "c2lnbmVk"}},
}
UNSIGNED = {"id": "call_2", "type": "function", "function": {"name": "read", "arguments": '{"path": "b"}'}}


async def test_geminis_signatures_of_its_calls_are_kept_and_sent_back_with_them() -> None:
    """Gemini 3 refuses a tool loop without them. Its streamed calls have no index, and come as a whole or in pieces."""
    kept = ({"type": "thought_signature", "id": "call_1", "signature": "c2lnbmVk"},)
    whole, _ = await answer_to(Answer(chat({"content": None, "tool_calls": [SIGNED, UNSIGNED]})))
    assert whole.reasoning_blocks == kept
    pieces = (chunk({"tool_calls": [SIGNED]}), chunk({"tool_calls": [UNSIGNED]}))
    answer, _, _ = await streamed(Stream((*pieces, STOP, DONE)))
    assert (answer.reasoning_blocks, answer.tool_calls) == (kept, whole.tool_calls)
    late = {"function": {"arguments": ""}, "extra_content": SIGNED["extra_content"]}
    begun = {**SIGNED, "extra_content": None}
    answer, _, _ = await streamed(Stream((chunk({"tool_calls": [begun]}), chunk({"tool_calls": [late]}), STOP, DONE)))
    assert answer.reasoning_blocks == kept
    calls = [{key: call[key] for key in ("id", "type", "function")} for call in (SIGNED, UNSIGNED)]
    request = CompletionRequest(
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_blocks": list(kept)},
            {"role": "tool", "tool_call_id": "call_1", "content": "x"},
            {"role": "tool", "tool_call_id": "call_2", "content": "y"},
        ],
        max_output_tokens=9,
    )
    _, server = await answer_to(OK, request=request)
    sent = server.seen[0].json["messages"][1]
    assert sent == {"role": "assistant", "content": None, "tool_calls": [SIGNED, UNSIGNED]}


MISSING_SIGNATURE = {
    "error": {"code": 400, "message": "Function call in the 2. content block is missing a `thought_signature`."}
}
NO_SIGNATURE = {"google": {"thought_signature": "skip_thought_signature_validator"}}


async def test_a_tool_loop_that_another_model_began_goes_on_at_gemini() -> None:
    calls = [{key: call[key] for key in ("id", "type", "function")} for call in (SIGNED, UNSIGNED)]
    messages: list[PromptMessage] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "x"},
        {"role": "tool", "tool_call_id": "call_2", "content": "y"},
    ]
    request = CompletionRequest(messages=messages, max_output_tokens=9)
    _, server = await answer_to(Answer(MISSING_SIGNATURE, 400), OK, request=request)
    assert [seen.json["messages"][1]["tool_calls"] for seen in server.seen] == [
        calls,
        [{**calls[0], "extra_content": NO_SIGNATURE}, calls[1]],
    ]


async def test_calls_that_gemini_made_keep_their_signatures_beside_those_that_it_did_not_make() -> None:
    """The alias has seen a loop of another model. What is sent of its own loops is as before."""
    own = {key: SIGNED[key] for key in ("id", "type", "function")}
    other = {key: UNSIGNED[key] for key in ("id", "type", "function")}
    kept = [{"type": "thought_signature", "id": "call_1", "signature": "c2lnbmVk"}]
    request = CompletionRequest(
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "tool_calls": [own], "reasoning_blocks": kept},
            {"role": "tool", "tool_call_id": "call_1", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": [other]},
            {"role": "tool", "tool_call_id": "call_2", "content": "y"},
        ],
        max_output_tokens=9,
    )
    async with (
        serving(Answer(MISSING_SIGNATURE, 400), OK, OK) as server,
        provider_at(server.base_url, sleep=Waits(), timeout_s=60.0) as adapter,
    ):
        await adapter.complete(request)
        await adapter.complete(request)
    own_calls, other_calls = ([seen.json["messages"][at]["tool_calls"] for seen in server.seen] for at in (1, 3))
    assert own_calls == [[SIGNED], [SIGNED], [SIGNED]]
    assert other_calls == [[other], *[[{**other, "extra_content": NO_SIGNATURE}]] * 2]


class Unread(JsonMessages):
    """Messages as JSON, which fail when they are parsed."""

    def __getitem__(self, at: Any) -> Any:
        raise AssertionError(f"message {at} was parsed")


async def test_after_a_loop_of_another_model_the_json_of_a_window_is_still_sent_as_it_is_kept() -> None:
    """Every later request of the alias was parsed and encoded message by message."""
    calls = [{key: call[key] for key in ("id", "type", "function")} for call in (SIGNED, UNSIGNED)]
    messages: list[PromptMessage] = [
        {"role": "user", "content": 'Say "tool_calls":[{"id": 1}].'},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"tool_calls":[{"a": "tool_calls\\":[{"}]}'},
    ]
    request = CompletionRequest(messages=messages, max_output_tokens=9)
    pieces = [b"," * bool(at) + canonical_bytes(message) for at, message in enumerate(messages)]
    kept = Unread(pieces, len(messages))
    async with (
        serving(Answer(MISSING_SIGNATURE, 400), OK) as server,
        provider_at(server.base_url, sleep=Waits(), timeout_s=60.0) as adapter,
    ):
        await adapter.complete(request)
        await adapter.complete(replace(request, messages=kept))
    _, encoded, ready = (seen.json for seen in server.seen)
    assert ready == encoded
    assert encoded["messages"][1]["tool_calls"][0]["extra_content"] == NO_SIGNATURE


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "9.837906927s"}


@pytest.mark.parametrize(
    ("headers", "body", "wait_s"),
    [
        ({"retry-after-ms": "3250"}, {}, 3.25),
        ({"retry-after-ms": "3250", "retry-after": "4"}, {}, 3.25),
        ({"retry-after-ms": "soon", "retry-after": "4"}, {}, 4.0),
        ({"retry-after": "4.5"}, {}, 4.5),
        ({}, [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [RETRY_INFO]}}], 9.837906927),
        ({}, {"error": {"code": 429, "details": [{"@type": "x"}, 7, RETRY_INFO]}}, 9.837906927),
        ({"retry-after": "2"}, {"error": {"code": 429, "details": [RETRY_INFO]}}, 2.0),
        ({}, {"error": {"code": 429, "details": [{"retryDelay": "soon"}]}}, 0.5),
        ({"retry-after": "2"}, {"error": {"message": "Rate limit reached. Please try again in 6s."}}, 2.0),
        ({}, {"error": {"message": "Rate limit reached for gpt-5. Please try again in 11.054s. Visit"}}, 11.054),
        ({}, {"error": {"message": "Rate limit reached for gpt-5. Please try again in 644ms."}}, 0.644),
        ({}, {"error": {"message": "Rate limit reached for model. Please try again in 0m7.5s. Need more"}}, 7.5),
        ({}, {"error": {"message": "You exceeded your current quota. Please retry in 9.8379s."}}, 9.8379),
        ({}, {"error": {"message": "You have exceeded the call rate limit. Please retry after 3 seconds."}}, 3.0),
        ({}, {"error": {"message": "Too many requests, try again in a moment."}}, 0.5),
    ],
)
async def test_a_rate_limit_is_waited_for_as_told(headers: dict[str, str], body: Any, wait_s: float) -> None:
    waits = Waits()
    async with (
        serving(Answer(body, 429, headers), OK) as server,
        provider_at(server.base_url, sleep=waits, timeout_s=60.0) as adapter,
    ):
        await adapter.complete(CompletionRequest(messages=[{"role": "user", "content": "a"}], max_output_tokens=9))
    assert waits.waits_s == [pytest.approx(wait_s)]


async def test_a_rate_limit_within_a_stream_is_waited_for_as_its_sentence_says() -> None:
    """OpenAI's Responses end such a stream with `response.failed`; its head was sent before."""
    said = "Rate limit reached for gpt-5.1 on tokens per min (TPM): Limit 30000, Used 22999, Requested 12528. "
    said += "Please try again in 11.054s."
    error = {"code": "rate_limit_exceeded", "message": said}
    failed = {"type": "response.failed", "response": {"status": "failed", "error": error}}
    waits = Waits()
    async with (
        serving(Stream((event(failed),)), RESPONSES.stream(ModelReply())) as server,
        provider_at(server.base_url, sleep=waits, api="responses") as adapter,
    ):
        await adapter.complete(REQUEST, lambda _: None)
    assert waits.waits_s == [pytest.approx(11.054)]


@pytest.mark.parametrize(("status", "hits"), [(429, 1), (503, 3)])
async def test_a_delay_in_words_counts_for_a_rate_limit_alone(status: int, hits: int) -> None:
    """It is known from those, and other errors may quote a prompt."""
    error = await failure_of(Answer({"error": {"message": "Please try again in 7m12s."}}, status), hits=hits)
    assert error.retry_after_s == (432.0 if status == 429 else None)


async def test_a_wait_that_a_body_asks_for_ends_the_call_if_it_is_too_long() -> None:
    body = {"error": {"code": 429, "details": [{"retryDelay": "39s"}]}}
    error = await failure_of(Answer(body, 429), hits=1, timeout_s=60.0)
    assert isinstance(error, ProviderRateLimited)


async def test_a_whole_message_at_the_end_of_a_stream_does_not_repeat_its_deltas() -> None:
    """MiniMax's last event, which also has the usage; its earlier events have zeros in its place."""
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    said = {"role": "assistant", "content": "Hi.", "reasoning_content": "Why."}
    usage = {"prompt_tokens": 26, "completion_tokens": 9, "total_tokens": 35}
    for parts, finish in ((said, "stop"), ({**said, "tool_calls": [call]}, "tool_calls")):
        last = {"object": "chat.completion", "choices": [{"index": 0, "message": parts, "finish_reason": finish}]}
        pieces = (chunk({**parts, "role": ""}, usage={"total_tokens": 0}), event({**last, "usage": usage}), DONE)
        answer, deltas, _ = await streamed(Stream(pieces))
        assert deltas == [Delta("Hi.", "Why.")]
        assert [each.arguments for each in answer.tool_calls] == ['{"path": "a"}'][: len(answer.tool_calls)]
        assert (len(answer.tool_calls), answer.finish_reason) == (int(finish == "tool_calls"), finish)
        assert answer.usage == Usage(26, 9)
    alone = chunk({"role": "assistant"}), event(last), DONE
    answer, deltas, _ = await streamed(Stream(alone))
    assert (deltas, len(answer.tool_calls)) == ([Delta("Hi.", "Why.")], 1)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        # Moonshot
        ({"prompt_tokens": 2000, "completion_tokens": 9, "total_tokens": 2009, "cached_tokens": 1792}, (2000, 9, 1792)),
        # LiteLLM before Anthropic, whose prompt has what was cached
        (
            {
                "prompt_tokens": 2010,
                "completion_tokens": 9,
                "total_tokens": 2019,
                "cache_read_input_tokens": 1500,
                "cache_creation_input_tokens": 500,
            },
            (2010, 9, 1500, 500),
        ),
        # Portkey before Anthropic, whose prompt has not
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 9,
                "total_tokens": 2019,
                "cache_read_input_tokens": 1500,
                "cache_creation_input_tokens": 500,
            },
            (2010, 9, 1500, 500),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 9,
                "total_tokens": 1519,
                "prompt_tokens_details": {"cached_tokens": 1500},
                "cache_read_input_tokens": 1500,
                "cache_creation_input_tokens": 0,
            },
            (1510, 9, 1500),
        ),
    ],
)
async def test_cached_tokens_are_part_of_the_prompt_however_a_server_reports_them(
    usage: dict[str, int], expected: tuple[int, ...]
) -> None:
    answer, _ = await answer_to(Answer(chat(usage=usage)))
    assert answer.usage == Usage(*expected)


def _refusing_reasoning_beside_tools(sentence: str, of_responses: Step) -> Callable[[Seen], Step]:
    """Chat completions of OpenAI's models from 5.4 on; 5.6 refuses tools even where the request names no effort."""
    refusal = {"message": sentence, "type": "invalid_request_error", "param": "reasoning_effort", "code": None}

    def play(seen: Seen) -> Step:
        if seen.path.endswith("/responses"):
            return of_responses
        is_refused = "tools" in seen.json and seen.json.get("reasoning_effort") != "none"
        return Answer({"error": refusal}, 400) if is_refused else OK

    return play


_REFUSAL = "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions. "
_EITHER = "To use function tools, use /v1/responses or set reasoning_effort to 'none'."
_CHAT, _RESPONSES = "/v1/chat/completions", "/v1/responses"


@pytest.mark.parametrize(
    ("sentence", "of_responses", "api", "calls"),
    [
        (_REFUSAL + _EITHER, RESPONSES.whole(ModelReply()), None, [(_RESPONSES, "low"), (_RESPONSES, "low")]),
        (_REFUSAL + _EITHER, Answer({}, 404), None, [(_RESPONSES, "low"), (_CHAT, "none"), (_CHAT, "none")]),
        (_REFUSAL + _EITHER, Answer({}, 404), "chat_completions", [(_CHAT, "none"), (_CHAT, "none")]),
        (_REFUSAL, Answer({}, 404), None, [(_CHAT, "none"), (_CHAT, "none")]),
    ],
)
async def test_tools_that_are_refused_beside_reasoning_are_sent_over_responses_or_without_reasoning(
    sentence: str, of_responses: Step, api: str | None, calls: list[tuple[str, str]]
) -> None:
    plain = CompletionRequest([{"role": "user", "content": "a"}], 9, options={"reasoning_effort": "low"})
    tool: dict[str, Any] = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    tools = replace(plain, tools=[tool])
    play = _refusing_reasoning_beside_tools(sentence, of_responses)
    async with serving(play) as server, provider_at(server.base_url, api=api) as provider:
        for request in (tools, tools, tools, plain):
            await provider.complete(request)
    made = [
        (seen.path, seen.json.get("reasoning", {}).get("effort") or seen.json["reasoning_effort"])
        for seen in server.seen
    ]
    assert made == [(_CHAT, "low"), (_CHAT, "none"), *calls, (_CHAT, "low")]
    assert provider.reasons_beside_tools == (calls[-1] == (_RESPONSES, "low"))


async def test_what_two_calls_at_once_have_learned_is_remembered_of_both() -> None:
    def refused(request: Seen) -> Answer | None:
        for name in ("prompt_cache_key", "max_tokens"):
            if name in request.json and request.json["messages"][0]["content"] in (name, "both"):
                return Answer({"error": {"message": f"{name} is not supported", "param": name}}, 400)
        return None

    def play(request: Seen) -> Answer:
        return refused(request) or replace(OK, after=lambda: sum(not refused(seen) for seen in server.seen) >= 2)

    cached = replace(REQUEST, cache_key="k")
    requests = [
        replace(cached, messages=[{"role": "user", "content": name}]) for name in ("prompt_cache_key", "max_tokens")
    ]
    both = replace(cached, messages=[{"role": "user", "content": "both"}])
    async with serving(play) as server, provider_at(server.base_url, prompt_cache_key=True) as provider:
        await asyncio.gather(*map(provider.complete, requests))
        await provider.complete(both)
    assert server.hits == 5


@pytest.mark.parametrize(
    "sentence",
    [
        "Thinking mode does not support this tool_choice",  # DeepSeek V4
        "tool_choice 'required' is incompatible with thinking enabled",  # Kimi
    ],
)
async def test_a_model_that_thinks_only_if_it_chooses_its_tools_is_called_without_thinking_for_a_forced_one(
    sentence: str,
) -> None:
    refusal = Answer({"error": {"message": sentence, "type": "invalid_request_error"}}, 400)
    tool: dict[str, Any] = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    free = CompletionRequest([{"role": "user", "content": "a"}], 9, tools=[tool])
    named = replace(free, tool_choice={"type": "function", "function": {"name": "read"}})
    async with serving(refusal, OK) as server, provider_at(server.base_url) as provider:
        for request in (replace(free, tool_choice="required"), named, replace(free, tool_choice="auto"), free):
            await provider.complete(request)
    disabled = {"type": "disabled"}
    assert [seen.json.get("thinking") for seen in server.seen] == [None, disabled, disabled, None, None]
    assert [seen.json.get("tool_choice") for seen in server.seen][1:4] == ["required", named.tool_choice, "auto"]


@pytest.mark.parametrize("sentence", ["tool_choice must be a string", "There is no thinking here"])
async def test_a_refusal_of_a_forced_tool_or_of_thinking_alone_is_no_reason_to_call_again_without_thinking(
    sentence: str,
) -> None:
    tool: dict[str, Any] = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    forced = CompletionRequest([{"role": "user", "content": "a"}], 9, tools=[tool], tool_choice="required")
    refusal = Answer({"error": {"message": sentence, "type": "invalid_request_error"}}, 400)
    async with serving(refusal) as server, provider_at(server.base_url) as provider:
        with pytest.raises(ProviderRefused):
            await provider.complete(forced)
    assert server.hits == 1


async def test_qwen_is_told_not_to_think_in_its_own_words_where_a_tool_is_forced() -> None:
    """DashScope does not read the member `thinking`."""

    def play(request: Seen) -> Answer:
        thinks = request.json.get("enable_thinking", True)
        if not thinks or request.json["tool_choice"] == "auto":
            return OK
        sentence = (
            "<400> InternalError.Algo.InvalidParameter: The tool_choice parameter does not support being set to "
            "required or object in thinking mode"
        )
        refusal = {"message": sentence, "type": "invalid_request_error", "param": None}
        return Answer({"error": refusal | {"code": "invalid_parameter_error"}}, 400)

    tool: dict[str, Any] = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    forced = CompletionRequest([{"role": "user", "content": "a"}], 9, tools=[tool], tool_choice="required")
    async with serving(play) as server, provider_at(server.base_url) as provider:
        for request in (forced, forced, replace(forced, tool_choice="auto")):
            await provider.complete(request)
    assert [seen.json.get("enable_thinking") for seen in server.seen] == [None, None, False, False, None]
    assert [seen.json.get("thinking") for seen in server.seen] == [None, {"type": "disabled"}, None, None, None]


async def test_mistral_gets_the_calls_of_other_models_with_ids_as_it_makes_them() -> None:
    """It refuses all others, which a session has after it was switched, or while Mistral is the fallback."""

    def play(request: Seen) -> Answer:
        for message in request.json["messages"]:
            calls = [call["id"] for call in message.get("tool_calls", ())]
            for name in (*calls, message.get("tool_call_id", "a" * 9)):
                if re.fullmatch("[a-zA-Z0-9]{9}", name) is None:
                    said = f"Tool call id was {name} but must be a-z, A-Z, 0-9, with a length of 9."
                    return Answer({"object": "error", "message": said, "type": "invalid_request_error"}, 400)
        return OK

    ids = ("call_abc_1", "call_abc_2", "Xk4bPq0z9")
    calls = [{"id": each, "type": "function", "function": {"name": "read", "arguments": "{}"}} for each in ids]
    results = [{"role": "tool", "content": each, "tool_call_id": each} for each in ids]
    request = CompletionRequest(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": calls}, *results], 9
    )
    async with serving(play) as server, provider_at(server.base_url) as provider:
        for _ in range(2):
            await provider.complete(request)
    assert server.hits == 3, "that it is strict was forgotten"
    sent = server.seen[-1].json["messages"]
    assert [call["id"] for call in sent[1]["tool_calls"]] == [message["tool_call_id"] for message in sent[2:]]
    assert len({message["tool_call_id"] for message in sent[2:]}) == 3
    assert sent[4]["tool_call_id"] == ids[2]


async def test_ids_of_calls_that_are_too_long_for_a_server_are_shortened_alike() -> None:
    """OpenAI's models take at most 40 characters; those of other vendors and of older histories may be longer."""

    def play(request: Seen) -> Answer:
        for at, message in enumerate(request.json["messages"]):
            for place, call in enumerate(message.get("tool_calls", ())):
                if len(call["id"]) > 40:
                    said = (
                        f"Invalid 'messages[{at}].tool_calls[{place}].id': string too long. Expected a string with "
                        f"maximum length 40, but got a string with length {len(call['id'])} instead."
                    )
                    return Answer({"error": {"message": said, "code": "string_above_max_length"}}, 400)
        return OK

    call_id = "call_8f2a|fc_" + "0" * 48
    call = {"id": call_id, "type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "b", "tool_call_id": call_id},
    ]
    async with serving(play) as server, provider_at(server.base_url) as provider:
        for _ in range(2):
            await provider.complete(CompletionRequest(messages, 9))
    assert server.hits == 3, "that it takes only short ones was forgotten"
    sent = server.seen[-1].json["messages"]
    assert len(sent[1]["tool_calls"][0]["id"]) <= 40
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"]


async def test_a_gateway_that_wants_tools_beside_calls_gets_those_of_earlier_turns() -> None:
    """LiteLLM before Claude and Bedrock. Bedrock has no `tool_choice` of "none"."""

    def play(request: Seen) -> Answer:
        said = (
            "litellm.UnsupportedParamsError: Bedrock doesn't support tool calling without `tools=` param specified. "
            "Pass `tools=` param OR set `litellm.modify_params = True` to add dummy tool to the request."
        )
        has_calls = any("tool_calls" in message for message in request.json["messages"])
        is_refused = has_calls and "tools" not in request.json
        return Answer({"error": {"message": said, "type": "None", "code": "400"}}, 400) if is_refused else OK

    calls = [{"id": n, "type": "function", "function": {"name": n, "arguments": "{}"}} for n in ("write", "read")]
    results: list[PromptMessage] = [{"role": "tool", "content": "x", "tool_call_id": call["id"]} for call in calls]
    messages: list[PromptMessage] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *results,
        {"role": "user", "content": "b"},
    ]
    kept = JsonMessages([canonical_bytes(messages)[1:-1]], len(messages))
    async with serving(play) as server, provider_at(server.base_url) as provider:
        for given in (messages, kept, messages[:1]):
            await provider.complete(CompletionRequest(given, 9))
    assert server.hits == 4
    names = [[tool["function"]["name"] for tool in seen.json.get("tools", ())] for seen in server.seen]
    assert names == [[], ["read", "write"], ["read", "write"], []]
    assert not any("tool_choice" in seen.json for seen in server.seen)


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
FILE = {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}}


@pytest.mark.parametrize("as_json", [False, True], ids=["as a list", "as kept JSON"])
async def test_pictures_and_files_of_tools_follow_their_results_which_are_texts(as_json: bool) -> None:
    """OpenAI, LM Studio, Moonshot and others refuse them in a tool's result; GPT-5.2 takes them and sees nothing."""
    calls = [{"id": each, "type": "function", "function": {"name": "read", "arguments": "{}"}} for each in "abc"]
    seen = {"type": "text", "text": 'Seen. "],"role":"tool"'}
    messages: list[PromptMessage] = [
        {"role": "user", "content": [{"type": "text", "text": "?"}, PICTURE]},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": [seen, PICTURE], "tool_call_id": "a"},
        {"role": "tool", "content": "text", "tool_call_id": "b"},
        {"role": "tool", "content": [FILE, PICTURE], "tool_call_id": "c"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": None, "tool_calls": calls[:1]},
        {"role": "tool", "content": [PICTURE], "tool_call_id": "a"},
    ]
    given = JsonMessages([canonical_bytes(messages)[1:-1]], len(messages))
    _, server = await answer_to(OK, request=CompletionRequest(given if as_json else messages, 9))
    sent = server.seen[0].json["messages"]
    assert [message["role"] for message in sent] == [
        *("user", "assistant", "tool", "tool", "tool", "user", "assistant", "user", "assistant", "tool", "user")
    ]
    assert all(isinstance(message["content"], str) for message in sent if message["role"] == "tool")
    assert sent[0] == messages[0]
    assert sent[2]["content"].startswith(seen["text"])
    assert sent[3] == messages[3]
    label, first, second, third, fourth = sent[5]["content"][0], *sent[5]["content"][1:]
    assert "call a" in label["text"]
    assert [first, third, fourth] == [PICTURE, FILE, PICTURE]
    assert "call c" in second["text"]
    assert sent[-1]["content"][1:] == [PICTURE]


async def test_results_in_several_texts_or_none_are_sent_as_one_text() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    asked: list[PromptMessage] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    for parts, text_sent in (([{"type": "text", "text": each} for each in "xy"], "x\n\ny"), ([], "")):
        result: PromptMessage = {"role": "tool", "content": parts, "tool_call_id": "a"}
        _, server = await answer_to(OK, request=CompletionRequest([*asked, result], 9))
        assert server.seen[0].json["messages"][2]["content"] == text_sent


async def test_a_server_that_wants_an_answer_after_the_results_of_tools_gets_one() -> None:
    """Mistral; a turn that failed, or whose agent ended with a tool, has none."""

    def play(request: Seen) -> Answer:
        roles = [message["role"] for message in request.json["messages"]]
        said = "Unexpected role 'user' after role 'tool'"
        refusal = {"object": "error", "message": said, "type": "invalid_request_message_order", "code": "3230"}
        return Answer(refusal, 400) if ("tool", "user") in pairwise(roles) else OK

    call = {"id": "Xk4bPq0z9", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "b", "tool_call_id": "Xk4bPq0z9"},
        {"role": "user", "content": "c"},
    ]
    async with serving(play) as server, provider_at(server.base_url) as provider:
        await provider.complete(CompletionRequest(messages, 9))
    sent = server.seen[-1].json["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert sent[3]["content"] == "[No answer.]"


async def test_reasoning_that_is_only_in_details_is_read_and_is_not_kept_for_a_server_that_does_not_want_it() -> None:
    """MiniMax with `reasoning_split`."""
    details = [
        {"type": "reasoning.text", "text": "First. "},
        {"type": "reasoning.text", "text": "Then."},
        {"text": 3},
        4,
    ]
    whole, _ = await answer_to(Answer(chat({"role": "assistant", "content": "Hi.", "reasoning_details": details})))
    pieces = (chunk({"reasoning_details": [each]}) for each in details)
    in_stream, _, _ = await streamed(Stream((*pieces, *HELLO)))
    for answer in (whole, in_stream):
        assert answer.reasoning == "First. Then."
        assert answer.reasoning_blocks == ()


async def test_a_refusal_names_the_option_of_the_client_that_it_is_about() -> None:
    refusal = {"message": PROMPT, "type": "invalid_request_error", "param": "temperature", "code": "unsupported_value"}
    error = await failure_of(Answer({"error": refusal}, 400), hits=1)
    assert error.detail.endswith("It is about temperature.")
    error = await failure_of(Answer({"error": {**refusal, "param": PROMPT}}, 400), hits=1)
    assert error.detail.endswith("unsupported_value).")
    said = "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false"
    error = await failure_of(Answer({"error": {"message": said, "type": "invalid_request_error"}}, 400), hits=1)
    assert error.detail.endswith("It is about response_format.")


def strict_template(status: int, sentence: str) -> Callable[[Seen], Answer]:
    """A server whose chat template raises an exception for other than one system message and alternating users."""

    def play(request: Seen) -> Answer:
        roles = [message["role"] for message in request.json["messages"]]
        is_strict = "system" not in roles[1:] and ("user", "user") not in pairwise(roles)
        return OK if is_strict else Answer({"error": {"message": sentence, "code": status}}, status)

    return play


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (400, "System message must be at the beginning."),  # vLLM with Qwen 3.5 and later
        (500, "Jinja Exception: System message must be at the beginning."),  # llama-server
        (400, "Conversation roles must alternate user/assistant/user/assistant/..."),  # vLLM with Gemma
        # Perplexity
        (400, "After the (optional) system message(s), user and assistant roles should be alternating."),
        (
            400,
            "After the (optional) system message(s), user message(s) should alternate with assistant message(s).",
        ),
    ],
)
async def test_a_chat_template_that_takes_one_system_message_gets_one_and_that_is_remembered(
    status: int, sentence: str
) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://a.example/a.png"}}
    messages: list[PromptMessage] = [
        {"role": "system", "content": "Be kind."},
        {"role": "system", "content": "The summary."},
        {"role": "user", "content": "a", "name": "Anna"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "What was said earlier."},
        {"role": "user", "content": "c"},
        {"role": "user", "content": [image]},
        {"role": "system", "content": "Summarize."},
    ]
    async with (
        serving(strict_template(status, sentence)) as server,
        provider_at(server.base_url) as provider,
    ):
        for given in (messages, JsonMessages([canonical_bytes(messages)[1:-1]], len(messages))):
            await provider.complete(CompletionRequest(given, 9))
    assert server.hits == 3
    for seen in server.seen[1:]:
        assert seen.json["messages"] == [
            {"role": "system", "content": "Be kind.\n\nThe summary."},
            {"role": "user", "content": "Anna: a"},
            {"role": "assistant", "content": "b"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What was said earlier.\n\nc"},
                    image,
                    {"type": "text", "text": "Summarize."},
                ],
            },
        ]


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (400, "Developer instruction is not enabled for models/gemma-3-27b-it"),  # Google
        (400, "System role not supported"),  # vLLM with Gemma 2
        (500, "Jinja Exception: System role not supported"),  # llama-server
    ],
)
async def test_a_model_without_a_system_role_gets_instructions_with_the_first_message_of_the_user(
    status: int, sentence: str
) -> None:
    def play(request: Seen) -> Answer:
        roles = [message["role"] for message in request.json["messages"]]
        return Answer({"error": {"message": sentence, "code": status}}, status) if "system" in roles else OK

    messages: list[PromptMessage] = [
        {"role": "system", "content": "Be kind."},
        {"role": "system", "content": "The summary."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    async with serving(play) as server, provider_at(server.base_url) as provider:
        for given in (messages, JsonMessages([canonical_bytes(messages)[1:-1]], len(messages))):
            await provider.complete(CompletionRequest(given, 9))
    assert server.hits == 3, "that the model has none was forgotten"
    begins = {"role": "user", "content": "Be kind.\n\nThe summary.\n\na"}
    assert [seen.json["messages"] for seen in server.seen[1:]] == [[begins, *messages[3:]]] * 2


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_call_that_the_model_wrote_wrongly_is_called_again(is_streamed: bool) -> None:
    """Groq's 400, also as an event of a stream: the request was right, and another answer may be too."""
    error = {
        "message": "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.",
        "type": "invalid_request_error",
        "code": "tool_use_failed",
        "failed_generation": "<function=read",
    }
    if is_streamed:
        failed = Stream((b"event: error\n" + event({"error": {**error, "status_code": 400}}),))
        answer, _, server = await streamed(failed, Stream(HELLO))
    else:
        answer, server = await answer_to(Answer({"error": error}, 400), OK)
    assert (answer.text, server.hits) == ("Hello.", 2)
    down = await failure_of(Answer({"error": error}, 400), hits=3)
    assert isinstance(down, ProviderDown)


@pytest.mark.parametrize(
    "sentence",
    [
        "Invalid request: the message at position 1 with role 'assistant' must not be empty",  # Moonshot
        "Assistant message must have either content or tool_calls, but not none.",  # Mistral
    ],
)
@pytest.mark.parametrize("blank", ["", " \n", "\u00a0", " " * 100])
@pytest.mark.parametrize("speaker", [{}, {"name": 'R"2'}])
async def test_an_earlier_answer_without_text_says_so_where_it_may_not_be_empty(
    sentence: str, blank: str, speaker: dict[str, str]
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages: list[PromptMessage] = [
        {"role": "user", "content": 'Is {"content":"","role":"assistant"} empty?'},
        {"role": "assistant", "content": blank, **speaker},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "", "tool_call_id": "call_1"},
    ]

    def play(request: Seen) -> Answer:
        is_empty = not request.json["messages"][1]["content"].strip()
        return Answer({"error": {"message": sentence, "type": "invalid_request_error"}}, 400) if is_empty else OK

    kept = JsonMessages([canonical_bytes(messages)[1:-1]], len(messages))
    async with serving(play) as server, provider_at(server.base_url) as provider:
        for given in (messages, kept):
            await provider.complete(CompletionRequest(given, 9))
    assert server.hits == 3
    for seen in server.seen[1:]:
        assert seen.json["messages"] == [messages[0], messages[1] | {"content": "[No answer.]"}, *messages[2:]]


async def test_a_call_whose_first_fragment_has_another_number_than_its_others_is_put_together() -> None:
    """DeepSeek V4 behind a gateway: the second call begins as number 0 and goes on as number 1."""
    parts: tuple[dict[str, Any], ...] = (
        {"index": 0, "id": "a", "function": {"name": "read", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"path": 1}'}},
        {"index": 0, "id": "b", "function": {"name": "read", "arguments": ""}},
        {"index": 1, "function": {"arguments": '{"path"'}},
        {"index": 1, "function": {"arguments": ": 2}"}},
    )
    answer, _, _ = await streamed(Stream((*(chunk({"tool_calls": [part]}) for part in parts), STOP, DONE)))
    assert [(call.id, call.arguments) for call in answer.tool_calls] == [("a", '{"path": 1}'), ("b", '{"path": 2}')]
