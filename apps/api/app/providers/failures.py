"""What an error of a provider means: its status and error object -> a `ProviderError`.

Sentences never quote the answer, because a provider may echo the prompt or the key. They have its machine-readable
code, if that consists of lower-case words. Beside the sentence, the provider's message is kept if the error is about
the request, because it says what the client has to change, unless it may have a key or speaks of one.

Whether an error says that the prompt does not fit the context window is decided first by its status: a rejected key or
an unknown model is never an overflow, whatever its text says. Then codes decide, then sentences. A limit on the output
alone is no overflow, because a shorter prompt would not help. A provider may echo the request in any error, so text
counts only at the beginning of the provider's own message, and figures are read only from whole sentences with which
known servers begin. `holds_a_figure` says whether even such a sentence may be an echo.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from app.core.logging import without_secrets
from app.domain.errors import (
    ProviderDown,
    ProviderError,
    ProviderOutOfQuota,
    ProviderOverflow,
    ProviderRateLimited,
    ProviderRefused,
    StatedOverflow,
)
from app.domain.frozen import replace
from app.domain.types import CHAT_OPTIONS
from app.providers.error_object import ErrorObject

_SHOWN_CHARS: Final = 1_000
"""Longest part of a provider's message that is passed on."""
_ABOUT_THE_REQUEST: Final = frozenset({400, 413, 422})
_CREDENTIALS: Final = re.compile(r"\bapi[ -]?key|://[^\s/]*@|[?&][\w-]*(?:key|token|secret|sig)[\w-]*=", re.IGNORECASE)
_FOR_THE_MOMENT: Final = frozenset({408, 409, 424, 425, 498})
"""Statuses below 500 of a server that may answer a little later. TGI reports failed generations as 424, Groq its full
capacity as 498."""
_QUOTA_CODES: Final = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "insufficient_balance",
        "exceeded_current_quota_error",  # Moonshot
        "billing_not_active",
        "1113",  # Zhipu
        "credit_balance_too_low",
        "quota_exhausted",
    }
)
_QUOTA_STATUSES: Final = frozenset({400, 403, 429})
_OUT_OF_CREDIT: Final = re.compile(
    r"your credit balance is too low|you have reached your specified (?:workspace )?api usage limits"  # Anthropic, 400
    r"|your (?:newly created )?teams?\b.{0,80}(?:used all available credits|have any credits)"  # xAI, 403 and 429
    r"|your prepayment credits are depleted",  # Gemini
    re.IGNORECASE,
)
"""Beginnings of messages about an account whose errors have the status and the code of other errors."""
_OVERFLOW_STATUSES: Final = frozenset({200, 400, 413, 422, 429, 500, 502})
_OVERFLOW_CODES: Final = frozenset(
    {
        "context_length_exceeded",
        "context_window_exceeded",
        "contextwindowexceedederror",
        "exceed_context_size_error",
        "invalid_request_prompt_too_long",
        "model_context_window_exceeded",
        "tokens_limit_reached",
        "1261",  # Zhipu, whose message may be in Chinese
    }
)
_NUMBER: Final = r"(?:\d{1,3}(?:,\d{3}){1,3}|\d{1,12})"


def _sentence(pattern: str) -> re.Pattern[str]:
    for name in ("LIMIT", "TOTAL", "PROMPT", "OUTPUT"):
        pattern = pattern.replace(name, f"(?P<{name.lower()}>{_NUMBER})")
    return re.compile(pattern, re.IGNORECASE | re.DOTALL | re.ASCII)


