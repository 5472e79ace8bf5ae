"""What is written down of a turn: steps, the audit row, blocks, and the reply; and the `context` answered from it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

from app.db.claims import Claim
from app.domain.types import Completion, JsonObject, ToolCall
from app.engine.policy.budget import Budget
from app.engine.window.plan import Accounts, Assembled
from app.engine.window.prompt import REGIONS, Block, Prompt, tool_call_json
from app.services.runtime import Runtime
from app.services.turn.spans import of_step

CONTEXT_FIELDS = (
    "model_alias",
    "model_context_limit",
    "context_limit_source",
    "input_budget",
    "output_reserve",
    "overhead_reserve",
    "estimated_input_tokens_before",
    "estimated_input_tokens_after_summary",
    "estimated_input_tokens_after_prune",
    "summary_triggered",
    "prune_triggered",
    "overflow_rejected",
    "estimated_wire_tokens",
    "regions",
    "context_trim_log",
    "prompt_sha256",
)
_TRIM_LOG_FIELDS = ("max_context_tokens", "estimated_tokens_before", "estimated_tokens_after", "actions")
_ACTION_FIELDS = ("kind", "target", "reason", "tokens_removed_est")


@dataclass(slots=True)
class Step:
    """A step while it runs; `status` and `detail` are what it ends with."""

    detail: JsonObject = field(default_factory=dict[str, object])
    status: str = "success"


class Steps:
    """The steps of a turn's round, in order, with their instants; `after` steps of earlier rounds are stored."""

    def __init__(self, rt: Runtime, after: int = 0) -> None:
        self._rt = rt
        self._after = after
        self.rows: list[JsonObject] = []

    @contextmanager
    def step(self, kind: str) -> Generator[Step]:
        """Records the block as a step and as a span; one that raises is recorded as `failed`, with the error's type."""
        step = Step()
        started_at = self._rt.now()
        with self._rt.tracer.span(kind) as span:
            try:
                yield step
            except BaseException as error:
                step.status = "failed"
                step.detail |= {"error": type(error).__name__}
                raise
            finally:
                self.add(kind, started_at, step)
                if span.recording:
                    span.set(of_step(step.detail))

    def add(self, kind: str, started_at: datetime, step: Step) -> None:
        """Records a step that is over."""
        self.rows.append(
            {
                "id": self._rt.new_id(),
                "seq": self._after + len(self.rows) + 1,
                "kind": kind,
                "status": step.status,
                "detail": step.detail,
                "started_at": started_at,
                "finished_at": self._rt.now(),
            }
        )


def audit_row(
    rt: Runtime,
    claim: Claim,
    model_alias: str,
    budget: Budget,
    prompt: Prompt,
    accounts: Accounts,
    *,
    estimator: str,
    calibration_ratio: float,
    assembled: Assembled | None,
) -> JsonObject:
    """The audit of one model call, by column; without `assembled` the turn was refused and nothing was sent.

    `actual_prompt_tokens` is filled in when the provider has told.
    """
    ids: JsonObject = {"id": rt.new_id(), "turn_id": claim.turn_id, "round": claim.round, "attempt": 1}
    return ids | decided_row(
        model_alias,
        budget,
        prompt,
        accounts,
        estimator=estimator,
        calibration_ratio=calibration_ratio,
        assembled=assembled,
    )


def decided_row(
    model_alias: str,
    budget: Budget,
    prompt: Prompt,
    accounts: Accounts,
    *,
    estimator: str,
    calibration_ratio: float,
    assembled: Assembled | None,
) -> JsonObject:
    """What an audit says of a decision, whether or not a turn was made for it."""
    return {
        "model_alias": model_alias,
        "model_context_limit": budget.limit,
        "context_limit_source": budget.limit_source,
        "output_reserve": budget.output_reserve,
        "overhead_reserve": budget.overhead_reserve,
        "input_budget": budget.input_budget,
        "estimator": estimator,
        "calibration_ratio": calibration_ratio,
        "estimated_input_tokens_before": accounts.tokens_before,
        "estimated_input_tokens_after_summary": accounts.tokens_after_summary,
        "estimated_input_tokens_after_prune": accounts.tokens_after_prune,
        "estimated_wire_tokens": prompt.wire_tokens,
        "actual_prompt_tokens": None,
        "summary_triggered": accounts.summary_triggered,
        "prune_triggered": accounts.prune_triggered,
        "overflow_rejected": assembled is None,
        "regions": prompt.regions(),
        "context_trim_log": {
            "max_context_tokens": budget.prompt_ceiling,
            "estimated_tokens_before": accounts.wire_before,
            "estimated_tokens_after": prompt.wire_tokens,
            "actions": [action.public() for action in accounts.actions],
            **({"recalled": [row.public() for row in accounts.recalled]} if accounts.recalled else {}),
        },
        "prompt_refs": assembled.refs if assembled else None,
        "prompt_sha256": assembled.sha256 if assembled else None,
    }


def context_of(audit: JsonObject) -> JsonObject:
    """The `context` of a turn's answer (contract.md, section 5), from its audit row or from what would be in one."""
    context = {name: audit[name] for name in CONTEXT_FIELDS}
    # The database gives an object's members back in an order of its own; a replay is the first answer to the byte.
    trim_log = _in_order(context["context_trim_log"], _TRIM_LOG_FIELDS)
    trim_log["actions"] = [_in_order(action, _ACTION_FIELDS) for action in trim_log["actions"]]
    return context | {"regions": _in_order(context["regions"], REGIONS), "context_trim_log": trim_log}


def _in_order(members: JsonObject, names: tuple[str, ...]) -> JsonObject:
    """The named members first, in this order, then the others by name."""
    others = sorted(members.keys() - set(names))
    return {name: members[name] for name in (*names, *others) if name in members}


def block_rows(blocks: tuple[Block, ...]) -> list[JsonObject]:
    """Prompt blocks by column, each text once."""
    return [{"sha256": sha256, "content": text} for sha256, text in {b.sha256: b.text for b in blocks}.items()]


def reply_row(
    rt: Runtime,
    completion: Completion,
    calls: Sequence[ToolCall],
    seq: int,
    tokens: int,
    reasoning_tokens: int,
    encoding: str,
) -> JsonObject:
    """The assistant's message by column."""
    return {
        "id": rt.new_id(),
        "seq": seq,
        "content": completion.text,
        "tool_calls": [tool_call_json(call) for call in calls] or None,
        "reasoning": completion.reasoning,
        "reasoning_blocks": completion.reasoning_blocks or None,
        "reasoning_tokens": reasoning_tokens,
        "token_estimate": tokens,
        "token_encoding": encoding,
    }


def with_own_ids(calls: tuple[ToolCall, ...], mark: str, round_number: int) -> tuple[ToolCall, ...]:
    """The calls with an id each of their own: some servers give none, or the same twice, and outputs go by it."""
    seen: set[str] = set()
    own: list[ToolCall] = []
    for at, call in enumerate(calls):
        call_id = call.id if call.id and call.id not in seen else f"call_{mark}_{round_number}_{at}"
        seen.add(call_id)
        own.append(replace(call, id=call_id))
    return tuple(own)
