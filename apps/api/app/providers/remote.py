"""A model call over HTTP, for any wire protocol: attempts, deadline, whole or streamed answers, and all errors."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Final, Literal, TypeAlias

import httpx

from app.domain.content import as_function, fields_of, is_custom, tool_name, with_object_arguments
from app.domain.errors import ProviderDown, ProviderError, ProviderRateLimited, ProviderRefused
from app.domain.frozen import replace
from app.domain.types import Completion, CompletionRequest, Delta, ToolDefinition, Usage
from app.providers.base import CallCancelled, DeltaSink, Endpoint, Provider
from app.providers.catalogue_file import ModelEntry
from app.providers.error_object import ErrorObject, error_object, error_status
from app.providers.failures import provider_error, unusable_answer
from app.providers.stream import (
    MOST_STREAM_BYTES,
    Assembly,
    BrokenStreamError,
    DeltaTap,
    EmptyStreamError,
    StreamedError,
    read_stream,
)
from app.providers.transport import (
    AttemptError,
    HttpReply,
    HttpTransport,
    RetryPolicy,
    call_with_retries,
    retry_after_s,
)
from app.providers.wire import MalformedAnswerError, decode_json, with_callable_name

NO_SUCH_ENDPOINT: Final = frozenset({404, 405, 501})
_ONCE: Final = RetryPolicy(max_attempts=1)
_INLINE_BODY_BYTES: Final = 262_144
"""Largest request, in bytes, whose messages are encoded on the event loop (a few ms)."""
_ERROR_WAIT_S: Final = 5.0
"""Time for the body of an error to arrive."""
_WITHOUT_TOOLS: Final = re.compile(r"must define tools|without `tools=` param|expects the `tools=` param")
Part: TypeAlias = Literal[
    "breakpoints", "cache", "cache_key", "chat_for_tools", "custom_tools", "details", "effort_for_tools",
    "empty_answers", "limit_field", "long_call_ids", "malformed_arguments", "max_completion_tokens", "names",
    "no_earlier_tools", "partial_reasoning", "reasoning", "roles", "sampling", "schema", "sealed", "system_role",
    "thinking", "thinking_for_choice", "thinking_member", "top_p_beside_temperature", "unsigned_calls", "usage",
]  # fmt: skip
"""What some server refuses in a request, in any protocol, so that it is left out or sent in another form."""


def parts_left_out(sent: Mapping[Part, bool]) -> frozenset[Part]:
    """The parts that are not sent."""
    return frozenset({part for part in sent if not sent[part]})


class WireCall(ABC):
    """One request in a wire protocol. `refused` is what the server does not take of it, as far as its answers have
    shown, `refused_before` what it had not taken of others."""

    of_one_prompt: ClassVar[frozenset[Part]] = frozenset()
    """What is refused because of one prompt's content. Other refusals are those of the server."""

    def __init__(self, request: CompletionRequest, entry: ModelEntry, refused: frozenset[Part]) -> None:
        self.request = request
        self.entry = entry
        self.refused_before = refused
        self.refused: frozenset[Part] = refused

    def takes(self, part: Part) -> bool:
        return part not in self.refused

    @property
    def is_ready(self) -> bool:
        """Whether the messages are JSON in this protocol already, so that they need not be encoded."""
        return False

    @property
    def forces_tools(self) -> bool:
        return bool(self.request.tools) and self.request.tool_choice not in (None, "auto", "none")

    def refuses_thinking_for_choice(self, error: ErrorObject) -> bool:
        """Whether the model does not think when it is forced to call a tool, and did not know that by itself."""
        return self.forces_tools and error.names("tool_choice") and "thinking" in error.message.lower()

    def requires_earlier_tools(self, error: ErrorObject) -> bool:
        """Whether a gateway requires definitions of tools with a prompt that has calls (LiteLLM before Claude)."""
        return not self.request.tools and _WITHOUT_TOOLS.search(error.message) is not None

    @property
    def custom_names(self) -> frozenset[str | None]:
        """The names of the tools that are sent as custom ones."""
        return frozenset(
            tool_name(tool) for tool in self.request.tools if self.takes("custom_tools") and is_custom(tool)
        )

    def tools(self) -> list[ToolDefinition]:
        """The tools that are sent: the request's, custom ones as functions where the server takes no others. Where it
        has none, definitions of the tools of earlier calls, if the server requires them."""
        if self.request.tools or self.takes("no_earlier_tools"):
            return [tool if self.takes("custom_tools") else as_function(tool) for tool in self.request.tools]
        calls = [call for message in self.request.messages for call in message.get("tool_calls", ())]
        names = sorted({str(call["function"]["name"]) for call in calls})
        description = "Not available any more: never call it."
        return [{"type": "function", "function": {"name": name, "description": description}} for name in names]

    @property
    def has_malformed_arguments(self) -> bool:
        """Whether a model wrote arguments in an earlier call that are no JSON object, or was cut off within them.

        Servers whose chat templates parse them (vLLM, SGLang, llama.cpp) refuse every prompt with such a call, in the
        words of their JSON parsers.
        """
        return any(with_object_arguments(message) is not message for message in self.request.messages)

    @abstractmethod
    def assembly(self) -> Assembly:
        """Reads one answer."""

    @abstractmethod
    def body(self, *, stream: bool) -> Sequence[bytes]:
        """The body, in pieces."""

    @abstractmethod
    def refusals(self, error: ErrorObject, *, stream: bool, refused: bool) -> Mapping[Part, object]:
        """For each part whether the server refused it; the first one that it was taken to accept is left out.

        Without `refused` the error is a 5xx: then only what the error names is refused.
        """

    def concede(self, error: ErrorObject, *, stream: bool, refused: bool) -> bool:
        """Leaves out one part that the server refused; true if the next body is different."""
        for part, is_refused in self.refusals(error, stream=stream, refused=refused).items():
            if is_refused and self.takes(part):
                self.refused = self.refused.union((part,))
                return True
        return False


