"""The Messages API over HTTP: Anthropic's own address, or any gateway that speaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Final

import httpx

from app.domain.errors import ProviderError
from app.domain.types import Completion, CompletionRequest, JsonObject
from app.providers.anthropic_answer import MessageAssembly, read_message
from app.providers.anthropic_request import MESSAGES_OPTIONS, Form, messages_body
from app.providers.base import DeltaSink, Endpoint
from app.providers.failures import ErrorObject
from app.providers.remote import RemoteModel
from app.providers.transport import RetryPolicy
from app.providers.wire import fields_of, json_bytes, token_count

DEFAULT_BASE_URL: Final = "https://api.anthropic.com"
_VERSION: Final = "2023-06-01"
_COUNTING_TIMEOUT_S: Final = 3.0
_COUNTED: Final = ("model", "messages", "system", "tools", "tool_choice", "thinking")
_NO_SUCH_ENDPOINT: Final = frozenset({404, 405, 501})


def messages_url(endpoint: Endpoint) -> httpx.URL:
    """The base URL with `/v1/messages`; a base that ends in `/v1` already is taken as it is."""
    base = httpx.URL(endpoint.base_url or DEFAULT_BASE_URL)
    path = base.path.rstrip("/").removesuffix("/v1")
    return base.copy_with(path=f"{path}/v1/messages")


class AnthropicProvider:
    """One alias over the Messages API. Remembers which forms of a request its server refuses."""

    options = MESSAGES_OPTIONS
    takes_any_option = False

    def __init__(self, endpoint: Endpoint, *, now: Callable[[], datetime], retry: RetryPolicy | None = None) -> None:
        self._endpoint = endpoint
        self._accepted: Form = Form()
        self._has_counting = True
        self._url = messages_url(endpoint)
        headers = {**endpoint.headers("x-api-key"), "anthropic-version": _VERSION}
        self._remote = RemoteModel(endpoint, self._url, headers, now, retry)

    async def complete(self, request: CompletionRequest, on_delta: DeltaSink | None = None) -> Completion:
        """Calls the model, with retries, within the alias's deadline. Raises a `ProviderError`."""
        call = _MessagesCall(request, self._endpoint, self._accepted)
        answer = await self._remote.complete(call, on_delta, request.headers)
        # Thinking is refused for its content in one prompt; all else holds for the server and is remembered.
        self._accepted = replace(call.form, with_thinking=True)
        return answer

    async def count_tokens(self, request: CompletionRequest) -> int | None:
        """The prompt's exact tokens, counted within 3 s without retries; None if the server cannot count.

        Raises a `ProviderError`.
        """
        if not self._has_counting:
            return None
        body = _body(request, self._endpoint, self._accepted)
        counted = json_bytes({name: body[name] for name in _COUNTED if name in body})
        url = self._url.copy_with(path=self._url.path + "/count_tokens")
        timeout_s = min(_COUNTING_TIMEOUT_S, self._endpoint.timeout_s)
        try:
            answer = await self._remote.look_up(url, counted, timeout_s=timeout_s)
        except ProviderError as error:
            if error.status not in _NO_SUCH_ENDPOINT:
                raise
            self._has_counting = False
            return None
        return token_count(fields_of(answer).get("input_tokens"))

    async def aclose(self) -> None:
        await self._remote.aclose()


def _body(request: CompletionRequest, endpoint: Endpoint, form: Form) -> JsonObject:
    return messages_body(request, model=endpoint.model, parameters=endpoint.parameters, form=form)


class _MessagesCall:
    """One request; its form changes when the server refuses a part of it."""

    completion = staticmethod(read_message)
    assembly = MessageAssembly

    def __init__(self, request: CompletionRequest, endpoint: Endpoint, form: Form) -> None:
        self.request = request
        self._endpoint = endpoint
        self.form: Form = form

    def body(self, *, stream: bool) -> bytes:
        body = _body(self.request, self._endpoint, self.form)
        return json_bytes(body | {"stream": True} if stream else body)

    def concede(self, error: ErrorObject, *, stream: bool, refused: bool) -> bool:  # noqa: ARG002 - the protocol's
        """Gives up one thing that the error names; true when the request is now another one.

        Some gateways know no cache breakpoints, and some want the definitions of tools that were used long ago.
        """
        if self.form.with_cache and error.names("cache_control"):
            self.form = replace(self.form, with_cache=False)
        elif self.form.with_thinking and "thinking" in self._endpoint.parameters and error.names("thinking"):
            self.form = replace(self.form, with_thinking=False)
        elif not self.form.with_used_tools and not self.request.tools and "must define tools" in error.message:
            self.form = replace(self.form, with_used_tools=True)
        else:
            return False
        return True
