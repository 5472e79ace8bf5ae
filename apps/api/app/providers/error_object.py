"""The error in an answer of a provider, in the shapes in which servers write it. `failures.py` says what it means."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, cast

from app.domain.content import fields_of
from app.domain.frozen import frozen
from app.providers.wire import finish_word, list_of, storable_json, token_count

_MESSAGE_CHARS: Final = 4_000
_SAFE_CODE: Final = re.compile(r"[a-z][a-z_]{0,47}")
_ERROR_STATUS: Final = re.compile(r"[45][0-9]{2}")
_JSON: Final = json.JSONDecoder()
_FAILED: Final = frozenset({"error", "insufficient_system_resource", "network_error", "abort", "function_call_filter"})
"""Reasons to stop of a choice that another call may finish: of OpenRouter, DeepSeek, Zhipu, vLLM and Gemini."""
_REFUSING: Final = re.compile(r"(?:un|not )supported|unrecognized|unknown|extra|not permitted|deprecated|cannot both")
_DELAY: Final = re.compile(
    r"\b(?:try again in|retry in|retry after) (?:(\d{1,4})h)?(?:(\d{1,4})m(?!s))?"
    r"(?:(\d{1,9}(?:\.\d{1,12})?) ?(m?)s(?:econds?)?\b)?",
    re.IGNORECASE | re.ASCII,
)
_WRAPPERS: Final = re.compile(
    r"\A(?:(?:[\w. ]{0,60}?(?:error|exception)|error code: \d{3}|invalid request|bad request"
    r"|upstream error from [\w. -]{1,40})(?:: | - )"
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

    @property
    def worded_delay(self) -> str | None:
        """The delay that a rate limit's sentence asks for (`Please try again in 1m26.4s`). OpenAI's and Groq's streams
        state it nowhere else."""
        for hours, minutes, number, milli in _DELAY.findall(self.message):
            if hours or minutes or number:
                seconds = float(number or 0) / (1000 if milli else 1)
                return f"{3600 * int(hours or 0) + 60 * int(minutes or 0) + seconds}s"
        return None

    def names(self, *parameters: str) -> bool:
        """Whether the error is about one of these members of the request."""
        return self.param in parameters or re.search(rf"\b(?:{'|'.join(parameters)})\b", self.message) is not None

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
    reason = finish_word(fields_of(choice).get("finish_reason"))
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
