"""The Messages API over HTTP: Anthropic's own address, or any gateway that speaks it.

The `system` messages before the conversation go to the `system` field, in their order. The others alternate between
user and assistant: adjacent messages of one role are merged, and tool results and later `system` messages are the
user's, so that the conversation before them is read from the cache. Content without a form becomes a line of text.

The API reads tools, system text and messages in this order, and caches everything before a breakpoint, of which it
accepts `_MOST_BREAKPOINTS`. A later prompt finds what ended within `_LOOK_BACK_BLOCKS` up to one of its breakpoints.
platform.claude.com/docs/en/build-with-claude/prompt-caching
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import dropwhile, takewhile
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import httpx

from app.domain.content import as_function, call_input, fields_of, sha256_hex, with_speakers
from app.domain.errors import ProviderError
from app.domain.types import CompletionRequest, JsonObject, PromptMessage
from app.providers.anthropic_answer import MessageAssembly
from app.providers.base import Endpoint
from app.providers.catalogue_file import ModelEntry
from app.providers.error_object import ErrorObject
from app.providers.remote import NO_SUCH_ENDPOINT, Part, RemoteModel, WireCall
from app.providers.transport import RetryPolicy
from app.providers.wire import json_bytes, list_of, reasoning_blocks, token_count

_VERSION: Final = "2023-06-01"
_COUNTING_TIMEOUT_S: Final = 3.0
_COUNTED: Final = ("model", "messages", "system", "tools", "tool_choice", "thinking")
_LEAST_THINKING_TOKENS: Final = 1_024
_THINKING_TYPES: Final = ("thinking", "redacted_thinking")
_EPHEMERAL: Final[Mapping[str, str]] = {"type": "ephemeral"}
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)?((?:;[\w.+-]+=[^;,]*)*)(;base64)?,(.*)", re.DOTALL | re.ASCII)
_IMAGE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_SAMPLING: Final = frozenset({"temperature", "top_p", "top_k"})
_MOST_BREAKPOINTS: Final = 4
_LOOK_BACK_BLOCKS: Final = 20
_CALL_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def messages_url(entry: ModelEntry, path: str = "") -> httpx.URL:
    """The base URL with `/v1/messages` and a path; a base that ends in `/v1` already is taken as it is."""
    base = httpx.URL(entry.address)
    before = base.path.rstrip("/").removesuffix("/v1")
    return base.copy_with(path=f"{before}/v1/messages{path}")


class AnthropicProvider(RemoteModel):
    """One alias over the Messages API."""

    options = _SAMPLING | {"stop", "parallel_tool_calls", "response_format"}
    response_formats = frozenset({"json_schema"})

    def __init__(self, endpoint: Endpoint, *, now: Callable[[], datetime], retry: RetryPolicy | None = None) -> None:
        headers = {**endpoint.headers("x-api-key"), "anthropic-version": _VERSION}
        super().__init__(endpoint, messages_url(endpoint.entry), headers, _MessagesCall, frozenset(), now, retry)
        self._has_counting = True

    async def count_tokens(self, request: CompletionRequest) -> int | None:
        """The prompt's exact tokens, counted within 3 s without retries; None if the server cannot count.

        Raises a `ProviderError`.
        """
        if not self._has_counting:
            return None
        body = _MessagesCall(request, self._entry, self._refused).fields()
        counted = json_bytes({name: body[name] for name in _COUNTED if name in body})
        url = messages_url(self._entry, "/count_tokens")
        try:
            answer = await self._look_up(url, counted, timeout_s=min(_COUNTING_TIMEOUT_S, self._entry.timeout_s))
        except ProviderError as error:
            if error.status not in NO_SUCH_ENDPOINT:
                raise
            self._has_counting = False
            return None
        return token_count(fields_of(answer).get("input_tokens"))


class _MessagesCall(WireCall):
    of_one_prompt = frozenset({"thinking"})

    def assembly(self) -> MessageAssembly:
        return MessageAssembly(self.request.stop_sequences)

    def body(self, *, stream: bool) -> Sequence[bytes]:
        return (json_bytes({**self.fields(), **({"stream": True} if stream else {})}),)

    def fields(self) -> JsonObject:
        """The members of the body, without `stream`."""
        request, entry = self.request, self.entry
        thinking = self._thinking()
        body: JsonObject = {"model": entry.model, "max_tokens": request.max_output_tokens, **entry.parameters}
        body.pop("thinking", None)
        cache_control = body.pop("cache_control", _EPHEMERAL)
        if thinking:
            body["thinking"] = thinking
        leading = sum(1 for _ in takewhile(lambda message: message.get("role") == "system", request.messages))
        system = [
            block
            for message in request.messages[:leading]
            for block in _content_blocks(message.get("content"))
            if block["type"] == "text"
        ]
        if system:
            body["system"] = system
        is_thinking = thinking.get("type") not in {None, "disabled"}
        body["messages"], breakpoints = _alternating(
            request.messages[leading:],
            request.lasting_messages - leading,
            with_thinking=is_thinking,
            goes_on=self._probably_goes_on(),
        )
        body |= self._client_options(is_thinking=is_thinking)
        wanted = fields_of(request.options.get("response_format"))
        if wanted.get("type") in AnthropicProvider.response_formats:
            schema = fields_of(wanted.get("json_schema")).get("schema")
            of_answer = {"format": {"type": "json_schema", "schema": schema}}
            body["output_config"] = {**fields_of(body.get("output_config")), **of_answer}
        tools = [_tool(fields_of(as_function(tool).get("function"))) for tool in self.tools()]
        if self.takes("cache"):
            # In the order of what a cache hit saves; the last system block is the summary, once there is one.
            for block in [*breakpoints, *system[:-3:-1], *tools[-1:]][:_MOST_BREAKPOINTS]:
                block["cache_control"] = cache_control
        if tools:
            body["tools"] = tools
            choice = _tool_choice(request.tool_choice if request.tools else "none")
            if request.options.get("parallel_tool_calls") is False and choice != {"type": "none"}:
                choice = {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
            if choice is not None:
                body["tool_choice"] = choice
        return body

    def refusals(self, error: ErrorObject, *, stream: bool, refused: bool) -> Mapping[Part, object]:  # noqa: ARG002 - the protocol's
        """Some gateways do not know cache breakpoints, and some require the definitions of earlier tools.

        Claude refuses `top_p` beside `temperature` from 4.1 on, Opus all options of sampling from 4.7 on.
        """
        refused_options = {name for name in _SAMPLING & self.request.options.keys() if error.refuses(name)}
        return {
            "cache": error.names("cache_control"),
            "thinking_for_choice": self.refuses_thinking_for_choice(error),
            "thinking": "thinking" in self.entry.parameters and error.names("thinking"),
            "no_earlier_tools": self.requires_earlier_tools(error),
            "top_p_beside_temperature": {"temperature", "top_p"} <= refused_options,
            "sampling": refused_options,
        }

    def _thinking(self) -> JsonObject:
        """The `thinking` member of this call; empty for none.

        With thinking the API requires the signed thinking blocks of a running tool loop, and refuses forced tools; a
        call that cannot meet this is made without thinking. A model that thinks by itself (Claude 5) is told not to. A
        budget that is not below the output limit becomes half of it.
        """
        request, wanted = self.request, fields_of(self.entry.parameters.get("thinking"))
        if self.forces_tools and not self.takes("thinking_for_choice"):
            return {"type": "disabled"}
        if not wanted or wanted.get("type") == "disabled":
            return wanted
        newest = request.messages[_loop_begins(request.messages) + 1 :]
        goes_on = request.purpose == "turn"  # a summary's instruction follows the prompt and ends its loop
        loop = [message for message in newest if goes_on and message.get("tool_calls")]
        if not self.takes("thinking") or self.forces_tools or not all(map(_thinking_blocks, loop)):
            return {}
        budget = wanted.get("budget_tokens")
        if not isinstance(budget, int):
            return wanted
        budget = thinking_tokens(budget, request.max_output_tokens)
        return {**wanted, "budget_tokens": budget} if budget else {}

    def _probably_goes_on(self) -> bool:
        """Whether the next call probably repeats all of this prompt, because the model has called tools before. Writing
        to the cache pays from a probability of about a fifth on."""
        has_called = any(message.get("tool_calls") for message in self.request.messages)
        return self.request.purpose == "turn" and bool(self.request.tools) and has_called

    def _client_options(self, *, is_thinking: bool) -> JsonObject:
        """The client's options that the API supports: temperature is 1 at most, stop sequences are not blank, and with
        thinking there is no sampling."""
        options, sequences = self.request.options, [each for each in self.request.stop_sequences if each.strip()]
        sent: JsonObject = {"stop_sequences": sequences} if sequences else {}
        if self.takes("sampling") and not is_thinking:
            sent |= {
                name: min(1.0, options[name]) for name in ("temperature", "top_p") if options.get(name) is not None
            }
            sent |= {"top_k": options["top_k"]} if options.get("top_k") is not None else {}
        if not self.takes("top_p_beside_temperature") and "temperature" in sent:
            sent.pop("top_p", None)
        return sent


def _alternating(
    messages: Sequence[PromptMessage], lasting_messages: int, *, with_thinking: bool, goes_on: bool
) -> tuple[list[JsonObject], list[JsonObject]]:
    """The conversation, and those of its blocks that get a breakpoint (`_breakpoints`)."""
    loop_begins = _loop_begins(messages)
    sent: list[JsonObject] = []
    spoken: list[JsonObject] = []
    ends: list[tuple[str, int]] = []
    lasting = 0
    named = with_speakers(messages)  # the API has no field for a speaker's name
    for place, message in enumerate(_with_own_ids(named)):
        role = "assistant" if message.get("role") == "assistant" else "user"
        if message.get("role") == "tool":
            blocks = [_tool_result_block(message)]
        elif role == "assistant":
            thinking = _thinking_blocks(message) if with_thinking and place > loop_begins else []
            texts = [block for block in _content_blocks(message.get("content")) if block["type"] == "text"]
            blocks = thinking + texts + _tool_use_blocks(message)
        else:
            blocks = _content_blocks(message.get("content"))
        if not blocks:
            continue  # the API refuses messages without content
        if sent and sent[-1]["role"] == role:
            sent[-1]["content"].extend(blocks)
        else:
            sent.append({"role": role, "content": blocks})
        spoken += blocks
        if blocks[-1]["type"] not in _THINKING_TYPES:
            ends.append((str(message.get("role")), len(spoken) - 1))
            lasting = len(ends) if place < lasting_messages else lasting
    if not sent or sent[0]["role"] == "assistant":
        sent.insert(0, {"role": "user", "content": [_text_block("[The conversation begins.]")]})
    return sent, [spoken[at] for at in _breakpoints(ends, lasting, goes_on=goes_on)]


def _breakpoints(ends: Sequence[tuple[str, int]], lasting: int, *, goes_on: bool) -> list[int]:
    """The blocks that get a breakpoint: the end of the `lasting` messages, which later prompts repeat, and the end of
    the prompt if the turn `goes_on` with it. `ends` are the role and the last block of each message.

    A call with many parallel calls and results is more blocks than the search covers, and so is an agent's turn that
    recalled something. So where one is out of reach, a breakpoint is set again where the loop's call before this one
    ended, and where the newest turn with a reply began: when a loop's rounds or what it recalled leave, that is read.
    """
    marked = [at for _, at in ends[:lasting][-1:]]
    in_loop = bool(marked) and ends[-1][0] == "tool"
    if goes_on and marked and lasting < len(ends):
        marked.append(ends[-1][1])
    before = [*dropwhile(lambda end: end[0] != "assistant", reversed(ends if in_loop else ends[:lasting]))]
    for roles in ({"tool", "user"}, {"user"}) if in_loop else ({"user"},):
        earlier = next((at for role, at in before if role in roles), None)
        if earlier is not None and not any(0 <= at - earlier < _LOOK_BACK_BLOCKS for at in marked):
            marked.append(earlier)
    return marked[: _MOST_BREAKPOINTS - 1]


def _with_own_ids(messages: Iterable[PromptMessage]) -> Iterator[PromptMessage]:
    """The messages, whose tool calls have other ids where an earlier call has the same one: the API refuses ids that
    repeat, which a client's own history or that of another model may have ("call_0")."""
    times = Counter[str]()

    def own(identity: str) -> str:
        return identity if times[identity] < 2 else f"{identity}#{times[identity]}"

    for message in messages:
        if calls := message.get("tool_calls"):
            times.update(call["id"] for call in calls)
            yield {**message, "tool_calls": [{**call, "id": own(call["id"])} for call in calls]}
        else:
            called = {"tool_call_id": own(message["tool_call_id"])} if "tool_call_id" in message else {}
            yield {**message, **called}


