"""What is pruned from the history when a summary was not enough, in which order, and why; and what cannot be.

Long answered tool results are shortened first, then media of older messages are replaced by markers, then assistant and
tool messages are dropped. Messages that the newest summary cites and users' text are kept (contract.md, decisions 5 and
8). Policies with `prune_unit` "turn" drop the oldest turns instead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from math import floor
from operator import attrgetter
from typing import Final

from app.domain.audit import TrimKind
from app.domain.content import content_text
from app.domain.sentences import demands
from app.engine.messages.tokens import Estimate
from app.engine.messages.turns import UnitKind
from app.engine.policy.budget import part_of
from app.engine.policy.policy import ContextPolicy
from app.engine.window.pieces import Piece
from app.engine.window.shortening import KEPT_CHARS, Shortening, fit_results, mark_media, shorten_text
from app.engine.window.snapshot import Removal
from app.engine.window.window import Window

LONG_TOOL_RESULT_TOKENS = 300
_WORTH: Final = 1.0
"""Worth of a message, whatever its length: most of what is needed later is in short messages."""
_WORTH_OF_USERS: Final = 2.0
_WORTH_OF_A_RESULT: Final = 0.5


def prune_older(window: Window) -> Window:
    """Prune what is older than the protected turns until the input tokens are under the prune threshold. By value or in
    blocks, prunes of earlier calls are repeated: new messages would bring old ones back into the prompt's middle."""
    snapshot, policy = window.snapshot, window.snapshot.policy
    by_value, in_blocks = policy.prune_order == "value", policy.prune_block_share > 0
    prune = Prune(window, "prune_threshold")
    queue = _Queue(prune.pieces, window.may_drop, _kind_of_turns(policy), by_value=by_value)
    to_tokens = window.prune_from - floor(part_of(policy.prune_block_share, window.budget.input_budget))
    for at in prune.calls(window.prune_from, again=by_value or in_blocks):
        # The first turn that was protected when this was the newest piece.
        first = snapshot.first_protected(snapshot.past.place_of_turn(prune.pieces[at].turn_seq))
        end = bisect_left(prune.pieces, snapshot.past.seq_from(first), key=attrgetter("seq"))
        if policy.prune_unit == "message":
            prune.shorten(to_tokens, end)
        prune.drop(queue, to_tokens, end)
    return prune.window_now()


def prune_protected(window: Window) -> Window:
    """Prune until the prompt is within the input budget, oldest first, including protected turns."""
    policy, over = window.snapshot.policy, window.budget.input_budget + 1
    prune = Prune(window, "over_budget")
    # Earlier tool rounds of the running turn may be dropped as well, whatever the unit (contract.md, decision 8).
    turns, messages = None, _Queue(prune.pieces, window.may_drop)
    if kind := _kind_of_turns(policy):
        turns = _Queue(prune.pieces, window.may_drop, kind)
        messages = _Queue(prune.pieces, lambda piece: piece.state != "settled" and window.may_drop(piece))
    to_tokens = over - floor(part_of(policy.prune_block_share, window.budget.input_budget))
    for at in prune.calls(over, again=policy.prune_block_share > 0):
        if turns is not None:
            prune.drop(turns, to_tokens, at)
        prune.shorten(to_tokens, at)
        prune.drop(messages, to_tokens, at)
    return prune.window_now()


def drop_history(window: Window) -> Window:
    """Drop whole turns, including users' text, oldest first, until the prompt is within its budget."""
    return _without_turns(window, window.may_drop_with_its_turn, "over_budget", "history_drop")


def drop_oldest_turns(window: Window) -> Window:
    """Drop whole past turns, oldest first, until the prompt fits: the last resort after a provider has rejected it."""
    return _without_turns(window, lambda piece: piece.state != "running", "provider_overflow", "emergency_drop")


def drop_turns_at_last(window: Window) -> Window:
    """The same when every other stage was not enough, for a request without a summary before its refusal."""
    return _without_turns(window, lambda piece: piece.state != "running", "over_budget", "turn_dropped")


def _without_turns(window: Window, may_leave: Callable[[Piece], bool], reason: str, kind: TrimKind) -> Window:
    prune = Prune(window, reason)
    prune.drop(_Queue(prune.pieces, may_leave, kind), window.budget.input_budget + 1, len(prune.pieces))
    return prune.window_now()


