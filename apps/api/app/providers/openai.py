"""Chat completions over HTTP, at any base URL that speaks them.

The neutral form of a request is OpenAI's own, so messages and tools are sent unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import takewhile
from typing import Any, Final

import httpx

from app.domain.content import (
    JsonMessages,
    content_text,
    custom_call_json,
    joined,
    sha256_hex,
    with_object_arguments,
    with_speakers,
)
from app.domain.errors import ProviderError
from app.domain.frozen import replace
from app.domain.types import CHAT_OPTIONS, Completion, CompletionRequest, JsonObject, PromptMessage, ToolCall
from app.providers.base import DeltaSink, Embedded, Endpoint
from app.providers.catalogue_file import MaxTokensField, ModelEntry
from app.providers.error_object import ErrorObject
from app.providers.openai_answer import DETAIL_TYPES, SIGNATURE, ChatAssembly, embeddings_of
from app.providers.openai_breakpoints import takes_breakpoints, with_breakpoints
from app.providers.remote import NO_SUCH_ENDPOINT, Part, RemoteModel, WireCall, parts_left_out
from app.providers.responses import RESPONSES_OPTIONS, ResponsesCall
from app.providers.think_tags import tags_of
from app.providers.transport import RetryPolicy
from app.providers.wire import json_bytes, list_of, reason_in_part, reasoning_blocks

_OTHER_WIRES_ONLY: Final = frozenset({"reasoning", "reasoning_blocks"})
_NO_SIGNATURE: Final = "skip_thought_signature_validator"
"""What Google documents in the place of the signature of a call that none of its models made."""
_FIRST_CALL: Final = b'"tool_calls":[{'
_UNSIGNED: Final = b'"extra_content":{"google":{"%b":"%b"}},' % (SIGNATURE.encode(), _NO_SIGNATURE.encode())
_STRICT_ROLES: Final = re.compile(
    r"system message must be at the beginning|roles must alternate|unexpected role '\w+' after role"
    r"|roles should be alternating|should alternate with assistant message",
    re.IGNORECASE,
)
_NO_SYSTEM_ROLE: Final = re.compile(r"system role not supported|developer instruction is not enabled", re.IGNORECASE)
_STRICT_CALL_IDS: Final = re.compile(
    r"tool call id .{1,600} must be .{1,60} length of 9|tool_call(?:s\[\d{1,4}\]\.|_)id'?: string too long",
    re.IGNORECASE | re.DOTALL,
)
"""Mistral's ids have nine letters and digits, those of OpenAI's and Azure's models at most 40 characters."""
_MISTRAL_CALL_ID: Final = re.compile(r"[a-zA-Z0-9]{9}")
_NOT_EMPTY: Final = re.compile(r"must (?:not be empty|be non-empty|have either content or tool_calls)", re.IGNORECASE)
_REASONING: Final = re.compile(r"signature|thinking|reasoning|thought", re.IGNORECASE)
_NO_ANSWER: Final = "[No answer.]"
_SHOWN_BELOW: Final = "[Attached to the next message of the user.]"
_SHOWN_HERE: Final = "[Attached to the result of the tool call %s:]"
_BLANK: Final = rb"(?: |\\[bfnrt]|\xc2[\x85\xa0]|\xe2\x80[\x80-\xaf]|\xe3\x80\x80)"
_MAYBE_EMPTY: Final = re.compile(
    rb'"content":"(?:%b{64}|%b{0,63}",(?:"name":"(?:[^"\\]|\\.)*",)?"role":"assistant"\})' % (_BLANK, _BLANK)
)
"""In canonical JSON, an answer of blanks alone, or of characters near them; also any content that begins with many, of
which no more are read: a user's may have a megabyte."""
_NOT_NEUTRAL: Final = (b'],"role":"tool"', b'"reasoning_content":', b'"reasoning_blocks":')
"""In canonical JSON, the end of a tool's result that consists of parts (the content of other messages precedes another
role), and the fields of earlier reasoning. A quotation mark within a text is escaped."""


