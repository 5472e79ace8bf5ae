"""Whether an error says that the prompt does not fit the model's context window, and the figures it states.

The status is looked at first: a rejected key or an unknown model is nothing else, whatever its text says. Then codes,
then sentences. A limit on the output alone is no overflow: shortening the prompt would not mend it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

_STATUSES: Final = frozenset({200, 400, 413, 422, 429, 500, 502})
_CODES: Final = frozenset(
    {
        "context_length_exceeded",
        "context_window_exceeded",
        "contextwindowexceedederror",
        "exceed_context_size_error",
        "invalid_request_prompt_too_long",
        "model_context_window_exceeded",
        "tokens_limit_reached",
    }
)
_NUMBER: Final = r"(\d[\d,]{0,11})"


def _sentence(pattern: str) -> re.Pattern[str]:
    for name in ("LIMIT", "ASKED", "PROMPT", "OUTPUT"):
        pattern = pattern.replace(name, f"(?P<{name.lower()}>{_NUMBER})")
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


_MAXIMUM: Final = r"maximum context length (?:is|of) LIMIT tokens.{0,40}?"
# The servers that say a sentence stand behind it. Where one begins like another, the one with more figures is first.
_SENTENCES: Final = tuple(
    map(
        _sentence,
        (
            # vLLM
            r"is too large: OUTPUT\. this model's maximum context length is LIMIT tokens and your request has PROMPT",
            # OpenAI, Azure, DeepSeek, llama-cpp-python; older OpenAI: "in your prompt; … for the completion"
            _MAXIMUM + r"requested ASKED tokens \(PROMPT in (?:the messages|your prompt)"
            r"[^)]{0,40}?[,;] (?:and )?OUTPUT (?:in|for) the completion",
            _MAXIMUM + r"messages resulted in PROMPT",  # OpenAI, Azure
            _MAXIMUM + r"requested OUTPUT output tokens and your prompt contains at least PROMPT",  # vLLM
            _MAXIMUM + r"request has PROMPT input",  # vLLM
            _MAXIMUM + r"requested (?:about )?ASKED tokens \(PROMPT of text input\)",  # OpenRouter
            _MAXIMUM + r"requested (?:about )?ASKED tokens \([^)]{0,80}?OUTPUT in the output\)",  # OpenRouter
            _MAXIMUM + r"requested a total of ASKED tokens: PROMPT tokens from the input",  # SGLang
            _MAXIMUM + r"(?:requested(?: about)?|contains(?: at least)?) ASKED",
            r"configured limit of LIMIT tokens.{0,20}?messages resulted in PROMPT",  # OpenAI (gpt-5)
            r"maximum prompt length is LIMIT but the request contains PROMPT",  # xAI
            r"input token count \(?PROMPT\)? exceeds the maximum number of tokens allowed \(LIMIT",  # Gemini
            r"input token count is PROMPT but model only supports up to LIMIT",  # Gemini on Vertex
            r"input token count exceeds the maximum number of tokens allowed \(LIMIT",  # Gemini
            r"current length is ASKED while limit is LIMIT",  # Cerebras
            r"prompt is too long:? PROMPT tokens > LIMIT",  # Anthropic
            r"exceed context limit: PROMPT \+ OUTPUT > LIMIT",  # Anthropic
            r"prompt PROMPT > LIMIT maximum context length",  # Mistral
            r"contains PROMPT tokens.{0,60}?too large for model with LIMIT maximum context length",  # Mistral, older
            r"request \(PROMPT tokens\) exceeds the available context size \(LIMIT tokens\)",  # llama.cpp
            r"requested tokens \(PROMPT\) exceed context window of LIMIT",  # llama-cpp-python
            r"decoder prompt.{0,20}?\(length PROMPT\) is longer than the maximum model length of LIMIT",  # vLLM
            r"prompt \(PROMPT tokens\) is too long and exceeds limit of LIMIT",  # vLLM
            r"input \(PROMPT tokens\) is longer than the model's context length \(LIMIT tokens\)",  # SGLang, Together
            r"input length \(?PROMPT\)? exceeds (?:the )?(?:model's )?maximum (?:allowed )?(?:context|input) length"
            r" (?:of |\()LIMIT",  # OpenRouter's upstreams
            r"inputs` tokens \+ `max_new_tokens` must be <= LIMIT\. Given: PROMPT `inputs` tokens and OUTPUT",  # TGI
            r"`inputs` must have less than LIMIT tokens\. Given: PROMPT",  # TGI
            r"keep the first PROMPT tokens when.{0,80}?context length of only LIMIT tokens",  # LM Studio
            r"n_keep:? \(?PROMPT\)? ?>= n_ctx:? \(?LIMIT",  # LM Studio
            r"prompt token count of PROMPT exceeds the limit of LIMIT",  # GitHub Copilot
            r"exceeded model token limit: LIMIT \(requested: ASKED\)",  # Kimi
            r"request body too large for .{1,60}? model\. Max size: LIMIT tokens",  # GitHub Models
            r"maximum context length (?:is|of) LIMIT",
            r"exceeds? the context window of LIMIT",
            # Without figures: Ollama, Groq, Bedrock (through LiteLLM), LM Studio, OpenAI's Responses, MiniMax
            r"context[ _](?:length|window|size)[^.]{0,40}exceed",
            r"exceed\w*[^.]{0,40}context[ _](?:length|window|size)",
            r"tokens to keep from the initial prompt is greater than the context length",
            r"(?:prompt|input) is too long",
            r"reduce the length of the (?:messages|prompt|input)",
            r"too many total text bytes",
        ),
    )
)
# OpenAI and Groq call a request that could never pass their tokens-per-minute limit too large. One that only has to
# wait for its share of the minute says "Rate limit reached … Used …" instead.
_TOO_LARGE_FOR_A_MINUTE: Final = _sentence(r"request too large for .{0,200}?limit:? LIMIT, requested:? ASKED")


@dataclass(frozen=True, slots=True)
class Stated:
    """The figures of an overflow, in tokens, where they are stated; `requested_tokens` is all that was asked for.

    `limit_is_window` is false where the limit is an allowance for a minute: a smaller prompt passes, but the model's
    window is another, and the allowance is the account's, of today.
    """

    limit_tokens: int | None = None
    requested_tokens: int | None = None
    prompt_tokens: int | None = None
    limit_is_window: bool = True


def stated_overflow(status: int, codes: Sequence[str], message: str) -> Stated | None:
    """What an error states when it says that the prompt is too long, else None. `codes` are in lower case."""
    if status not in _STATUSES:
        return None
    too_large = _TOO_LARGE_FOR_A_MINUTE.search(message)
    if too_large:
        stated = _figures(too_large)
        fits = (stated.requested_tokens or 0) <= (stated.limit_tokens or 0)
        return None if fits else replace(stated, limit_is_window=False)
    by_code = Stated() if _CODES.intersection(codes) else None
    if status == 429 and by_code is None:
        return None
    return next((_figures(found) for found in (each.search(message) for each in _SENTENCES) if found), by_code)


def _figures(found: re.Match[str]) -> Stated:
    stated = {name: int(digits.replace(",", "")) for name, digits in found.groupdict().items() if digits}
    prompt, output, asked = (stated.get(name) for name in ("prompt", "output", "asked"))
    if asked is None and prompt is not None:
        asked = prompt + (output or 0)
    if prompt is None and asked is not None and output is not None and output < asked:
        prompt = asked - output
    return Stated(stated.get("limit"), asked, prompt)