class _Queue:
    """Groups of pieces that may be dropped, oldest first, or `by_value` least worth first (then they are `waiting` in a
    heap), once the prune has reached all of a group. Each ends before a position of `ends`, where the next begins. It
    is a whole turn, logged as `kind_of_turn`, or without that a piece.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        may_leave: Callable[[Piece], bool],
        kind_of_turn: TrimKind | None = None,
        *,
        by_value: bool = False,
    ) -> None:
        self.ends = range(1, len(pieces) + 1) if kind_of_turn is None else _ends_of_turns(pieces)
        self.may_leave = may_leave
        self.kind_of_turn: TrimKind | None = kind_of_turn
        self.by_value = by_value
        self.reached = 0
        self.waiting: list[tuple[tuple[bool, float], int]] = []

    def group(self, at: int) -> slice:
        return slice(self.ends[at - 1] if at else 0, self.ends[at])


class Prune:
    """A prune in progress. `kept` has what is left of the window's pieces. `tokens`, `messages` and `history_tokens`
    are sums over what is out of the window: removed, or not added yet by `calls`. Each piece is tried once, in time
    order: `end` only grows."""

    def __init__(self, window: Window, reason: str) -> None:
        self.window = window
        self._steadily = False
        self.reason = reason
        self.pieces = window.pieces
        self.kept: list[Piece | None] = list(self.pieces)
        self.tokens = self.messages = self.history_tokens = 0
        self.actions: list[Removal] = []
        # Positions of the pieces that may be shortened, the next one last.
        longest = min(LONG_TOOL_RESULT_TOKENS, window.budget.input_budget)
        self._long = [at for at, piece in enumerate(self.pieces) if piece.longest_tokens > longest][::-1]
        self._media = [at for at, piece in enumerate(self.pieces) if piece.has_media][::-1]

    def costs(self, at_tokens: int) -> bool:
        """Whether the window has at least this many input tokens, and more history than its floor."""
        if self.window.history_tokens - self.history_tokens <= self.window.history_floor:
            return False
        return self.window.input_tokens_without(self.tokens, self.messages, steadily=self._steadily) >= at_tokens

    def calls(self, from_tokens: int, *, again: bool = True) -> Iterator[int]:
        """Yield the position of the newest piece, which is never removed, at the call being decided, and `again` at
        each call before it at which the window, as pruned until then, had this many tokens. Prunes are not stored: the
        window grows once more, piece by piece, so that what earlier prompts lost stays out, and their beginning stays.
        The calibration is the steady one: with it, where each prune ended would change a little in every call.
        """
        last = len(self.pieces) - 1
        if not again:
            yield last
            return
        self._steadily = True
        self.tokens = sum([piece.tokens for piece in self.pieces])
        self.messages = sum([piece.messages for piece in self.pieces])
        self.history_tokens = sum([piece.tokens for piece in self.pieces if piece.region == "history"])
        for at, piece in enumerate(self.pieces):
            self._note(piece, -1)
            # A model is called after a user's or a tool's message. The last piece is that of the call being decided.
            if (piece.kind != "assistant" or at == last) and self.costs(from_tokens):
                yield at

    def shorten(self, to_tokens: int, end: int) -> None:
        """Shorten long texts, then replace media by markers, in the pieces before position `end`."""
        for waiting, shortenings in ((self._long, _of_long_texts), (self._media, shortened_media)):
            while waiting and waiting[-1] < end:
                if not self.costs(to_tokens):
                    return
                at = waiting.pop()
                if (piece := self.kept[at]) and (done := shortenings(piece, self.window)):
                    self.replace_items(at, piece, done)

    def replace_items(self, at: int, piece: Piece, done: Sequence[Shortening]) -> None:
        self.kept[at] = piece.with_items(each.now for each in done)
        self.actions += (each.action(self.reason, piece.seq, piece.last_seq) for each in done)
        removed = sum(each.tokens_removed for each in done)
        self.tokens += removed
        self.history_tokens += removed

    def drop(self, queue: _Queue, to_tokens: int, end: int) -> None:
        """Drop the groups before position `end` that may be dropped, until the window is under `to_tokens`."""
        if not self.costs(to_tokens):
            return
        while queue.reached < len(queue.ends) and queue.ends[queue.reached] <= end:
            at = queue.reached
            queue.reached += 1
            left = self._left_of(queue.group(at))
            if not left or not all(map(queue.may_leave, left)):
                continue
            if queue.by_value:
                heappush(queue.waiting, (worth_per_token(left), at))
                continue
            self._drop_group(queue, at, left)
            if not self.costs(to_tokens):
                return
        while queue.waiting and self.costs(to_tokens):
            at = heappop(queue.waiting)[1]
            self._drop_group(queue, at, self._left_of(queue.group(at)))

    def window_now(self) -> Window:
        left = [piece for piece in self.kept if piece]
        return self.window.with_pieces(left, self.actions) if self.actions else self.window

    def _left_of(self, group: slice) -> list[Piece]:
        return [piece for piece in self.kept[group] if piece]

    def _drop_group(self, queue: _Queue, at: int, left: Sequence[Piece]) -> None:
        for piece in left:
            self._note(piece, 1)
        group = queue.group(at)
        self.kept[group] = [None] * (group.stop - group.start)
        self.actions.append(self._removal(left, queue.kind_of_turn))

    def _removal(self, left: Sequence[Piece], kind_of_turn: TrimKind | None) -> Removal:
        piece, wire_tokens = left[0], sum([piece.wire_tokens for piece in left])
        if kind_of_turn is not None:
            turn_seq = piece.turn_seq
            return Removal(kind_of_turn, f"turn:{piece.turn_id}", self.reason, wire_tokens, turn_seq, turn_seq)
        seqs = (0, 0) if piece.kind == "look_back" else (piece.seq, piece.last_seq)
        return Removal(dropped_kind(piece.kind), piece.label, self.reason, wire_tokens, *seqs)

    def _note(self, piece: Piece, times: int) -> None:
        """Add the piece to the sums of what is out of the window (`times` 1), or subtract it (-1)."""
        tokens = times * piece.tokens
        self.tokens += tokens
        self.messages += times * piece.messages
        if piece.region == "history":
            self.history_tokens += tokens


def dropped_kind(of: UnitKind) -> TrimKind:
    """The kind of the log entry for a dropped piece of this kind."""
    return "assistant_dropped" if of == "assistant" else "tool_group_dropped"


def _kind_of_turns(policy: ContextPolicy) -> TrimKind | None:
    """The kind of the log entry for a turn that the policy prunes; None if it prunes messages."""
    if policy.prune_unit == "message":
        return None
    return "turn_dropped" if policy.allocation is None else "history_drop"


def _ends_of_turns(pieces: Sequence[Piece]) -> list[int]:
    between = [at for at, (one, after) in enumerate(pairwise(pieces), 1) if one.turn_seq != after.turn_seq]
    return [*between, len(pieces)] if pieces else []


def shortened_media(piece: Piece, window: Window) -> list[Shortening]:
    """The replacements of the piece's media by markers, if they may be removed."""
    return marked_media(piece, window.estimate) if piece.has_media and window.may_mark(piece) else []


