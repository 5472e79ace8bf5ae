"""What the spans of a turn say: ids and figures, by OpenTelemetry's names for generative AI where it has one.

https://opentelemetry.io/docs/specs/semconv/gen-ai/ has those names; `plimsoll.` ones are the audit's and the steps'.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from app.db.claims import Claim
from app.domain.types import Completion, CompletionRequest, JsonObject, SessionId, TenantId, TurnRecord
from app.engine.window.plan import Ready, Refused, SummaryDue, SummaryWorthless
from app.providers.registry import Model
from app.telemetry import Attribute

_CONVERSATION = "gen_ai.conversation.id"
_OF_THE_AUDIT = (
    "model_alias",
    "model_context_limit",
    "input_budget",
    "estimated_input_tokens_before",
    "estimated_input_tokens_after_summary",
    "estimated_input_tokens_after_prune",
    "estimated_wire_tokens",
    "actual_prompt_tokens",
    "calibration_ratio",
    "summary_triggered",
    "prune_triggered",
    "overflow_rejected",
    "prompt_sha256",
)


def of_claim(tenant_id: TenantId, claim: Claim) -> dict[str, Attribute]:
    """Which turn it is, and whose."""
    return {
        _CONVERSATION: str(claim.session_id),
        "plimsoll.tenant": tenant_id,
        "plimsoll.turn.id": str(claim.turn_id),
        "plimsoll.turn.seq": claim.seq,
        "plimsoll.turn.round": claim.round,
    }


def of_step(detail: JsonObject) -> dict[str, Attribute]:
    """A step's detail as it is recorded, where its values are plain."""
    return {f"plimsoll.step.{name}": _plain(value) for name, value in detail.items()}


def of_decision(decided: SummaryDue | SummaryWorthless | Ready | Refused) -> dict[str, Attribute]:
    """What was decided, and what it was decided on."""
    if isinstance(decided, SummaryDue):
        fold = decided.fold
        return {
            "plimsoll.decision": "summarize",
            "plimsoll.summary.reason": fold.reason,
            "plimsoll.summary.turns": len(fold.turns),
        }
    settled = decided.then if isinstance(decided, SummaryWorthless) else decided
    return {
        "plimsoll.decision": "send" if isinstance(settled, Ready) else "refuse",
        "plimsoll.context.estimated_wire_tokens": settled.prompt.wire_tokens,
        "plimsoll.context.tokens_before": settled.accounts.tokens_before,
        "plimsoll.context.tokens_after_prune": settled.accounts.tokens_after_prune,
        "plimsoll.context.trimmed": len(settled.accounts.actions),
        "plimsoll.context.recalled": len(settled.accounts.recalled),
    }


def of_audit(audit: JsonObject) -> dict[str, Attribute]:
    """The figures of an audit row."""
    return {f"plimsoll.context.{name}": audit[name] for name in _OF_THE_AUDIT}


def of_turn(turn: TurnRecord) -> dict[str, Attribute]:
    """How a turn ended."""
    return {
        "plimsoll.turn.id": str(turn.id),
        "plimsoll.turn.status": turn.status.value,
        "plimsoll.turn.prompt_tokens": turn.prompt_tokens,
        "plimsoll.turn.completion_tokens": turn.completion_tokens,
        "plimsoll.turn.cost_usd": _plain(turn.cost_usd),
    }


def of_request(
    session_id: SessionId, model: Model, request: CompletionRequest, *, stream: bool
) -> dict[str, Attribute]:
    """What a model is asked, without what it is told."""
    return {
        _CONVERSATION: str(session_id),
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": model.provider,
        "gen_ai.request.model": model.model,
        "gen_ai.request.max_tokens": request.max_output_tokens,
        "gen_ai.request.stream": stream,
        "plimsoll.model_alias": model.alias,
        "plimsoll.purpose": request.purpose,
        "plimsoll.messages": len(request.messages),
        "plimsoll.tools": len(request.tools),
    }


def of_completion(completion: Completion) -> dict[str, Attribute]:
    """What a model answered, without its words."""
    usage = completion.usage
    used: Mapping[str, Attribute] = {}
    if usage is not None:
        used = {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_prompt_tokens,
            "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_prompt_tokens,
        }
    return {
        **used,
        "gen_ai.response.finish_reasons": (completion.finish_reason,),
        "gen_ai.response.model": completion.provider_model,
        "plimsoll.attempts": completion.attempts,
        "plimsoll.tool_calls": len(completion.tool_calls),
    }


def _plain(value: Any) -> Attribute:
    if isinstance(value, Decimal):
        return float(value)
    return value if isinstance(value, str | bool | int | float) else None
