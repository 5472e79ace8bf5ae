"""What a turn's prompt lost on its way into the budget: the trim log as it is stored, answered and exported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from app.domain.types import Count, Difference, JsonObject, SummaryId

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
        return cls(**{name: row[name] for name in ACTION_FIELDS if name in row})

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
        values: JsonObject = {name: getattr(self, name) for name in ACTION_FIELDS}
        return values if self.count > 1 else {name: value for name, value in values.items() if name != "count"}


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
        values: JsonObject = {name: getattr(self, name) for name in TRIM_LOG_FIELDS}
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


ACTION_FIELDS: Final = tuple(each.name for each in fields(TrimAction))
"""In the order in which they are answered."""
TRIM_LOG_FIELDS: Final = tuple(each.name for each in fields(TrimLog) if each.name not in ("recalled", "looked_back"))
