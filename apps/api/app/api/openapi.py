"""Parts of the OpenAPI document that routes share: parameters, problems, event streams and the bearer key."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Annotated, Any, Final, Literal, cast

import orjson
from fastapi import Depends, FastAPI, Header, Query
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.api.problems import KINDS, PROBLEM_JSON, error_shape
from app.api.schemas.chat import ChatErrorOut
from app.api.schemas.messages import MessagesErrorOut
from app.api.schemas.values import Open, in_words
from app.domain.types import LARGEST, JsonObject
from app.services.paging import PageRequest

Limit = Annotated[int, Query(ge=1, le=200, description="Maximum page size.")]
Cursor = Annotated[str | None, Query(max_length=2048, description="`next_cursor` of the previous page.")]
FromSeq = Annotated[int, Query(ge=1, le=LARGEST, description="Number of the first turn.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=in_words("^[!-~]{1,255}$", "Must have 1 to 255 visible ASCII characters"),
        description="1 to 255 visible ASCII characters. The same key and body return the same turn.",
    ),
]
Order = Annotated[
    Literal["asc", "desc"], Query(description="By time; `asc` is oldest first. Later pages need the same order.")
]
DEFAULT_LIMIT = 50


def _newest_first(limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None, order: Order = "desc") -> PageRequest:
    return PageRequest(limit, cursor, newest_first=order == "desc")


def _oldest_first(limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None, order: Order = "asc") -> PageRequest:
    return PageRequest(limit, cursor, newest_first=order == "desc")


def _page_of_items(
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum page size.")] = 20,
    order: Order = "desc",
    after: Annotated[str | None, Query(max_length=200, description="Id of the last item of the previous page.")] = None,
) -> PageRequest:
    return PageRequest(limit, after, newest_first=order == "desc")


NewestFirst = Annotated[PageRequest, Depends(_newest_first)]
OldestFirst = Annotated[PageRequest, Depends(_oldest_first)]
"""A page of a list in this order, unless the request has another one."""
PageOfItems = Annotated[PageRequest, Depends(_page_of_items)]
"""The same with OpenAI's parameters."""


_QUESTION: Final = {"role": "user", "content": "My name is Anna. What is in Bergen?"}
_PAST: Final = [_QUESTION, {"role": "assistant", "content": "The fish market."}]

EXAMPLES: Final[Mapping[str, JsonObject]] = {
    "create_session": {"room_goal": "Plan a trip to Norway", "policy": {"preset": "guarded"}},
    "change_session": {"metadata": {"title": "Norway"}},
    "fork_session": {},
    "import_session": {"messages": _PAST},
    "post_turn": {"content": "My name is Anna. What is in Bergen?"},
    "post_tool_outputs": {"outputs": [{"tool_call_id": "call_1", "content": "12 degrees, rain"}]},
    "regenerate_turn": {"max_output_tokens": 500},
    "preview_turn": {"content": "And in Oslo?"},
    "summarize_now": {"focus": "Dates and prices"},
    "edit_summary": {"summary_text": "Anna plans a trip to Bergen."},
    "put_pin": {"content": "The budget is 2,000 EUR.", "relevance": 0.9},
    "simulate": {"policies": [{"preset": "rolling"}]},
    "create_chat_completion": {"model": "offline", "messages": [_QUESTION]},
    "create_completion": {"model": "offline", "prompt": "What is in Bergen?"},
    "create_message": {"model": "offline", "max_tokens": 500, "messages": [_QUESTION]},
    "count_message_tokens": {"model": "offline", "messages": [_QUESTION]},
    "create_response": {"model": "offline", "input": "What is in Bergen?"},
    "count_input_tokens": {"model": "offline", "input": "What is in Bergen?"},
    "compact_response": {"model": "offline", "input": _PAST},
    "create_conversation": {"items": [_QUESTION]},
    "change_conversation": {"metadata": {"title": "Norway"}},
    "create_conversation_items": {"items": [_QUESTION]},
}


class Problem(Open):
    """RFC 9457. Branch on `code`, which is stable."""

    type: str
    title: str
    status: int
    detail: str
    code: str


_DESCRIPTIONS = {
    status: " / ".join(sorted({f"`{code}`" for code, kind in KINDS.items() if kind.status == status}))
    for status in {kind.status for kind in KINDS.values()}
}
READ = (401, 404, 409, 422, 429, 503)  # 409: what is read may be locked, as by a migration
OPENAI_READ = (400, 401, 404, 409, 429, 503)
WRITE = (401, 404, 408, 409, 413, 415, 422, 429, 503)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems a route can answer with, for `responses=`."""
    return {status: _answer(Problem, _DESCRIPTIONS[status], PROBLEM_JSON) for status in statuses}


_BY_CONNECTION = (431,)
_OF_BROWSERS = (403, 421)
_VENDORS = (400, 401, 404, 408, 409, 413, 415, 422, 429, 502, 503, 504)


def openai_refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The same for a route with OpenAI's error shape."""
    return dict.fromkeys(statuses, _answer(ChatErrorOut, "OpenAI's error shape"))


