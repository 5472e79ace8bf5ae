"""The types of a turn: its request and outcome, the events of a stream, the claimed turn, and its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from app.db.claims import Claim
from app.db.records import Added
from app.db.responses import ResponseNote
from app.domain.audit import Audit, CacheBreak, TrimLog
from app.domain.frozen import frozen, replace
from app.domain.incoming import IncomingMessage
from app.domain.stored import StoredSummary
from app.domain.types import (
    Completion,
    Content,
    JsonObject,
    Message,
    RecordedReply,
    Summary,
    ToolDefinition,
    TurnRecord,
)
from app.engine.window.plan import Assembled, Ready, Refused
from app.engine.window.snapshot import Snapshot, in_ranges
from app.providers.registry import Model
from app.services.turn.additions import Additions
from app.services.turn.window_rows import WindowRows

_STORED_AS: Final = {
    **{name: name for name in ("tools", "tool_choice", "max_output_tokens", "instructions", "policy")},
    "provider_options": "options",
}
"""The options that are stored with a turn, and the members of its `request` that have them."""


@frozen
class TurnOptions:
    """How the model is called in every round of a turn. `recorded_reply` applies to one round only.

    `instructions` are a system layer of this turn. `provider_options` are added to the provider's request. `policy`
    overrides the session's policy in this turn; what is done after the turn follows the session's policy. With
    `whole_past` the whole past is sent as it is stored, or the turn is refused. `is_single` says that the session may
    have no other request: no summary is made for later ones. `note` is stored with every claim.
    `list_sha256` is the digest of the client's list of messages, if the client's next request is recognized by it.
    """

    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    max_output_tokens: int | None = None
    recorded_reply: RecordedReply | None = None
    instructions: str | None = None
    provider_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    policy: Mapping[str, Any] | None = None
    whole_past: bool = False
    is_single: bool = False
    note: ResponseNote | None = None
    list_sha256: bytes | None = None

    def stored(self) -> JsonObject | None:
        """What later rounds and another try of the turn need; None when nothing was requested."""
        given = {member: getattr(self, name) for name, member in _STORED_AS.items()} | {"tools": list(self.tools)}
        return given if any(given.values()) else None

    @classmethod
    def of_stored(cls, stored: JsonObject | None) -> TurnOptions:
        members = stored or {}
        given = {name: members[member] for name, member in _STORED_AS.items() if members.get(member) is not None}
        return replace(cls(**given), tools=tuple(given.get("tools", ())))


@frozen
class TurnRequest:
    """What a client posts. `request_sha256` is the hash of the body without `stream` (contract.md, decision 14). With
    `seq` the turn is refused unless it gets this number in its session, and with `past_version` unless the past is as
    it was read. `name` is the speaker, if several people use the session. `said_at` is when the message was said, if
    that is not now. `additions` are stored before it."""

    content: Content
    request_sha256: str
    options: TurnOptions = TurnOptions()
    model_alias: str | None = None
    seq: int | None = None
    name: str | None = None
    said_at: datetime | None = None
    additions: Additions | None = None
    past_version: int | None = None


@frozen
class OutputsRequest:
    """What a client posts when tools have run: a tool's message for each open call. `options` and `model_alias`
    replace those of the turn from this round on. `additions` are stored before the outputs, and may have the turn. With
    `is_repeatable`, outputs that were taken before get the turn as it is stored: its call ids tell which they are."""

    outputs: tuple[IncomingMessage, ...]
    recorded_reply: RecordedReply | None = None
    options: TurnOptions | None = None
    model_alias: str | None = None
    additions: Additions | None = None
    is_repeatable: bool = False


@frozen
class TurnOutcome:
    """A turn that has ended or waits for tools, and its `context`, in the shape of the contract. `completion` is the
    model's answer; when a stored turn is returned again, with the usage of the whole turn. `reply_seq` is the number of
    its message, None of a stored turn. `summary` is the one that was made before the model was called."""

    turn: TurnRecord
    context: JsonObject
    completion: Completion
    reply_seq: int | None = None
    summary: Summary | StoredSummary | None = None

    @property
    def text(self) -> str | None:
        """The text of the reply; None when the reply only calls tools."""
        return self.completion.text if self.completion.tool_calls else self.completion.text or ""


@frozen
class TurnEvent:
    """An event of a running turn, for a stream. The end of the turn is not an event; it is the `TurnOutcome`."""

    name: Literal["turn.created", "context.assembled", "output.delta"]
    data: JsonObject
    """With `output.delta`: `text`, of which the end is a `refusal` if there is one, and `reasoning`."""
    reply_seq: int | None = None
    """With `turn.created`: the number that is reserved for the reply's message. It is not part of the public event."""
    summary: Summary | None = None
    """With `context.assembled`: the summary that was made for it. It is not part of the public event."""