_MAXIMUM_IS: Final = (
    r"(?:th(?:is|e) (?:model|endpoint)'s |the |requested token count exceeds the model's )"
    r"maximum context length (?:is|of) LIMIT"
)
_MAXIMUM: Final = _MAXIMUM_IS + r" tokens.{0,40}?"
# Beginnings of messages that state an overflow, with the servers that send them. Of two that begin alike, the one with
# more figures is first.
_SENTENCES: Final = tuple(
    map(
        _sentence,
        (
            # vLLM
            r"'max_tokens' or 'max_completion_tokens' is too large: OUTPUT\. "
            r"this model's maximum context length is LIMIT tokens and your request has PROMPT",
            # OpenAI, Azure, DeepSeek, llama-cpp-python; older OpenAI: "in your prompt; … for the completion"
            _MAXIMUM + r"requested TOTAL tokens \(PROMPT in (?:the messages|your prompt)"
            r"[^)]{0,40}?[,;] (?:and )?OUTPUT (?:in|for) the completion",
            _MAXIMUM + r"messages resulted in PROMPT",  # OpenAI, Azure
            # vLLM, which counts no further than to the first token too many
            _MAXIMUM + r"requested OUTPUT output tokens and your prompt contains",
            _MAXIMUM + r"request has PROMPT input",  # vLLM
            _MAXIMUM + r"requested (?:about )?TOTAL tokens \(PROMPT of text input\)",  # OpenRouter
            _MAXIMUM + r"requested (?:about )?TOTAL tokens \([^)]{0,80}?OUTPUT in the output\)",  # OpenRouter
            _MAXIMUM + r"requested a total of TOTAL tokens: PROMPT tokens from the input",  # SGLang
            _MAXIMUM + r"(?:requested(?: about)?|contains) TOTAL",
            # vLLM and NIM, which count no further either
            r"you passed \d{1,12} input (?:tokens|characters)(?: and requested OUTPUT output tokens)?\. "
            r"however, the model's context length is only LIMIT tokens",
            # OpenAI, gpt-5
            r"input tokens exceed the configured limit of LIMIT tokens.{0,20}?messages resulted in PROMPT",
            r"this model's maximum prompt length is LIMIT but the request contains PROMPT",  # xAI
            r"the input token count \(?PROMPT\)? exceeds the maximum number of tokens allowed \(LIMIT",  # Gemini
            # Gemini on Vertex
            r"(?:unable to submit request because )?"
            r"the input token count is PROMPT but model only supports up to LIMIT",
            r"the input token count exceeds the maximum number of tokens allowed \(LIMIT",  # Gemini
            # Cerebras
            r"please reduce the length of the messages or completion\. current length is TOTAL while limit is LIMIT",
            r"prompt is too long:? PROMPT tokens > LIMIT",  # Anthropic
            r"(?:the )?prompt is too long: PROMPT, model maximum context length: LIMIT",  # Ollama's cloud
            r"input length and `max_tokens` exceed context limit: PROMPT \+ OUTPUT > LIMIT",  # Anthropic
            r"prompt PROMPT > LIMIT maximum context length",  # Mistral
            # Mistral, older
            r"prompt contains PROMPT tokens.{0,60}?too large for model with LIMIT maximum context length",
            r"(?:the )?request \(PROMPT tokens\) exceeds the available context size \(LIMIT tokens\)",  # llama.cpp
            r"requested tokens \(PROMPT\) exceed context window of LIMIT",  # llama-cpp-python
            r"the decoder prompt.{0,20}?\(length PROMPT\) is longer than the maximum model length of LIMIT",  # vLLM
            r"(?:the )?prompt \(PROMPT tokens\) is too long and exceeds limit of LIMIT",  # vLLM
            # SGLang, Together
            r"(?:the )?input \(PROMPT tokens\) is longer than the model's context length \(LIMIT tokens\)",
            # SGLang, DeepInfra, OpenRouter's upstreams
            r"(?:the |requested )?input length \(?PROMPT(?: tokens)?\)? exceeds (?:the )?(?:model's )?"
            r"maximum (?:allowed )?(?:(?:context|input) )?length (?:of |\()?LIMIT",
            # Qwen
            r"(?:<400> )?(?:InternalError\.Algo\.InvalidParameter: )?range of input length should be \[1, LIMIT\]",
            # Cloudflare
            r"(?:AiError: )?(?:Ai: )?the estimated number of input and maximum output tokens \(TOTAL\) "
            r"exceeded this model context window limit \(LIMIT",
            r"`inputs` tokens \+ `max_new_tokens` must be <= LIMIT\. Given: PROMPT `inputs` tokens and OUTPUT",  # TGI
            r"`inputs` must have less than LIMIT tokens\. Given: PROMPT",  # TGI
            # TensorRT-LLM
            r"the sum of prompt length \(PROMPT(?:\.\d)?\),? (?:and )?query length \(\d{1,12}\) "
            r"(?:max_tokens \(OUTPUT\) )?should not exceed max_(?:num_tokens|seq_len) \(LIMIT",
            r"length of prompt_tokens \(PROMPT\) must be less than max_seq_len \(LIMIT",  # SiliconFlow
            r"max_total_tokens \(TOTAL\) must be less than or equal to max_seq_len \(LIMIT",  # SiliconFlow
            r"reached context length of LIMIT tokens with model",  # LM Studio, while it answers
            r"trying to keep the first PROMPT tokens when.{0,80}?context length of only LIMIT tokens",  # LM Studio
            r"(?:cannot truncate prompt with )?n_keep:? \(?PROMPT\)? ?>= n_ctx:? \(?LIMIT",  # LM Studio
            r"(?:the )?prompt token count of PROMPT exceeds the limit of LIMIT",  # GitHub Copilot
            r"(?:your request )?exceeded model token limit: LIMIT \(requested: TOTAL\)",  # Kimi
            r"request body too large for .{1,60}? model\. Max size: LIMIT tokens",  # GitHub Models
            _MAXIMUM_IS,
            r"(?:your |the )?(?:input|prompt|request) exceeds? the context window of LIMIT",
        ),
    )
)
# Searched in the beginning of a message, before it can quote anything. No figures: what follows may be an echo.
_WORDS: Final = tuple(
    map(
        _sentence,
        (
            # Ollama, Groq, Bedrock (through LiteLLM), LM Studio, OpenAI's Responses, MiniMax, LiteLLM's own class
            r"context[ _]?(?:length|window|size)[^.]{0,40}exceed",
            r"exceed\w*[^.]{0,40}context[ _](?:length|window|size)",
            r"tokens to keep from the initial prompt is greater than the context length",
            r"(?:prompt|input) is too long",
            r"reduce the length of the (?:messages|prompt|input)",
            r"too many total text bytes",
            r"exceed max message tokens",  # Doubao
            r"too many tokens: (?:size limit|total number)",  # Cohere
            r"maximum context length (?:is|of) \d",
        ),
    )
)
_QUOTE: Final = re.compile(r"(?<!\w)'|[\"`{\[<\u201c\u2018\u00ab]")
_OPENING_CHARS: Final = 300
_ESCAPED_DIGIT: Final = re.compile(rb"\\u003[0-9]")
# OpenAI and Groq call a request "too large" if it exceeds their tokens-per-minute limit by itself. For a request that
# only has to wait they say "Rate limit reached … Used …" instead.
_TOO_LARGE_FOR_A_MINUTE: Final = _sentence(r"request too large for .{0,200}?limit:? LIMIT, requested:? TOTAL")


