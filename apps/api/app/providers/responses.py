"""OpenAI's Responses over HTTP, without anything stored at the provider. OpenAI's models from GPT-5.4 on reason beside
tools only here: chat completions refuse it. developers.openai.com/api/docs/guides/migrate-to-responses"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from app.domain.content import (
    content_text,
    custom_input,
    fields_of,
    is_custom,
    sha256_hex,
    with_object_arguments,
    with_speakers,
)
from app.domain.types import CHAT_OPTIONS, Content, JsonObject, PromptMessage, ToolDefinition
from app.providers.error_object import ErrorObject
from app.providers.openai_breakpoints import with_breakpoints
from app.providers.remote import Part, WireCall
from app.providers.responses_answer import REASONING, ResponseAssembly
from app.providers.wire import json_bytes, reasoning_blocks

_LEAST_OUTPUT_TOKENS: Final = 16
"""The API refuses a lower limit."""
_NO_PARAMETERS: Final[JsonObject] = {"type": "object", "properties": {}}
_UNCHANGED: Final = frozenset({"temperature", "top_p", "service_tier"})
RESPONSES_OPTIONS: Final = _UNCHANGED | {"parallel_tool_calls", "reasoning_effort", "verbosity", "response_format"}
"""Those of chat completions that this API has, some by other names. Others are left out."""
_LONGEST_CALL_ID: Final = 64
_SEALED: Final = re.compile(r"encrypted[ _]content", re.IGNORECASE)


class ResponsesCall(WireCall):
    of_one_prompt = frozenset({"reasoning"})

    def assembly(self) -> ResponseAssembly:
        return ResponseAssembly()

    def body(self, *, stream: bool) -> Sequence[bytes]:
        request, takes = self.request, self.takes
        custom = self.custom_names
        messages = request.messages if takes("malformed_arguments") else map(with_object_arguments, request.messages)
        items_of = partial(_items, custom=custom, with_reasoning=takes("reasoning"))
        items = items_of(messages := list(messages))
        if takes("breakpoints"):
            lasting = len(items_of(messages[: request.lasting_messages]))
            items = with_breakpoints(items, lasting, text_type="input_text")
        body: JsonObject = {
            "model": self.entry.model,
            "store": False,
            **_options({**self.entry.parameters, **request.options}),
            "max_output_tokens": max(request.max_output_tokens, _LEAST_OUTPUT_TOKENS),
            "input": items,
        }
        if takes("sealed"):
            body["include"] = ["reasoning.encrypted_content"]
        if takes("cache_key") and request.cache_key is not None:
            body.setdefault("prompt_cache_key", request.cache_key)
        if request.tools:
            body["tools"] = list(map(_tool, self.tools()))
            if request.options.get("parallel_tool_calls") is not None:
                body["parallel_tool_calls"] = request.options["parallel_tool_calls"]
            if request.tool_choice is not None:
                body["tool_choice"] = _choice(request.tool_choice, custom)
        if takes("schema") and request.response_schema is not None:
            wanted = {"type": "json_schema", "name": request.purpose, "schema": request.response_schema}
            body["text"] = {**body.get("text", {}), "format": {**wanted, "strict": False}}
        return (json_bytes({**body, "stream": True} if stream else body),)

    def refusals(self, error: ErrorObject, *, stream: bool, refused: bool) -> Mapping[Part, object]:  # noqa: ARG002 - the protocol's
        """Models that do not reason have no encrypted reasoning, and none reads that of another."""
        request, of_sealed = self.request, _SEALED.search(error.message) or "invalid_encrypted_content" in error.codes
        return {
            "reasoning": of_sealed and any("reasoning_blocks" in each for each in request.messages),
            "sealed": of_sealed or error.names("include"),
            "cache_key": error.refuses("prompt_cache_key"),
            "breakpoints": error.names("prompt_cache_breakpoint"),
            "custom_tools": self.custom_names and error.names("custom"),
            "malformed_arguments": self.has_malformed_arguments,
            "schema": request.response_schema is not None and error.names("text", "json_schema"),
        }


def _options(given: Mapping[str, Any]) -> JsonObject:
    """Options by the names of this API, without those of chat completions that it does not have. Those of the
    catalogue's file that chat completions do not have are sent unchanged."""
    sent = {name: value for name, value in given.items() if name in _UNCHANGED or name not in CHAT_OPTIONS}
    reasoning, text = ({**fields_of(sent.get(name))} for name in ("reasoning", "text"))  # not those of the file itself
    if given.get("reasoning_effort") is not None:
        reasoning["effort"] = given["reasoning_effort"]
    if given.get("verbosity") is not None:
        text["verbosity"] = given["verbosity"]
    wanted = fields_of(given.get("response_format"))
    if wanted:
        text["format"] = {**fields_of(wanted.get("json_schema")), "type": wanted.get("type")}
    return sent | ({"reasoning": reasoning} if reasoning else {}) | ({"text": text} if text else {})


