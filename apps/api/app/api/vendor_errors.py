"""Problems in OpenAI's or Anthropic's error shape, for the routes whose clients know no other shape.

Those clients decide by the status, and retry 408, 409, 429 and 5xx unless `x-should-retry` is false. It is false if the
service has already retried or a retry cannot help.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson
from starlette.responses import Response

from app.core.logging import request_fields
from app.domain.types import JsonObject

_FIELDS: Mapping[str, str] = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
"""The field of the body that holds the messages, by path; `input` on other paths."""
_OTHERS = ("/v1/sessions", "/v1/policies", "/v1/events", "/v1/search", "/v1/messages")
OVERFLOWS = frozenset({"context_budget_exceeded", "provider_context_overflow"})
"""Codes of problems that mean that the prompt is too long."""
_CODES: Mapping[str, str] = {
    "context_budget_exceeded": "context_length_exceeded",
    "provider_context_overflow": "context_length_exceeded",
    "unauthenticated": "invalid_api_key",
}
_STATUSES: Mapping[str, int] = {
    "context_budget_exceeded": 400,
    "provider_context_overflow": 400,
    "invalid_request": 400,
    "previous_response_not_found": 400,
}
_TYPES: Mapping[int, str] = {401: "authentication_error", 409: "conflict_error", 429: "rate_limit_error"}
_WORTH_ANOTHER_TRY = frozenset(
    {
        "turn_in_progress",
        "idempotency_in_flight",
        "database_unavailable",
        "session_busy",
        "process_busy",
        "shutting_down",
        "request_timeout",
        "rate_limit_exceeded",
    }
)
_PARAMETERS: Mapping[str, str] = {
    "session_not_found": "X-Session-Id",
    "model_not_found": "model",
    "conversation_not_found": "conversation",
    "previous_response_not_found": "previous_response_id",
    "compaction_not_found": "input",
}


def is_openai_path(path: str) -> bool:
    """Whether the clients of this path expect OpenAI's error shape: all of `/v1` except paths with another one."""
    other = path == "/v1/models" or any(path == other or path.startswith(f"{other}/") for other in _OTHERS)
    return path.startswith("/v1/") and not other


def openai_answer(path: str, problem: JsonObject, headers: Mapping[str, str] | None) -> Response:
    sent = {**(headers or {}), **retry_header(problem)}
    return Response(orjson.dumps({"error": error_of(path, problem)}), status_of(problem), sent, "application/json")


def retry_header(problem: JsonObject) -> dict[str, str]:
    """The header that tells clients not to retry, if a retry cannot help; else nothing."""
    return {} if _code(problem, status_of(problem)) in _WORTH_ANOTHER_TRY else {"x-should-retry": "false"}


def members_of(problem: JsonObject) -> JsonObject:
    """The problem's own members, without those that every problem has."""
    return {name: value for name, value in problem.items() if name not in ("type", "title", "status", "detail", "code")}


def status_of(problem: JsonObject) -> int:
    """The status with which the vendors answer such a problem."""
    if problem["code"] == "provider_error" and problem.get("kind") == "rate_limited":
        return 429
    return _STATUSES.get(problem["code"], problem["status"])


def error_of(path: str, problem: JsonObject) -> JsonObject:
    """The `error` object for a request to this path, with the problem's own members."""
    code: str = problem["code"]
    status = status_of(problem)
    return {
        "message": _overflow_message(problem) if code in OVERFLOWS else problem["detail"].removeprefix("body."),
        "type": _TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error"),
        "param": _parameter(problem, _FIELDS.get(path, "input")),
        "code": _code(problem, status),
        **members_of(problem),
    }


def _code(problem: JsonObject, status: int) -> str:
    """The code of an error. A limit that does not reset every minute is a quota, whose code clients do not retry."""
    limit = problem.get("limit")
    if limit and not limit["name"].endswith("_minute"):
        return "insufficient_quota"
    return "rate_limit_exceeded" if status == 429 else _CODES.get(problem["code"], problem["code"])


def _overflow_message(problem: JsonObject) -> str:
    """A message with the texts that clients and frameworks search for: OpenAI's sentence, and the code (LangChain)."""
    budget = problem.get("budget")
    if not budget:
        return (
            "The prompt exceeds the context window, the model's maximum context length (context_length_exceeded). "
            f"{problem['detail']}"
        )
    return (
        f"This model's maximum context length is {budget['limit']} tokens, of which {budget['input_budget']} are for "
        f"the input. However, your messages resulted in {budget['estimated']} tokens (context_length_exceeded). Please "
        "reduce the length of the messages. Nothing was sent to the model."
    )


def _parameter(problem: JsonObject, within: str) -> str | None:
    """The invalid field as OpenAI writes it, for example `messages[3].content`."""
    if problem["code"] in OVERFLOWS or "missing" in problem:
        return within
    errors = problem.get("errors")
    if not errors:
        return _PARAMETERS.get(problem["code"])
    first, *path = str(errors[0]["where"]).split(".")
    named = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path).removeprefix(".")
    return (named or None) if first == "body" else (named or first)


MESSAGES_PATH: Final = "/v1/messages"
REQUEST_ID_HEADER: Final = "request-id"
_MESSAGES_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def is_messages_path(path: str) -> bool:
    """Whether the clients of this path expect Anthropic's error shape."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


def messages_answer(problem: JsonObject, headers: Mapping[str, str] | None) -> Response:
    """The problem as an HTTP answer."""
    sent = {**(headers or {}), **request_id_header(), **retry_header(problem)}
    return Response(orjson.dumps(error_json(problem)), status_of(problem), sent, "application/json")


def error_json(problem: JsonObject) -> JsonObject:
    """The body of an error, with the problem's code and own members in its `error`."""
    status = status_of(problem)
    kind = _MESSAGES_TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    error = {"type": kind, "message": _messages_sentence(problem), "code": problem["code"], **members_of(problem)}
    return {"type": "error", "error": error, "request_id": _request_id()}


def request_id_header() -> dict[str, str]:
    """The request's id in the header that Anthropic's clients read."""
    request_id = _request_id()
    return {REQUEST_ID_HEADER: request_id} if request_id else {}


def _request_id() -> str | None:
    return (request_fields.get() or {}).get("request_id")


def _messages_sentence(problem: JsonObject) -> str:
    """A message with the words that clients search for, or with the path of the field that is refused."""
    if problem["code"] in OVERFLOWS:
        budget = problem.get("budget")
        if not budget:
            return f"prompt is too long: {problem['detail']}"
        return (
            f"prompt is too long: {budget['estimated']} tokens > {budget['input_budget']} maximum. "
            "Nothing was sent to the model."
        )
    errors = problem.get("errors")
    if not errors:
        return problem["detail"]
    return f"{errors[0]['where'].removeprefix('body.')}: {errors[0]['message']}"
