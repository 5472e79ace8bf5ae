"""Prunes that hold for many turns: in blocks, and decided anew for every call as they were decided before.

Nothing of a prune is stored. What a prompt lost last turn is found again by letting the window grow once more, call by
call, and pruning where it was over; so what has left stays away and the beginning of the prompt stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from app.engine.window.pruning import Piece, StillOver, TrimAction, size_of


class PruneOnce(Protocol):
    """A prune of these pieces that stops once `still_over` says no, and touches only what is `in_reach`."""

    def __call__(
        self, pieces: Sequence[Piece], still_over: StillOver, in_reach: Callable[[Piece], bool]
    ) -> tuple[list[Piece], list[TrimAction]]: ...


def prune_as_it_grew(
    pieces: Sequence[Piece],
    *,
    over_at: StillOver,
    still_over: StillOver,
    protected_from: Callable[[Piece], int],
    prune: PruneOnce,
) -> tuple[list[Piece], list[TrimAction]]:
    """What is left of the pieces when every call so far was pruned.

    A call whose prompt was `over_at` lost pieces until it was no longer `still_over`; both are asked of the prompt of
    all pieces. `protected_from(piece)` is the `seq` from which nothing might be touched when the piece was the newest.
    Returns what remains, in its order, and what was done, in the order it was.
    """
    kept: list[Piece] = []
    actions: list[TrimAction] = []
    later_tokens, later_messages = size_of(pieces)
    gone_tokens = gone_messages = 0
    exhausted_to = first_seq_of(pieces[0]) if pieces else 0
    for at, piece in enumerate(pieces, start=1):
        kept.append(piece)
        tokens, messages = size_of([piece])
        later_tokens, later_messages = later_tokens - tokens, later_messages - messages
        # A model is called when the user or a tool has spoken; the last piece is the call that is being decided.
        if piece.unit.kind == "assistant" and at < len(pieces):
            continue
        left_out = later_tokens + gone_tokens, later_messages + gone_messages
        if not over_at(*left_out):
            continue
        reach_to = protected_from(piece)
        # What is older than that has been tried before, and was not enough.
        if reach_to <= exhausted_to:
            continue
        over_then = _once_left(still_over, *left_out)
        left, done = prune(kept, over_then, _before(reach_to))
        less_tokens, less_messages = (before - now for before, now in zip(size_of(kept), size_of(left), strict=True))
        kept, gone_tokens, gone_messages = left, gone_tokens + less_tokens, gone_messages + less_messages
        actions += done
        if over_then(less_tokens, less_messages):
            exhausted_to = reach_to
    return kept, actions


def first_seq_of(piece: Piece) -> int:
    """The `seq` of its first message."""
    return piece.unit.messages[0].seq


def _once_left(over: StillOver, tokens: int, messages: int) -> StillOver:
    return lambda more_tokens, more_messages: over(tokens + more_tokens, messages + more_messages)


def _before(seq: int) -> Callable[[Piece], bool]:
    return lambda piece: first_seq_of(piece) < seq
