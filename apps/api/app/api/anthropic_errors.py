"""A problem in Anthropic's error shape, for the routes of the Messages form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson
from starlette.responses import Response

from app.api.openai_errors import OVERFLOWS, members_of, retry_header, status_of
from app.core.logging import request_fields
from app.domain.types import JsonObject

MESSAGES_PATH: Final = "/v1/messages"
REQUEST_ID_HEADER: Final = "request-id"
_TYPES: Final[Mapping[int, str]] = {
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


def answer(problem: JsonObject, headers: Mapping[str, str] | None = None) -> Response:
    """The problem as an HTTP answer."""
    sent = {**(headers or {}), **request_id_header(), **retry_header(problem)}
    return Response(orjson.dumps(error_json(problem)), status_of(problem), sent, "application/json")


def error_json(problem: JsonObject) -> JsonObject:
    """The body of an error, with the problem's code and own members in its `error`."""
    status = status_of(problem)
    kind = _TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    error = {"type": kind, "message": _message(problem), "code": problem["code"], **members_of(problem)}
    return {"type": "error", "error": error, "request_id": _request_id()}


def request_id_header() -> dict[str, str]:
    """The request's id under the name by which Anthropic's clients look for it."""
    request_id = _request_id()
    return {REQUEST_ID_HEADER: request_id} if request_id else {}


def _request_id() -> str | None:
    return (request_fields.get() or {}).get("request_id")


def _message(problem: JsonObject) -> str:
    """With the words that clients search for, and the place of a field that is refused."""
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
