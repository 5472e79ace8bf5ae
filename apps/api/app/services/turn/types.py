"""The values of a turn: what a caller sends and gets, the events of a stream, the turn on its way, and its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

from app.db.claims import Claim
from app.db.responses import ResponseNote
from app.domain.audit import Audit, CacheBreak, TrimLog, TurnContext
from app.domain.stored import StoredSummary
from app.domain.types import (
    Completion,
    Content,
    JsonObject,
    Message,
    RecordedReply,
    Summary,
    ToolCall,
    ToolDefinition,
    TurnRecord,
    Usage,
)
from app.engine.window.look_back import Read
from app.engine.window.plan import Assembled, Ready, Refused
from app.engine.window.snapshot import Snapshot, in_ranges
from app.providers.registry import Model
from app.services.turn.gather import WindowRows
from app.tokenizers.counters import Estimator


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """How the model is called in every round of a turn. `recorded_reply` is of one round alone.

    `instructions` are a system layer of this turn; `provider_options` go into the model's request. `policy` lies over
    the session's own; what is done after the turn goes by the session's. With `whole_past` all of the past is sent as
    it is stored, or the turn is refused. `note` is kept with every claim. `list_sha256` is the digest of the list of
    messages that the client sent, where its next request is to be recognized by it.
    """

    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    max_output_tokens: int | None = None
    recorded_reply: RecordedReply | None = None
    instructions: str | None = None
    provider_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    policy: Mapping[str, Any] | None = None
    whole_past: bool = False
    note: ResponseNote | None = None
    list_sha256: bytes | None = None

    def stored(self) -> JsonObject | None:
        """What later rounds need, and another try under the same policy; None when there is nothing of either."""
        if not self.tools and not self.policy:
            return None
        return {
            "tools": list(self.tools),
            "tool_choice": self.tool_choice,
            "max_output_tokens": self.max_output_tokens,
            "instructions": self.instructions,
            "options": dict(self.provider_options),
            "policy": None if self.policy is None else dict(self.policy),
        }

    @classmethod
    def of_stored(cls, stored: JsonObject | None) -> TurnOptions:
        stored = stored or {}
        return cls(
            tools=tuple(stored.get("tools", ())),
            tool_choice=stored.get("tool_choice"),
            max_output_tokens=stored.get("max_output_tokens"),
            instructions=stored.get("instructions"),
            provider_options=stored.get("options") or {},
            policy=stored.get("policy"),
        )


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What a client posts. `request_sha256` is the hash of the body without `stream` (contract.md, decision 14).

    With `seq` it is this turn of its session or none. `name` is who of several people speaks, `said_at` when they did,
    where that is not now.
    """

    content: Content
    request_sha256: str
    options: TurnOptions = TurnOptions()
    model_alias: str | None = None
    seq: int | None = None
    name: str | None = None
    said_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class OutputsRequest:
    """What a client posts when tools have run: (tool call id, content) for each open call.

    `options` and `model_alias` stand for the turn's own from this round on; None keeps those.
    """

    outputs: tuple[tuple[str, Content], ...]
    recorded_reply: RecordedReply | None = None
    options: TurnOptions | None = None
    model_alias: str | None = None


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """A turn that has ended or waits for tools, and its `context`, in the contract's shape.

    `completion` is the model's answer that brought it there and `reply_seq` the number of its message; None where a
    stored turn is answered again. `summary` is what was made before its last call.
    """

    turn: TurnRecord
    context: JsonObject
    completion: Completion | None = None
    reply_seq: int | None = None
    summary: Summary | StoredSummary | None = None

    @property
    def text(self) -> str | None:
        """Of the reply; None where it only called tools."""
        completion = self.completion
        if completion is None:
            return self.turn.assistant_output
        return completion.text if completion.tool_calls else completion.text or ""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.turn.tool_calls if self.completion is None else self.completion.tool_calls

    @property
    def usage(self) -> Usage | None:
        """Of this call, or of the whole turn where a stored one is answered."""
        if self.completion is not None:
            return self.completion.usage
        tokens = self.turn.prompt_tokens
        return None if tokens is None else Usage(tokens, self.turn.completion_tokens or 0)


