"""Any answer with any of its values replaced by any other is read, or refused in the words of its protocol."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.content import fields_of
from app.domain.types import Completion, ToolCall
from app.providers.anthropic_answer import MessageAssembly
from app.providers.error_object import ErrorObject, error_object
from app.providers.failures import provider_error
from app.providers.openai_answer import ChatAssembly
from app.providers.responses_answer import ResponseAssembly
from app.providers.stream import Assembly, EventReader, StreamedError
from app.providers.wire import MalformedAnswerError, decode_json, json_bytes, list_of

from .wires import ANTHROPIC, OPENAI, RESPONSES, ModelReply, Wire, event

_REPLY = ModelReply(
    text="Hello.", reasoning="Hm.", calls=(ToolCall("c1", "look", '{"a": 1}'), ToolCall("c2", "see", "{}"))
)
_ODD: list[Any] = [None, True, False, 0, -1, 2**31, 10**30, 1e300, "", "x", "\x00", "\ud800", [], {}, [[]], [None]]
_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(_ODD),
    st.dictionaries(st.sampled_from(["type", "text", "name", "id", "function", "message"]), st.just([]), max_size=3),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3),
)


def _places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    yield path
    inner: list[tuple[Any, Any]] = [*fields_of(value).items(), *enumerate(list_of(value))]
    for name, child in inner:
        yield from _places(child, *path, name)


def _replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(document)
    parent = changed
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = value
    return changed


def _check(completion: Completion) -> None:
    for text in (completion.text, completion.reasoning, completion.provider_model):
        assert text is None or (text.encode() is not None and "\x00" not in text)
    assert all(call.id and call.name and call.arguments for call in completion.tool_calls)
    if completion.usage is not None:
        assert 0 <= completion.usage.prompt_tokens < 2**33


_OF_OPENROUTER: dict[str, Any] = {
    "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "Hm.", "signature": "s"}],
    "tool_calls": [{"index": 2, "id": "c3", "type": "custom", "custom": {"name": "patch", "input": "x"}}],
}


def _answer_of_openrouter(reply: ModelReply) -> dict[str, Any]:
    answer = OPENAI.answer(reply)
    message = answer["choices"][0]["message"]
    message |= {**_OF_OPENROUTER, "tool_calls": [*message["tool_calls"], *_OF_OPENROUTER["tool_calls"]]}
    return answer


OPENROUTER = replace(
    OPENAI,
    answer=_answer_of_openrouter,
    begin=lambda: [*OPENAI.begin(), event({"choices": [{"index": 0, "delta": _OF_OPENROUTER}]})],
)
_ASSEMBLIES = [
    (OPENAI, ChatAssembly),
    (OPENROUTER, partial(ChatAssembly, with_details=True)),
    (ANTHROPIC, MessageAssembly),
    (RESPONSES, ResponseAssembly),
]


@pytest.mark.parametrize(("wire", "assembly"), _ASSEMBLIES)
@given(data=st.data())
def test_a_whole_answer_is_read_or_refused(wire: Wire, assembly: Callable[[], Assembly], data: st.DataObject) -> None:
    answer = wire.answer(_REPLY)
    changed = _replaced(answer, data.draw(st.sampled_from([*_places(answer)])), data.draw(_VALUES))
    try:
        received = decode_json(json_bytes(changed))
        provider_error(data.draw(st.integers(300, 999)), error_object(received) or ErrorObject(), "main")
        _check(assembly().whole(received))
    except MalformedAnswerError:
        pass


@pytest.mark.parametrize(("wire", "assembly"), _ASSEMBLIES)
@given(data=st.data())
def test_a_streamed_answer_is_read_or_refused(
    wire: Wire, assembly: Callable[[], Assembly], data: st.DataObject
) -> None:
    events = [*EventReader(2**20).feed(b"".join(wire.stream(_REPLY).pieces))]
    number = data.draw(st.sampled_from([at for at, event in enumerate(events) if event.data.startswith(b"{")]))
    document = json.loads(events[number].data)
    changed = _replaced(document, data.draw(st.sampled_from([*_places(document)])), data.draw(_VALUES))
    growing = assembly()
    try:
        for at, event in enumerate(events):
            sent = b"event: %b\ndata: %b\n\n" % (
                event.name.encode(),
                json_bytes(changed) if at == number else event.data,
            )
            for read in EventReader(2**20).feed(sent):
                growing.read(read)
        growing.rest()
        _check(growing.completion())
    except (MalformedAnswerError, StreamedError):
        pass
