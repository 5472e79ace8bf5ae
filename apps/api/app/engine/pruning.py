"""What leaves the window when a summary was not enough, in which order, and why: trim actions.

Only assistant and tool messages leave. What the newest summary cites stays, and so do users' words (contract, decisions
5 and 8). Long answered tool results are shortened before anything is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from app.domain.types import JsonObject, MessageId
from app.engine.prompt import Block, PromptItem
from app.engine.tokens import Estimate, content_text
from app.engine.turns import Unit

TrimKind: TypeAlias = Literal[
    "tool_result_shortened", "tool_group_dropped", "assistant_dropped", "summary_folded", "summary_shortened"
]

LONG_TOOL_RESULT_TOKENS = 300
_KEPT_HEAD_CHARS = 480
_KEPT_TAIL_CHARS = 160


@dataclass(frozen=True, slots=True)
class TrimAction:
    """One decision. `target` is `message:<id>`, `turn:<id>` or `summary:<id>`; `tokens_removed` is on the wire, and
    negative for what an action added."""

    kind: TrimKind
    target: str
    reason: str
    tokens_removed: int

    def public(self) -> JsonObject:
        """The shape of an action in `context_trim_log`."""
        return {
            "kind": self.kind,
            "target": self.target,
            "reason": self.reason,
            "tokens_removed_est": self.tokens_removed,
        }


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit of the history with the items it became.

    `droppable` is false for what may never leave; `answered` means that an assistant spoke after it in its turn.
    """

    unit: Unit
    items: tuple[PromptItem, ...]
    droppable: bool
    answered: bool

    @property
    def wire_tokens(self) -> int:
        return sum(item.wire_tokens for item in self.items)


def prune(
    pieces: Sequence[Piece],
    *,
    still_over: Callable[[int, int], bool],
    may_leave: Callable[[Piece], bool],
    reason: str,
    estimate: Estimate,
) -> tuple[list[Piece], list[TrimAction]]:
    """Shortens, then drops, oldest first, until the prompt is no longer over or nothing more may leave.

    `still_over(tokens, messages)` says whether it is, once so many tokens (without framing) and messages have left.
    Returns the pieces that remain, in their order, and what was done.
    """
    kept: list[Piece | None] = list(pieces)
    actions: list[TrimAction] = []
    tokens = messages = 0
    for at, piece in enumerate(pieces):
        if not still_over(tokens, messages):
            break
        if may_leave(piece) and piece.answered and piece.unit.kind == "tool_group":
            kept[at], shortened = _shorten_results(piece, reason, estimate)
            actions.extend(shortened)
            tokens += sum(action.tokens_removed for action in shortened)
    for at, piece in enumerate(kept):
        if not still_over(tokens, messages):
            break
        if piece is not None and may_leave(piece):
            kept[at] = None
            actions.append(_drop(piece, reason))
            tokens += sum(item.tokens for item in piece.items)
            messages += len(piece.items)
    return [piece for piece in kept if piece is not None], actions


def cites(unit: Unit, anchors: frozenset[MessageId]) -> bool:
    """Whether the newest summary refers to a message of the unit."""
    return any(message.id in anchors for message in unit.messages)


def _shorten_results(piece: Piece, reason: str, estimate: Estimate) -> tuple[Piece, list[TrimAction]]:
    items: list[PromptItem] = []
    actions: list[TrimAction] = []
    for item in piece.items:
        shorter = _shortened(item, estimate)
        if shorter is None:
            items.append(item)
            continue
        items.append(shorter)
        actions.append(TrimAction("tool_result_shortened", item.label, reason, item.tokens - shorter.tokens))
    return replace(piece, items=tuple(items)), actions


def _shortened(item: PromptItem, estimate: Estimate) -> PromptItem | None:
    """The item with its middle left out, or None when it is no long tool result or would not get smaller."""
    if item.message is None or item.message.role != "tool" or item.tokens <= LONG_TOOL_RESULT_TOKENS:
        return None
    text = item.block.text if item.block else content_text(item.message.content)
    left_out = len(text) - _KEPT_HEAD_CHARS - _KEPT_TAIL_CHARS
    if left_out <= 0:
        return None
    mark = f"\n[… {left_out} characters of this tool result left out …]\n"
    text = text[:_KEPT_HEAD_CHARS] + mark + text[-_KEPT_TAIL_CHARS:]
    tokens = estimate(text) + (estimate(item.message.tool_call_id) if item.message.tool_call_id else 0)
    return replace(item, tokens=tokens, block=Block("tool", text)) if tokens < item.tokens else None


def _drop(piece: Piece, reason: str) -> TrimAction:
    kind: TrimKind = "tool_group_dropped" if piece.unit.kind == "tool_group" else "assistant_dropped"
    return TrimAction(kind, f"message:{piece.unit.messages[0].id}", reason, piece.wire_tokens)