class RemoteModel(Provider):
    """The common part of adapters over HTTP: the model of an endpoint, at a URL of the wire protocol of `call_in`.

    `headers` are sent with every call. `refused` is what no request has; what a server refuses besides is remembered.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        url: httpx.URL,
        headers: Mapping[str, str],
        call_in: type[WireCall],
        refused: frozenset[Part],
        now: Callable[[], datetime],
        retry: RetryPolicy | None,
    ) -> None:
        self._label = endpoint.label
        self._entry = endpoint.entry
        self._key = endpoint.api_key
        self._url = str(url)
        self._headers = headers
        self._call_in = call_in
        self._refused: frozenset[Part] = refused
        self._now = now
        self._retry = retry or RetryPolicy()
        self._transport = HttpTransport(
            endpoint.label, encrypted=url.scheme == "https", tenant_ratio=endpoint.tenant_ratio
        )

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def complete(self, request: CompletionRequest, on_delta: DeltaSink | None = None) -> Completion:
        call = self._call_in(request, self._entry, self._refused)
        tap = DeltaTap(on_delta) if on_delta is not None else None
        stream = tap is not None
        deadline = asyncio.get_running_loop().time() + self._entry.timeout_s
        assemblies: list[Assembly] = []

        async def attempt(number: int) -> Completion:
            nonlocal stream
            earlier_usages = _used(assemblies)
            assemblies.append(call.assembly())
            try:
                answer = await self._attempt(call, assemblies[-1], tap, stream=stream, deadline=deadline)
                return replace(answer, attempts=number, earlier_usages=earlier_usages)
            except EmptyStreamError as empty:
                # llama-cpp-python reports a prompt that is too long only without streaming.
                stream = False
                raise AttemptError(self._broke_off()) from empty
            except AttemptError as failure:
                if tap is not None and tap.has_begun:
                    raise failure.error from None  # streamed text cannot be withdrawn
                is_repeated, was_paid = number < self._retry.max_attempts, assemblies[-1].used is not None
                if is_repeated and was_paid and request.may_repeat and not await request.may_repeat():
                    raise failure.error from None
                raise

        try:
            answer = await call_with_retries(
                attempt, timeout_s=self._entry.timeout_s, policy=self._retry, label=self._label
            )
        except ProviderError as error:
            error.partial, error.usages = tap.partial if tap is not None else None, _used(assemblies)
            raise
        except asyncio.CancelledError:
            raise CallCancelled(_used(assemblies)) from None
        self._refused |= call.refused - call.refused_before - call.of_one_prompt  # only what led to an answer
        if not answer.tool_calls:
            return answer
        offered = [*map(tool_name, request.tools)]
        return replace(answer, tool_calls=tuple(with_callable_name(call, offered) for call in answer.tool_calls))

    async def _look_up(self, url: httpx.URL, body: bytes, *, timeout_s: float) -> Any:
        """The JSON answer of another endpoint of the provider, without retries. Raises a `ProviderError`."""

        async def attempt(_number: int) -> Any:
            reply = await self._transport.post(str(url), self._headers, (body,))
            try:
                answer, error = await _read_json(reply)
            except MalformedAnswerError as malformed:
                raise unusable_answer(self._label, malformed, reply.status) from malformed
            finally:
                await reply.aclose()
            if error is not None:
                raise provider_error(_status(reply, error), error, self._label, key=self._key)
            return answer

        return await call_with_retries(attempt, timeout_s=timeout_s, policy=_ONCE, label=self._label)

    def _broke_off(self) -> ProviderDown:
        return ProviderDown(f"The answer of the provider of {self._label!r} broke off before its end.")

    async def _attempt(
        self, call: WireCall, assembly: Assembly, tap: DeltaTap | None, *, stream: bool, deadline: float
    ) -> Completion:
        body = partial(call.body, stream=stream)
        headers = {**call.request.headers, **self._headers}
        is_large = call.request.size_bytes > _INLINE_BODY_BYTES and not call.is_ready
        reply = await self._transport.post(self._url, headers, await asyncio.to_thread(body) if is_large else body())
        try:
            if tap is None or not reply.is_success or not _is_stream(reply, requested=stream):
                return await self._read_whole(reply, call, assembly, tap, stream=stream)
            await read_stream(reply.chunks(MOST_STREAM_BYTES), assembly, tap, deadline)
            return assembly.completion()
        except StreamedError as streamed:
            raise await self._failure(streamed.error, reply, call, stream=stream) from streamed
        except BrokenStreamError as broken:
            raise AttemptError(self._broke_off()) from broken
        except MalformedAnswerError as malformed:
            raise unusable_answer(self._label, malformed, reply.status) from malformed
        finally:
            await reply.aclose()

    async def _read_whole(
        self, reply: HttpReply, call: WireCall, assembly: Assembly, tap: DeltaTap | None, *, stream: bool
    ) -> Completion:
        """An answer without streaming, which a server may send although streaming was requested."""
        if reply.is_success and "json" not in (reply.content_type or "json"):
            raise MalformedAnswerError("it is not JSON by its content type")
        answer, error = await _read_json(reply)
        assembly.count(fields_of(answer))
        if error is not None:
            raise await self._failure(error, reply, call, stream=stream)
        completion = assembly.whole(answer)
        if tap is not None:
            tap(Delta(completion.text or "", completion.reasoning or "", completion.finish_reason == "refusal"))
        return completion

    async def _failure(self, error: ErrorObject, reply: HttpReply, call: WireCall, *, stream: bool) -> Exception:
        """The error to raise: one that ends the call, or an `AttemptError`. The request may be changed for a retry. The
        messages of a large one are searched for what the server may mean in a thread."""
        mapped = partial(self._mapped, error, reply, call, stream=stream)
        return await asyncio.to_thread(mapped) if call.request.size_bytes > _INLINE_BODY_BYTES else mapped()

    def _mapped(self, error: ErrorObject, reply: HttpReply, call: WireCall, *, stream: bool) -> Exception:
        status = _status(reply, error)
        mapped = provider_error(status, error, self._label, lambda: b"".join(call.body(stream=stream)), self._key)
        refused = isinstance(mapped, ProviderRefused) and mapped.status in {400, 422}
        # Some servers answer 500 for a request that they do not support (llama-cpp-python).
        may_concede = refused or (isinstance(mapped, ProviderDown) and status == 500)
        if may_concede and call.concede(error, stream=stream, refused=refused):
            return AttemptError(mapped, at_once=True)
        if not isinstance(mapped, ProviderDown | ProviderRateLimited):
            return mapped
        worded = error.worded_delay if isinstance(mapped, ProviderRateLimited) else None
        stated = (retry_after_s(value, self._now()) for value in (*reply.retry_after, error.retry_after, worded))
        mapped.retry_after_s = next((wait_s for wait_s in stated if wait_s is not None), None)
        return AttemptError(mapped)


async def _read_json(reply: HttpReply) -> tuple[Any, ErrorObject | None]:
    """The answer, and its error or None. Raises as `HttpReply.read`, but not for an error status, which suffices."""
    try:
        async with asyncio.timeout(None if reply.is_success else _ERROR_WAIT_S):
            answer = decode_json(await reply.read())
        error = error_object(answer)
    except (AttemptError, MalformedAnswerError, TimeoutError):
        if reply.is_success:
            raise
        answer = error = None
    return answer, error if reply.is_success else error or ErrorObject()


def _used(assemblies: Sequence[Assembly]) -> tuple[Usage, ...]:
    """What the attempts used that had begun to answer."""
    return tuple(assembly.used for assembly in assemblies if assembly.used is not None)


def _status(reply: HttpReply, error: ErrorObject) -> int:
    """The status of the answer, or that of the error if the answer itself has a status of success."""
    return error_status(error) if reply.is_success else reply.status


def _is_stream(reply: HttpReply, *, requested: bool) -> bool:
    """If a stream was requested, true unless the content type is another known one: not every server labels its
    event streams correctly."""
    if not requested:
        return "event-stream" in reply.content_type
    return not any(kind in reply.content_type for kind in ("json", "html", "xml"))
