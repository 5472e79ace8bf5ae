"""Whether an error says that the prompt does not fit the model's context window, and the figures it states.

The status is looked at first: a rejected key or an unknown model is nothing else, whatever its text says. Then codes,
then sentences. A limit on the output alone is no overflow: shortening the prompt would not mend it.

A provider may echo the request in any error, so text is evidence only where it begins the provider's own message:
figures are read from whole sentences that servers are known to begin with. `holds_a_figure` says whether even such a
sentence may be an echo.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from app.domain.errors import StatedOverflow

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
# A message begins with one of these. The servers that say it stand behind it; where one begins like another, the one
# with more figures is first.
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
            _MAXIMUM + r"requested OUTPUT output tokens and your prompt contains at least PROMPT",  # vLLM
            _MAXIMUM + r"request has PROMPT input",  # vLLM
            _MAXIMUM + r"requested (?:about )?TOTAL tokens \(PROMPT of text input\)",  # OpenRouter
            _MAXIMUM + r"requested (?:about )?TOTAL tokens \([^)]{0,80}?OUTPUT in the output\)",  # OpenRouter
            _MAXIMUM + r"requested a total of TOTAL tokens: PROMPT tokens from the input",  # SGLang
            _MAXIMUM + r"(?:requested(?: about)?|contains(?: at least)?) TOTAL",
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
            # OpenRouter's upstreams
            r"(?:the )?input length \(?PROMPT\)? exceeds (?:the )?(?:model's )?"
            r"maximum (?:allowed )?(?:context|input) length (?:of |\()LIMIT",
            r"`inputs` tokens \+ `max_new_tokens` must be <= LIMIT\. Given: PROMPT `inputs` tokens and OUTPUT",  # TGI
            r"`inputs` must have less than LIMIT tokens\. Given: PROMPT",  # TGI
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
# In the words of its own that a message begins with. No figures: whatever follows may be an echo.
_WORDS: Final = tuple(
    map(
        _sentence,
        (
            # Ollama, Groq, Bedrock (through LiteLLM), LM Studio, OpenAI's Responses, MiniMax
            r"context[ _](?:length|window|size)[^.]{0,40}exceed",
            r"exceed\w*[^.]{0,40}context[ _](?:length|window|size)",
            r"tokens to keep from the initial prompt is greater than the context length",
            r"(?:prompt|input) is too long",
            r"reduce the length of the (?:messages|prompt|input)",
            r"too many total text bytes",
            r"maximum context length (?:is|of) \d",
        ),
    )
)
_QUOTE: Final = re.compile(r"(?<!\w)'|[\"`{\[<\u201c\u2018\u00ab]")
_OPENING_CHARS: Final = 300
_ESCAPED_DIGIT: Final = re.compile(rb"\\u003[0-9]")
_WRAPPERS: Final = re.compile(
    r"(?:(?:[\w. ]{0,60}?(?:error|exception)|error code: \d{3}|invalid request|bad request)(?:: | - )){1,6}",
    re.IGNORECASE,
)
"""What gateways put before their upstream's words: `litellm.BadRequestError: AnthropicError - `."""
# OpenAI and Groq call a request that could never pass their tokens-per-minute limit too large. One that only has to
# wait for its share of the minute says "Rate limit reached … Used …" instead.
_TOO_LARGE_FOR_A_MINUTE: Final = _sentence(r"request too large for .{0,200}?limit:? LIMIT, requested:? TOTAL")


def unwrapped(message: str) -> str:
    """The message without what gateways put before their upstream's words."""
    wrappers = _WRAPPERS.match(message)
    return message[wrappers.end() :] if wrappers else message


def stated_overflow(status: int, codes: Sequence[str], messages: Sequence[str]) -> StatedOverflow | None:
    """What an error states when it says that the prompt is too long, else None. `codes` are in lower case, `messages`
    the provider's own and those of its upstreams, unwrapped."""
    if status not in _STATUSES:
        return None
    too_large = _first((_TOO_LARGE_FOR_A_MINUTE,), messages)
    if too_large:
        stated = _figures(too_large)
        fits = (stated.requested_tokens or 0) <= (stated.limit_tokens or 0)
        return None if fits else replace(stated, limit_is_window=False)
    by_code = StatedOverflow() if _CODES.intersection(codes) else None
    if status == 429 and by_code is None:
        return None
    if sentence := _first(_SENTENCES, messages):
        return _figures(sentence)
    in_words = any(words.search(_opening(message)) for message in messages for words in _WORDS)
    return StatedOverflow() if in_words else by_code


def holds_a_figure(request: bytes, figures: Iterable[int | None]) -> bool:
    """Whether a request's JSON holds one of these numbers, so that a sentence with them may be an echo of it.

    It may also hold one where it has digits that are written as escapes, which no encoder does by itself.
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
