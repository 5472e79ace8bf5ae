"""Domain error -> HTTP answer. This module has the only table of statuses.

An answer is `application/problem+json` (RFC 9457), or has OpenAI's or Anthropic's error shape on the routes whose
clients know no other. Those clients decide by the status, and retry 408, 409, 429 and 5xx unless `x-should-retry` is
false. It is false if the service has already retried or a retry cannot help.

A problem never repeats request content: to encode a NaN or half a surrogate pair would fail and turn a 422 into a 500.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, Final, Literal, TypeAlias

import orjson
from starlette.responses import Response
from starlette.types import Scope

from app.api.schemas.bodies import where
from app.core.logging import request_fields
from app.domain.errors import (
    InvalidRequest,
    LimitExceeded,
    NotFound,
    PlimsollError,
    ProviderError,
    RetryLater,
    StoredFailure,
)
from app.domain.frozen import frozen
from app.domain.types import JsonObject

PROBLEM_JSON = "application/problem+json"
ErrorShape: TypeAlias = Literal["openai", "anthropic", "problem", "problem_with_error"]
_SHAPES: Mapping[str, ErrorShape] = {
    **dict.fromkeys(("/v1/sessions", "/v1/policies", "/v1/events", "/v1/search"), "problem"),
    "/v1/messages": "anthropic",
}
"""The shapes of errors below these paths."""


def error_shape(path: str) -> ErrorShape:
    """The shape that the clients of this path expect: OpenAI's in all of `/v1` but `_SHAPES`. All clients list models,
    and one whose base URL lacks `/v1` asks for `/chat/completions`: there a problem has OpenAI's `error` as a member,
    which both vendors' clients read."""
    for root, shape in _SHAPES.items():
        if path == root or path.startswith(f"{root}/"):
            return shape
    return "openai" if path.startswith("/v1/") and path != "/v1/models" else "problem_with_error"


@frozen
class ProblemKind:
    """The status and title of an error code. `vendor_status` and `vendor_code` are those of the vendors' shapes where
    they differ, `parameter` is the field that the code is about; a client `should_retry` if the same may work later."""

    status: int
    title: str
    vendor_status: int | None = None
    vendor_code: str | None = None
    parameter: str | None = None
    should_retry: bool = False


_TOO_LONG = "context_length_exceeded"

_NOUNS: Mapping[str, str | None] = {
    **dict.fromkeys(("turn", "message", "summary", "response", "item", "pin", "audit", "prompt")),
    "session": "X-Session-Id",
    "model": "model",
    "conversation": "conversation",
    "compaction": "input",
}
"""What a 404 can name, with the field that names it; each has a code `<noun>_not_found`."""
KINDS: Mapping[str, ProblemKind] = {
    "context_budget_exceeded": ProblemKind(422, "The turn does not fit into the context window", 400, _TOO_LONG),
    "invalid_request": ProblemKind(422, "The request is not valid", 400),
    "prompt_too_large": ProblemKind(422, "The prompt is too large to be rebuilt"),
    "idempotency_key_reused": ProblemKind(422, "The idempotency key was used for another request"),
    "idempotency_in_flight": ProblemKind(
        409, "A request with this idempotency key is still running", should_retry=True
    ),
    "turn_cancelled": ProblemKind(409, "The turn was cancelled"),
    "turn_not_open": ProblemKind(409, "The turn has ended"),
    "turn_in_progress": ProblemKind(409, "The session already runs a turn", should_retry=True),
    "nothing_to_summarize": ProblemKind(409, "There is nothing to summarize now"),
    "summary_not_active": ProblemKind(409, "The summary is not the active one"),
    "turn_not_last": ProblemKind(409, "The turn is not the session's last"),
    "worker_lost": ProblemKind(503, "The turn was interrupted"),
    "limit_exceeded": ProblemKind(429, "A usage limit is reached"),
    "unauthenticated": ProblemKind(401, "An API key is needed", vendor_code="invalid_api_key"),
    **{f"{noun}_not_found": ProblemKind(404, f"No such {noun}", parameter=field) for noun, field in _NOUNS.items()},
    "previous_response_not_found": ProblemKind(404, "No such previous response", 400, parameter="previous_response_id"),
    "not_found": ProblemKind(404, "Not found"),
    "method_not_allowed": ProblemKind(405, "Method not allowed"),
    "host_not_allowed": ProblemKind(421, "The host name is not allowed"),
    "origin_not_allowed": ProblemKind(403, "The request comes from another site"),
    "invalid_http": ProblemKind(400, "This is not HTTP"),
    "headers_too_large": ProblemKind(431, "The headers are too large"),
    "too_many_connections": ProblemKind(503, "The process has reached its limit of connections"),
    "request_timeout": ProblemKind(408, "The request did not arrive in time", should_retry=True),
    "body_too_large": ProblemKind(413, "The body is too large"),
    "unsupported_media_type": ProblemKind(415, "The body is not JSON"),
    "provider_error": ProblemKind(502, "The model call failed"),
    "provider_context_overflow": ProblemKind(502, "The provider rejected the prompt as too long", 400, _TOO_LONG),
    "provider_timeout": ProblemKind(504, "The model did not answer in time"),
    "database_unavailable": ProblemKind(503, "The database is not available", should_retry=True),
    "session_busy": ProblemKind(409, "Other work holds a lock that the request needs", should_retry=True),
    "tenant_busy": ProblemKind(429, "The tenant has reached its share of the process"),
    "process_busy": ProblemKind(503, "The process has reached its capacity", should_retry=True),
    "too_many_streams": ProblemKind(503, "The process has reached its limit of event streams"),
    "shutting_down": ProblemKind(503, "The process is shutting down", should_retry=True),
    "interrupted": ProblemKind(503, "The process stopped before the request ended"),
    "internal_error": ProblemKind(500, "Something broke on our side"),
}