def usual_refusals(path: str, *, reads: bool) -> dict[int | str, dict[str, Any]]:
    """The problems of a route that names none, in the error shape of its path's clients."""
    shape = error_shape(path)
    if shape == "anthropic":
        return dict.fromkeys(_VENDORS, _answer(MessagesErrorOut, "Anthropic's error shape"))
    if shape == "openai":
        return openai_refusals(*(OPENAI_READ if reads else _VENDORS))
    names_something = "{" in path  # which may not be there
    return refusals(*(each for each in (READ if reads else WRITE) if names_something or each != 404))


def _answer(shape: type[BaseModel], description: str, media_type: str = "application/json") -> dict[str, Any]:
    """An answer as the document has it: for a model, FastAPI would build a validator for each status of each route."""
    schema = {"$ref": f"#/components/schemas/{shape.__name__}"}
    return {"description": description, "content": {media_type: {"schema": schema}}}


def event_stream(description: str, event: JsonObject, **others: JsonObject) -> dict[int | str, dict[str, Any]]:
    """An answer that may be a stream of server-sent events, for `responses=`. `event` is the schema of the events'
    names.

    The schema of a stream describes one of its events. If `event` is empty, events have data and no name.
    """
    properties = {"data": {"type": "string"}} | ({"event": event} if event else {})
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {200: {"description": description, "content": {"text/event-stream": {"schema": schema}}, **others}}


SESSION_HEADER = "X-Session-Id"


def session_answers(description: str, event: JsonObject) -> dict[int | str, dict[str, Any]]:
    """An answer, whole or streamed, with its session's id in a header, for `responses=`."""
    headers = {SESSION_HEADER: {"schema": {"type": "string", "format": "uuid"}}}
    return event_stream(f"{description}; `X-Session-Id` names the session.", event, headers=headers)


def describe(app: FastAPI) -> None:
    """Replaces the application's OpenAPI document with a complete one. It is made when first requested, then cached."""
    app.openapi = cache(partial(_document, app))


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
        servers=[{"url": "/", "description": "The service that serves this document."}],
    )
    components = document.setdefault("components", {})
    _, found = models_json_schema(
        [(shape, "serialization") for shape in (Problem, ChatErrorOut, MessagesErrorOut)],
        ref_template="#/components/schemas/{model}",
    )
    components.setdefault("schemas", {}).update(found["$defs"])
    components["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key (`plimsoll keys create`). Not needed while no key exists. The header "
            "`x-api-key` with the key alone is accepted too.",
        }
    }
    requested: set[str] = set()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            answered = operation["responses"]
            answered |= {str(status): answer for status, answer in refusals(*_BY_CONNECTION, *_OF_BROWSERS).items()}
            if error_shape(path) in ("openai", "anthropic"):
                answered |= {str(status): answered["401"] for status in _OF_BROWSERS}
            if "HTTPValidationError" in str(answered.get("422")):  # FastAPI's own, which no route answers
                del answered["422"]
            if path.startswith("/v1/"):
                operation["security"] = [{}, {"key": []}]
            if (body := operation.get("requestBody", {}).get("content", {}).get("application/json")) is not None:
                body |= {"example": EXAMPLES[operation["operationId"]]}
                _leave_defaults_out(body["schema"], components["schemas"], requested)
            _share_refusals(answered, components.setdefault("responses", {}))
    for unused in ("HTTPValidationError", "ValidationError"):
        del components["schemas"][unused]
    _close_answers(components["schemas"], requested)
    return document


def _share_refusals(answered: JsonObject, shared: JsonObject) -> None:
    """Moves refusals into the document's shared responses, so that equal refusals of operations are in it once."""
    for status, answer in answered.items():
        if status >= "400":
            (content,) = answer["content"].values()
            name = content["schema"]["$ref"].rpartition("/")[2] + status
            if shared.setdefault(name, answer) == answer:
                answered[status] = {"$ref": f"#/components/responses/{name}"}


def _close_answers(schemas: JsonObject, requested: set[str]) -> None:
    """Removes the default `additionalProperties: true` from answers: types generated from it accept any field name."""
    for name in schemas.keys() - requested - {"Problem"}:  # a problem's other members depend on its code
        if schemas[name].get("properties") and schemas[name].get("additionalProperties") is True:
            del schemas[name]["additionalProperties"]


def _leave_defaults_out(schema: object, schemas: JsonObject, done: set[str]) -> None:
    """Moves defaults into descriptions, because TypeScript generators make a field with a default a required one."""
    if isinstance(schema, list):
        for each in cast("list[object]", schema):
            _leave_defaults_out(each, schemas, done)
    if not isinstance(schema, dict):
        return
    fields = cast(JsonObject, schema)
    name = str(fields.get("$ref", "")).removeprefix("#/components/schemas/")
    if name and name not in done:
        done.add(name)
        _leave_defaults_out(schemas[name], schemas, done)
    for field in cast("dict[str, JsonObject]", fields.get("properties", {})).values():
        default = field.pop("default", None)
        if default is not None:
            described = f"{field.get('description', '')} Default: `{orjson.dumps(default).decode()}`."
            field["description"] = described.strip()
    for key, value in fields.items():
        if key != "example":
            _leave_defaults_out(value, schemas, done)
