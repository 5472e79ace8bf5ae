"""Chat completions over HTTP, at any base URL that speaks them.

httpx's request and response objects travel over aiohttp's transport, called directly: less than half the CPU of
httpx's client for each call. Nothing follows a redirect, so a key never goes to another origin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from app.domain.errors import ProviderDown, ProviderError, ProviderRateLimited, ProviderRefused
from app.domain.types import Completion, CompletionRequest
from app.providers.failures import ErrorObject, error_object, provider_error
from app.providers.openai_wire import MalformedAnswerError, MaxTokensField, completion, parse_json, request_body
from app.providers.retry import AttemptError, RetryPolicy, call_with_retries, retry_after_s

DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"
MOST_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Of a decompressed answer; more is refused while it is read."""
_CONNECT_TIMEOUT_S: Final = 10.0
_MOST_CONNECTIONS: Final = 1_000
_KEEPALIVE_S: Final = 60.0
_AZURE_HOSTS: Final = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")
_RETRIED_STATUSES: Final = frozenset({408, 409, 429})


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
            "accept": "application/json",
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


@dataclass(slots=True)
class _Form:
    """What a server turned out to accept."""

    max_tokens_field: MaxTokensField
    with_schema: bool = True
    field_changed: bool = False
    schema_dropped: bool = False


class OpenAIProvider:
    """One alias over the chat completions protocol. Opens its connections on the first call and keeps them alive."""

    is_language_model = True

    def __init__(self, endpoint: Endpoint, *, now: Callable[[], datetime], retry: RetryPolicy | None = None) -> None:
        self._endpoint = endpoint
        self._now = now
        self._retry = retry or RetryPolicy()
        self._url = endpoint.url
        self._headers = endpoint.headers()
        self._accepted = _Form(endpoint.first_max_tokens_field())
        # Certificates are checked wherever there are any; a plain http address needs none loaded.
        self._transport = AiohttpTransport(verify=self._url.scheme == "https")
        self._transport.client = self._open_session

    def _open_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=_MOST_CONNECTIONS, keepalive_timeout=_KEEPALIVE_S, ssl=self._transport.ssl_context
        )
        # No cookies: what one call's answer sets must not travel with another tenant's call.
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    async def complete(self, request: CompletionRequest) -> Completion:
        """Asks, with retries, under the alias's deadline. Raises a `ProviderError`."""
        form = _Form(self._accepted.max_tokens_field, self._accepted.with_schema)

        async def attempt(number: int) -> Completion:
            answer = await self._ask_once(request, form, number)
            if form.field_changed or form.schema_dropped:
                self._accepted = _Form(form.max_tokens_field, form.with_schema)
            return answer

        return await call_with_retries(
            attempt, timeout_s=self._endpoint.timeout_s, policy=self._retry, label=self._endpoint.label
        )

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _ask_once(self, request: CompletionRequest, form: _Form, number: int) -> Completion:
        body = request_body(
            request,
            model=self._endpoint.model,
            parameters=self._endpoint.parameters,
            max_tokens_field=form.max_tokens_field,
            with_schema=form.with_schema,
        )
        response, raw = await self._send(body)
        status, is_success = response.status_code, response.is_success
        try:
            parsed = parse_json(raw) if not is_success or _is_json(response) else None
        except MalformedAnswerError as malformed:
            if is_success:
                raise self._malformed(str(malformed), status) from malformed
            parsed = None
        error = error_object(parsed)
        if not is_success:
            raise self._failure(status, error, response, request, form)
        if parsed is None:
            raise self._malformed("it is not JSON by its content type", status)
        if error is not None:  # a success by its status alone
            raise self._failure(error.status or 502, error, response, request, form)
        try:
            return completion(parsed, attempts=number)
        except MalformedAnswerError as malformed:
            raise self._malformed(str(malformed), status) from malformed

    async def _send(self, body: bytes) -> tuple[httpx.Response, bytes]:
        """One exchange on the wire; the connection is free again, or closed, when it returns or raises."""
        request = httpx.Request(
            "POST",
            self._url,
            headers=self._headers,
            content=body,
            extensions={"timeout": {"connect": _CONNECT_TIMEOUT_S}},
        )
        try:
            response = await self._transport.handle_async_request(request)
            try:
                return response, await self._read(response)
            finally:
                await response.aclose()
        except (httpx.DecodingError, httpx.StreamError) as error:
            raise self._malformed("its encoding is broken", None) from error
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            raise AttemptError(
                ProviderDown(f"The provider of {self._endpoint.label!r} cannot be reached ({type(error).__name__}).")
            ) from error

    async def _read(self, response: httpx.Response) -> bytes:
        chunks: list[bytes] = []
        size = 0
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > MOST_ANSWER_BYTES:
                raise self._malformed(f"it is longer than {MOST_ANSWER_BYTES} bytes", response.status_code)
            chunks.append(chunk)
        return b"".join(chunks)

    def _malformed(self, what: str, status: int | None) -> ProviderError:
        return ProviderDown(
            f"The answer of the provider of {self._endpoint.label!r} cannot be used: {what}.", status=status
        )

    def _failure(
        self, status: int, error: ErrorObject | None, response: httpx.Response, request: CompletionRequest, form: _Form
    ) -> Exception:
        """What to raise: an error that ends the call, or an `AttemptError`. May change `form` for another try."""
        mapped = provider_error(status, error, self._endpoint.label)
        if isinstance(mapped, ProviderRefused) and status in {400, 422}:
            if _concede(error or ErrorObject(), request, form):
                return AttemptError(mapped, at_once=True)
            return mapped
        retried = status in _RETRIED_STATUSES or status >= 500
        if not retried or not isinstance(mapped, ProviderDown | ProviderRateLimited):
            return mapped
        return AttemptError(mapped, retry_after_s=retry_after_s(response.headers.get("retry-after"), self._now()))


def _concede(error: ErrorObject, request: CompletionRequest, form: _Form) -> bool:
    """Gives up one thing that a server may not know; true when the request is now another one.

    The name of the output limit is changed when the error says that it is not known. A refused schema is dropped
    whatever the error says: servers name it in too many ways, and the answer is validated anyway.
    """
    if not form.field_changed and _names_unknown(error, form.max_tokens_field):
        newer = form.max_tokens_field == "max_tokens"
        form.max_tokens_field = "max_completion_tokens" if newer else "max_tokens"
        form.field_changed = True
        return True
    if request.response_schema is not None and form.with_schema:
        form.with_schema = False
        form.schema_dropped = True
        return True
    return False


def _names_unknown(error: ErrorObject, parameter: str) -> bool:
    if error.param != parameter and re.search(rf"\b{parameter}\b", error.message) is None:
        return False
    said = " ".join((error.message.lower(), *error.codes))
    return any(
        word in said for word in ("unsupported", "not supported", "unrecognized", "unknown", "extra", "not permitted")
    )


def _is_json(response: httpx.Response) -> bool:
    """True also without a content type: the JSON itself decides then."""
    kind = response.headers.get("content-type", "json")
    return "json" in kind.lower()