def _loop_begins(messages: Sequence[PromptMessage]) -> int:
    """The position of the newest user message; what follows it is the tool loop that still runs."""
    return max((place for place, message in enumerate(messages) if message.get("role") == "user"), default=-1)


def _thinking_blocks(message: PromptMessage) -> list[JsonObject]:
    return reasoning_blocks(message, *_THINKING_TYPES)


def thinking_tokens(budget: int, max_output_tokens: int) -> int:
    """A thinking budget within an output limit, in tokens: the budget if it is below the limit, else half of the limit,
    or 0 if that is too little to think."""
    if budget < max_output_tokens:
        return budget
    half = max_output_tokens // 2
    return half if half >= _LEAST_THINKING_TOKENS else 0


def _tool(function: JsonObject) -> JsonObject:
    schema = {"type": "object", **fields_of(function.get("parameters"))}
    described = {"description": function["description"]} if function.get("description") is not None else {}
    return {"name": function["name"], "input_schema": schema, **described}


def _tool_choice(choice: str | Mapping[str, Any] | None) -> JsonObject | None:
    if isinstance(choice, Mapping):
        return {"type": "tool", "name": fields_of(dict(choice).get("function")).get("name")}
    return {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}.get(choice or "")


def _text_block(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _content_blocks(content: Any) -> list[JsonObject]:
    """The blocks of a content: a string, null, or a list of parts. Blank texts are left out: the API refuses them."""
    parts: list[Any] = [content] if isinstance(content, str) else list_of(content)
    blocks = [_text_block(part) if isinstance(part, str) else _part_block(fields_of(part)) for part in parts]
    return [block for block in blocks if block["type"] != "text" or block["text"].strip()]


def _tool_use_blocks(message: PromptMessage) -> list[JsonObject]:
    calls: Sequence[JsonObject] = message.get("tool_calls", ())
    return [
        {
            "type": "tool_use",
            "id": _call_id(call["id"]),
            "name": call["function"]["name"],
            "input": call_input(call["function"]["arguments"]),
        }
        for call in calls
    ]


def _tool_result_block(message: PromptMessage) -> JsonObject:
    """A tool message. An empty result has no content."""
    given = message.get("content")
    content = given if isinstance(given, str) else _content_blocks(given)
    block: JsonObject = {"type": "tool_result", "tool_use_id": _call_id(str(message.get("tool_call_id")))}
    return {**block, "content": content} if content else block


def _call_id(identity: str) -> str:
    """A tool call id that the API allows. An id in another provider's form is converted, each time to the same id."""
    return identity if _CALL_ID.fullmatch(identity) else f"call_{sha256_hex(identity)[:24]}"


def _part_block(part: dict[str, Any]) -> JsonObject:
    match part.get("type"):
        case "text" | "refusal" as kind:
            return _text_block(str(part.get(kind) or ""))
        case "image_url":
            return _image_block(part.get("image_url"))
        case "file":
            return _file_block(fields_of(part.get("file")))
        case "input_audio":
            return _text_block("[An audio recording stood here; this model takes none.]")
        case other:
            return _text_block(f"[A part of the type {other} stood here; this model takes none.]")


def _image_block(image: Any) -> JsonObject:
    url = image if isinstance(image, str) else fields_of(image).get("url")
    if isinstance(url, str) and url.startswith(("https://", "http://")):
        return {"type": "image", "source": {"type": "url", "url": url}}
    kind, data = _data(url)
    if kind in _IMAGE_TYPES and isinstance(data, str):
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
    return _text_block("[An image stood here in a form that this model does not take.]")


def _file_block(file: dict[str, Any]) -> JsonObject:
    """A document for PDF and plain text, else a line of text: the API cannot use ids of files uploaded elsewhere."""
    name = file.get("filename")
    title = {"title": name} if isinstance(name, str) and name else {}
    kind, data = _data(file.get("file_data"))
    if kind == "application/pdf" and isinstance(data, str):
        return {"type": "document", "source": {"type": "base64", "media_type": kind, "data": data}, **title}
    if kind == "text/plain" and data is not None:
        text = _decoded(data)
        if text.strip():
            return {"type": "document", "source": {"type": "text", "media_type": kind, "data": text}, **title}
    named = f" {name!r}" if title else ""
    return _text_block(f"[The file{named} stood here in a form that this model does not take.]")


def _data(url: Any) -> tuple[str | None, str | bytes | None]:
    """Media type and content of a data URL: base64 unchanged, percent-encoded bytes decoded."""
    found = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
    if found is None:
        return None, None
    kind = (found[1] or "text/plain").lower()
    return kind, found[4] if found[3] else unquote_to_bytes(found[4])


def _decoded(data: str | bytes) -> str:
    if isinstance(data, str):
        try:
            data = base64.b64decode(data)
        except ValueError:
            return ""
    return data.decode("utf-8", "replace")