def provider_error(
    status: int, error: ErrorObject, label: str, sent: Callable[[], bytes] = bytes, key: str | None = None
) -> ProviderError:
    """The error for an HTTP status that is no success. `label` is the alias, for the message, `sent` gives the body."""
    stated = _stated_overflow(status, error)
    if stated is not None:
        return _overflow(status, error, stated, label, sent)
    stated_as = f"HTTP {status}, {error.safe_code}" if error.safe_code else f"HTTP {status}"
    if _is_out_of_quota(status, error):
        return ProviderOutOfQuota(
            f"The provider of {label!r} refused the request ({stated_as}). Its quota is used up.",
            status=402 if status == 400 else status,
        )
    if status == 429:
        return ProviderRateLimited(f"The provider of {label!r} is limiting the rate ({stated_as}).", status=status)
    if status in _FOR_THE_MOMENT or status >= 500 or "tool_use_failed" in error.codes:  # Groq
        return ProviderDown(f"The provider of {label!r} could not answer ({stated_as}).", status=status)
    return ProviderRefused(
        f"The provider of {label!r} refused the request ({stated_as}).{_advice(status, error)}",
        status=status,
        provider_message=_shown_message(error, key) if status in _ABOUT_THE_REQUEST else None,
    )


def _shown_message(error: ErrorObject, key: str | None) -> str | None:
    """The provider's message, or its upstream's, on one line of printable characters; None if it may have a key."""
    message = error.messages[-1] if error.messages else ""
    if _CREDENTIALS.search(message) or without_secrets(message) != message or (key and key in message):
        return None
    printable = "".join(each if each.isprintable() else " " for each in message[:_SHOWN_CHARS])
    shown = " ".join(printable.split())
    return f"{shown}…" if len(message) > _SHOWN_CHARS else shown or None


