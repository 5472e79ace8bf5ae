"""An error answer of a provider: status and error object -> a `ProviderError`.

Error messages never quote the answer, because a provider may echo the prompt or the key. Only its machine-readable code
is passed on, and only if it consists of lower-case words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from app.domain.errors import (
    ProviderDown,
    ProviderError,
    ProviderOverflow,
    ProviderRateLimited,
    ProviderRefused,
    StatedOverflow,
)
from app.providers.overflow import holds_a_figure, stated_overflow, unwrapped
from app.providers.wire import MalformedAnswerError, decode_json, fields_of, storable_json, token_count

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
_STATUS_OF_CODE: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


@dataclass(frozen=True, slots=True)
class ErrorObject:
    """The error part of an answer, as far as it can be read. `codes` are its code and type, in lower case.

    `messages` are the provider's own and, where it is a gateway, its upstream's. `prompt_tokens` and `limit_tokens` are
    for servers that state them as members (llama.cpp).
    """

    messages: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    status: int | None = None
    param: str = ""
    prompt_tokens: int | None = None
    limit_tokens: int | None = None

    @property
    def message(self) -> str:
        return "\n".join(self.messages)

    @property
    def safe_code(self) -> str | None:
        return next((code for code in self.codes if _SAFE_CODE.fullmatch(code)), None)

    def names(self, *parameters: str) -> bool:
        """Whether the error is about one of these members of the request."""
        return any(
            self.param == parameter or re.search(rf"\b{parameter}\b", self.message) is not None
            for parameter in parameters
        )


def error_object(body: Any) -> ErrorObject | None:
    """Finds the error in the shapes servers use; None when the body carries none.

    They are `{"error": {…}}`, `{"error": "…"}`, a list of one of these, `{"detail": …}` (a list of FastAPI's complaints
    too), `{"message": …, "code": …}`.
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
        return ErrorObject(_messages(inner))
    if isinstance(inner, Mapping):
        return _from_fields(cast("Mapping[str, Any]", inner))
    return ErrorObject((storable_json(inner)[:_MESSAGE_CHARS],)) if inner else None


def error_status(error: ErrorObject) -> int:
    """The HTTP status of an error in a successful answer: its own, its code's, or else 502."""
    if error.status is not None:
        return error.status
    return next((_STATUS_OF_CODE[code] for code in error.codes if code in _STATUS_OF_CODE), 502)


def _from_fields(fields: Mapping[str, Any]) -> ErrorObject:
    message, param, status = fields.get("message"), fields.get("param"), fields.get("code")
    raw = fields_of(fields.get("metadata")).get("raw")  # OpenRouter puts its upstream's own answer there
    codes = tuple(
        value.lower()
        for value in (fields.get("code"), fields.get("type"), fields.get("status"))
        if isinstance(value, str)
    )
    return ErrorObject(
        messages=tuple(each for text in (message, raw) if isinstance(text, str) for each in _messages(text)),
        codes=codes,
        status=status if isinstance(status, int) and 400 <= status <= 599 else None,
        param=param if isinstance(param, str) else "",
        prompt_tokens=token_count(fields.get("n_prompt_tokens")),
        limit_tokens=token_count(fields.get("n_ctx")),
    )


def _messages(text: str) -> tuple[str, ...]:
    """A message, and where it carries an upstream's words or its JSON, those in their own right."""
    text = text[:_MESSAGE_CHARS]
    inner = unwrapped(text)
    if inner.startswith("{"):
        try:
            upstream = error_object(decode_json(inner.encode("utf-8", "replace")))
        except MalformedAnswerError:
            upstream = None
        return (text, *(upstream.messages if upstream else ()))
    return (text,) if inner == text else (text, inner)


def provider_error(
    status: int, error: ErrorObject | None, label: str, sent: Callable[[], bytes] = bytes
) -> ProviderError:
    """The error for an HTTP status that is no success; `label` is the alias, for the sentence, `sent` the request."""
    error = error or ErrorObject()
    stated = stated_overflow(status, error.codes, error.messages)
    if stated is not None:
        return _overflow(status, error, stated, label, sent)
    stated_as = f"HTTP {status}, {error.safe_code}" if error.safe_code else f"HTTP {status}"
    if status == 429 and not _QUOTA_CODES.intersection(error.codes):
        return ProviderRateLimited(f"The provider of {label!r} is limiting the rate ({stated_as}).", status=status)
    if status in {408, 409} or status >= 500:
        return ProviderDown(f"The provider of {label!r} could not answer ({stated_as}).", status=status)
    return ProviderRefused(
        f"The provider of {label!r} refused the request ({stated_as}).{_advice(status, error)}", status=status
    )


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
    if status in {400, 422} and error.names("reasoning_content"):
        return " It is about reasoning_content: see return_reasoning of the model catalogue."
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
