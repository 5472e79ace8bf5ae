"""Chat completions over HTTP, at any base URL that speaks them.

The neutral form of a request is OpenAI's own, so messages and tools are sent unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

import httpx
import numpy as np

from app.domain.content import JsonMessages, as_function, custom_input, is_custom, tool_name, with_name
from app.domain.frozen import frozen
from app.domain.types import CHAT_OPTIONS, Completion, CompletionRequest, JsonObject, PromptMessage
from app.providers.base import DeltaSink, Embedded, Endpoint
from app.providers.catalogue_file import MaxTokensField, ModelEntry
from app.providers.failures import ErrorObject, unusable_answer
from app.providers.openai_answer import SIGNATURE, ChatAssembly
from app.providers.remote import RemoteModel
from app.providers.transport import RetryPolicy
from app.providers.wire import fields_of, json_bytes, list_of, token_count

DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"
MOST_DIMENSIONS: Final = 4096
_OTHER_WIRES_ONLY: Final = frozenset({"reasoning", "reasoning_blocks"})
_FOR_TOOLS: Final = frozenset({"parallel_tool_calls"})
_NO_SIGNATURE: Final = "skip_thought_signature_validator"
"""What Google documents in the place of the signature of a call that none of its models made."""
_AZURE_HOSTS: Final = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")


def chat_url(entry: ModelEntry, path: str = "/chat/completions") -> httpx.URL:
    """The base URL with a path, its query (Azure's `api-version`) kept."""
    base = httpx.URL(entry.base_url or DEFAULT_BASE_URL)
    return base.copy_with(path=base.path.rstrip("/") + path)


def chat_headers(endpoint: Endpoint) -> dict[str, str]:
    """The headers of a request, with the key in `api-key` for Azure, else in `Authorization: Bearer`."""
    return endpoint.headers("api-key" if _is_azure(endpoint.entry) else "authorization")


def first_max_tokens_field(entry: ModelEntry) -> MaxTokensField:
    """The member for the output limit. OpenAI's newer models refuse `max_tokens`; most other servers know only that."""
    if entry.max_tokens_field is not None:
        return entry.max_tokens_field
    return "max_completion_tokens" if _is_openai(entry) else "max_tokens"


def takes_cache_key(entry: ModelEntry) -> bool:
    """Whether `prompt_cache_key` is sent: to OpenAI unless the alias says no, to other servers where it says yes."""
    return _is_openai(entry) if entry.prompt_cache_key is None else entry.prompt_cache_key


def takes_custom_tools(entry: ModelEntry) -> bool:
    """Whether custom tools are sent as such: to OpenAI unless the alias says no, to other servers where it says yes."""
    return _is_openai(entry) if entry.custom_tools is None else entry.custom_tools


def _is_openai(entry: ModelEntry) -> bool:
    return chat_url(entry).host == "api.openai.com" or _is_azure(entry)


def _is_azure(entry: ModelEntry) -> bool:
    return chat_url(entry).host.endswith(_AZURE_HOSTS)


@frozen
class _Form:
    """What a server accepts, as far as its answers have shown."""

    max_tokens_field: MaxTokensField
    with_schema: bool = True
    with_usage: bool = True
    with_reasoning: bool = True
    with_names: bool = True
    with_cache_key: bool = False
    with_custom_tools: bool = False
    with_all_signed: bool = False


class OpenAIProvider(RemoteModel):
    """One alias over the chat completions protocol. Remembers which forms of a request its server refuses."""

    options = CHAT_OPTIONS

    def __init__(self, endpoint: Endpoint, *, now: Callable[[], datetime], retry: RetryPolicy | None = None) -> None:
        super().__init__(endpoint, chat_url(endpoint.entry), chat_headers(endpoint), now, retry)
        self.takes_any_option: bool = self._entry.pass_unknown
        self._accepted: _Form = _Form(
            first_max_tokens_field(self._entry),
            with_cache_key=takes_cache_key(self._entry),
            with_custom_tools=takes_custom_tools(self._entry),
        )

    async def complete(self, request: CompletionRequest, on_delta: DeltaSink | None = None) -> Completion:
        """Calls the model, with retries, within the alias's deadline. Raises a `ProviderError`."""
        form = self._accepted
        call = _ChatCall(request, self._entry, form)
        answer = await self._call(call, on_delta)
        if call.form != form:  # only what led to an answer is remembered
            self._accepted = call.form
        return answer

    async def count_tokens(self, request: CompletionRequest) -> int | None:  # noqa: ARG002 - the protocol's
        """None: chat completions have no counting endpoint."""
        return None

    @property
    def vector_space(self) -> str:
        """The model, with a hash of the alias's parameters: `dimensions`, for one, changes the vectors."""
        parameters = json.dumps(self._entry.parameters, sort_keys=True, default=str)
        digest = f"/{sha256(parameters.encode()).hexdigest()[:8]}" if self._entry.parameters else ""
        return f"{self._entry.model}{digest}"

    async def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedded:
        """One vector for each text, from the endpoint `/embeddings` of the same base URL. Raises a `ProviderError`."""
        url = chat_url(self._entry, "/embeddings")
        body = {"model": self._entry.model, "input": texts, "encoding_format": "float", **self._entry.parameters}
        answer = await self._look_up(url, json_bytes(body), timeout_s=timeout_s)
        return _embeddings(answer, len(texts), self._label)


class _ChatCall:
    """One request; its form changes when the server refuses a part of it."""

    assembly = ChatAssembly

    def __init__(self, request: CompletionRequest, entry: ModelEntry, form: _Form) -> None:
        self.request = request
        self._entry = entry
        self._first_form = form
        self.form: _Form = form

    @property
    def ready(self) -> Sequence[bytes] | None:
        """The messages as JSON in pieces, if they are kept so and nothing of them has to be changed."""
        messages = self.request.messages
        if not isinstance(messages, JsonMessages) or messages.with_reasoning or self._names_as_text:
            return None
        return None if self._custom_names() or self.form.with_all_signed else messages.pieces

    @property
    def _names_as_text(self) -> bool:
        return self.request.names_as_text or not self.form.with_names

    def body(self, *, stream: bool) -> Sequence[bytes]:
        request, form = self.request, self.form
        custom = self._custom_names()
        body: JsonObject = {"model": self._entry.model, **self._entry.parameters, **self._options()}
        body[form.max_tokens_field] = request.max_output_tokens
        if form.with_cache_key and request.cache_key is not None:
            body.setdefault("prompt_cache_key", request.cache_key)
        if request.tools:
            body["tools"] = [tool if form.with_custom_tools else as_function(tool) for tool in request.tools]
            if request.tool_choice is not None:
                body["tool_choice"] = _choice(request.tool_choice, custom)
        if form.with_schema and request.response_schema is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": request.purpose, "schema": request.response_schema},
            }
        if stream:
            body["stream"] = True
            if form.with_usage:
                body["stream_options"] = {"include_usage": True}
        ready = self.ready
        if ready is not None:
            return (b'{"messages":[', *ready, b"],", json_bytes(body)[1:])
        body["messages"] = self._messages(custom)
        return (json_bytes(body),)

    def _messages(self, custom: frozenset[str | None]) -> list[PromptMessage]:
        """The messages in this protocol's form."""
        left_out = _OTHER_WIRES_ONLY if self.form.with_reasoning else _OTHER_WIRES_ONLY | {"reasoning_content"}
        sent = [
            {name: value for name, value in message.items() if name not in left_out}
            for message in self.request.messages
        ]
        for message, given in zip(sent, self.request.messages, strict=True):
            if "tool_calls" in message and ("reasoning_blocks" in given or self.form.with_all_signed):
                message["tool_calls"] = self._signed(message["tool_calls"], given.get("reasoning_blocks", ()))
            if custom and "tool_calls" in message:
                message["tool_calls"] = [_call(call, custom) for call in message["tool_calls"]]
            if self._names_as_text and "name" in message:
                message["content"] = with_name(message.pop("name"), message["content"])
        return sent

    def _signed(self, calls: Sequence[JsonObject], blocks: Sequence[JsonObject]) -> list[JsonObject]:
        """The tool calls of a message with the signatures that Gemini made them with. It requires that of the first."""
        signatures = {calls[0]["id"]: _NO_SIGNATURE} if self.form.with_all_signed else {}
        signatures |= {block["id"]: block["signature"] for block in blocks if block.get("type") == SIGNATURE}
        google = {name: {"google": {SIGNATURE: signature}} for name, signature in signatures.items()}
        return [{**call, "extra_content": google[call["id"]]} if call["id"] in google else call for call in calls]

    def _custom_names(self) -> frozenset[str | None]:
        """The names of the tools that are sent as custom ones."""
        return frozenset(
            tool_name(tool) for tool in self.request.tools if self.form.with_custom_tools and is_custom(tool)
        )

    def _options(self) -> JsonObject:
        """The client's options; of a stored request that was made for another alias, those that this one supports."""
        request, any_option = self.request, self._entry.pass_unknown
        left_out: frozenset[str] = frozenset() if request.tools else _FOR_TOOLS
        return {
            name: value
            for name, value in request.options.items()
            if name not in left_out and (any_option or name in CHAT_OPTIONS)
        }

    def concede(self, error: ErrorObject, *, stream: bool, refused: bool) -> bool:
        """Drops one thing that a server may not know; true if this changed the request.

        When the error names them, the output limit gets its other name, speakers' names are written before the text,
        custom tools are described as functions, calls that Gemini did not make are marked as such, and the request for
        usage, earlier reasoning and the cache key are dropped. After a refusal the schema is dropped whatever the error
        says: servers name it in too many ways, and the answer is validated anyway.
        """
        form = self.form
        if form.max_tokens_field == self._first_form.max_tokens_field and _names_unknown(error, form.max_tokens_field):
            newer = form.max_tokens_field == "max_tokens"
            self.form = replace(form, max_tokens_field="max_completion_tokens" if newer else "max_tokens")
        elif form.with_reasoning and _names_unknown(error, "reasoning_content"):
            self.form = replace(form, with_reasoning=False)
        elif (
            form.with_names and _names_unknown(error, "name") and any("name" in each for each in self.request.messages)
        ):
            self.form = replace(form, with_names=False)
        elif (
            not form.with_all_signed
            and error.names(SIGNATURE)
            and any("tool_calls" in each for each in self.request.messages)
        ):
            self.form = replace(form, with_all_signed=True)
        elif form.with_cache_key and _names_unknown(error, "prompt_cache_key"):
            self.form = replace(form, with_cache_key=False)
        elif refused and self._custom_names() and error.names("custom"):
            self.form = replace(form, with_custom_tools=False)
        elif stream and form.with_usage and error.names("stream_options", "include_usage"):
            self.form = replace(form, with_usage=False)
        elif (
            self.request.response_schema is not None
            and form.with_schema
            and (refused or error.names("response_format", "json_schema"))
        ):
            self.form = replace(form, with_schema=False)
        else:
            return False
        return True