def unusable_answer(label: str, why: object, status: int | None = None) -> ProviderDown:
    """The error for an answer that violates its protocol; `why` quotes nothing of it."""
    return ProviderDown(f"The answer of the provider of {label!r} cannot be used: {why}.", status=status)


def _overflow(
    status: int, error: ErrorObject, stated: StatedOverflow, label: str, sent: Callable[[], bytes]
) -> ProviderOverflow:
    stated = replace(
        stated,
        limit_tokens=stated.limit_tokens or error.limit_tokens,
        requested_tokens=stated.requested_tokens or error.prompt_tokens,
        prompt_tokens=stated.prompt_tokens or error.prompt_tokens,
    )
    figures = (stated.limit_tokens, stated.requested_tokens, stated.prompt_tokens)
    return ProviderOverflow(
        f"The provider of {label!r} rejected the prompt as too long for its context window.",
        status=status,
        stated=replace(stated, limit_is_window=stated.limit_is_window and not holds_a_figure(sent(), figures)),
    )


def _advice(status: int, error: ErrorObject) -> str:
    about = "response_format" if error.names("output_config") else error.param  # Anthropic
    if about in CHAT_OPTIONS:
        return f" It is about {about}."
    if status in {400, 422} and error.names("reasoning_content", "thought_signature"):
        return " It is about earlier reasoning: see return_reasoning of the model catalogue."
    if status in {401, 403}:
        return " Check the key that its api_key_env names."
    if status == 404:
        return " Check its model name and base_url."
    if 300 <= status < 400:
        return (
            " It is a redirect, which is never followed, so that the key goes to no other origin: check its base_url."
        )
    return ""


def _is_out_of_quota(status: int, error: ErrorObject) -> bool:
    in_words = any(map(_OUT_OF_CREDIT.match, error.messages))
    is_stated = in_words or bool(_QUOTA_CODES.intersection(error.codes))
    return status == 402 or (is_stated and status in _QUOTA_STATUSES)


def _stated_overflow(status: int, error: ErrorObject) -> StatedOverflow | None:
    """What an error states if it says that the prompt is too long, else None."""
    if status not in _OVERFLOW_STATUSES:
        return None
    too_large = _first((_TOO_LARGE_FOR_A_MINUTE,), error.messages)
    if too_large:
        stated = _figures(too_large)
        fits = (stated.requested_tokens or 0) <= (stated.limit_tokens or 0)
        return None if fits else replace(stated, limit_is_window=False)
    by_code = StatedOverflow() if _OVERFLOW_CODES.intersection(error.codes) else None
    if status == 429 and by_code is None:
        return None
    if sentence := _first(_SENTENCES, error.messages):
        return _figures(sentence)
    in_words = any(words.search(_opening(message)) for message in error.messages for words in _WORDS)
    return StatedOverflow() if in_words else by_code


def holds_a_figure(request: bytes, figures: Iterable[int | None]) -> bool:
    """Whether a request's JSON contains one of these numbers, so that a sentence with them may be an echo of it.

    Also true if the request has digits written as escapes, which may hide a number; no encoder writes them by itself.
    """
    written = [form.encode() for each in figures if each is not None for form in (f"{each}", f"{each:,}")]
    return any(form in request for form in written) or (bool(written) and _ESCAPED_DIGIT.search(request) is not None)


def _first(sentences: Sequence[re.Pattern[str]], messages: Sequence[str]) -> re.Match[str] | None:
    return next((found for each in sentences for message in messages if (found := each.match(message))), None)


def _opening(message: str) -> str:
    """The message up to the first thing it may quote."""
    return _QUOTE.split(message[:_OPENING_CHARS], maxsplit=1)[0]


def _figures(found: re.Match[str]) -> StatedOverflow:
    stated = {name: int(digits.replace(",", "")) for name, digits in found.groupdict().items() if digits}
    prompt, output, total = (stated.get(name) for name in ("prompt", "output", "total"))
    if total is None and prompt is not None:
        total = prompt + (output or 0)
    if prompt is None and total is not None and output is not None and output < total:
        prompt = total - output
    return StatedOverflow(stated.get("limit"), total, prompt)
