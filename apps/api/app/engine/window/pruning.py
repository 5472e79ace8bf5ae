"""What leaves the history when a summary was not enough, in which order, and why.

Long answered tool results are shortened first, then media leave older messages, then assistant and tool messages leave
whole. What the newest summary cites stays, and so do users' words (contract.md, decisions 5 and 8). Policies that keep
turns whole lose the oldest turns instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, TypeAlias

from app.domain.content import content_text
from app.domain.extractive import demands
from app.domain.types import Message, Role
from app.engine.policy.policy import ContextPolicy
from app.engine.window.shortening import Shortening, mark_media, shorten_text
from app.engine.window.snapshot import TrimAction, TrimKind
from app.engine.window.window import Piece, Window, protected_from, size_of

LONG_TOOL_RESULT_TOKENS = 300
_KEPT_CHARS = 640
_WORTH: Final[Mapping[Role, float]] = {"user": 2.0, "assistant": 1.0, "tool": 0.5}
"""Of a message, however long it is: most of what is asked about later was said in a short one."""

InReach: TypeAlias = Callable[[Piece], bool]
"""Whether a prune may touch the piece at all."""
PruneOnce: TypeAlias = Callable[[Window, float, InReach], Window]
"""A prune of what is in reach that stops once the window costs less than so much."""


def prune_older(window: Window, policy: ContextPolicy) -> Window:
    """Prunes what is older than the protected turns until what is charged is under the prune threshold.

    A policy that prunes by value or in blocks does so as it did for the calls before, so that what has left stays
    away: by value, what is new would else bring old messages back into the middle of the prompt.
    """
    by_value = policy.prune_order == "value"

    def prune(window: Window, to_tokens: float, in_reach: InReach) -> Window:
        if policy.prune_unit == "message":
            return prune_messages(window, to_tokens, in_reach, "prune_threshold", by_value=by_value)
        return _prune_turns(window, policy, to_tokens, in_reach, "prune_threshold", by_value=by_value)

    input_budget = window.budget.input_budget
    threshold = policy.prune_from(input_budget)
    if not by_value and not policy.prune_block_share:
        return prune(window, threshold, lambda piece: not piece.protected)
    to_tokens = threshold - policy.prune_block_share * input_budget
    return _prune_as_it_grew(window, threshold, to_tokens, _protected_when_newest(window, policy), prune)


def prune_protected(window: Window, policy: ContextPolicy) -> Window:
    """Prunes until the prompt is within the input budget, the oldest first, protected turns as well."""

    def prune(window: Window, to_tokens: float, in_reach: InReach) -> Window:
        if policy.prune_unit == "turn":
            # Earlier rounds of the running turn may leave as well, whatever the unit (contract.md, decision 8).
            window = _prune_turns(window, policy, to_tokens, in_reach, "over_budget")
        return prune_messages(window, to_tokens, in_reach, "over_budget")

    over = window.budget.input_budget + 1
    if not policy.prune_block_share:
        return prune(window, over, lambda _piece: True)
    to_tokens = over - policy.prune_block_share * window.budget.input_budget
    return _prune_as_it_grew(window, over, to_tokens, lambda piece: piece.seq, prune)


def drop_history(window: Window, policy: ContextPolicy) -> Window:
    """Whole turns leave, users' words with them, oldest first, until the prompt is within its budget."""
    over = window.budget.input_budget + 1
    return prune_turns(
        window, over, lambda piece: piece.may_leave_with_its_turn(policy), "over_budget", kind="history_drop"
    )


def drop_oldest_turns(window: Window, _policy: ContextPolicy) -> Window:
    """Whole past turns leave, oldest first, until the prompt fits: what is left when a provider has refused it."""
    over = window.budget.input_budget + 1
    return prune_turns(window, over, lambda piece: piece.state != "running", "provider_overflow", kind="emergency_drop")


def prune_messages(
    window: Window, to_tokens: float, in_reach: InReach, reason: str, *, by_value: bool = False
) -> Window:
    """Shortens, then marks media, then drops, oldest first, until the window costs less than `to_tokens` or nothing
    may leave. With `by_value` it drops what is worth the least per token first, of equals the oldest.

    An assistant's message that no prompt could ever hold is shortened like a long result.
    """
    kept: list[Piece | None] = list(window.pieces)
    actions: list[TrimAction] = []
    tokens = messages = 0
    for shortenings in (_of_long_texts, shortened_media):
        for at, piece in enumerate(window.pieces):
            if not window.still_costs(to_tokens, tokens, messages):
                break
            now = kept[at] or piece
            if in_reach(now) and (done := shortenings(now, window)):
                kept[at] = now.with_items(each.now for each in done)
                actions += (each.action(reason) for each in done)
                tokens += sum(each.tokens_removed for each in done)
    for at in _drop_order([[piece] if piece and piece.may_be_dropped else [] for piece in kept], by_value=by_value):
        piece = kept[at]
        if not window.still_costs(to_tokens, tokens, messages):
            break
        if piece is not None and piece.may_be_dropped and in_reach(piece):
            kept[at] = None
            kind: TrimKind = "tool_group_dropped" if piece.unit.kind == "tool_group" else "assistant_dropped"
            actions.append(TrimAction(kind, f"message:{piece.unit.messages[0].id}", reason, piece.wire_tokens))
            tokens += piece.tokens
            messages += len(piece.items)
    return window.left_with([piece for piece in kept if piece is not None], tokens, messages, actions)