def marked_media(piece: Piece, estimate: Estimate) -> list[Shortening]:
    return [marked for item in piece.items if (marked := mark_media(item, estimate))]


def _of_long_texts(piece: Piece, window: Window) -> list[Shortening]:
    if not window.may_drop(piece):
        return []
    return shortened_texts(
        piece, window.budget.input_budget, window.estimate, with_handles=window.snapshot.offers_look_back
    )


def shortened_texts(piece: Piece, input_budget: int, estimate: Estimate, *, with_handles: bool) -> list[Shortening]:
    """The piece's long texts, shortened: those of an answered tool group, or texts larger than the whole budget."""
    long_results = piece.kind == "tool_group" and piece.answered
    longest = LONG_TOOL_RESULT_TOKENS if long_results else input_budget
    long = (item for item in piece.items if item.tokens > longest)
    found = (shorten_text(item, KEPT_CHARS, estimate, with_handle=with_handles) for item in long)
    return [each for each in found if each is not None]


def worth_per_token(group: Sequence[Piece]) -> tuple[bool, float]:
    """A sort key: the group worth least per token, as it is sent now, comes first; those with a standing demand of the
    user ("always answer in French") come after all others, whatever their length."""
    spoken = (message for piece in group if piece.kind == "user" for message in piece.stored_messages)
    standing = any(demands(content_text(message.content)) for message in spoken)
    worths = [_WORTH_OF_USERS if piece.kind == "user" else _WORTH for piece in group]
    worth = sum(worths) + _WORTH_OF_A_RESULT * sum([piece.messages - 1 for piece in group])
    return standing, worth / sum([piece.wire_tokens for piece in group])


def untouchable(window: Window) -> list[Piece]:
    """What neither a summary nor a prune can remove of the protected turns and the running turn: users' text, pieces
    that the current summary cites (the next one takes over the citations that it can), and what is never removed. The
    newest results of an open turn are at their floor, and older media are replaced by markers."""
    policy = window.snapshot.policy
    kept = (piece for piece in window.protected if not (policy.prune_protected and window.may_drop(piece)))
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
