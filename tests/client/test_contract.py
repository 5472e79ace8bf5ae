"""The client is the service's: every route, every parameter, every field, every code. Real answers have no other."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx
import pytest
from pydantic import BaseModel

from app.api.connections import KEEP_ALIVE_S
from app.api.problems import KINDS
from plimsoll_sdk import AsyncPlimsoll, Plimsoll, operations
from plimsoll_sdk.call import OPERATIONS, Call
from plimsoll_sdk.connection import POOL_LIMITS
from plimsoll_sdk.errors import BY_CODE, LimitExceeded, NotFound, problem_of
from plimsoll_sdk.models import Answer
from tests.client.clients import ALL, Kind, Talker, talker
from tests.client.typescript import Driven, camel_case, driven

VENDORS_OWN = ("/v1/completions", "/v1/responses", "/v1/conversations", "/v1/messages")
"""In a vendor's form, with the vendor's own client: the packages `openai` and `anthropic` are what calls them."""
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
CALLS = {"tool_calls": [{"id": "a", "function": {"name": "look_up", "arguments": '{"order": 7}'}}]}
LONG = "The reconciliation job compares ledger rows with bank lines. " * 12


@pytest.fixture
def document(client: httpx.Client) -> dict[str, Any]:
    """The service's OpenAPI document, as it is served."""
    return client.get("/openapi.json").json()