def chat_url(entry: ModelEntry, path: str = "/chat/completions") -> httpx.URL:
    """The base URL with a path, its query (Azure's `api-version`) kept."""
    base = httpx.URL(entry.address)
    return base.copy_with(path=base.path.rstrip("/") + path)


def chat_headers(endpoint: Endpoint) -> dict[str, str]:
    """The headers of a request, with the key in `api-key` for Azure, else in `Authorization: Bearer`."""
    return endpoint.headers("api-key" if endpoint.entry.vendor == "azure" else "authorization")


def not_sent(entry: ModelEntry) -> frozenset[Part]:
    """What the first request leaves out, where the alias does not say: OpenAI's newer models refuse `max_tokens`, and
    most other servers know only that; nor do they know cache keys and custom tools. OpenRouter alone has details of
    reasoning."""
    is_own = entry.vendor in ("openai", "azure")
    named, details = entry.max_tokens_field, entry.return_reasoning
    has_key = is_own if entry.prompt_cache_key is None else entry.prompt_cache_key
    return parts_left_out(
        {
            "max_completion_tokens": is_own if named is None else named == "max_completion_tokens",
            "cache_key": has_key,
            "breakpoints": has_key and takes_breakpoints(entry.model),
            "custom_tools": is_own if entry.custom_tools is None else entry.custom_tools,
            "details": entry.vendor == "openrouter" if details is None else details == "signatures",
        }
    )


def takes_conversation_header(entry: ModelEntry) -> bool:
    """Whether chat completions have the header by which xAI finds the server that has the session's prompts in its
    cache. docs.x.ai/developers/advanced-api-usage/prompt-caching/maximizing-cache-hits"""
    return entry.vendor == "xai" and entry.prompt_cache_key is not False


def with_conversation_header(request: CompletionRequest) -> CompletionRequest:
    """The request with xAI's header, which has the `cache_key`; the same without one."""
    if request.cache_key is None:
        return request
    return replace(request, headers={**request.headers, "x-grok-conv-id": request.cache_key})


class OpenAIProvider(RemoteModel):
    """One alias over the chat completions protocol, or over the Responses API."""

    def __init__(self, endpoint: Endpoint, *, now: Callable[[], datetime], retry: RetryPolicy | None = None) -> None:
        entry = endpoint.entry
        headers = chat_headers(endpoint)
        super().__init__(endpoint, chat_url(entry), headers, _ChatCall, not_sent(entry), now, retry)
        has_key, has_custom = entry.prompt_cache_key is not False, entry.custom_tools is not False
        has_breakpoints = "breakpoints" not in self._refused
        refused = parts_left_out({"cache_key": has_key, "breakpoints": has_breakpoints, "custom_tools": has_custom})
        url = chat_url(entry, "/responses")
        self._responses = RemoteModel(endpoint, url, headers, ResponsesCall, refused, now, retry)
        self.options = RESPONSES_OPTIONS if entry.api == "responses" else CHAT_OPTIONS
        self.takes_any_option: bool = entry.pass_unknown
        self._takes_conversation_header = takes_conversation_header(entry)

    async def complete(self, request: CompletionRequest, on_delta: DeltaSink | None = None) -> Completion:
        """Over the Responses API if the alias says so, or for tools that chat completions have refused with a reference
        to it; a server that does not have it is called as before."""
        is_fixed = self._entry.api == "responses"
        if is_fixed or (request.tools and "chat_for_tools" in self._refused):
            try:
                return await self._responses.complete(request, on_delta)
            except ProviderError as error:
                if is_fixed or error.status not in NO_SUCH_ENDPOINT:
                    raise
            self._refused = (self._refused - {"chat_for_tools"}).union(("effort_for_tools",))
        if self._takes_conversation_header:
            request = with_conversation_header(request)
        return await super().complete(request, on_delta)

    async def aclose(self) -> None:
        await super().aclose()
        await self._responses.aclose()

    @property
    def reasons_beside_tools(self) -> bool:
        return "effort_for_tools" not in self._refused or self._entry.api == "responses"

    @property
    def vector_space(self) -> str:
        """The model, with a hash of the alias's parameters: `dimensions`, for one, changes the vectors."""
        parameters = json.dumps(self._entry.parameters, sort_keys=True)
        digest = f"/{sha256_hex(parameters)[:8]}" if self._entry.parameters else ""
        return f"{self._entry.model}{digest}"

    async def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedded:
        """One vector for each text, from the endpoint `/embeddings` of the same base URL. Raises a `ProviderError`."""
        url = chat_url(self._entry, "/embeddings")
        body = {"model": self._entry.model, "input": texts, "encoding_format": "float", **self._entry.parameters}
        answer = await self._look_up(url, json_bytes(body), timeout_s=timeout_s)
        return embeddings_of(answer, len(texts), self._label)


