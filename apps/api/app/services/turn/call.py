"""One question to a model, whoever asks: measured, traced, and logged with its content where the deployment says so."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from app.domain.errors import ProviderError
from app.domain.types import Completion, CompletionRequest, SessionId
from app.providers.base import DeltaSink
from app.providers.registry import Model
from app.services.runtime import Runtime
from app.services.turn.content_log import log_failure, log_prompt, log_reply
from app.services.turn.spans import of_completion, of_request


async def call_model(
    rt: Runtime, session_id: SessionId, model: Model, request: CompletionRequest, on_delta: DeltaSink | None = None
) -> Completion:
    """Asks the model, with its retries and under its deadline; with `on_delta` the answer is streamed into it.

    No connection to the database may be held meanwhile. Raises a `ProviderError`.
    """
    with rt.tracer.span(f"chat {model.model}", calls_out=True) as span:
        if span.recording:
            span.set(of_request(session_id, model, request, stream=on_delta is not None))
        if headers := rt.tracer.outgoing():
            request = replace(request, headers=headers)
        if rt.log_content:
            log_prompt(session_id, model.alias, request)
        try:
            completion = await _measured(rt, model, request, on_delta)
        except ProviderError as error:
            if rt.log_content:
                log_failure(session_id, model.alias, request, error)
            raise
        if rt.log_content:
            log_reply(session_id, model.alias, request, completion)
        if span.recording:
            span.set(of_completion(completion))
        return completion


async def _measured(rt: Runtime, model: Model, request: CompletionRequest, on_delta: DeltaSink | None) -> Completion:
    started = perf_counter()
    error_kind: str | None = None
    try:
        return await rt.catalogue.provider(model.alias).complete(request, on_delta)
    except ProviderError as error:
        error_kind = error.kind
        raise
    finally:
        rt.telemetry.provider_call(
            alias=model.alias, purpose=request.purpose, seconds=perf_counter() - started, error_kind=error_kind
        )
