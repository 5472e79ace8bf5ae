"""Routes whose clients know OpenAI's shape of errors alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from starlette.responses import Response

from app.api import openai_errors
from app.api.direct_route import DirectRoute
from app.api.schemas.chat import ChatErrorOut
from app.domain.types import JsonObject

_STATUSES = (400, 401, 404, 408, 409, 413, 415, 422, 429, 502, 503, 504)


def openai_errors_of(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors a route can answer with, for `responses=`; all of them without a choice."""
    return {status: {"model": ChatErrorOut, "description": "OpenAI's error shape"} for status in statuses or _STATUSES}


class ChatRoute(DirectRoute):
    """Its errors have OpenAI's shape; what was said stands in `messages`."""

    within: ClassVar[str] = "messages"

    def refusal(self, problem: JsonObject, headers: Mapping[str, str] | None) -> Response:
        return openai_errors.of_problem(problem, headers, self.within)


class ResponsesRoute(ChatRoute):
    """The same, with what was said in `input`."""

    within: ClassVar[str] = "input"
