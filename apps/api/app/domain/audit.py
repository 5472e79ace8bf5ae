"""The audit of a model call: how its prompt came about and what it lost on its way into the budget (the trim log), as
they are stored, answered and exported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias
from uuid import UUID

from annotated_types import Ge, Le

from app.domain.stored import names_of, values_of
from app.domain.types import Count, Difference, JsonObject, Name, SessionId, SmallSeq, SummaryId, TurnId

ShorteningKind: TypeAlias = Literal[
    "tool_result_shortened", "tool_input_shortened", "assistant_shortened", "media_marked"
]
TrimKind: TypeAlias = (
    ShorteningKind
    | Literal[
        "tool_group_dropped",
        "assistant_dropped",
        "turn_dropped",
        "history_drop",
        "pinned_trim",
        "pinned_drop",
        "summary_folded",
        "summary_shortened",
        "emergency_drop",
    ]
)

PIN_KINDS: Final = frozenset({"pinned_trim", "pinned_drop"})
_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CLEARED: Final = "clear_tool_results"
"""The reason of what a policy of this name has left out."""


@dataclass(frozen=True, slots=True)
class TrimAction:
    """A decision, or all of one kind and reason in a range.

    `target` is `message:<id>`, `turn:<id>`, `summary:<id>`, a pin's name, or `conversation_history` for turns that a
    shared-out window lost. Of several it is `messages:<from_seq>-<to_seq>` or `turns:<from_seq>-<to_seq>`, and `count`
    is how many single actions the entry stands for; others in the range were sent. `tokens_removed_est` is on the wire,
    and negative for what was added.
    """

    kind: str
    target: str = field(
        metadata={"description": "Of several `messages:<from_seq>-<to_seq>` or `turns:<from_seq>-<to_seq>`."}
    )
    reason: str
    tokens_removed_est: Difference
    count: Count = 1

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> TrimAction:
        """An action as it was stored; rows of before had no ranges."""
        return cls(**{name: row[name] for name in names_of(cls) if name in row})

    @property
    def seqs(self) -> tuple[str, int, int] | None:
        """What the range is of (`messages` or `turns`), and its first and last `seq`; None for what is no range."""
        noun, _, seqs = self.target.partition(":")
        first, _, last = seqs.partition("-")
        if noun not in {"messages", "turns"} or not all(re.fullmatch("[0-9]{1,13}", seq) for seq in (first, last)):
            return None
        return noun, int(first), int(last)

    def public(self) -> JsonObject:
        """Its JSON; a `count` of one is left out."""
        return values_of(self) if self.count > 1 else values_of(self, "count")


@dataclass(frozen=True, slots=True)
class TrimLog:
    """A turn's actions with the wire tokens before and after them; `max_context_tokens` is the largest prompt that
    leaves room for the output. `recalled` has a row for each message that came back, `looked_back` the number of the
    messages of look-backs and their tokens."""

    max_context_tokens: Difference
    estimated_tokens_before: Count
    estimated_tokens_after: Count
    actions: tuple[TrimAction, ...]
    recalled: tuple[JsonObject, ...] = ()
    looked_back: JsonObject | None = None

    def public(self) -> JsonObject:
        """Its JSON; without recalled messages or look-backs it does not name them."""
        values = values_of(self, "recalled", "looked_back")
        values["actions"] = [action.public() for action in self.actions]
        values |= {"recalled": list(self.recalled)} if self.recalled else {}
        return values | ({"looked_back": self.looked_back} if self.looked_back else {})


def summary_made(log: Mapping[str, Any]) -> SummaryId | None:
    """The last summary that was made for a prompt with this log, stored or public; None where none was."""
    for action in reversed(log["actions"]):
        noun, _, made = str(action["target"]).partition(":")
        if action["kind"] == "summary_folded" and noun == "summary" and _UUID.fullmatch(made):
            return SummaryId(UUID(made))
    return None


CacheBreak: TypeAlias = Literal[
    "model", "tools", "system", "goal", "pins", "summary", "prune", "recall", "look_back", "reasoning", "days"
]
"""What of a prompt first differs from the prompt before it, so that a provider's prompt cache ends there: alias,
tools, the text of a region, what was pruned, or what stood before the newest message for one turn alone."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """How the prompt of a turn came about. All figures are tokens (contract.md, section 5)."""

    model_alias: Name
    model_context_limit: Count
    context_limit_source: Name
    input_budget: Difference
    output_reserve: Count
    overhead_reserve: Count
    estimated_input_tokens_before: Count
    estimated_input_tokens_after_summary: Count
    estimated_input_tokens_after_prune: Count
    summary_triggered: bool
    prune_triggered: bool
    overflow_rejected: bool
    estimated_wire_tokens: Count
    regions: Mapping[str, Any]
    context_trim_log: JsonObject
    prompt_sha256: str | None

    def public(self) -> JsonObject:
        """The `context` of a turn's answer, in its order."""
        return {name: getattr(self, name) for name in names_of(TurnContext)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit(TurnContext):
    """What one call of a model was to be sent and why: a row of `turn_context_audit`, all of it.

    `attempt` counts the calls of a round. `created_at` is None until it is stored.
    """

    id: UUID
    turn_id: TurnId
    round: SmallSeq
    attempt: SmallSeq
    estimator: Name
    calibration_ratio: Annotated[float, Ge(0), Le(1000)]
    actual_prompt_tokens: Count | None = field(
        default=None, metadata={"description": "As the provider reported; null before it has."}
    )
    cache_break: CacheBreak | None = field(
        default=None,
        metadata={
            "description": "What ended the beginning that it shares with the session's prompt before it. Null where it "
            "goes on from that one, or where another process sent that one."
        },
    )
    created_at: datetime | None = None
    session_id: SessionId
    prompt_refs: JsonObject | None

    @property
    def budget_use(self) -> float | None:
        """Of the input budget, what the prompt takes; None where there is no budget."""
        return self.estimated_input_tokens_after_prune / self.input_budget if self.input_budget > 0 else None
