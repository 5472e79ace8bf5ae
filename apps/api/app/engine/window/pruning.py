"""What leaves the window when a summary was not enough, in which order, and why: trim actions.

Long answered tool results are shortened first, then media leave older messages, then assistant and tool messages leave
whole. What the newest summary cites stays, and so do users' words (contract.md, decisions 5 and 8). Policies that keep
turns whole lose the oldest turns instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, TypeAlias

from app.domain.types import JsonObject, MessageId
from app.engine.messages.tokens import Estimate
from app.engine.messages.turns import Unit
from app.engine.window.prompt import PromptItem
from app.engine.window.shortening import Shortening, ShorteningKind, mark_media, shorten_text
from app.engine.window.worth import worth_per_token

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

StillOver: TypeAlias = Callable[[int, int], bool]
"""Whether a prompt is still over once so many tokens (without framing) and messages have left it."""

LONG_TOOL_RESULT_TOKENS = 300
_KEPT_CHARS = 640


@dataclass(frozen=True, slots=True)
class TrimAction:
    """A decision. `target` is `message:<id>`, `turn:<id>`, `summary:<id>`, a pin's name, or `conversation_history` for
    turns that a shared-out window lost; `tokens_removed` is on the wire, and negative for what was added."""

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

    `droppable` is false for what may never leave; `markable` means that its media may; `answered` that an assistant
    spoke after it in its turn; `newest_results` that it is the tool group an open turn goes on from, whose results may
    be shortened when nothing else is left.
    """

    unit: Unit
    items: tuple[PromptItem, ...]
    droppable: bool
    markable: bool
    answered: bool
    newest_results: bool = False

    @property
    def wire_tokens(self) -> int:
        return sum(item.wire_tokens for item in self.items)

    def with_shortened(self, shortenings: Sequence[Shortening]) -> Piece:
        """The piece with those of its items replaced that were shortened."""
        now = {id(shortening.was): shortening.now for shortening in shortenings}
        return replace(self, items=tuple(now.get(id(item), item) for item in self.items))


def prune_messages(
    pieces: Sequence[Piece],
    *,
    still_over: StillOver,
    in_reach: Callable[[Piece], bool],
    reason: str,
    estimate: Estimate,
    largest_tokens: int,
    by_value: bool = False,
) -> tuple[list[Piece], list[TrimAction]]:
    """Shortens, then marks media, then drops, oldest first, until the prompt is no longer over or nothing may leave.

    With `by_value` it drops what is worth the least per token first, of equals the oldest.

    `in_reach(piece)` says whether this prune may touch the piece at all. An assistant's message of more than
    `largest_tokens`, which no prompt could ever hold, is shortened like a long result. Returns the pieces that remain,
    in their order, and what was done.
    """

    def shorten_long(piece: Piece, estimate: Estimate) -> tuple[Piece, list[Shortening]]:
        return _shorten_long_texts(piece, estimate, largest_tokens)

    kept: list[Piece | None] = list(pieces)
    actions: list[TrimAction] = []
    tokens = messages = 0
    for shorten in (shorten_long, without_media):
        for at, piece in enumerate(kept):
            if not still_over(tokens, messages):
                break
            if piece is not None and in_reach(piece):
                kept[at], done = shorten(piece, estimate)
                actions.extend(shortening_action(each, reason) for each in done)
                tokens += sum(each.tokens_removed for each in done)
    for at in _drop_order([[piece] if piece and piece.droppable else [] for piece in kept], by_value=by_value):
        piece = kept[at]
        if not still_over(tokens, messages):
            break
        if piece is not None and piece.droppable and in_reach(piece):
            kept[at] = None
            actions.append(_drop(piece, reason))
            tokens += sum(item.tokens for item in piece.items)
            messages += len(piece.items)
    return [piece for piece in kept if piece is not None], actions


def prune_turns(
    pieces: Sequence[Piece],
    *,
    still_over: StillOver,
    may_leave: Callable[[Piece], bool],
    reason: str,
    kind: TrimKind = "turn_dropped",
    by_value: bool = False,
) -> tuple[list[Piece], list[TrimAction]]:
    """Drops whole turns, oldest first, until the prompt is no longer over or no turn may leave with all its pieces.

    `by_value` and what is returned are as of `prune_messages`.
    """
    turns = [list(of_turn) for _, of_turn in groupby(pieces, key=lambda piece: piece.unit.messages[0].turn_id)]
    actions: list[TrimAction] = []
    gone: set[int] = set()
    tokens = messages = 0
    for at in _drop_order(turns, by_value=by_value):
        if not still_over(tokens, messages):
            break
        turn = turns[at]
        if all(map(may_leave, turn)):
            gone.add(at)
            target = f"turn:{turn[0].unit.messages[0].turn_id}"
            actions.append(TrimAction(kind, target, reason, sum(piece.wire_tokens for piece in turn)))
            tokens += sum(item.tokens for piece in turn for item in piece.items)
            messages += sum(len(piece.items) for piece in turn)
    return [piece for at, turn in enumerate(turns) if at not in gone for piece in turn], actions


def _drop_order(groups: Sequence[Sequence[Piece]], *, by_value: bool) -> Sequence[int]:
    """The places of the groups in the order they are to leave."""
    if not by_value:
        return range(len(groups))

    def worth(at: int) -> tuple[bool, float]:
        messages = [message for piece in groups[at] for message in piece.unit.messages]
        return worth_per_token(messages, sum(piece.wire_tokens for piece in groups[at]))

    return sorted(range(len(groups)), key=worth)


def without_media(piece: Piece, estimate: Estimate) -> tuple[Piece, list[Shortening]]:
    """The piece with its media marked, where they may leave."""
    found = [mark_media(item, estimate) for item in piece.items] if piece.markable else []
    done = [each for each in found if each is not None]
    return piece.with_shortened(done) if done else piece, done


def shortening_action(shortening: Shortening, reason: str) -> TrimAction:
    """The log's row for it."""
    return TrimAction(shortening.kind, shortening.was.label, reason, shortening.tokens_removed)


def size_of(pieces: Sequence[Piece]) -> tuple[int, int]:
    """Tokens without framing, and messages."""
    items = [item for piece in pieces for item in piece.items]
    return sum(item.tokens for item in items), len(items)


def cites(unit: Unit, anchors: frozenset[MessageId]) -> bool:
    """Whether the newest summary refers to a message of the unit."""
    return any(message.id in anchors for message in unit.messages)


def _shorten_long_texts(piece: Piece, estimate: Estimate, largest_tokens: int) -> tuple[Piece, list[Shortening]]:
    if not piece.droppable:
        return piece, []
    long_results = piece.unit.kind == "tool_group" and piece.answered
    longest = LONG_TOOL_RESULT_TOKENS if long_results else largest_tokens
    found = [shorten_text(item, _KEPT_CHARS, estimate) for item in piece.items if item.tokens > longest]
    done = [each for each in found if each is not None]
    return piece.with_shortened(done) if done else piece, done


def _drop(piece: Piece, reason: str) -> TrimAction:
    kind: TrimKind = "tool_group_dropped" if piece.unit.kind == "tool_group" else "assistant_dropped"
    return TrimAction(kind, f"message:{piece.unit.messages[0].id}", reason, piece.wire_tokens)
