"""The provider's own count of a prompt whose estimate is near a threshold, for the aliases that ask for it."""

from __future__ import annotations

from time import perf_counter

from app.domain.errors import ProviderError
from app.domain.types import CompletionRequest
from app.engine.window.prompt import Prompt
from app.engine.window.thresholds import exact_ratio
from app.providers.registry import Model
from app.services.runtime import Runtime
from app.services.turn.record import Step, Steps


async def ratio_by_provider(
    rt: Runtime, model: Model, prompt: Prompt, max_output_tokens: int, steps: Steps
) -> float | None:
    """What the wire estimate of the prompt has to be multiplied with to be the provider's count; None without one.

    Never raises for the provider: whatever keeps it from counting is noted in the turn's steps, and the estimate
    decides. The step is a success then too, for nothing of the turn has failed. Asked with no connection held.
    """
    request = CompletionRequest(messages=prompt.messages(), max_output_tokens=max_output_tokens, tools=prompt.tools)
    started_at, started = rt.now(), perf_counter()
    counted: int | None = None
    fell_back, error_kind = "not_offered", None
    try:
        with rt.tracer.span(f"count_tokens {model.model}", calls_out=True):
            counted = await rt.catalogue.provider(model.alias).count_tokens(request)
    except ProviderError as error:
        fell_back, error_kind = error.code, error.kind
    finally:
        rt.telemetry.provider_call(
            alias=model.alias, purpose="count", seconds=perf_counter() - started, error_kind=error_kind
        )
    ratio = None if counted is None else exact_ratio(prompt, counted)
    detail = {"model_alias": model.alias, "estimated_wire_tokens": prompt.wire_tokens, "counted_tokens": counted}
    if ratio is None:
        detail |= {"fell_back": fell_back if counted is None else "not_credible"}
    steps.add("count_tokens", started_at, Step(detail))
    return ratio
