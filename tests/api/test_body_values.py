"""How many values a body may have, counted outside of strings before any is made; and where its errors are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from app.api.schemas.archive import PromptRefs
from app.api.schemas.bodies import MOST_VALUES, parse_body, places
from app.api.schemas.chat import ChatIn, CompletionIn
from app.api.schemas.items import ConversationIn
from app.api.schemas.responses import ResponseIn
from app.domain.errors import InvalidRequest

_TEXTS = st.text(alphabet=st.sampled_from('a,[{"\\\n é'), max_size=12)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | _TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_TEXTS, inner, max_size=5),
    max_leaves=30,
)


def _count(value: Any) -> int:
    """The values in it, an empty list or object counted twice."""
    if isinstance(value, dict):
        value = list(cast("dict[str, Any]", value).values())
    if not isinstance(value, list):
        return 1
    return 1 + (sum(map(_count, cast("list[Any]", value))) if value else 1)


@given(_VALUES, st.booleans(), st.booleans())
def test_a_body_has_as_many_values_as_it_may_and_not_one_more(value: Any, ascii_only: bool, spaced: bool) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    raw = json.dumps(value, ensure_ascii=ascii_only, separators=separators).encode()
    assert parse_body(raw, _count(value)) == value
    if isinstance(value, list | dict):
        with pytest.raises(InvalidRequest):
            parse_body(raw, _count(value) - 1)


def test_marks_in_texts_are_no_values() -> None:
    table = 'a,"b",[c],{d}\n' * 60_000
    assert parse_body(json.dumps({"content": table}).encode()) == {"content": table}


@pytest.mark.parametrize("end", ['"', '"\\', "", '"' + '\\"' * 100_000], ids=["quote", "backslash", "comma", "quotes"])
def test_a_text_that_does_not_end_is_no_json(end: str) -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        parse_body((f'["{"," * MOST_VALUES}",' + end).encode())


def test_a_body_in_another_encoding_is_refused_with_the_place() -> None:
    with pytest.raises(InvalidRequest, match="not valid UTF-8 at byte 2"):
        parse_body('["é"]'.encode("latin-1"))


def test_an_unterminated_body_with_too_many_values_is_refused_for_the_values() -> None:
    with pytest.raises(InvalidRequest, match="more than 100000 values"):
        parse_body(b"[" + b"0," * MOST_VALUES + b'"')


@pytest.mark.parametrize(("messages", "described"), [(3, 3), (30, 20), (40_000, 1)])
def test_the_first_of_some_errors_are_described_and_very_many_are_counted(messages: int, described: int) -> None:
    """Pydantic describes all or none: for 40,000 that blocked the event loop for 0.2 s."""
    body = {"model": "offline", "messages": [{"role": "nobody"}] * messages}
    with pytest.raises(ValidationError) as refused:
        ChatIn.model_validate(body)
    found = places(refused.value, body, "body")
    assert len(found) == described
    place, reason = found[0]
    if described > 1:
        assert place == "body.messages.0"
    else:
        assert (place, reason.partition(" ")[0]) == ("body", "40000")


FUNCTION: dict[str, object] = {"type": "function", "function": {}}
SCHEMA: dict[str, object] = {"type": "json_schema", "json_schema": {}}


@pytest.mark.parametrize(
    ("schema", "body", "place"),
    [
        (ChatIn, {"stop": 3}, "body.stop"),
        (ChatIn, {"stop": ["a", 3]}, "body.stop.1"),
        (ChatIn, {"tool_choice": {"type": "function", "function": {}}}, "body.tool_choice.function.name"),
        (ChatIn, {"tools": [FUNCTION]}, "body.tools.0.function.name"),
        (ChatIn, {"response_format": SCHEMA}, "body.response_format.json_schema.name"),
        (CompletionIn, {"prompt": []}, "body.prompt"),
        (ResponseIn, {"conversation": {"id": 3}}, "body.conversation.id"),
        (ResponseIn, {"tool_choice": "some"}, "body.tool_choice"),
        (ConversationIn, {"metadata": {"str": 3}}, "body.metadata.str"),
        (ConversationIn, {"metadata": {"k" * 65: "v"}}, f"body.metadata.{'k' * 65}.[key]"),
        (
            ConversationIn,
            {"items": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "body.items.0.content.0.text",
        ),
        (PromptRefs, {"items": [["b", "no hash", "user"]], "tools": None}, "body.items.0.1"),
    ],
)
def test_the_place_of_an_error_has_the_names_of_the_body_alone(
    schema: type[BaseModel], body: Mapping[str, object], place: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        schema.model_validate(body)
    assert place in {found for found, _ in places(refused.value, body, "body")}


@pytest.mark.parametrize("kind", ["web_search_call", "apply_patch_call_output", "tool_search_output", "mcp_list_tools"])
def test_an_item_of_a_tool_that_openai_hosts_is_named_and_another_is_not_quoted(kind: str) -> None:
    for sent, named in ((kind, kind), (f"x{kind}", "this type")):
        with pytest.raises(ValidationError, match=f"Items of {named} are of tools that OpenAI hosts"):
            ConversationIn.model_validate({"items": [{"type": sent}]})


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (rb'"\u0000 \ud83d \ude00"', "\ufffd \ufffd \ufffd"),
        (rb'"\ud83d\ude00 \uD83D\uD83D\uDE00\uDE00"', "\U0001f600 \ufffd\U0001f600\ufffd"),
        (rb'"\\u0000 \\ud83d \\\\ud83d \\\ud83d"', "\\u0000 \\ud83d \\\\ud83d \\\ufffd"),
        (rb'[{"type":"text","text":"\u0000"},"\u0000"]', [{"type": "text", "text": "\ufffd"}, "\ufffd"]),
    ],
)
def test_what_cannot_be_stored_is_replaced_in_a_text(raw: bytes, value: object) -> None:
    assert parse_body(b'{"content":' + raw + b"}") == {"content": value}


def test_all_of_a_calls_input_is_text_but_not_the_items_of_an_input() -> None:
    assert parse_body(rb'{"input":{"id":["\u0000"]}}') == {"input": {"id": ["\ufffd"]}}
    for refused in (rb'{"input":[{"id":"\u0000"}]}', rb'{"content":[{"id":"\ud83d"}]}', rb'{"input":{"\u0000":1}}'):
        with pytest.raises(InvalidRequest, match="NUL"):
            parse_body(refused)


def test_a_body_that_is_no_json_besides_is_refused_for_that() -> None:
    with pytest.raises(InvalidRequest, match="unexpected end of data at character 18"):
        parse_body(rb'{"content":"\ud83d')
