"""Chat completions over HTTP, at any base URL that speaks them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import httpx

from app.domain.types import Completion, CompletionRequest
from app.providers.base import DeltaSink
from app.providers.failures import ErrorObject
from app.providers.openai_stream import ChatAssembly
from app.providers.openai_wire import MaxTokensField, read_completion, request_body
from app.providers.remote import RemoteModel
from app.providers.retry import RetryPolicy

DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"
_AZURE_HOSTS: Final = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how one alias is reached. `api_key_header` None: `api-key` at Azure, else `Authorization: Bearer`."""

    label: str
    model: str
    base_url: str = DEFAULT_BASE_URL
    api_key: str | None = field(default=None, repr=False)
    api_key_header: str | None = None
    timeout_s: float = 120.0
    max_tokens_field: MaxTokensField | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def url(self) -> httpx.URL:
        """`base_url` with `/chat/completions`, its query (Azure's `api-version`) kept."""
        base = httpx.URL(self.base_url)
        return base.copy_with(path=base.path.rstrip("/") + "/chat/completions")

    @property
    def is_azure(self) -> bool:
        return httpx.URL(self.base_url).host.endswith(_AZURE_HOSTS)

    def headers(self) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "accept-encoding": "identity",  # answers are small; decompression would cost more than it saves
            "user-agent": "plimsoll",
        }
        name = (self.api_key_header or ("api-key" if self.is_azure else "authorization")).lower()
        if self.api_key:
            headers[name] = f"Bearer {self.api_key}" if name == "authorization" else self.api_key
        return headers

    def first_max_tokens_field(self) -> MaxTokensField:
        """OpenAI's newer models refuse `max_tokens`; most other servers know nothing else."""
        if self.max_tokens_field is not None:
            return self.max_tokens_field
        openai = httpx.URL(self.base_url).host == "api.openai.com" or self.is_azure
        return "max_completion_tokens" if openai else "max_tokens"


@dataclass(frozen=True, slots=True)
class _Form:
    """What a server turned out to accept."""

    max_tokens_field: MaxTokensField
    with_schema: bool = True
    with_usage: bool = True


class OpenAIProvider:
    """One alias over the chat completions protocol. Remembers which forms of a request its server refuses."""

    is_language_model = True

    def __init__(self, endpoint: Endpoint, *, now: Callable[[], datetime], retry: RetryPolicy | None = None) -> None:
        self._endpoint = endpoint
        self._accepted: _Form = _Form(endpoint.first_max_tokens_field())
        self._remote = RemoteModel(
            label=endpoint.label,
            url=endpoint.url,
            headers=endpoint.headers(),
            timeout_s=endpoint.timeout_s,
            now=now,
            retry=retry,
        )

    async def complete(self, request: CompletionRequest, on_delta: DeltaSink | None = None) -> Completion:
        """Asks, with retries, under the alias's deadline. Raises a `ProviderError`."""
        call = _ChatCall(request, self._endpoint, self._accepted)
        answer = await self._remote.ask(call, on_delta)
        if call.has_conceded:  # only what led to an answer is remembered
            self._accepted = call.form
        return answer

    async def count_tokens(self, request: CompletionRequest) -> int | None:  # noqa: ARG002 - the protocol's
        """None: chat completions have no counting endpoint."""
        return None

    async def aclose(self) -> None:
        await self._remote.aclose()


class _ChatCall:
    """One request; its form changes when the server refuses a part of it."""

    def __init__(self, request: CompletionRequest, endpoint: Endpoint, form: _Form) -> None:
        self._request = request
        self._endpoint = endpoint
        self._first_form = form
        self.form: _Form = form

    @property
    def has_conceded(self) -> bool:
        return self.form != self._first_form

    def body(self, *, stream: bool) -> bytes:
        return request_body(
            self._request,
            model=self._endpoint.model,
            parameters=self._endpoint.parameters,
            max_tokens_field=self.form.max_tokens_field,
            with_schema=self.form.with_schema,
            stream=stream,
            with_usage=self.form.with_usage,
        )

    def completion(self, answer: Any, *, attempts: int) -> Completion:
        return read_completion(answer, attempts=attempts)

    def assembly(self) -> ChatAssembly:
        return ChatAssembly()

    def concede(self, error: ErrorObject, *, stream: bool) -> bool:
        """Gives up one thing that a server may not know; true when the request is now another one.

        The name of the output limit is changed, and the wish for usage dropped, when the error names them. A refused
        schema is dropped whatever the error says: servers name it in too many ways, and the answer is validated anyway.
        """
        form = self.form
        if form.max_tokens_field == self._first_form.max_tokens_field and _names_unknown(error, form.max_tokens_field):
            newer = form.max_tokens_field == "max_tokens"
            self.form = replace(form, max_tokens_field="max_completion_tokens" if newer else "max_tokens")
        elif stream and form.with_usage and _names(error, "stream_options", "include_usage"):
            self.form = replace(form, with_usage=False)
        elif self._request.response_schema is not None and form.with_schema:
            self.form = replace(form, with_schema=False)
        else:
            return False
        return True


def _names(error: ErrorObject, *parameters: str) -> bool:
    return any(
        error.param == parameter or re.search(rf"\b{parameter}\b", error.message) is not None
        for parameter in parameters
    )


def _names_unknown(error: ErrorObject, parameter: str) -> bool:
    said = " ".join((error.message.lower(), *error.codes))
    return _names(error, parameter) and any(
        word in said for word in ("unsupported", "not supported", "unrecognized", "unknown", "extra", "not permitted")
    )