def routes(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Its operations by method and address."""
    return {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        if not path.startswith(VENDORS_OWN)
        for method, operation in methods.items()
    }


def resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The schema itself, where it is a reference."""
    for step in schema.get("$ref", "").removeprefix("#/").split("/") if "$ref" in schema else ():
        document = document[step]
    return document if "$ref" in schema else schema


def test_every_route_of_the_service_has_a_method_in_both_clients_and_no_method_is_without_one(
    document: dict[str, Any],
) -> None:
    assert set(OPERATIONS) == set(routes(document))
    for builds in OPERATIONS.values():
        for build in builds:
            for kind in (Plimsoll, AsyncPlimsoll):
                method = getattr(kind, build.__name__)
                assert method.__wrapped__ is build
                assert method.__doc__ == build.__doc__


def test_both_clients_have_the_same_public_names() -> None:
    own = {"close": "aclose"}
    public = [
        {own.get(name, name) for name in vars(kind) if not name.startswith("_")} for kind in (Plimsoll, AsyncPlimsoll)
    ]
    assert public[0] == public[1]


async def test_the_typescript_client_has_the_same_names_and_the_same_class_for_every_code() -> None:
    names = {camel_case(name) for name in vars(AsyncPlimsoll) if not name.startswith("_")}
    problems = {
        code: (KINDS[code].status if code in KINDS else _STATUS_OF_VENDORS[code], kind.__name__)
        for code, kind in BY_CODE.items()
    }
    async with driven("http://127.0.0.1:8000") as at:
        shown = await at.surface({code: status for code, (status, _) in problems.items()})
    assert set(shown["methods"]) == names - {"aclose", "patience", "send", "perform", "exchanged"}
    assert shown["classes"] == {code: name for code, (_, name) in problems.items()}


_STATUS_OF_VENDORS = {"context_length_exceeded": 400, "invalid_api_key": 401, "rate_limit_exceeded": 429}


def test_every_parameter_and_every_field_of_a_body_is_a_parameter_of_the_method(document: dict[str, Any]) -> None:
    for route, operation in routes(document).items():
        taken = {name for build in OPERATIONS[route] for name in inspect.signature(build).parameters}
        asked = {
            parameter["name"].lower().replace("-", "_").removeprefix("x_")
            for parameter in operation.get("parameters", ())
        }
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None and route[1] not in WHOLE_BODIES:
            asked |= resolved(_of_body(body["schema"]), document)["properties"].keys()
        assert asked - taken - {"stream"} <= LEFT_OUT.get(route, set()), route


WHOLE_BODIES = {"/v1/chat/completions": "body", "/v1/sessions/import": "document"}
LEFT_OUT = {
    ("POST", "/v1/sessions/{session_id}/context/preview"): {"recorded_reply"},  # it changes nothing there
    ("POST", "/v1/chat/completions"): {"session_affinity"},  # for programs that can name no session
}


def _of_body(schema: dict[str, Any]) -> dict[str, Any]:
    return next((option for option in schema.get("anyOf", ()) if option.get("type") != "null"), schema)


def test_every_field_of_an_answer_is_known_by_name_kind_and_whether_it_may_be_null(document: dict[str, Any]) -> None:
    compared: set[str] = set()
    for route, operation in routes(document).items():
        stated = [operation["responses"].get(status, {}).get("content", {}) for status in ("200", "201")]
        schema = next((each["application/json"]["schema"] for each in stated if "application/json" in each), None)
        for build in OPERATIONS[route]:
            answer = _answer_of(build)
            if schema is not None and isinstance(answer, type) and issubclass(answer, Answer):
                _compare(answer, schema, document, build.__name__, compared)
    assert {
        "post_turn.turn.tool_calls.function",
        "list_summaries.items.key_facts",
        "get_models.items.prices",
    } <= compared


def _answer_of(build: Callable[..., Call[Any]]) -> Any:
    asked = typing.get_type_hints(cast(Any, build).__wrapped__, dict(vars(operations)))["return"]
    return typing.get_args(asked)[0]


def _compare(
    model: type[BaseModel], schema: dict[str, Any], document: dict[str, Any], at: str, compared: set[str]
) -> None:
    if at in compared or at.count(".tiers") > 1:
        return
    compared.add(at)
    schema = resolved(schema, document)
    assert model.model_fields.keys() == schema["properties"].keys(), at
    for name, field in model.model_fields.items():
        described = schema["properties"][name]
        options = [resolved(option, document) for option in described.get("anyOf", [described])]
        nullable = any(option.get("type") == "null" for option in options)
        kinds = list(_kinds(field.annotation))
        assert (types.NoneType in kinds) == nullable, (at, name)
        nested = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if nested is not None:
            inner = next(option for option in options if option.get("type") != "null")
            _compare(nested, inner.get("items", inner), document, f"{at}.{name}", compared)


def _kinds(annotation: Any) -> Iterator[Any]:
    """The types in an annotation; of a list those of its items."""
    arguments = typing.get_args(annotation)
    if not arguments or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        yield annotation
    elif typing.get_origin(annotation) is dict:
        yield dict
    else:
        for argument in arguments:
            yield from _kinds(argument)


def test_every_code_of_the_service_has_an_error_of_its_own_kind() -> None:
    assert KINDS.keys() <= BY_CODE.keys()
    for code, kind in KINDS.items():
        error = problem_of(kind.status, {"code": code, "title": kind.title, "detail": "Why.", "extra": 1})
        assert (error.code, error.status, error.detail, error.fields) == (code, kind.status, "Why.", {"extra": 1})
        assert isinstance(error, NotFound) == (kind.status == 404)
    assert isinstance(problem_of(404, {"code": "of_next_year", "detail": ""}), NotFound)
    for of_a_proxy in ({"code": 429, "limit": 60}, {"code": 429, "limit": {"unit": "minute"}}, {"code": 429}):
        limited = problem_of(429, of_a_proxy)
        assert isinstance(limited, LimitExceeded)
        assert limited.limit is None


@ALL
async def test_real_answers_have_the_fields_of_the_models_and_no_other(address: str, kind: Kind) -> None:
    async with talker(kind, address) as at:
        answers = await everything(at)
    asked = {name for name, _ in answers}
    assert {build.__name__ for builds in OPERATIONS.values() for build in builds} - asked == set()
    for name, answer in answers:
        for place, model in _models(answer, name):
            assert not model.model_extra, place
            unset = set(type(model).model_fields) - model.model_fields_set
            assert unset <= MAY_BE_ABSENT.get(type(model).__name__, set()), place


MAY_BE_ABSENT = {
    "ListedSession": {"figures"},
    "TimelineEvent": {"tokens", "count", "summary_id", "origin", "status"},
    "TrimLog": {"recalled", "looked_back"},
    "TrimAction": {"count"},
    "ListedPin": {"figures"},
    "Limits": {
        f"{what}_{span}"
        for what in ("turns", "tokens", "usd")
        for span in ("per_minute", "per_day", "per_month", "total")
    },
}


def _models(value: object, at: str) -> Iterator[tuple[str, BaseModel]]:
    if isinstance(value, BaseModel):
        yield at, value
        for name in type(value).model_fields:
            yield from _models(getattr(value, name), f"{at}.{name}")
    elif isinstance(value, (list, tuple)):
        for item in cast("list[object]", value):
            yield from _models(item, at)
    elif hasattr(value, "__dataclass_fields__"):
        for name, member in vars(value).items():
            yield from _models(member, f"{at}.{name}")


async def everything(at: Talker | Driven) -> list[tuple[str, Any]]:
    """Calls every method of a client against a service, and gives what each answered."""
    answers: list[tuple[str, Any]] = []

    async def ask(name: str, *args: Any, **kwargs: Any) -> Any:
        answers.append((name, await at.call(name, *args, **kwargs)))
        return answers[-1][1]

    async def stated(name: str, *args: Any, **kwargs: Any) -> list[Any]:
        answers.append((name, await at.all(name, *args, **kwargs)))
        return answers[-1][1]

    for name in ("get_root", "get_health", "get_readiness", "get_metrics", "get_models", "get_policies"):
        await ask(name)
    assert (await ask("get_model", "offline")).id == "offline"
    session = await ask(
        "create_session", room_goal="Pay the invoices", limits={"turns_total": 100}, metadata={"of": "a test"}
    )
    sid = session.id
    assert (await ask("change_session", sid, room_goal=None, mode="research")).room_goal is None
    for number in range(10):
        await at.call("post_turn", sid, f"{number} {LONG}")
    assert (
        await ask("put_pin", sid, "notes/first page.md", "Order 7 is paid.", relevance=0.5, source="me")
    ).relevance == 0.5
    assert (await ask("get_pin", sid, "notes/first page.md")).content == "Order 7 is paid."
    await at.call("put_pin", sid, "../notes/./a?b#c%2F.md", "Its name is only a name.")
    assert [pin.name for pin in (await ask("list_pins", sid)).items] == [
        "../notes/./a?b#c%2F.md",
        "notes/first page.md",
    ]
    assert all(pin.figures.tokens > 0 for pin in (await ask("list_pins", sid, figures=True)).items)
    assert (await ask("search_session", sid, "reconciliation", limit=3)).items[0].excerpt
    page = await ask("look_back", sid, q="reconciliation")
    assert LONG in (await ask("look_back", sid, handle=page.handles[0], page=1)).content
    await ask("get_context", sid)
    (newest, *_) = (await ask("get_timeline", sid)).items
    assert newest.window.input_budget == 13312
    ranges = (await ask("get_overview", sid, points=2, from_seq=3, through_seq=8)).items
    assert (len(ranges), ranges[0].first_seq, ranges[-1].last_seq) == (2, 3, 8)
    assert ranges[0].first_seq <= ranges[0].peak.seq <= ranges[0].last_seq
    assert {one.session_id for one in (await ask("search_messages", "ledger rows", limit=3)).items} == {sid}
    words = (await ask("list_messages", sid)).items
    assert [one.id for one in (await at.call("list_messages", sid, ids=[words[3].id])).items] == [words[3].id]
    preview = await ask("preview_turn", sid, "Is it paid?", policy={"preset": "rolling"})
    assert preview.messages[-1]["content"] == "Is it paid?"
    assert 10 in {row.turn_seq for row in preview.layout}
    turn = (await ask("post_turn", sid, "Is it paid?")).turn
    for name in ("get_turn", "get_audit", "get_prompt"):
        await ask(name, sid, turn.id)
    await ask("get_session", sid)
    summary = await ask("summarize_now", sid, focus="what was decided")
    facts = [{"text": "The harbour closes at nine.", "message_ids": [summary.from_message_id]}]
    edited = await ask("edit_summary", sid, summary.id, key_facts=facts)
    assert (edited.origin, edited.previous_summary_id) == ("person", summary.id)
    assert (await ask("undo_summary", sid, edited.id)).status == "undone"
    assert (await ask("list_summaries", sid)).items[0].id == edited.id
    assert (await ask("undo_summary", sid, summary.id)).status == "undone"
    summary = await ask("summarize_now", sid)
    assert (await ask("undo_active_summary", sid)).id == summary.id
    await ask("simulate", sid, policies=["rolling", {"name": "late", "summary_trigger_ratio": 0.8}])
    events = await stated("stream_turn", sid, "Go", tools=TOOLS, recorded_reply=CALLS)
    assert [event.name for event in events] == ["turn.created", "context.assembled", "turn.awaiting_tools"]
    events = await stated(
        "stream_tool_outputs", sid, events[-1].turn.id, {"a": "42"}, recorded_reply={"content": "It is 42."}
    )
    assert (events[-1].name, events[-1].turn.assistant_output) == ("turn.completed", "It is 42.")
    waiting = (await at.call("post_turn", sid, "Go", tools=TOOLS, recorded_reply=CALLS)).turn
    await ask("post_tool_outputs", sid, waiting.id, {"a": "43"}, recorded_reply={"content": "It is 43."})
    waiting = (await at.call("post_turn", sid, "Go", tools=TOOLS, recorded_reply=CALLS)).turn
    assert (await ask("cancel_turn", sid, waiting.id)).status == "cancelled"
    last = (await at.call("post_turn", sid, "And now?")).turn
    again = await ask("regenerate_turn", sid, last.id, content="And now, please?")
    assert again.session.forked_from.session_id == sid
    assert (await ask("fork_session", sid, through_turn_id=turn.id)).forked_from.turn_id == turn.id
    export = await ask("export_session", sid)
    imported = await ask("import_session", export)
    assert imported.id != sid
    found = await at.all("iterate_found_messages", "ledger rows", limit=3)
    assert {one.session_id for one in found} >= {sid, imported.id}
    await ask(
        "import_messages", [{"role": "user", "content": "Is order 1 paid?"}, {"role": "assistant", "content": "It is."}]
    )
    body = {"model": "offline", "messages": [{"role": "user", "content": "Hello"}]}
    chat_session, completion = await ask("complete_chat", body)
    assert completion["object"] == "chat.completion"
    assert (await at.call("complete_chat", body, session_id=chat_session))[0] == chat_session
    assert len((await ask("list_turns", sid)).items) == 15
    assert [turn.seq for turn in (await at.call("list_turns", sid, from_seq=14)).items] == [14, 15]
    assert (await ask("list_sessions")).items[0].id == chat_session
    reply = completion["choices"][0]["message"]
    longer = {**body, "messages": [*body["messages"], reply, {"role": "user", "content": "And now?"}]}
    branch, _ = await at.call("complete_chat", longer)
    assert (await at.call("get_session", branch)).forked_from.session_id == chat_session
    apart, _ = await at.call("complete_chat", longer, session_new=True)
    assert (await at.call("get_session", apart)).forked_from is None
    assert apart not in {branch, chat_session}
    named, _ = await at.call("complete_chat", body, session_id="my-chat-42")
    assert (await at.call("get_session", named)).external_id == "my-chat-42"
    found = {found.id: found.figures for found in (await ask("list_sessions", q="a test", figures=True)).items}
    assert chat_session not in found
    assert (found[sid].turns, found[sid].window.input_budget) == (15, 13312)
    waiting = (await at.call("post_turn", sid, "Go", tools=TOOLS, recorded_reply=CALLS)).turn
    assert [news.turn_id for news in (await ask("list_open_turns")).items] == [waiting.id]
    await ask("delete_pin", sid, "notes/first page.md")
    await ask("delete_session", sid)
    return answers


def test_an_idle_connection_is_kept_for_a_while_and_given_up_before_the_service_closes_it() -> None:
    assert 10 < (POOL_LIMITS.keepalive_expiry or 0) < KEEP_ALIVE_S / 2