class _ChatCall(WireCall):
    of_one_prompt = frozenset({"details"})

    def assembly(self) -> ChatAssembly:
        with_details = "details" not in self.refused_before
        return ChatAssembly(self.request.stop_sequences, with_details=with_details, think_tags=tags_of(self.entry))

    @property
    def is_ready(self) -> bool:
        takes_calls = self.takes("long_call_ids") and self.takes("malformed_arguments")
        in_other_form = self._names_as_text or self.custom_names or self.takes("breakpoints")
        takes_answers = self.takes("empty_answers") or not self._may_have_empty_answers
        return takes_calls and takes_answers and not in_other_form and self._is_neutral_form

    @cached_property
    def _is_neutral_form(self) -> bool:
        """Whether the messages are stored in the form of this protocol: searching megabytes takes a few ms."""
        messages = self.request.messages
        if not isinstance(messages, JsonMessages):
            return False
        prompt = b"".join(messages.pieces)
        return not any(mark in prompt for mark in _NOT_NEUTRAL)

    @cached_property
    def _may_have_empty_answers(self) -> bool:
        messages = self.request.messages
        return isinstance(messages, JsonMessages) and any(map(_MAYBE_EMPTY.search, messages.pieces))

    @property
    def _limit_field(self) -> MaxTokensField:
        is_newer = self.takes("max_completion_tokens") is self.takes("limit_field")  # the other one once it is refused
        return "max_completion_tokens" if is_newer else "max_tokens"

    @property
    def _names_as_text(self) -> bool:
        return self.request.names_as_text or not (self.takes("names") and self._takes_roles)

    @property
    def _takes_roles(self) -> bool:
        return self.takes("roles") and self.takes("system_role")

    def body(self, *, stream: bool) -> Sequence[bytes]:
        request, takes = self.request, self.takes
        custom = self.custom_names
        body: JsonObject = {"model": self.entry.model, **self.entry.parameters, **self._options()}
        body[self._limit_field] = request.max_output_tokens
        if takes("cache_key") and request.cache_key is not None:
            body.setdefault("prompt_cache_key", request.cache_key)
        if tools := self.tools():
            body["tools"] = tools
        if request.tools:
            if request.tool_choice is not None:
                body["tool_choice"] = _choice(request.tool_choice, custom)
            if not (takes("effort_for_tools") and takes("chat_for_tools")):
                body["reasoning_effort"] = "none"
            if not takes("thinking_for_choice") and self.forces_tools:
                # Qwen's servers know no `thinking`, and think on.
                body |= {"thinking": {"type": "disabled"}} if takes("thinking_member") else {"enable_thinking": False}
        if takes("schema") and request.response_schema is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": request.purpose, "schema": request.response_schema},
            }
        if stream:
            body["stream"] = True
            if takes("usage"):
                body["stream_options"] = {"include_usage": True}
        if self.is_ready and isinstance(request.messages, JsonMessages):
            pieces = request.messages.pieces
            if not takes("unsigned_calls"):
                pieces = [piece.replace(_FIRST_CALL, _FIRST_CALL + _UNSIGNED) for piece in pieces]
            return (b'{"messages":[', *pieces, b"],", json_bytes(body)[1:])
        body["messages"] = self._messages(custom)
        return (json_bytes(body),)

    def _messages(self, custom: frozenset[str | None]) -> list[PromptMessage]:
        given, lasting = self.request.messages, self.request.lasting_messages
        neutral = [self._message(each, custom) for each in (with_speakers(given) if self._names_as_text else given)]
        sent = _with_text_results(neutral)
        if self.takes("breakpoints"):
            sent = with_breakpoints(sent, len(_with_text_results(neutral[:lasting])), text_type="text")
        return sent if self._takes_roles else _strict(sent, "system" if self.takes("system_role") else "user")

    def _message(self, given: PromptMessage, custom: frozenset[str | None]) -> PromptMessage:
        omitted = _OTHER_WIRES_ONLY if self.takes("reasoning") else _OTHER_WIRES_ONLY | {"reasoning_content"}
        whole = given if self.takes("malformed_arguments") else with_object_arguments(given)
        sent = {name: value for name, value in whole.items() if name not in omitted}
        if "tool_calls" in sent and ("reasoning_blocks" in given or not self.takes("unsigned_calls")):
            sent["tool_calls"] = self._signed(sent["tool_calls"], reasoning_blocks(given, SIGNATURE))
        details = reasoning_blocks(given, *DETAIL_TYPES)
        if details and self.takes("details"):
            sent["reasoning_details"] = details
        if not self.takes("partial_reasoning") and sent["role"] == "assistant":
            sent.setdefault("reasoning_content", " ")
        if not self.takes("long_call_ids"):
            sent = _with_short_ids(sent)
        if custom and "tool_calls" in sent:
            sent["tool_calls"] = [_call(call, custom) for call in sent["tool_calls"]]
        if not self.takes("empty_answers") and _is_empty_answer(sent):
            sent["content"] = _NO_ANSWER
        return sent

    def _signed(self, calls: Sequence[JsonObject], blocks: Sequence[JsonObject]) -> list[JsonObject]:
        """The tool calls of a message with the signatures that Gemini made them with. It requires that of the first."""
        signatures = {} if self.takes("unsigned_calls") else {calls[0]["id"]: _NO_SIGNATURE}
        signatures |= {str(block.get("id")): block.get("signature") for block in blocks}
        google = {name: {"google": {SIGNATURE: signature}} for name, signature in signatures.items()}
        return [{**call, "extra_content": google[call["id"]]} if call["id"] in google else call for call in calls]

    def _options(self) -> JsonObject:
        """The client's options; of a stored request that was made for another alias, those that this one supports."""
        given = self.request.options
        sent = given if self.entry.pass_unknown else {name: given[name] for name in given if name in CHAT_OPTIONS}
        return {name: sent[name] for name in sent if self.request.tools or name != "parallel_tool_calls"}

    def refusals(self, error: ErrorObject, *, stream: bool, refused: bool) -> Mapping[Part, object]:
        """What the error names is dropped, or sent in another form, such as custom tools as functions. Malformed
        arguments are wrapped and the schema is dropped whatever the error says: servers name them in too many ways."""
        request, messages, says, names = self.request, self.request.messages, error.message, error.names
        refuses_effort = request.tools and names("reasoning_effort") and names("tools")
        return {
            "limit_field": error.refuses(self._limit_field),
            "reasoning": error.refuses("reasoning_content"),
            "partial_reasoning": names("reasoning_content") and reason_in_part(messages),
            "details": refused
            and _REASONING.search(says)
            and any(reasoning_blocks(each, *DETAIL_TYPES) for each in messages),
            "names": error.refuses("name") and any("name" in each for each in messages),
            "unsigned_calls": names(SIGNATURE) and any("tool_calls" in each for each in messages),
            "long_call_ids": _STRICT_CALL_IDS.search(says) and any("tool_calls" in each for each in messages),
            "roles": _STRICT_ROLES.search(says),
            "system_role": _NO_SYSTEM_ROLE.search(says),
            "empty_answers": _NOT_EMPTY.search(says) and any(map(_is_empty_answer, messages)),
            "cache_key": error.refuses("prompt_cache_key"),
            "breakpoints": error.names("prompt_cache_breakpoint"),
            "no_earlier_tools": self.requires_earlier_tools(error),
            "custom_tools": refused and self.custom_names and names("custom"),
            "chat_for_tools": refuses_effort and "/responses" in says and self.entry.api is None,
            "effort_for_tools": refuses_effort,
            "thinking_for_choice": self.refuses_thinking_for_choice(error),
            "thinking_member": self.refuses_thinking_for_choice(error),
            "usage": stream and names("stream_options", "include_usage"),
            "malformed_arguments": self.has_malformed_arguments,
            "schema": request.response_schema is not None and (refused or names("response_format", "json_schema")),
        }