def prune_turns(
    window: Window,
    to_tokens: float,
    may_leave: InReach,
    reason: str,
    *,
    kind: TrimKind = "turn_dropped",
    by_value: bool = False,
) -> Window:
    """Drops whole turns, oldest first, until the window costs less than `to_tokens` or no turn may leave with all its
    pieces; `by_value` is as of `prune_messages`."""
    turns = [list(of_turn) for _, of_turn in groupby(window.pieces, key=lambda piece: piece.turn_id)]
    actions: list[TrimAction] = []
    gone: set[int] = set()
    tokens = messages = 0
    for at in _drop_order(turns, by_value=by_value):
        if not window.still_costs(to_tokens, tokens, messages):
            break
        turn = turns[at]
        if all(map(may_leave, turn)):
            gone.add(at)
            wire_tokens = sum(piece.wire_tokens for piece in turn)
            actions.append(TrimAction(kind, f"turn:{turn[0].turn_id}", reason, wire_tokens))
            of_turn = size_of(turn)
            tokens, messages = tokens + of_turn[0], messages + of_turn[1]
    left = [piece for at, turn in enumerate(turns) if at not in gone for piece in turn]
    return window.left_with(left, tokens, messages, actions)


def _prune_turns(
    window: Window, policy: ContextPolicy, to_tokens: float, in_reach: InReach, reason: str, *, by_value: bool = False
) -> Window:
    return prune_turns(
        window,
        to_tokens,
        lambda piece: piece.may_be_dropped and in_reach(piece),
        reason,
        kind="turn_dropped" if policy.allocation is None else "history_drop",
        by_value=by_value,
    )


def _prune_as_it_grew(
    window: Window, from_tokens: float, to_tokens: float, reach_of: Callable[[Piece], int], prune: PruneOnce
) -> Window:
    """What is left of the window when every call so far was pruned.

    Nothing of a prune is stored. What a prompt lost last turn is found again by letting the window grow once more, call
    by call, and pruning where it cost `from_tokens` until it costs less than `to_tokens`; so what has left stays away
    and the beginning of the prompt stays the same. `reach_of(piece)` is the `seq` from which nothing might be touched
    when the piece was the newest.
    """
    kept: list[Piece] = []
    log = window.log
    # What the window has more than what is kept: all that comes later, and what has left.
    tokens, messages = size_of(window.pieces)
    exhausted_to = window.pieces[0].seq if window.pieces else 0
    for at, piece in enumerate(window.pieces, start=1):
        kept.append(piece)
        tokens, messages = tokens - piece.tokens, messages - len(piece.items)
        # A model is called when the user or a tool has spoken; the last piece is the call that is being decided.
        if piece.unit.kind == "assistant" and at < len(window.pieces):
            continue
        if not window.still_costs(from_tokens, tokens, messages):
            continue
        reach_to = reach_of(piece)
        # What is older than that has been tried before, and was not enough.
        if reach_to <= exhausted_to:
            continue
        grown = prune(replace(window.left_with(kept, tokens, messages), log=log), to_tokens, _before(reach_to))
        kept, log = list(grown.pieces), grown.log
        tokens, messages = window.tokens - grown.tokens, window.messages - grown.messages
        if grown.still_costs(to_tokens):
            exhausted_to = reach_to
    return replace(window.left_with(kept, tokens, messages), log=log)


def _before(seq: int) -> InReach:
    return lambda piece: piece.seq < seq


def _protected_when_newest(window: Window, policy: ContextPolicy) -> Callable[[Piece], int]:
    """The first `seq` of the turns that were protected when a piece was the newest."""
    snapshot = window.snapshot
    turns = (*snapshot.turns, snapshot.current)
    place_of = {turn.id: at for at, turn in enumerate(turns)}
    now = protected_from(snapshot, policy, snapshot.turns, snapshot.current)

    def reach_of(piece: Piece) -> int:
        at = place_of[piece.turn_id]
        return min(protected_from(snapshot, policy, turns[:at], turns[at]), now)

    return reach_of


def shortened_media(piece: Piece, window: Window) -> list[Shortening]:
    """How its media become marks, where they may leave."""
    if piece.leaves not in {"marked", "whole"}:
        return []
    found = (mark_media(item, window.estimate) for item in piece.items)
    return [each for each in found if each is not None]


def _of_long_texts(piece: Piece, window: Window) -> list[Shortening]:
    if not piece.may_be_dropped:
        return []
    long_results = piece.unit.kind == "tool_group" and piece.answered
    longest = LONG_TOOL_RESULT_TOKENS if long_results else window.budget.input_budget
    found = (shorten_text(item, _KEPT_CHARS, window.estimate) for item in piece.items if item.tokens > longest)
    return [each for each in found if each is not None]


def _drop_order(groups: Sequence[Sequence[Piece]], *, by_value: bool) -> Sequence[int]:
    """The places of the groups in the order they are to leave."""
    if not by_value:
        return range(len(groups))

    def worth(at: int) -> tuple[bool, float]:
        messages = [message for piece in groups[at] for message in piece.unit.messages]
        return worth_per_token(messages, sum(piece.wire_tokens for piece in groups[at]))

    return sorted(range(len(groups)), key=worth)


def worth_per_token(messages: Sequence[Message], wire_tokens: int) -> tuple[bool, float]:
    """A key that sorts the least worth first; `wire_tokens` is what the messages cost as they are sent now.

    The longer what an assistant or a tool said, the sooner it leaves. What a user demanded for good ("always answer
    in French") comes after everything else, whatever its length.
    """
    standing = any(message.role == "user" and demands(content_text(message.content)) for message in messages)
    return standing, sum(_WORTH[message.role] for message in messages) / max(1, wire_tokens)