def _choice(choice: str | Mapping[str, Any], custom_names: frozenset[str | None]) -> object:
    if isinstance(choice, str) or choice["function"]["name"] not in custom_names:
        return choice
    return {"type": "custom", "custom": choice["function"]}


def _call(call: JsonObject, custom_names: frozenset[str | None]) -> JsonObject:
    function = call["function"]
    if function["name"] not in custom_names:
        return call
    custom = {"name": function["name"], "input": custom_input(function["arguments"])}
    return {"id": call["id"], "type": "custom", "custom": custom}


def _names_unknown(error: ErrorObject, parameter: str) -> bool:
    text = " ".join((error.message.lower(), *error.codes))
    return error.names(parameter) and any(
        word in text for word in ("unsupported", "not supported", "unrecognized", "unknown", "extra", "not permitted")
    )


def _embeddings(answer: Any, count: int, label: str) -> Embedded:
    """A vector for each of `count` texts. Raises `ProviderDown` for any other answer, or if their dimensions differ."""
    items = [fields_of(item) for item in list_of(fields_of(answer).get("data"))]
    indexes = [item.get("index", at) for at, item in enumerate(items)]
    if sorted(index for index in indexes if type(index) is int) != list(range(count)) or len(items) != count:
        raise unusable_answer(label, f"it has other vectors than one for each of {count} texts", 200)
    rows = [
        list_of(item.get("embedding")) for _, item in sorted(zip(indexes, items, strict=True), key=lambda pair: pair[0])
    ]
    if {len(row) for row in rows} - set(range(1, MOST_DIMENSIONS + 1)) or len({len(row) for row in rows}) != 1:
        raise unusable_answer(label, f"its vectors have not all the same 1 to {MOST_DIMENSIONS} dimensions", 200)
    if not all(type(value) in (float, int) for row in rows for value in row):
        raise unusable_answer(label, "its vectors are not made of numbers", 200)
    with np.errstate(all="ignore"):
        try:
            vectors = np.array(rows, np.float64).astype(np.float32)
        except OverflowError as error:
            raise unusable_answer(label, "its vectors are not made of numbers", 200) from error
    usage = fields_of(fields_of(answer).get("usage"))
    return Embedded(vectors, token_count(usage.get("prompt_tokens", usage.get("total_tokens"))))