def _items(
    messages: Sequence[PromptMessage], *, custom: frozenset[str | None], with_reasoning: bool
) -> list[JsonObject]:
    """The prompt as items, whose calls of the `custom` tools are calls of custom tools. They have no ids: the provider
    would look for stored items."""
    items: list[JsonObject] = []
    custom_ids: set[str] = set()
    for message in with_speakers(messages):  # the API has no field for a speaker's name
        role, content = message["role"], message.get("content")
        if role == "tool":
            kind = "custom_tool_call_output" if message["tool_call_id"] in custom_ids else "function_call_output"
            items.append({"type": kind, "call_id": _call_id(message["tool_call_id"]), "output": _content(content)})
            continue
        if with_reasoning:
            blocks = reasoning_blocks(message, REASONING)
            items += [{**block, "summary": _summary(block.get("summary"))} for block in blocks]
        if content:
            sent = content_text(content) if role == "assistant" else _content(content)
            items.append({"role": role, "content": sent})
        for call in message.get("tool_calls", ()):
            function, named = call["function"], {"call_id": _call_id(call["id"]), "name": call["function"]["name"]}
            if function["name"] in custom:
                custom_ids.add(call["id"])
                text = custom_input(function["arguments"])
                items.append({"type": "custom_tool_call", **named, "input": text})
            else:
                items.append({"type": "function_call", **named, "arguments": function["arguments"]})
    return items


def _call_id(identity: str) -> str:
    """An id within the API's limit. Those of other servers may be longer: LiteLLM's have the signature of a thought."""
    return identity if len(identity) <= _LONGEST_CALL_ID else sha256_hex(identity)[:_LONGEST_CALL_ID]


def _summary(text: str | None) -> list[JsonObject]:
    return [{"type": "summary_text", "text": text}] if text else []


def _content(content: Content) -> str | list[JsonObject]:
    return content or "" if content is None or isinstance(content, str) else list(map(_part, content))


def _part(part: Mapping[str, Any]) -> JsonObject:
    kind = part.get("type")
    match kind:
        case "text":
            return {"type": "input_text", "text": part["text"]}
        case "image_url":
            image = part["image_url"]
            return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail") or "auto"}
        case "file":
            return {"type": "input_file", **part["file"]}
        case _:
            return dict(part)  # of sound, which has the same form


def _tool(tool: ToolDefinition) -> JsonObject:
    """The definition without the member that has the kind's name. Functions are strict here unless they say not."""
    if not is_custom(tool):
        return {"type": "function", "strict": False, "parameters": _NO_PARAMETERS, **tool["function"]}
    form = fields_of(tool["custom"].get("format"))
    grammar = fields_of(form.get("grammar"))
    return {"type": "custom", **tool["custom"], **({"format": {"type": "grammar", **grammar}} if grammar else {})}


def _choice(choice: str | Mapping[str, Any], custom: frozenset[str | None]) -> object:
    if isinstance(choice, str):
        return choice
    name = choice["function"]["name"]
    return {"type": "custom" if name in custom else "function", "name": name}