Listener: TypeAlias = Callable[[TurnEvent], None]


@frozen
class ClaimedTurn:
    """A turn that this process may run, with the rows that it is decided on and the options of its model calls."""

    claim: Claim
    rows: WindowRows
    gathered_at: datetime
    options: TurnOptions
    reservation: JsonObject | None = None
    """What the turn has reserved of its limits; None when it has no limits."""
    looked_back: tuple[Message, ...] = ()
    """The messages that the turn's look-backs have added to its prompts so far, in time order."""
    added: Added | None = None
    """What the request added to the session besides the turn."""


@frozen
class TurnPlan:
    """The prompt for the model, or why the turn is refused, and the data of this decision."""

    rows: WindowRows
    decided: Ready | Refused

    @property
    def model(self) -> Model:
        return self.rows.model

    @property
    def snapshot(self) -> Snapshot:
        """What the prompt was decided on, with the tools that it offers and the budget that these leave."""
        return self.decided.window.snapshot

    def context(self, assembled: Assembled | None) -> JsonObject:
        """The budget, figures and trim log of the prompt, as a `TurnContext` has them. `assembled` is None when nothing
        is sent."""
        budget, prompt, accounts = self.snapshot.budget, self.decided.prompt, self.decided.accounts
        return {
            "model_alias": self.model.alias,
            "model_context_limit": budget.limit,
            "context_limit_source": budget.limit_source,
            "input_budget": budget.input_budget,
            "output_reserve": budget.output_reserve,
            "overhead_reserve": budget.overhead_reserve,
            "estimated_input_tokens_before": accounts.tokens_before,
            "estimated_input_tokens_after_summary": accounts.tokens_after_summary,
            "estimated_input_tokens_after_prune": self.decided.window.input_tokens,
            "summary_triggered": accounts.summary_triggered,
            "prune_triggered": accounts.prune_triggered,
            "overflow_rejected": assembled is None,
            "estimated_wire_tokens": prompt.wire_tokens,
            "regions": prompt.regions(),
            "context_trim_log": TrimLog(
                max_context_tokens=budget.prompt_ceiling,
                estimated_tokens_before=accounts.wire_before,
                estimated_tokens_after=prompt.wire_tokens,
                actions=in_ranges(accounts.actions),
                recalled=tuple([row.public() for row in accounts.recalled]),
                looked_back=prompt.looked_back(),
            ).public(),
            "prompt_sha256": assembled.sha256 if assembled else None,
        }

    def audit(
        self,
        claim: Claim,
        audit_id: UUID,
        attempt: int,
        assembled: Assembled | None,
        cache_break: CacheBreak | None = None,
    ) -> Audit:
        return Audit(
            **self.context(assembled),
            id=audit_id,
            turn_id=claim.turn_id,
            session_id=claim.session_id,
            round=claim.round,
            attempt=attempt,
            estimator="provider" if self.snapshot.is_counted_exactly else self.rows.counted_by,
            calibration_ratio=self.snapshot.calibration_ratio,
            cache_break=cache_break,
            prompt_refs=assembled.refs if assembled else None,
        )