def _kind_of(code: str) -> ProblemKind:
    return KINDS.get(code) or KINDS["internal_error"]


def document(code: str, detail: str, members: Mapping[str, Any] | None = None) -> JsonObject:
    """The problem with this code, for an answer or for the `error` of a stored turn. Its detail ends with the
    provider's message if there is one, because many clients show nothing else."""
    kind = _kind_of(code)
    problem: JsonObject = {
        "type": f"urn:plimsoll:problem:{code}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "code": code,
        **(members or {}),
    }
    if message := problem.get("provider_message"):
        problem["detail"] += f" The provider says: {message}"
    return problem


def note(scope: Scope, problem: JsonObject) -> None:
    """Notes, for log and metrics, that the request is answered with this problem, or that its stream ends with it."""
    code = problem["code"]
    scope["plimsoll"].problem_code = code if code in KINDS else "other"  # an imported turn may have any


def answer(
    scope: Scope, problem: JsonObject, headers: Mapping[str, str] | None = None, *, shape: ErrorShape | None = None
) -> Response:
    """A problem as the request's answer, in this shape or that of its path."""
    note(scope, problem)
    path: str = scope["path"]
    shape = shape or error_shape(path)
    if shape == "anthropic":
        body, own = error_json(problem), request_id_header()
    elif shape == "openai":
        body, own = {"error": error_of(path, problem)}, {}
    else:
        body = problem if shape == "problem" else problem | {"error": error_of(path, problem)}
        return Response(orjson.dumps(body), problem["status"], headers, PROBLEM_JSON)
    code = _code(problem, status_of(problem))
    retry = {} if code == _RATE_LIMITED or _kind_of(code).should_retry else {"x-should-retry": "false"}
    return Response(orjson.dumps(body), status_of(problem), {**(headers or {}), **own, **retry}, "application/json")


def answer_to(scope: Scope, error: PlimsollError, headers: Mapping[str, str] | None = None) -> Response:
    """The request's answer for an error; `headers` are added to the error's own headers."""
    return answer(scope, document_of(error), {**headers_of(error), **(headers or {})})


def document_of(error: PlimsollError) -> JsonObject:
    code = f"{error.noun}_not_found" if isinstance(error, NotFound) else error.code
    members = error.members()
    if isinstance(error, InvalidRequest):
        members = {"errors": [{"where": where(*error.where) or "request", "message": error.detail}], **members}
    return document(code if code in KINDS else error.code, error.detail, members)


def complete(stored: JsonObject) -> JsonObject:
    """A turn's stored error as the problem that was answered: the table's members are added."""
    return document(str(stored.get("code", "internal_error")), str(stored.get("detail", "")), stored)


_DAY_S: Final = 86_400
"""Longest delay of a provider that is passed on: some ask for an impossible one."""


def headers_of(error: PlimsollError) -> dict[str, str]:
    if isinstance(error, (RetryLater, LimitExceeded)) and error.retry_after_s is not None:
        return {"Retry-After": str(max(1, error.retry_after_s))}
    if isinstance(error, ProviderError) and error.retry_after_s is not None:
        return {"Retry-After": str(max(1, ceil(min(error.retry_after_s, _DAY_S))))}
    if isinstance(error, StoredFailure):
        return {"x-should-retry": "false"}  # whatever the code: the same key gets it again
    if error.code == "unauthenticated":
        return {"WWW-Authenticate": 'Bearer realm="plimsoll"'}
    return {}