EventName: TypeAlias = Literal["turn.created", "context.assembled", "output.delta"]


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """Something that happened while a turn ran, for whoever streams it. The end is the outcome, and no event."""

    name: EventName
    data: JsonObject
    reply_seq: int | None = None
    """With `turn.created`: the number that is set aside for the reply's message. It is not part of the public event."""
    summary: Summary | None = None
    """With `context.assembled`: the summary that was made for it. It is not part of the public event."""


Listener: TypeAlias = Callable[[TurnEvent], None]


def to_nobody(_: TurnEvent) -> None:
    """For a turn that is not streamed."""


@dataclass(frozen=True, slots=True)
class ClaimedTurn:
    """A turn that this process may run, with the rows it decides on and how its model is to be called."""

    claim: Claim
    rows: WindowRows
    gathered_at: datetime
    options: TurnOptions
    reservation: JsonObject | None = None
    """What the turn has set aside of limits; None where there is none to hold."""
    looked_back: tuple[Message, ...] = ()
    """What the turn's look-backs added to its prompts so far, in time order."""
    read: Read = ()
    """What it has looked back to since the claim."""


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """What a model is sent, or why it is sent nothing, and what that was decided on."""

    rows: WindowRows
    estimate: Estimator
    snapshot: Snapshot
    decided: Ready | Refused
    counted_by_provider: bool = False

    @property
    def model(self) -> Model:
        return self.rows.model

    def context(self, assembled: Assembled | None) -> TurnContext:
        """How the prompt came about; without `assembled` nothing is sent."""
        budget, prompt, accounts = self.snapshot.budget, self.decided.prompt, self.decided.accounts
        return TurnContext(
            model_alias=self.model.alias,
            model_context_limit=budget.limit,
            context_limit_source=budget.limit_source,
            input_budget=budget.input_budget,
            output_reserve=budget.output_reserve,
            overhead_reserve=budget.overhead_reserve,
            estimated_input_tokens_before=accounts.tokens_before,
            estimated_input_tokens_after_summary=accounts.tokens_after_summary,
            estimated_input_tokens_after_prune=accounts.tokens_after_prune,
            summary_triggered=accounts.summary_triggered,
            prune_triggered=accounts.prune_triggered,
            overflow_rejected=assembled is None,
            estimated_wire_tokens=prompt.wire_tokens,
            regions=prompt.regions(),
            context_trim_log=TrimLog(
                max_context_tokens=budget.prompt_ceiling,
                estimated_tokens_before=accounts.wire_before,
                estimated_tokens_after=prompt.wire_tokens,
                actions=in_ranges(accounts.actions),
                recalled=tuple(row.public() for row in accounts.recalled),
                looked_back=prompt.looked_back(),
            ).public(),
            prompt_sha256=assembled.sha256 if assembled else None,
        )

    def audit(
        self,
        claim: Claim,
        audit_id: UUID,
        attempt: int,
        assembled: Assembled | None,
        cache_break: CacheBreak | None = None,
    ) -> Audit:
        """The audit of a call in the claim's round."""
        return Audit(
            **self.context(assembled).public(),
            id=audit_id,
            turn_id=claim.turn_id,
            session_id=claim.session_id,
            round=claim.round,
            attempt=attempt,
            estimator=self._estimator(),
            calibration_ratio=self.snapshot.calibration_ratio,
            cache_break=cache_break,
            prompt_refs=assembled.refs if assembled else None,
        )

    def _estimator(self) -> str:
        """What counted: the encoding, the heuristic where the tokenizer failed, or the provider itself."""
        if self.counted_by_provider:
            return "provider"
        return "heuristic" if self.rows.fell_back else self.estimate.encoding
