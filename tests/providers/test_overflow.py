"""The provider that says too long: the errors that servers really send, and those that only look like it.

The texts are what these servers answer, as their users have reported them, shortened.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.domain.errors import ProviderDown, ProviderOverflow, ProviderRateLimited, ProviderRefused
from app.domain.types import Delta
from app.providers.failures import holds_a_figure

from .asking import OK, failure_of
from .server import Answer, Stream


def error_body(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


LONG = {"type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
TPM = {"type": "tokens", "param": None, "code": "rate_limit_exceeded"}
ANTHROPIC = {"type": "invalid_request_error"}
SPLIT = (
    "This model's maximum context length is 4096 tokens. However, you requested 6090 tokens (6010 in the messages, "
    "80 in the completion). Please reduce the length of the messages or completion."
)

# provider, status, body, and the limit, all that was requested, and the prompt's part of it
Row = tuple[str, int, Any, int | None, int | None, int | None]
OVERFLOWS: list[Row] = [
    (
        "openai",
        400,
        error_body(
            "This model's maximum context length is 4097 tokens. However, your messages resulted in 4294 tokens. "
            "Please reduce the length of the messages.",
            **LONG,
        ),
        4097,
        4294,
        4294,
    ),
    ("openai, with completion", 400, error_body(SPLIT, **LONG), 4096, 6090, 6010),
    (
        "openai, completions",
        400,
        error_body(
            "This model's maximum context length is 4097 tokens, however you requested 4116 tokens (1044 in your "
            "prompt; 3072 for the completion). Please reduce your prompt; or completion length."
        ),
        4097,
        4116,
        1044,
    ),
    (
        "openai, gpt-5",
        400,
        error_body(
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 289650 tokens. "
            "Please reduce the length of the messages.",
            **LONG,
        ),
        272000,
        289650,
        289650,
    ),
    (
        "openai, no figures",
        400,
        error_body(
            "Your input exceeds the context window of this model. Please adjust your input and try again.", **LONG
        ),
        None,
        None,
        None,
    ),
    (
        "openai, too large for a minute",
        429,
        error_body(
            "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 31538. "
            "The input or output tokens must be reduced in order to run successfully.",
            **TPM,
        ),
        30000,
        31538,
        None,
    ),
    (
        "azure",
        400,
        error_body(
            "This model's maximum context length is 8192 tokens. However, you requested 8218 tokens (8138 in the "
            "messages, 80 in the completion). Please reduce the length of the messages or completion.",
            **LONG,
        ),
        8192,
        8218,
        8138,
    ),
    (
        "github models",
        413,
        error_body("Request body too large for gpt-5-mini model. Max size: 4000 tokens.", code="tokens_limit_reached"),
        4000,
        None,
        None,
    ),
    (
        "anthropic",
        400,
        {"type": "error", **error_body("prompt is too long: 208732 tokens > 200000 maximum", **ANTHROPIC)},
        200000,
        208732,
        208732,
    ),
    (
        "anthropic, with output",
        400,
        {
            "type": "error",
            **error_body(
                "input length and `max_tokens` exceed context limit: 174167 + 64000 > 200000, decrease input length or "
                "`max_tokens` and try again",
                **ANTHROPIC,
            ),
        },
        200000,
        238167,
        174167,
    ),
    (
        "gemini",
        400,
        [
            error_body(
                "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
                code=400,
                status="INVALID_ARGUMENT",
            )
        ],
        1048576,
        1200293,
        1200293,
    ),
    (
        "gemini, one figure",
        400,
        error_body("The input token count exceeds the maximum number of tokens allowed (1048576).", code=400),
        1048576,
        None,
        None,
    ),
    (
        "gemini on vertex",
        400,
        error_body(
            "Unable to submit request because the input token count is 1251952 but model only supports up to 1048576. "
            "Reduce the input token count and try again."
        ),
        1048576,
        1251952,
        1251952,
    ),
    (
        "vllm",
        400,
        error_body(
            "This model's maximum context length is 262144 tokens. However, your request has 279750 input tokens. "
            "Please reduce the length of the input messages.",
            type="BadRequestError",
            code=400,
        ),
        262144,
        279750,
        279750,
    ),
    (
        "vllm, older shape",
        400,
        {"object": "error", "message": SPLIT, "type": "BadRequestError", "param": None, "code": 400},
        4096,
        6090,
        6010,
    ),
    (
        "vllm, prompt and output",
        400,
        error_body(
            "This model's maximum context length is 128000 tokens. However, you requested 65535 output tokens and your "
            "prompt contains at least 62466 input tokens, for a total of at least 128001 tokens."
        ),
        128000,
        None,
        None,
    ),
    (
        "vllm, newer",
        400,
        error_body(
            "You passed 31745 input tokens and requested 1024 output tokens. However, the model's context length is "
            "only 32768 tokens, resulting in a maximum input length of 31744 tokens. Please reduce the length of the "
            "input prompt. (parameter=input_tokens, value=31745)",
            type="BadRequestError",
            param="input_tokens",
            code=400,
        ),
        32768,
        None,
        None,
    ),
    (
        "vllm, counted in characters",
        400,
        error_body(
            "This model's maximum context length is 32768 tokens. However, you requested 1024 output tokens and your "
            "prompt contains 31800 characters (more than 0 characters, which is the upper bound for 0 input tokens).",
            code=400,
        ),
        32768,
        None,
        None,
    ),
    (
        "vllm, room for the output",
        400,
        error_body(
            "'max_tokens' or 'max_completion_tokens' is too large: 64000. This model's maximum context length is 64001 "
            "tokens and your request has 24235 input tokens (64000 > 64001 - 24235). None"
        ),
        64001,
        88235,
        24235,
    ),
    (
        "vllm, decoder prompt",
        400,
        error_body("The decoder prompt (length 8423) is longer than the maximum model length of 8192."),
        8192,
        8423,
        8423,
    ),
    (
        "llama.cpp",
        400,
        error_body(
            "request (66202 tokens) exceeds the available context size (65536 tokens), try increasing it",
            code=400,
            type="exceed_context_size_error",
            n_prompt_tokens=66202,
            n_ctx=65536,
        ),
        65536,
        66202,
        66202,
    ),
    (
        "llama.cpp, figures as members",
        500,
        error_body(
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            code=500,
            type="exceed_context_size_error",
            n_prompt_tokens=1407,
            n_ctx=256,
        ),
        256,
        1407,
        1407,
    ),
    (
        "llama.cpp, in a success",
        200,
        error_body(
            "the request exceeds the available context size. try increasing the context size or enable context shift",
            code=400,
            type="exceed_context_size_error",
            n_prompt_tokens=14429,
            n_ctx=8192,
        ),
        8192,
        14429,
        14429,
    ),
    ("llama-cpp-python", 400, error_body(SPLIT, **LONG), 4096, 6090, 6010),
    (
        "llama-cpp-python, raw",
        500,
        error_body("Requested tokens (2285) exceed context window of 2048", type="internal_server_error", code=None),
        2048,
        2285,
        2285,
    ),
    ("ollama", 400, {"error": "the input length exceeds the context length"}, None, None, None),
    (
        "ollama, chat",
        400,
        error_body("prompt too long; exceeded max context length by 4096 tokens", type="api_error"),
        None,
        None,
        None,
    ),
    ("groq", 400, error_body("Please reduce the length of the messages or completion.", **LONG), None, None, None),
    ("groq, no code", 400, error_body("Please reduce the length of the messages or completion."), None, None, None),
    ("bedrock, itself", 400, {"message": "Input is too long for requested model."}, None, None, None),
    (
        "groq, too large for a minute",
        413,
        error_body(
            "Request too large for model `llama-3.3-70b-versatile` in organization `org_x` service tier `on_demand` on "
            "tokens per minute (TPM): Limit 6000, Requested 14810, please reduce your message size and try again.",
            **TPM,
        ),
        6000,
        14810,
        None,
    ),
    (
        "mistral",
        400,
        {
            "object": "error",
            "message": "Prompt 264620 > 262144 maximum context length",
            "type": "invalid_request_prompt_too_long",
            "param": None,
            "code": "3059",
            "raw_status_code": 400,
        },
        262144,
        264620,
        264620,
    ),
    (
        "mistral, older",
        400,
        {
            "object": "error",
            "message": "Prompt contains 300000 tokens, too large for model with 131072 maximum context length",
            "type": "invalid_request_error",
        },
        131072,
        300000,
        300000,
    ),
    (
        "bedrock behind litellm",
        400,
        error_body(
            "litellm.ContextWindowExceededError: litellm.BadRequestError: BedrockException: Context Window Error - "
            '{"message":"Input is too long for requested model."}',
            type=None,
            param=None,
            code="400",
        ),
        None,
        None,
        None,
    ),
    (
        "anthropic behind litellm",
        400,
        error_body(
            'litellm.BadRequestError: AnthropicError - {"type":"error","error":{"type":"invalid_request_error",'
            '"message":"prompt is too long: 209303 tokens > 200000 maximum"}}',
            code="400",
        ),
        200000,
        209303,
        209303,
    ),
    (
        "bedrock, bytes",
        400,
        error_body("The model returned the following errors: too many total text bytes"),
        None,
        None,
        None,
    ),
    (
        "openrouter",
        400,
        error_body(
            "This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 tokens (42832 "
            "of text input). Please reduce the length of either one",
            code=400,
            metadata={"provider_name": None},
        ),
        32768,
        42832,
        42832,
    ),
    (
        "openrouter, with output",
        400,
        error_body(
            "This endpoint's maximum context length is 32768 tokens. However, you requested about 43000 tokens (40000 "
            "of text input, 1000 of tool input, 2000 in the output).",
            code=400,
        ),
        32768,
        43000,
        41000,
    ),
    (
        "openrouter, its upstream's words",
        400,
        error_body(
            "Provider returned error",
            code=400,
            metadata={
                "raw": '{"error":{"message":"Input length 131393 exceeds the maximum allowed input length of 131040 '
                'tokens."}}'
            },
        ),
        131040,
        131393,
        131393,
    ),
    (
        "tgi",
        422,
        error_body(
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 8740 `inputs` tokens "
            "and 500 `max_new_tokens`",
            http_status_code=422,
        ),
        4096,
        9240,
        8740,
    ),
    (
        "tgi, inputs",
        422,
        {"error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 6000", "error_type": "v"},
        1024,
        6000,
        6000,
    ),
    (
        "lm studio",
        400,
        {
            "error": "Trying to keep the first 10136 tokens when context the overflows. However, the model is loaded "
            "with context length of only 7866 tokens, which is not enough."
        },
        7866,
        10136,
        10136,
    ),
    (
        "lm studio, no figures",
        400,
        {"error": "The number of tokens to keep from the initial prompt is greater than the context length."},
        None,
        None,
        None,
    ),
    (
        "lm studio, n_keep",
        400,
        {"error": "Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)"},
        7424,
        15028,
        15028,
    ),
    (
        "sglang",
        400,
        error_body(
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of "
            "5000 tokens: 4500 tokens from the input messages and 500 tokens for the completion."
        ),
        4096,
        5000,
        4500,
    ),
    (
        "together",
        400,
        error_body("The input (516368 tokens) is longer than the model's context length (262144 tokens)."),
        262144,
        516368,
        516368,
    ),
    (
        "xai",
        400,
        {"error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."},
        131072,
        537812,
        537812,
    ),
    (
        "sglang, input",
        400,
        {
            "object": "error",
            "message": "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens). Use a shorter "
            "input or enable --allow-auto-truncate.",
            "type": "BadRequestError",
            "code": 400,
        },
        59862,
        160062,
        160062,
    ),
    (
        "deepinfra",
        400,
        error_body("Requested input length 40000 exceeds maximum input length 32767"),
        32767,
        40000,
        40000,
    ),
    (
        "ollama's cloud",
        400,
        {"error": "The prompt is too long: 208863, model maximum context length: 202752"},
        202752,
        208863,
        208863,
    ),
    (
        "qwen",
        400,
        error_body(
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 204800]",
            type="invalid_request_error",
            code="invalid_parameter_error",
        ),
        204800,
        None,
        None,
    ),
    ("zhipu", 400, error_body("Prompt exceeds max length", code="1261"), None, None, None),
    (
        "cloudflare",
        413,
        {
            "errors": [
                {
                    "message": "AiError: Ai: The estimated number of input and maximum output tokens (263008) exceeded "
                    "this model context window limit (262144). (c0a7213e)",
                    "code": 5021,
                }
            ],
            "success": False,
            "result": {},
            "messages": [],
        },
        262144,
        263008,
        None,
    ),
    (
        "litellm, with what its router adds",
        400,
        error_body(
            'litellm.BadRequestError: AnthropicException - {"type":"error","error":{"type":"invalid_request_error",'
            '"message":"prompt is too long: 209303 tokens > 200000 maximum"}}. Received Model Group=claude\n'
            "Available Model Group Fallbacks=None",
            code="400",
        ),
        200000,
        209303,
        209303,
    ),
    (
        "litellm, bytes as Python writes them",
        400,
        error_body(
            'litellm.BadRequestError: AnthropicException - b\'{"type":"error","error":{"type":'
            '"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 179413 + 32768 > '
            "200000, decrease input length or `max_tokens` and try again\"}}'. Received Model Group=claude",
            code="400",
        ),
        200000,
        212181,
        179413,
    ),
    (
        "litellm, an error as Python writes it",
        400,
        error_body(
            "litellm.BadRequestError: OpenAIException - Error code: 400 - {'error': {'message': \"This model's maximum "
            "context length is 8192 tokens. However, your messages resulted in 9000 tokens.\", 'type': None}}",
            code="400",
        ),
        8192,
        9000,
        9000,
    ),
    (
        "litellm behind litellm",
        400,
        error_body(
            "litellm.BadRequestError: Litellm_proxyException - Error code: 400 - {'error': {'message': "
            '\'litellm.BadRequestError: litellm.ContextWindowExceededError: AnthropicError - {"type":"error",'
            '"error":{"type":"invalid_request_error","message":"prompt is too long: 200480 tokens > 200000 maximum"}}'
            "\\nReceived Model Group=claude', 'type': None, 'param': None, 'code': '400'}}",
            code="400",
        ),
        200000,
        200480,
        200480,
    ),
    (
        "litellm, by its class alone",
        400,
        error_body(
            "litellm.ContextWindowExceededError: litellm.BadRequestError: GeminiException BadRequestError - b'{\\n "
            '"error": {\\n "message": "The input token count exceeds the maximum number of tokens allowed (1048576)."'
            "\\n}}'",
            code="400",
        ),
        None,
        None,
        None,
    ),
    (
        "siliconflow, the prompt alone",
        400,
        {
            "code": 20015,
            "message": "length of prompt_tokens (68957) must be less than max_seq_len (65536).",
            "data": None,
        },
        65536,
        68957,
        68957,
    ),
    (
        "siliconflow, with output",
        400,
        {"code": 20015, "message": "max_total_tokens (172191) must be less than or equal to max_seq_len (131072)"},
        131072,
        172191,
        None,
    ),
    (
        "tensorrt-llm",
        400,
        {
            "object": "error",
            "message": "The sum of prompt length (72417.0), query length (0) should not exceed max_num_tokens (69632)",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        69632,
        72417,
        72417,
    ),
    (
        "openrouter, what an upstream says in a success",
        200,
        error_body(
            "Upstream error from DeepInfra: The sum of prompt length (109897.0), query length (0) should not exceed "
            "max_num_tokens (32768)",
            code=400,
        ),
        32768,
        109897,
        109897,
    ),
    (
        "lm studio, while it answers",
        400,
        error_body(
            "Reached context length of 4096 tokens with model (arch: qwen3vlmoe) that does not currently support "
            "mid-generation context overflow. Try reloading with a larger context length or shortening the prompt/chat."
        ),
        4096,
        None,
        None,
    ),
    (
        "doubao",
        400,
        error_body(
            "Total tokens of image and text exceed max message tokens. Request id: 0217", code="InvalidParameter"
        ),
        None,
        None,
        None,
    ),
    (
        "cohere",
        400,
        {"message": "too many tokens: size limit exceeded by 1502 tokens. Try using shorter or fewer inputs."},
        None,
        None,
        None,
    ),
    (
        "cerebras",
        400,
        {
            "message": "Please reduce the length of the messages or completion. Current length is 23592 while limit is "
            "8192",
            **LONG,
        },
        8192,
        23592,
        None,
    ),
]


@pytest.mark.parametrize(
    ("status", "body", "limit", "requested", "prompt"),
    [row[1:] for row in OVERFLOWS],
    ids=[row[0] for row in OVERFLOWS],
)
async def test_an_overflow_is_recognized_with_the_figures_that_the_provider_states(
    status: int, body: Any, limit: int | None, requested: int | None, prompt: int | None
) -> None:
    error = await failure_of(Answer(body, status), OK, hits=1)
    assert isinstance(error, ProviderOverflow)
    stated = error.stated
    assert (stated.limit_tokens, stated.requested_tokens, stated.prompt_tokens) == (
        limit,
        requested,
        prompt,
    )
    assert error.members()["prompt_tokens"] == prompt
    assert error.stated.limit_is_window == ("per min" not in str(body)), "a minute's allowance is no window"


@pytest.mark.parametrize("row", OVERFLOWS, ids=[row[0] for row in OVERFLOWS])
async def test_an_overflow_inside_a_stream_is_recognized_too(row: Row) -> None:
    body: Any = row[2]
    deltas: list[Delta] = []
    stream = Stream((b"data: " + json.dumps(body).encode() + b"\n\n",))
    error = await failure_of(stream, OK, hits=1, on_delta=deltas.append)
    assert isinstance(error, ProviderOverflow)
    stated = error.stated
    assert (stated.limit_tokens, stated.requested_tokens, stated.prompt_tokens) == row[3:]
    assert deltas == []


OTHERS: list[tuple[str, int, Any, type[Exception]]] = [
    (
        "openai, output limit",
        400,
        error_body(
            "max_tokens is too large: 8192. This model supports at most 4096 completion tokens, whereas you provided "
            "8192.",
            param="max_tokens",
            code="invalid_value",
        ),
        ProviderRefused,
    ),
    (
        "anthropic, output limit",
        400,
        error_body(
            "max_tokens: 128001 > 64000, which is the maximum allowed number of output tokens for claude-opus-4-5",
            **ANTHROPIC,
        ),
        ProviderRefused,
    ),
    (
        "bedrock, output limit",
        400,
        error_body(
            "The maximum tokens you requested exceeds the model limit of 2048. Try again with a maximum tokens value "
            "that is lower than 2048."
        ),
        ProviderRefused,
    ),
    (
        "deepseek, output limit",
        400,
        error_body("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"),
        ProviderRefused,
    ),
    (
        "tgi, output limit",
        422,
        {"error": "Input validation error: `max_new_tokens` must be <= 192. Given: 4000"},
        ProviderRefused,
    ),
    (
        "azure, output used up",
        400,
        error_body("Could not finish the message because max_tokens or model output limit was reached."),
        ProviderRefused,
    ),
    (
        "openai, a long id",
        400,
        error_body(
            "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40, but "
            "got a string with length 41 instead.",
            code="string_above_max_length",
        ),
        ProviderRefused,
    ),
    (
        "openai, no such parameter",
        400,
        error_body("Unsupported parameter: 'top_k' is not supported with this model.", code="unsupported_parameter"),
        ProviderRefused,
    ),
    (
        "anthropic, too many bytes",
        413,
        error_body("Request exceeds the maximum allowed number of bytes.", type="request_too_large"),
        ProviderRefused,
    ),
    ("a key", 401, error_body("Your context window exceeded.", code="context_length_exceeded"), ProviderRefused),
    ("a model", 404, error_body("prompt is too long: 2 tokens > 1 maximum"), ProviderRefused),
    (
        "openai, wait a moment",
        429,
        error_body(
            "Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Used 29937, "
            "Requested 385. Please try again in 644ms.",
            **TPM,
        ),
        ProviderRateLimited,
    ),
    (
        "openai, too large but not larger than its limit",
        429,
        error_body("Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 30000.", **TPM),
        ProviderRateLimited,
    ),
    (
        "anthropic, input tokens per minute",
        429,
        error_body(
            "This request would exceed the rate limit for your organization of 20,000 input tokens per minute. Please "
            "reduce the prompt length or the maximum tokens requested, or try again later.",
            type="rate_limit_error",
        ),
        ProviderRateLimited,
    ),
    (
        "anthropic, long context",
        429,
        error_body("Extra usage is required for long context requests.", type="rate_limit_error"),
        ProviderRateLimited,
    ),
    ("bedrock, throttled", 429, error_body("Too many tokens, please wait before trying again."), ProviderRateLimited),
    ("anthropic, overloaded", 529, error_body("Overloaded", type="overloaded_error"), ProviderDown),
    ("a gateway", 503, error_body("context window exceeded capacity"), ProviderDown),
]


@pytest.mark.parametrize(("status", "body", "expected"), [row[1:] for row in OTHERS], ids=[row[0] for row in OTHERS])
async def test_what_only_mentions_tokens_or_lengths_is_no_overflow(
    status: int, body: Any, expected: type[Exception]
) -> None:
    hits = 1 if expected is ProviderRefused else 3
    error = await failure_of(Answer(body, status), hits=hits)
    assert type(error) is expected


@pytest.mark.parametrize(
    ("request_body", "holds"),
    [
        (b'{"content": "a window of 1300 tokens"}', True),
        (b'{"content": "a window of 1,300 tokens"}', True),
        (b'{"content": "cut from 13005"}', True),
        (rb'{"arguments": "{\"a\": \"\\u00313\\u00300 tokens\"}"}', True),
        (rb'{"arguments": "{\"a\": \"\\u003c1299\\u003e\"}"}', False),
        (b'{"content": "13 00"}', False),
    ],
)
def test_a_figure_that_the_request_holds_may_be_an_echo(request_body: bytes, holds: bool) -> None:
    assert holds_a_figure(request_body, (1300, None)) is holds
    assert not holds_a_figure(request_body, (None, None))
