"""Domain error -> `application/problem+json` (RFC 9457). This module has the only table of statuses.

A problem never repeats request content: to encode a NaN or half a surrogate pair would fail and turn a 422 into a 500.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from app.api import vendor_errors
from app.api.schemas.bodies import where
from app.domain.errors import InvalidRequest, LimitExceeded, NotFound, PlimsollError, RetryLater, ShuttingDown
from app.domain.frozen import frozen
from app.domain.types import JsonObject

PROBLEM_JSON = "application/problem+json"


@frozen
class ProblemKind:
    """The status and title of an error code."""

    status: int
    title: str


_NOUNS = (
    "session", "model", "turn", "message", "summary", "response", "previous_response", "compaction", "conversation",
    "item", "pin", "audit", "prompt",
)  # fmt: skip
"""What a 404 can name; each has a code `<noun>_not_found`."""
KINDS: Mapping[str, ProblemKind] = {
    "context_budget_exceeded": ProblemKind(422, "The turn does not fit into the context window"),
    "invalid_request": ProblemKind(422, "The request is not valid"),
    "prompt_too_large": ProblemKind(422, "The prompt is too large to be rebuilt"),
    "idempotency_key_reused": ProblemKind(422, "The idempotency key was used for another request"),
    "idempotency_in_flight": ProblemKind(409, "A request with this idempotency key is still running"),
    "turn_cancelled": ProblemKind(409, "The turn was cancelled"),
    "turn_not_open": ProblemKind(409, "The turn has ended"),
    "turn_in_progress": ProblemKind(409, "The session already runs a turn"),
    "nothing_to_summarize": ProblemKind(409, "There is nothing to summarize now"),
    "summary_not_active": ProblemKind(409, "The summary is not the active one"),
    "turn_not_last": ProblemKind(409, "The turn is not the session's last"),
    "worker_lost": ProblemKind(503, "The turn was ended by another process"),
    "limit_exceeded": ProblemKind(429, "A usage limit is reached"),
    "unauthenticated": ProblemKind(401, "An API key is needed"),
    **{f"{noun}_not_found": ProblemKind(404, f"No such {noun.replace('_', ' ')}") for noun in _NOUNS},
    "not_found": ProblemKind(404, "Not found"),
    "method_not_allowed": ProblemKind(405, "Method not allowed"),
    "host_not_allowed": ProblemKind(421, "The host name is not allowed"),
    "origin_not_allowed": ProblemKind(403, "The request comes from another site"),
    "invalid_http": ProblemKind(400, "This is not HTTP"),
    "headers_too_large": ProblemKind(431, "The headers are too large"),
    "too_many_connections": ProblemKind(503, "The process has reached its limit of connections"),
    "request_timeout": ProblemKind(408, "The request did not arrive in time"),
    "body_too_large": ProblemKind(413, "The body is too large"),
    "unsupported_media_type": ProblemKind(415, "The body is not JSON"),
    "provider_error": ProblemKind(502, "The model call failed"),
    "provider_context_overflow": ProblemKind(502, "The provider rejected the prompt as too long"),
    "provider_timeout": ProblemKind(504, "The model did not answer in time"),
    "database_unavailable": ProblemKind(503, "The database is not available"),
    "session_busy": ProblemKind(409, "The session is locked by other work"),
    "tenant_busy": ProblemKind(429, "The tenant has reached its share of the process"),
    "process_busy": ProblemKind(503, "The process has reached its capacity"),
    "too_many_streams": ProblemKind(503, "The process has reached its limit of event streams"),
    "shutting_down": ProblemKind(503, "The process is shutting down"),
    "internal_error": ProblemKind(500, "Something broke on our side"),
}


def document(code: str, detail: str, members: Mapping[str, Any] | None = None) -> JsonObject:
    """The problem with this code, for an answer or for the `error` of a stored turn."""
    kind = KINDS.get(code) or KINDS["internal_error"]
    return {
        "type": f"urn:plimsoll:problem:{code}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "code": code,
        **(members or {}),
    }


def answer(path: str, problem: JsonObject, headers: Mapping[str, str] | None = None) -> Response:
    """A problem as an HTTP answer, in the error shape that the clients of this path expect."""
    if vendor_errors.is_messages_path(path):
        return vendor_errors.messages_answer(problem, headers)
    if vendor_errors.is_openai_path(path):
        return vendor_errors.openai_answer(path, problem, headers)
    return Response(orjson.dumps(problem), problem["status"], headers, PROBLEM_JSON)


def answer_to(path: str, error: PlimsollError, headers: Mapping[str, str] | None = None) -> Response:
    """The HTTP answer for an error; `headers` are added to the error's own headers."""
    return answer(path, document_of(error), {**headers_of(error), **(headers or {})})


def document_of(error: PlimsollError) -> JsonObject:
    code = f"{error.noun}_not_found" if isinstance(error, NotFound) else error.code
    members = error.members()
    if isinstance(error, InvalidRequest):
        members = {"errors": [{"where": where(*error.where) or "request", "message": error.detail}], **members}
    return document(code if code in KINDS else error.code, error.detail, members)


def complete(stored: JsonObject) -> JsonObject:
    """A turn's stored error as the problem that was answered: the table's members are added."""
    return document(str(stored.get("code", "internal_error")), str(stored.get("detail", "")), stored)


def headers_of(error: PlimsollError) -> dict[str, str]:
    if isinstance(error, ShuttingDown):
        return {"Retry-After": str(error.retry_after_s), "Connection": "close"}
    if isinstance(error, (RetryLater, LimitExceeded)) and error.retry_after_s is not None:
        return {"Retry-After": str(max(1, error.retry_after_s))}
    if error.code == "unauthenticated":
        return {"WWW-Authenticate": 'Bearer realm="plimsoll"'}
    return {}
