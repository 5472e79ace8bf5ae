"""An error answer of a provider: status and error object -> a `ProviderError`.

Sentences never quote the answer, because a provider may echo the prompt or the key. They have its machine-readable
code, if that consists of lower-case words. Beside the sentence, the provider's message is kept if the error is about
the request, because it says what the client has to change, unless it may have a key or speaks of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from app.core.logging import without_secrets
from app.domain.errors import (
    ProviderDown,
    ProviderError,
    ProviderOverflow,
    ProviderRateLimited,
    ProviderRefused,
    StatedOverflow,
)
from app.domain.frozen import frozen, replace
from app.domain.types import CHAT_OPTIONS
from app.providers.overflow import holds_a_figure, stated_overflow
from app.providers.wire import fields_of, list_of, stop_reason, storable_json, token_count

_MESSAGE_CHARS: Final = 4_000
_SHOWN_CHARS: Final = 1_000
"""Longest part of a provider's message that is passed on."""
_ABOUT_THE_REQUEST: Final = frozenset({400, 413, 422})
_CREDENTIALS: Final = re.compile(r"\bapi[ -]?key|://[^\s/]*@|[?&][\w-]*(?:key|token|secret|sig)[\w-]*=", re.IGNORECASE)
_SAFE_CODE: Final = re.compile(r"[a-z][a-z_]{0,47}")
_ERROR_STATUS: Final = re.compile(r"[45][0-9]{2}")
_JSON: Final = json.JSONDecoder()
_FAILED: Final = frozenset({"error", "insufficient_system_resource", "network_error", "abort", "function_call_filter"})
"""Reasons to stop of a choice that another call may finish: of OpenRouter, DeepSeek, Zhipu, vLLM and Gemini."""
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
_REFUSING: Final = re.compile(r"(?:un|not )supported|unrecognized|unknown|extra|not permitted|deprecated|cannot both")
_WRAPPERS: Final = re.compile(
    r"\A(?:(?:[\w. ]{0,60}?(?:error|exception)|error code: \d{3}|invalid request|bad request)(?:: | - )"
    r"|b'(?=\{)|\{'error': \{'message': ['\"]){1,8}",
    re.IGNORECASE,
)
"""What gateways put before their upstream's message: `litellm.BadRequestError: AnthropicError - `. Its JSON may also be
in Python's notation of bytes, or be a Python dictionary."""
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


@frozen
class ErrorObject:
    """The error part of an answer, as far as it can be read. `codes` are its code and type, in lower case.

    `messages` are the provider's own and, where it is a gateway, its upstream's. `prompt_tokens` and `limit_tokens` are
    for servers that state them as members (llama.cpp), `retry_after` for those that state a delay (Google).
    """

    messages: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    status: int | None = None
    param: str = ""
    prompt_tokens: int | None = None
    limit_tokens: int | None = None
    retry_after: str | None = None

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

    def refuses(self, parameter: str) -> bool:
        """Whether the error says that the server does not take this member of the request."""
        return self.names(parameter) and bool(_REFUSING.search(" ".join((self.message.lower(), *self.codes))))


def error_object(body: Any) -> ErrorObject | None:
    """Finds the error in the shapes servers use; None when the body carries none.

    They are `{"error": {…}}`, `{"error": "…"}`, a list of one of these, `{"errors": [{…}]}`, `{"detail": …}` (a list of
    FastAPI's complaints too), `{"message": …, "code": …}`, and a choice that the server did not finish.
    """
    if isinstance(body, list) and body:
        return error_object(cast("list[Any]", body)[0])
    if not isinstance(body, Mapping):
        return None
    fields = cast("Mapping[str, Any]", body)
    inner: Any = fields.get("error")
    if not inner and "choices" in fields:
        inner = next((found for choice in list_of(fields["choices"]) if (found := _of_choice(choice))), None)
    elif not inner:
        inner = next(iter(list_of(fields.get("errors"))), fields.get("detail"))
        inner = inner or (fields if "message" in fields or fields.get("object") == "error" else None)
    if isinstance(inner, str):
        return ErrorObject(_messages(inner))
    if isinstance(inner, Mapping):
        return _from_fields(cast("Mapping[str, Any]", inner))
    return ErrorObject((storable_json(inner)[:_MESSAGE_CHARS],)) if inner else None


def _of_choice(choice: Any) -> Any:
    """The error of a choice (OpenRouter), or its reason to stop if that is an error; else None."""
    reason = stop_reason(fields_of(choice).get("finish_reason"))
    return fields_of(choice).get("error") or (reason if reason in _FAILED else None)


def error_status(error: ErrorObject) -> int:
    """The HTTP status of an error in a successful answer: its own, its code's, or else 502."""
    if error.status is not None:
        return error.status
    return next((_STATUS_OF_CODE[code] for code in error.codes if code in _STATUS_OF_CODE), 502)


def _from_fields(fields: Mapping[str, Any]) -> ErrorObject:
    message, param = fields.get("message"), fields.get("param")
    if message and not isinstance(message, str):
        message = storable_json(message)  # Mistral's list of complaints
    raw = fields_of(fields.get("metadata")).get("raw")  # OpenRouter puts its upstream's own answer there
    statuses = (str(fields.get(name)) for name in ("code", "status", "http_status_code"))
    details = map(fields_of, list_of(fields.get("details")))
    codes = tuple(
        value.lower()
        for value in (fields.get("code"), fields.get("type"), fields.get("status"))
        if isinstance(value, str)
    )
    return ErrorObject(
        messages=tuple(each for text in (message, raw) if isinstance(text, str) for each in _messages(text)),
        codes=codes,
        status=next((int(status) for status in statuses if _ERROR_STATUS.fullmatch(status)), None),
        param=param if isinstance(param, str) else "",
        prompt_tokens=token_count(fields.get("n_prompt_tokens")),
        limit_tokens=token_count(fields.get("n_ctx")),
        retry_after=next((str(detail["retryDelay"]) for detail in details if "retryDelay" in detail), None),
    )


def _messages(text: str) -> tuple[str, ...]:
    """The message and, if it contains an upstream's message or error JSON, also the upstream's messages."""
    text = text[:_MESSAGE_CHARS]
    inner = _WRAPPERS.sub("", text)
    if inner.startswith("{"):
        try:
            upstream = error_object(_JSON.raw_decode(inner)[0])  # LiteLLM adds its model group after it
        except (ValueError, RecursionError):
            upstream = None
        return (text, *(upstream.messages if upstream else ()))
    return (text,) if inner == text else (text, inner)


def provider_error(
    status: int, error: ErrorObject, label: str, sent: Callable[[], bytes] = bytes, key: str | None = None
) -> ProviderError:
    """The error for an HTTP status that is no success. `label` is the alias, for the message, `sent` gives the body."""
    stated = stated_overflow(status, error.codes, error.messages)
    if stated is not None:
        return _overflow(status, error, stated, label, sent)
    stated_as = f"HTTP {status}, {error.safe_code}" if error.safe_code else f"HTTP {status}"
    if status == 429 and not _QUOTA_CODES.intersection(error.codes):
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
    return " Its quota is used up." if status in {402, 429} else ""
