"""The audit of a model call: how its prompt was made and what was removed to fit the budget (the trim log), in the form
in which they are stored, returned and exported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias
from uuid import UUID

from annotated_types import Ge, Le

from app.domain.frozen import described, frozen, names_of, values_of
from app.domain.types import Count, Difference, JsonObject, Name, NumberInTurn, SessionId, SummaryId, TurnId

ShorteningKind: TypeAlias = Literal[
    "tool_result_shortened", "tool_input_shortened", "assistant_shortened", "media_marked"
]
DroppedKind: TypeAlias = Literal[
    "assistant_dropped", "tool_group_dropped", "turn_dropped", "history_drop", "pinned_drop", "emergency_drop"
]
ShortenedKind: TypeAlias = Literal[ShorteningKind, "summary_shortened", "pinned_trim"]
TrimKind: TypeAlias = Literal[DroppedKind, ShortenedKind, "summary_folded"]

LEAST_COUNTED_TOKENS: Final = 256
"""Of a smaller prompt most of the tokens that a provider reports are its own template, so it says nothing about our
estimates."""
PIN_KINDS: Final = frozenset({"pinned_trim", "pinned_drop"})
_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RANGE: Final = re.compile("(messages|turns):([0-9]{1,13})-([0-9]{1,13})")
REFS_OF_BLOCKS: Final = frozenset({"b", "w"})
"""Kinds of prompt references (`engine/window/prompt_refs.py`) with only a block; its sha256 is their second member."""
REFS_OF_RUNS: Final = frozenset("muckhelp")
"""The first letters of references to a range of stored messages."""
REFS_OF_SHORTENED: Final = frozenset("sj")
"""The first letters of references to a stored message and the block that replaces its content."""
CLEARED: Final = "clear_tool_results"
"""The reason of actions by which the policy field of this name left out tool results."""


@frozen
class TrimAction:
    """One action, or all `count` actions of one kind and reason in a range, of which others were sent.

    `target` is `message:<id>`, `turn:<id>`, `summary:<id>`, a pin's name, or `conversation_history` for turns that an
    allocated window dropped; for several actions a range of messages or turns. `tokens_removed_est` are wire tokens,
    negative for what was added.
    """

    kind: str
    target: str = described("For several actions `messages:<from_seq>-<to_seq>` or `turns:<from_seq>-<to_seq>`.")
    reason: str
    tokens_removed_est: Difference
    count: Count = 1

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> TrimAction:
        """An action from its stored row; older rows have no ranges."""
        return cls(**{name: row[name] for name in names_of(cls) if name in row})

    @property
    def seqs(self) -> tuple[str, int, int] | None:
        """The kind of a range (`messages` or `turns`), its first and its last `seq`; None for another target."""
        found = _RANGE.fullmatch(self.target)
        return (found[1], int(found[2]), int(found[3])) if found else None

    def public(self) -> JsonObject:
        """Its JSON, without a `count` of one."""
        return values_of(self) if self.count > 1 else values_of(self, "count")


@frozen
class TrimLog:
    """A turn's actions with the wire tokens before and after them; `max_context_tokens` is the largest prompt that
    leaves space for the output, `looked_back` the number and tokens of the messages of look-backs."""

    max_context_tokens: Difference
    estimated_tokens_before: Count
    estimated_tokens_after: Count
    actions: tuple[TrimAction, ...]
    recalled: tuple[JsonObject, ...] = ()
    looked_back: JsonObject | None = None

    def public(self) -> JsonObject:
        """Its JSON, without `recalled` and `looked_back` where they are empty."""
        values = values_of(self) | {
            "actions": [action.public() for action in self.actions],
            "recalled": list(self.recalled),
        }
        return {name: value for name, value in values.items() if value or name not in ("recalled", "looked_back")}


def summary_made(log: Mapping[str, Any]) -> SummaryId | None:
    """The last summary that was made for the prompt of this log (stored or public), or None."""
    for action in reversed(log["actions"]):
        noun, _, made = str(action["target"]).partition(":")
        if action["kind"] == "summary_folded" and noun == "summary" and _UUID.fullmatch(made):
            return SummaryId(UUID(made))
    return None


CacheBreak: TypeAlias = Literal[
    "model", "tools", "system", "goal", "pins", "summary", "prune", "recall", "look_back", "reasoning", "days"
]
"""The first part of a prompt that differs from the previous prompt, so that a provider's prompt cache ends there: the
alias, the tools, the text of a region, what was pruned, or what preceded the newest message in one turn only."""


@frozen
class TurnContext:
    """How the prompt of a turn was made. All figures are tokens (contract.md, section 5)."""

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


@frozen(kw_only=True)
class Audit(TurnContext):
    """What was to be sent in one call of a model, and why: a row of `turn_context_audit`. `attempt` counts the calls of
    a round. `created_at` is None until it is stored."""

    id: UUID
    turn_id: TurnId
    round: NumberInTurn
    attempt: NumberInTurn
    estimator: Name
    calibration_ratio: Annotated[float, Ge(0), Le(1000)]
    actual_prompt_tokens: Count | None = described("As the provider reported; null if it has not.", default=None)
    cache_break: CacheBreak | None = described(
        "The first part that differs from the session's previous prompt. Null if the prompt "
        "continues that one, or if this process does not know it.",
        default=None,
    )
    created_at: datetime | None = None
    session_id: SessionId
    prompt_refs: JsonObject | None

    @property
    def estimate_ratio(self) -> float | None:
        """The wire estimate without calibration over the provider's count. None without a count, and for a prompt of
        less than `LEAST_COUNTED_TOKENS`."""
        if self.actual_prompt_tokens and self.estimated_wire_tokens >= LEAST_COUNTED_TOKENS:
            return self.estimated_wire_tokens / self.actual_prompt_tokens
        return None

    @property
    def budget_use(self) -> float | None:
        """The prompt's share of the input budget; None if there is no budget."""
        return self.estimated_input_tokens_after_prune / self.input_budget if self.input_budget > 0 else None
