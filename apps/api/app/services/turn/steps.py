"""The steps of a turn as they are recorded while it runs, and the attributes of its spans: ids and figures, by
OpenTelemetry's names for generative AI if there are any (https://opentelemetry.io/docs/specs/semconv/gen-ai/), else
with `plimsoll.` by those of the audit and the steps."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any

from app.db.claims import Claim
from app.domain.audit import Audit
from app.domain.frozen import values_of
from app.domain.types import Completion, CompletionRequest, JsonObject, SessionId, TurnRecord
from app.engine.window.plan import Ready, Refused, SummaryDue
from app.providers.registry import Model
from app.services.runtime import Runtime
from app.telemetry.tracing import Attribute


class Steps:
    """The steps of a turn's round, in order, with their times. `after` is the number of steps of earlier rounds."""

    def __init__(self, rt: Runtime, after: int = 0) -> None:
        self._rt = rt
        self._after = after
        self.rows: list[JsonObject] = []

    @contextmanager
    def step(self, kind: str) -> Generator[JsonObject]:
        """Records the block as a step and as a span, with the detail that the block fills in. A block that raises is
        recorded as `failed`, with the error's type."""
        detail: JsonObject = {}
        status = "success"
        started_at = self._rt.now()
        with self._rt.tracer.span(kind) as span:
            try:
                yield detail
            except BaseException as error:
                status = "failed"
                detail["error"] = type(error).__name__
                raise
            finally:
                self.add(kind, started_at, detail, status)
                span.set(of_step, detail)

    def add(self, kind: str, started_at: datetime, detail: JsonObject, status: str = "success") -> None:
        self.rows.append(
            {
                "id": self._rt.new_id(),
                "seq": self._after + len(self.rows) + 1,
                "kind": kind,
                "status": status,
                "detail": detail,
                "started_at": started_at,
                "finished_at": self._rt.now(),
            }
        )


_CONVERSATION = "gen_ai.conversation.id"


def of_claim(claim: Claim) -> dict[str, Attribute]:
    return {
        _CONVERSATION: str(claim.session_id),
        "plimsoll.tenant": claim.session.tenant_id,
        "plimsoll.turn.id": str(claim.turn_id),
        "plimsoll.turn.seq": claim.seq,
        "plimsoll.turn.round": claim.round,
    }


def of_step(detail: JsonObject) -> dict[str, Attribute]:
    """The detail of a step; None replaces a value that is not a plain one."""
    return {f"plimsoll.step.{name}": _plain(value) for name, value in detail.items()}


def of_decision(decided: SummaryDue | Ready | Refused) -> dict[str, Attribute]:
    """The decision, and the figures on which it is based."""
    if isinstance(decided, SummaryDue):
        fold = decided.fold
        return {
            "plimsoll.decision": "summarize",
            "plimsoll.summary.reason": fold.reason,
            "plimsoll.summary.turns": len(fold.turns),
        }
    return {
        "plimsoll.decision": "send" if isinstance(decided, Ready) else "refuse",
        "plimsoll.context.estimated_wire_tokens": decided.prompt.wire_tokens,
        "plimsoll.context.tokens_before": decided.accounts.tokens_before,
        "plimsoll.context.tokens_after_prune": decided.window.input_tokens,
        "plimsoll.context.trimmed": len(decided.accounts.actions),
        "plimsoll.context.recalled": len(decided.accounts.recalled),
    }


def of_audit(audit: Audit) -> dict[str, Attribute]:
    return {f"plimsoll.context.{name}": _plain(value) for name, value in values_of(audit).items()}


def of_turn(turn: TurnRecord) -> dict[str, Attribute]:
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
    """A request to a model, without its content."""
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
    """A model's answer, without its content."""
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
