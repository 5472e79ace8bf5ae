"""An adapter sends the options that it says it has, and leaves out what a server may refuse where one refused it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, get_args

import pytest

from app.domain.types import CHAT_OPTIONS, CompletionRequest, JsonObject
from app.providers import anthropic, openai, remote, responses
from app.providers.remote import Part

from .server import serving
from .wires import ANTHROPIC, OPENAI, RESPONSES, ModelReply, Wire

_TOOL: JsonObject = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
}
_SCHEMA: JsonObject = {
    "type": "json_schema",
    "json_schema": {"name": "fact", "schema": {"type": "object", "properties": {}}},
}
_VALUES: Mapping[str, Any] = {
    "temperature": 0.3,
    "top_p": 0.4,
    "stop": ["END"],
    "seed": 7,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.2,
    "logit_bias": {"50256": -100},
    "response_format": _SCHEMA,
    "parallel_tool_calls": False,
    "reasoning_effort": "low",
    "verbosity": "low",
    "service_tier": "flex",
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "chat_template_kwargs": {"enable_thinking": False},
}


def test_these_tests_have_a_value_for_every_option() -> None:
    assert _VALUES.keys() == CHAT_OPTIONS


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC, RESPONSES], ids=lambda wire: wire.name)
async def test_an_option_changes_the_request_if_the_adapter_supports_it_and_only_then(wire: Wire) -> None:
    async with serving(wire.whole(ModelReply())) as server, wire.provider_at(server.base_url) as provider:

        async def sent(options: Mapping[str, Any]) -> Any:
            messages = [{"role": "user", "content": "Hello"}]
            await provider.complete(CompletionRequest(messages, 200, tools=[_TOOL], options=options))
            return server.seen[-1].json

        plain = await sent({})
        changed = {name for name, value in _VALUES.items() if await sent({name: value}) != plain}
        assert changed == provider.options


@pytest.mark.parametrize("module", [openai, anthropic, responses], ids=lambda module: module.__name__)
def test_a_part_that_is_left_out_where_it_was_refused_is_one_that_can_be_refused(module: ModuleType) -> None:
    taken, refused = set(_parts_taken(module)), set(_parts_refused(module))
    assert taken - {"max_completion_tokens"} - refused == set(), "the limit's newer name is refused as `limit_field`"
    assert refused - taken - set(_parts_taken(remote)) == set()


def test_every_part_is_of_a_protocol() -> None:
    modules = (openai, anthropic, responses, remote)
    assert {part for module in modules for part in _parts_taken(module)} == set(get_args(Part))


def _nodes(module: ModuleType) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(inspect.getsource(module)))


def _parts_taken(module: ModuleType) -> Iterator[str]:
    """The words in calls of `takes`."""
    for node in _nodes(module):
        match node:
            case ast.Call(func=ast.Name("takes") | ast.Attribute(attr="takes"), args=[ast.Constant(str(part))]):
                yield part
            case _:
                pass


def _parts_refused(module: ModuleType) -> Iterator[str]:
    """The keys of what `refusals` returns."""
    for node in _nodes(module):
        match node:
            case ast.FunctionDef(name="refusals", body=[*_, ast.Return(ast.Dict(keys))]):
                yield from (str(key.value) for key in keys if isinstance(key, ast.Constant))
            case _:
                pass
