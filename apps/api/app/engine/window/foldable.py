"""What a summary made now could fold, and the tokens it may have beside the content that is never removed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import floor

from app.domain.frozen import frozen
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.summary.fold import MIN_SUMMARY_TOKENS, Fold, SummaryReason
from app.engine.window.pieces import Piece
from app.engine.window.pruning import shortened_media
from app.engine.window.shortening import fit_results
from app.engine.window.window import Window


@frozen
class Foldable:
    """What a summary may fold.

    `window` is sent if no summary is made. Its past turns from position `first_protected` on are not folded.
    `room_tokens` is the largest summary that fits beside the content that is never removed; it is negative when that
    content alone is over the budget. `most_tokens` is another upper bound. `previous_tokens` are the wire tokens of the
    current summary, before any shortening to its share.
    """

    window: Window
    first_protected: int
    previous_tokens: int
    room_tokens: int
    most_tokens: int

    def fold(self, reason: SummaryReason) -> Fold | None:
        """The fold of a summary made now, or None when it would not shrink anything.

        Its cap is never over `room_tokens`: a summary that was paid for must not cause the refusal of the turn.
        """
        past, previous = self.window.snapshot.past, self.window.snapshot.summary
        older_tokens = past.wire_tokens() - past.wire_tokens(self.first_protected)
        folded_tokens = older_tokens + self.previous_tokens
        cap_tokens = min(folded_tokens * 3 // 4, self.most_tokens, self.room_tokens)
        if not older_tokens or cap_tokens < MIN_SUMMARY_TOKENS:
            return None
        older = past.turns_between(0, self.first_protected)
        protected = past.turns_between(self.first_protected, past.turn_count)
        return Fold(reason, older, protected, previous, self.previous_tokens, folded_tokens, cap_tokens)


def foldable(window: Window) -> Foldable:
    """What a summary may fold under a policy without an allocation."""
    cut = window.snapshot.first_protected()
    most_tokens = window.snapshot.policy.most_summary_tokens(window.budget.input_budget)
    room_tokens = room_beside(window, untouchable(window))
    previous_tokens = window.summary.wire_tokens if window.summary else 0
    return Foldable(window, cut, previous_tokens, room_tokens, most_tokens)


def room_beside(window: Window, pieces: Sequence[Piece]) -> int:
    """The largest summary, without framing, that fits beside the head and these pieces."""
    beside = (*window.head, *window.recalled, *pieces)
    less_tokens = window.tokens - sum(each.tokens for each in beside)
    less_messages = window.messages - sum(each.messages for each in beside)
    left = window.budget.input_budget - window.input_tokens_without(less_tokens, less_messages)
    return floor(left / window.snapshot.calibration_ratio) - MESSAGE_FRAMING_TOKENS


def untouchable(window: Window) -> list[Piece]:
    """What neither a summary nor a prune can remove of the protected turns and the running turn, as small as possible.

    It is users' text in protected turns, the pieces of them that the current summary cites (the next summary takes over
    the citations that it can), and what is never removed. The newest results of an open turn are at their floor, and
    older media are replaced by markers.
    """
    first = bisect_left(window.past, window.snapshot.protected_from, key=lambda piece: piece.seq)
    protected = (*window.past[first:], *window.current)
    kept = (piece for piece in protected if not (window.snapshot.policy.prune_protected and window.may_drop(piece)))
    return [_at_least(piece, window) for piece in kept]


def remains(window: Window, *, shortened: bool = True) -> list[Piece]:
    """The pieces that may not be dropped with their turn, as they are or `shortened` as far as possible."""
    left = [piece for piece in window.pieces if not window.may_drop_with_its_turn(piece)]
    return [_at_least(piece, window) for piece in left] if shortened else left


def _at_least(piece: Piece, window: Window) -> Piece:
    if window.leaves_of(piece) == "shortened":
        done = fit_results(piece.items, piece.wire_tokens, window.estimate)
    else:
        done = shortened_media(piece, window) if window.snapshot.policy.prune_protected else []
    return piece.with_items(each.now for each in done) if done else piece