_FIELDS: Mapping[str, str] = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
"""The field of the body that holds the messages, by path; `input` on other paths, but `items` of conversations."""
OVERFLOWS = frozenset({"context_budget_exceeded", "provider_context_overflow"})
"""Codes of problems that mean that the prompt is too long."""
_RATE_LIMITED = "rate_limit_exceeded"
_TYPES: Mapping[int, str] = {401: "authentication_error", 409: "conflict_error", 429: "rate_limit_error"}
"""The types of errors that both vendors name alike, by status."""


def members_of(problem: JsonObject) -> JsonObject:
    """The problem's own members, without those that every problem has."""
    return {name: value for name, value in problem.items() if name not in ("type", "title", "status", "detail", "code")}


def status_of(problem: JsonObject) -> int:
    """The status with which the vendors answer such a problem. A provider that refused the request itself would refuse
    it again, so that clients must not see a failure of the server, which many of them retry."""
    match problem:
        case {"code": "provider_error", "kind": "rate_limited"}:
            return 429
        case {"code": "provider_error", "kind": "refused", "provider_status": 413}:
            return 413
        case {"code": "provider_error", "kind": "refused", "provider_status": 400 | 422}:
            return 400
        case _:
            return _kind_of(problem["code"]).vendor_status or problem["status"]


def error_of(path: str, problem: JsonObject) -> JsonObject:
    """The `error` object for a request to this path, with the problem's own members."""
    code: str = problem["code"]
    status = status_of(problem)
    others = "items" if path.startswith("/v1/conversations") else "input"
    return {
        "message": _overflow_message(problem) if code in OVERFLOWS else problem["detail"].removeprefix("body."),
        "type": _TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error"),
        "param": _parameter(problem, _FIELDS.get(path, others)),
        "code": _code(problem, status),
        **members_of(problem),
    }


def _code(problem: JsonObject, status: int) -> str:
    """The code of an error. A limit that does not reset every minute is a quota, whose code clients do not retry."""
    limit = problem.get("limit")
    if limit and not limit["name"].endswith("_minute"):
        return "insufficient_quota"
    return _RATE_LIMITED if status == 429 else _kind_of(problem["code"]).vendor_code or problem["code"]


def _overflow_message(problem: JsonObject) -> str:
    """A message with the texts that clients and frameworks search for: OpenAI's sentence, and the code (LangChain)."""
    budget = problem.get("budget")
    if not budget:
        return (
            "The prompt exceeds the context window, the model's maximum context length (context_length_exceeded). "
            f"{problem['detail']}"
        )
    tools = problem["regions"]["tools"]
    parts, reducible = (f", {tools} of them for the tools", "messages or tools") if tools else ("", "messages")
    return (
        f"This model's maximum context length is {budget['limit']} tokens, of which {budget['input_budget']} are for "
        f"the input. However, your messages resulted in {budget['estimated']} tokens{parts} (context_length_exceeded). "
        f"Please reduce the length of the {reducible}. Nothing was sent to the model."
    )


def _parameter(problem: JsonObject, within: str) -> str | None:
    """The invalid field as OpenAI writes it, for example `messages[3].content`."""
    if problem["code"] in OVERFLOWS or "missing" in problem:
        return within
    errors = problem.get("errors")
    if not errors:
        return _kind_of(problem["code"]).parameter
    first, *path = str(errors[0]["where"]).split(".")
    named = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path).removeprefix(".")
    return (named or None) if first == "body" else (named or first)


_MESSAGES_TYPES: Final[Mapping[int, str]] = _TYPES | {
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_json(problem: JsonObject) -> JsonObject:
    """The body of an error, with the problem's code and own members in its `error`."""
    status = status_of(problem)
    kind = _MESSAGES_TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    error = {"type": kind, "message": _messages_sentence(problem), "code": problem["code"], **members_of(problem)}
    return {"type": "error", "error": error, "request_id": _request_id()}


def request_id_header() -> dict[str, str]:
    """The request's id in the header that Anthropic's clients read."""
    request_id = _request_id()
    return {"request-id": request_id} if request_id else {}


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
    field = "messages" if "missing" in problem else errors[0]["where"].removeprefix("body.")
    return f"{field}: {errors[0]['message']}"