def _is_empty_answer(message: PromptMessage) -> bool:
    is_alone = message["role"] == "assistant" and "tool_calls" not in message
    return is_alone and not content_text(message.get("content")).strip()


def _with_text_results(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """The messages with each tool's result as one text, and its pictures and files in a message of the user after the
    results. In chat completions a tool's result is text: most servers refuse other parts there, and some ignore them.
    """
    sent: list[PromptMessage] = []
    shown: list[JsonObject] = []
    for message in messages:
        if message["role"] != "tool" and shown:
            sent.append({"role": "user", "content": shown})
            shown = []
        if message["role"] != "tool" or isinstance(message["content"], str):
            sent.append(message)
            continue
        parts = list_of(message["content"])
        texts = [part["text"] for part in parts if part["type"] == "text"]
        media = [part for part in parts if part["type"] != "text"]
        if media:
            texts.append(_SHOWN_BELOW)
            shown += [{"type": "text", "text": _SHOWN_HERE % message["tool_call_id"]}, *media]
        sent.append({**message, "content": "\n\n".join(texts)})
    return [*sent, {"role": "user", "content": shown}] if shown else sent


def _strict(messages: Sequence[PromptMessage], system: str) -> list[PromptMessage]:
    """The messages as the chat templates of Qwen (from 3.5 on), Gemma and others want them: one system message at most,
    at the beginning, and no two messages of the user next to each other. Its role is `system`, which is that of the
    user where a model has none (Gemma until 3). Later system messages are the user's. For Mistral there is an answer
    after the results of tools that none had, such as those of a turn that failed."""
    leading = list(takewhile(lambda message: message["role"] == "system", messages))
    text = "\n\n".join(content_text(message["content"]) for message in leading)
    sent: list[PromptMessage] = [{"role": system, "content": text}] if leading else []
    for message in messages[len(leading) :]:
        role = "user" if message["role"] == "system" else message["role"]
        before = sent[-1] if sent else None
        if before is not None and (before["role"], role) == ("tool", "user"):
            sent.append({"role": "assistant", "content": _NO_ANSWER})
        if before is None or not role == before["role"] == "user":
            sent.append({**message, "role": role})
        else:
            sent[-1] = {**before, "content": joined([before["content"], message.get("content")])}
    return sent


def _with_short_ids(message: PromptMessage) -> PromptMessage:
    """A message with ids of tool calls as Mistral makes them, which no server refuses. Others are converted, each time
    alike."""
    if "tool_calls" in message:
        return {**message, "tool_calls": [{**call, "id": _short_id(call["id"])} for call in message["tool_calls"]]}
    return {**message, "tool_call_id": _short_id(message["tool_call_id"])} if "tool_call_id" in message else message


def _short_id(identity: str) -> str:
    return identity if _MISTRAL_CALL_ID.fullmatch(identity) else sha256_hex(identity)[:9]


def _choice(choice: str | Mapping[str, Any], custom_names: frozenset[str | None]) -> object:
    if isinstance(choice, str) or choice["function"]["name"] not in custom_names:
        return choice
    return {"type": "custom", "custom": choice["function"]}


def _call(call: JsonObject, custom_names: frozenset[str | None]) -> JsonObject:
    function = call["function"]
    if function["name"] not in custom_names:
        return call
    return custom_call_json(ToolCall(call["id"], function["name"], function["arguments"]))
