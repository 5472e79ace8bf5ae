"""What a provider's error answer means: status and error object -> the one error vocabulary.

No sentence made here quotes the answer: a provider may echo the prompt or the key in it. Only its machine-readable
code is passed on, and only when it is made of lower-case words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from app.domain.errors import ProviderDown, ProviderError, ProviderOverflow, ProviderRateLimited, ProviderRefused

_MESSAGE_CHARS: Final = 4_000
_SAFE_CODE: Final = re.compile(r"[a-z][a-z_]{0,47}")
_QUOTA_CODES: Final = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "insufficient_balance",
        "credit_balance_too_low",
        "quota_exhausted",
    }
)
_OVERFLOW_CODES: Final = frozenset(
    {"context_length_exceeded", "context_window_exceeded", "exceed_context_size_error", "contextwindowexceedederror"}
)
_NUMBER: Final = r"(\d[\d,]{0,11})"
# Each names `limit` and, where the sentence has it, `asked`. The comments say whose sentence it is.
_OVERFLOW_SENTENCES: Final = tuple(
    re.compile(
        pattern.replace("LIMIT", f"(?P<limit>{_NUMBER})").replace("ASKED", f"(?P<asked>{_NUMBER})"), re.IGNORECASE
    )
    for pattern in (
        r"maximum context length is LIMIT tokens.{0,80}?(?:requested(?: about)?|resulted in|request has|contains(?: at least)?) ASKED",  # OpenAI, vLLM, OpenRouter, DeepSeek  # noqa: E501
        r"maximum prompt length is LIMIT but the request contains ASKED",  # xAI
        r"input token count \(?ASKED\)? exceeds the maximum number of tokens allowed \(?LIMIT",  # Gemini
        r"current length is ASKED while limit is LIMIT",  # Cerebras
        r"prompt is too long:? ASKED tokens > LIMIT maximum",  # Anthropic, through gateways
        r"contains ASKED tokens.{0,60}?too large for model with LIMIT maximum context length",  # Mistral
        r"request \(ASKED tokens\) exceeds the available context size \(LIMIT tokens\)",  # llama.cpp
        r"must be <= LIMIT\. Given: ASKED",  # TGI
        r"maximum context length (?:is|of) LIMIT",
        r"(?P<limit>)context[ _](?:length|window|size)[^.]{0,40}exceed",
        r"(?P<limit>)exceed\w*[^.]{0,40}context[ _](?:length|window|size)",
        r"(?P<limit>)(?:prompt|input|request) is too long",
        r"(?P<limit>)reduce the length of the (?:messages|prompt|input)",
    )
)


@dataclass(frozen=True, slots=True)
class ErrorObject:
    """The error part of an answer, as far as it can be read. `codes` are its code and type, in lower case."""

    message: str = ""
    codes: tuple[str, ...] = ()
    status: int | None = None
    param: str = ""

    @property
    def safe_code(self) -> str | None:
        return next((code for code in self.codes if _SAFE_CODE.fullmatch(code)), None)


def error_object(body: Any) -> ErrorObject | None:
    """Finds the error in the shapes servers use; None when the body carries none.

    They are `{"error": {…}}`, `{"error": "…"}`, a list of one of these, `{"detail": …}`, `{"message": …, "code": …}`.
    """
    if isinstance(body, list) and body:
        return error_object(cast("list[Any]", body)[0])
    if not isinstance(body, Mapping):
        return None
    fields = cast("Mapping[str, Any]", body)
    inner: Any = fields.get("error")
    if not inner and "choices" not in fields:
        inner = fields.get("detail") or (fields if "message" in fields or fields.get("object") == "error" else None)
    if isinstance(inner, str):
        return ErrorObject(message=inner[:_MESSAGE_CHARS])
    if isinstance(inner, Mapping):
        return _from_fields(cast("Mapping[str, Any]", inner))
    return ErrorObject() if inner else None


def _from_fields(fields: Mapping[str, Any]) -> ErrorObject:
    message, param, status = fields.get("message"), fields.get("param"), fields.get("code")
    codes = tuple(
        value.lower()
        for value in (fields.get("code"), fields.get("type"), fields.get("status"))
        if isinstance(value, str)
    )
    return ErrorObject(
        message=message[:_MESSAGE_CHARS] if isinstance(message, str) else "",
        codes=codes,
        status=status if isinstance(status, int) and 400 <= status <= 599 else None,
        param=param if isinstance(param, str) else "",
    )


def provider_error(status: int, error: ErrorObject | None, label: str) -> ProviderError:
    """The error for an HTTP status that is no success; `label` is the alias, for the sentence."""
    error = error or ErrorObject()
    overflow = _overflow(error)
    if overflow is not None and status not in {401, 403}:
        limit, asked = overflow
        return ProviderOverflow(
            f"The provider of {label!r} says that the prompt is too long for its context window.",
            status=status,
            limit_tokens=limit,
            requested_tokens=asked,
        )
    said = f"HTTP {status}, {error.safe_code}" if error.safe_code else f"HTTP {status}"
    if status == 429 and not _QUOTA_CODES.intersection(error.codes):
        return ProviderRateLimited(f"The provider of {label!r} is limiting the rate ({said}).", status=status)
    if status in {408, 409} or status >= 500:
        return ProviderDown(f"The provider of {label!r} could not answer ({said}).", status=status)
    return ProviderRefused(f"The provider of {label!r} refused the request ({said}).{_advice(status)}", status=status)


def _advice(status: int) -> str:
    if status in {401, 403}:
        return " Check the key that its api_key_env names."
    if status == 404:
        return " Check its model name and base_url."
    if 300 <= status < 400:
        return (
            " It is a redirect, which is never followed, so that the key goes to no other origin: check its base_url."
        )
    if status in {402, 429}:
        return " Its quota is used up."
    return ""


def _overflow(error: ErrorObject) -> tuple[int | None, int | None] | None:
    """Limit and requested tokens where stated, when the error says that the context is too long; else None."""
    for sentence in _OVERFLOW_SENTENCES:
        found = sentence.search(error.message)
        if found:
            groups = found.groupdict()
            return _tokens(groups.get("limit")), _tokens(groups.get("asked"))
    return (None, None) if _OVERFLOW_CODES.intersection(error.codes) else None


def _tokens(digits: str | None) -> int | None:
    return int(digits.replace(",", "")) if digits else None
