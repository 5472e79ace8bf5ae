"""What leaves the history when a summary was not enough, in which order, and why.

Long answered tool results are shortened first, then media leave older messages, then assistant and tool messages leave
whole. What the newest summary cites stays, and so do users' words (contract.md, decisions 5 and 8). Policies that keep
turns whole lose the oldest turns instead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import groupby
from operator import attrgetter
from typing import Final, TypeAlias

from app.domain.content import content_text
from app.domain.extractive import demands
from app.domain.types import Message, Role
from app.engine.policy.policy import ContextPolicy
from app.engine.window.past import Piece
from app.engine.window.shortening import Shortening, mark_media, shorten_text
from app.engine.window.snapshot import TrimAction, TrimKind
from app.engine.window.window import Window, first_seq, protected_room

LONG_TOOL_RESULT_TOKENS = 300
_KEPT_CHARS = 640
_WORTH: Final[Mapping[Role, float]] = {"user": 2.0, "assistant": 1.0, "tool": 0.5}
"""Of a message, however long it is: most of what is asked about later was said in a short one."""

Group: TypeAlias = tuple[int, int]
"""Places from the first to before the end of what leaves together: one piece, or those of a turn."""
_TEXTS, _MEDIA = 0, 1
_seq = attrgetter("seq")


def prune_older(window: Window, policy: ContextPolicy) -> Window:
    """Prunes what is older than the protected turns until what is charged is under the prune threshold.

    A policy that prunes by value or in blocks does so as it did for the calls before, so that what has left stays
    away: by value, what is new would else bring old messages back into the middle of the prompt.
    """
    input_budget = window.budget.input_budget
    threshold = policy.prune_from(input_budget)
    by_value = policy.prune_order == "value"
    prune = _Prune(window, "prune_threshold")
    queue = _turns(prune, policy, by_value=by_value) if policy.prune_unit == "turn" else _messages(prune, by_value)

    def prune_before(end: int, to_tokens: float) -> None:
        if policy.prune_unit == "message":
            prune.shorten(to_tokens, end)
        prune.drop(queue, to_tokens, end)

    if not by_value and not policy.prune_block_share:
        prune_before(prune.place_of(window.rules.protected_from), threshold)
        return prune.window_now()
    to_tokens = threshold - policy.prune_block_share * input_budget
    protected_when_newest = _protected_when_newest(window, policy)
    for piece in prune.calls(threshold):
        prune_before(prune.place_of(protected_when_newest(piece)), to_tokens)
    return prune.window_now()


def prune_protected(window: Window, policy: ContextPolicy) -> Window:
    """Prunes until the prompt is within the input budget, the oldest first, protected turns as well."""
    over = window.budget.input_budget + 1
    prune = _Prune(window, "over_budget")
    # Earlier rounds of the running turn may leave as well, whatever the unit (contract.md, decision 8).
    turns = _turns(prune, policy) if policy.prune_unit == "turn" else None
    messages = _messages(prune)

    def prune_before(end: int, to_tokens: float) -> None:
        if turns is not None:
            prune.drop(turns, to_tokens, end)
        prune.shorten(to_tokens, end)
        prune.drop(messages, to_tokens, end)

    if not policy.prune_block_share:
        prune_before(len(window.pieces), over)
        return prune.window_now()
    to_tokens = over - policy.prune_block_share * window.budget.input_budget
    for piece in prune.calls(over):
        prune_before(prune.place_of(piece.seq), to_tokens)
    return prune.window_now()


def drop_history(window: Window, policy: ContextPolicy) -> Window:
    """Whole turns leave, users' words with them, oldest first, until the prompt is within its budget."""
    return _without_turns(
        window, lambda piece: window.rules.may_drop_with_its_turn(piece, policy), "over_budget", "history_drop"
    )


def drop_oldest_turns(window: Window, _policy: ContextPolicy) -> Window:
    """Whole past turns leave, oldest first, until the prompt fits: what is left when a provider has refused it."""
    return _without_turns(window, lambda piece: piece.state != "running", "provider_overflow", "emergency_drop")


def _without_turns(window: Window, may_leave: Callable[[Piece], bool], reason: str, kind: TrimKind) -> Window:
    prune = _Prune(window, reason)
    queue = _Queue(_groups_by_turn(prune.pieces), may_leave, kind)
    prune.drop(queue, window.budget.input_budget + 1, len(prune.pieces))
    return prune.window_now()


@dataclass(slots=True)
class _Queue:
    """What leaves whole, one group after the other: the least `worth` first, or the oldest.

    A group enters once all of it is in reach, and leaves when the window still costs too much. `turn_kind` is how the
    log names turns that left, None where messages leave.
    """

    groups: Sequence[Group]
    may_leave: Callable[[Piece], bool]
    turn_kind: TrimKind | None = None
    worth: Callable[[Sequence[Piece]], tuple[bool, float]] | None = None
    entered: int = 0
    waiting: list[tuple[tuple[bool, float], int]] = field(default_factory=list[tuple[tuple[bool, float], int]])


class _Prune:
    """A prune under way.

    `kept` has what is left of the window's pieces. What has left, or is not laid out yet, is in `tokens`, `messages`
    and `history_tokens`. Pieces are tried in time order and only once each: what a prune reaches only grows.
    """

    def __init__(self, window: Window, reason: str) -> None:
        self.window = window
        self.reason = reason
        self.pieces = window.pieces
        self.kept: list[Piece | None] = list(self.pieces)
        self.tokens = self.messages = self.history_tokens = 0
        self.actions: list[TrimAction] = []
        self._shortened_to = [0, 0]

    def place_of(self, seq: int) -> int:
        """The place of the first piece from this `seq` on."""
        return bisect_left(self.pieces, seq, key=_seq)

    def costs(self, at_tokens: float) -> bool:
        """Whether the window costs as much, and has history above the floor."""
        return (
            self.window.history_tokens - self.history_tokens > self.window.history_floor
            and self.window.charged(self.tokens, self.messages) >= at_tokens
        )

    def calls(self, from_tokens: float) -> Iterator[Piece]:
        """The newest piece of each call so far at which the window, as it was left, cost so much.

        Nothing of a prune is stored. What a prompt lost last turn is found again by letting the window grow once more;
        so what has left stays away and the beginning of the prompt stays the same.
        """
        for piece in self.pieces:
            self._note(piece, 1)
        last = len(self.pieces) - 1
        for at, piece in enumerate(self.pieces):
            self._note(piece, -1)
            # A model is called when the user or a tool has spoken; the last piece is the call that is being decided.
            if (piece.kind != "assistant" or at == last) and self.costs(from_tokens):
                yield piece

    def shorten(self, to_tokens: float, end: int) -> None:
        """Shortens long texts, then marks media, of what stands before `end`."""
        for step, shortenings in ((_TEXTS, _of_long_texts), (_MEDIA, shortened_media)):
            if not self.costs(to_tokens):
                return
            for at in range(self._shortened_to[step], end):
                self._shortened_to[step] = at + 1
                piece = self.kept[at]
                done = shortenings(piece, self.window) if piece else []
                if piece and done:
                    self.kept[at] = piece.with_items(each.now for each in done)
                    self.actions += (each.action(self.reason) for each in done)
                    removed = sum(each.tokens_removed for each in done)
                    self.tokens += removed
                    self.history_tokens += removed
                    if not self.costs(to_tokens):
                        return

    def drop(self, queue: _Queue, to_tokens: float, end: int) -> None:
        """Drops what stands before `end` and may leave, until the window costs less than `to_tokens`."""
        if not self.costs(to_tokens):
            return
        while queue.entered < len(queue.groups) and queue.groups[queue.entered][1] <= end:
            group = self._left_of(queue.groups[queue.entered])
            if group and all(map(queue.may_leave, group)):
                worth = queue.worth(group) if queue.worth else (False, 0.0)
                heappush(queue.waiting, (worth, queue.entered))
            queue.entered += 1
        while queue.waiting and self.costs(to_tokens):
            self._drop_group(queue.groups[heappop(queue.waiting)[1]], queue.turn_kind)

    def window_now(self) -> Window:
        """What is left of the window."""
        if not self.actions:
            return self.window
        cut = len(self.window.past)
        return replace(
            self.window,
            past=tuple([piece for piece in self.kept[:cut] if piece]),
            current=tuple([piece for piece in self.kept[cut:] if piece]),
            tokens=self.window.tokens - self.tokens,
            messages=self.window.messages - self.messages,
            history_tokens=self.window.history_tokens - self.history_tokens,
        ).logged(self.actions)

    def _left_of(self, group: Group) -> list[Piece]:
        return [piece for piece in self.kept[slice(*group)] if piece]

    def _drop_group(self, group: Group, turn_kind: TrimKind | None) -> None:
        left = self._left_of(group)
        if not left:
            return
        for piece in left:
            self._note(piece, 1)
        self.kept[slice(*group)] = [None] * (group[1] - group[0])
        if turn_kind is not None:
            kind, target = turn_kind, f"turn:{left[0].turn_id}"
        else:
            kind = "tool_group_dropped" if left[0].kind == "tool_group" else "assistant_dropped"
            target = left[0].items[0].label
        self.actions.append(TrimAction(kind, target, self.reason, sum(piece.wire_tokens for piece in left)))

    def _note(self, piece: Piece, times: int) -> None:
        """Counts the piece among what has left, or no longer."""
        tokens = times * piece.tokens
        self.tokens += tokens
        self.messages += times * len(piece.items)
        if piece.items[0].region == "history":
            self.history_tokens += tokens


def _messages(prune: _Prune, by_value: bool = False) -> _Queue:
    groups = [(at, at + 1) for at in range(len(prune.pieces))]
    return _Queue(groups, prune.window.rules.may_drop, worth=_worth if by_value else None)


def _turns(prune: _Prune, policy: ContextPolicy, *, by_value: bool = False) -> _Queue:
    kind: TrimKind = "turn_dropped" if policy.allocation is None else "history_drop"
    groups = _groups_by_turn(prune.pieces)
    return _Queue(groups, prune.window.rules.may_drop, kind, _worth if by_value else None)


def _groups_by_turn(pieces: Sequence[Piece]) -> list[Group]:
    groups: list[Group] = []
    begin = 0
    for _, of_turn in groupby(pieces, key=attrgetter("turn_id")):
        end = begin + len(list(of_turn))
        groups.append((begin, end))
        begin = end
    return groups


def _protected_when_newest(window: Window, policy: ContextPolicy) -> Callable[[Piece], int]:
    """The first `seq` of the turns that were protected when a piece was the newest."""
    snapshot, past = window.snapshot, window.snapshot.past
    turns = (*past.turns, snapshot.current)
    place_of = {turn.id: at for at, turn in enumerate(turns)}
    room_tokens = protected_room(snapshot, policy)

    def first_protected_seq(piece: Piece) -> int:
        at = place_of[piece.turn_id]
        first = past.first_protected(policy.protected_turns, room_tokens, at)
        return first_seq(turns[first : at + 1])

    return first_protected_seq


def shortened_media(piece: Piece, window: Window) -> list[Shortening]:
    """How its media become marks, where they may leave."""
    if not piece.has_media or not window.rules.may_mark(piece):
        return []
    found = (mark_media(item, window.estimate) for item in piece.items)
    return [each for each in found if each is not None]


def _of_long_texts(piece: Piece, window: Window) -> list[Shortening]:
    long_results = piece.kind == "tool_group" and piece.answered
    longest = LONG_TOOL_RESULT_TOKENS if long_results else window.budget.input_budget
    if piece.longest_tokens <= longest or not window.rules.may_drop(piece):
        return []
    found = (shorten_text(item, _KEPT_CHARS, window.estimate) for item in piece.items if item.tokens > longest)
    return [each for each in found if each is not None]


def _worth(group: Sequence[Piece]) -> tuple[bool, float]:
    messages = [message for piece in group for message in piece.unit.messages]
    return worth_per_token(messages, sum(piece.wire_tokens for piece in group))


def worth_per_token(messages: Sequence[Message], wire_tokens: int) -> tuple[bool, float]:
    """A key that sorts the least worth first; `wire_tokens` is what the messages cost as they are sent now.

    The longer what an assistant or a tool said, the sooner it leaves. What a user demanded for good ("always answer
    in French") comes after everything else, whatever its length.
    """
    standing = any(message.role == "user" and demands(content_text(message.content)) for message in messages)
    return standing, sum(_WORTH[message.role] for message in messages) / max(1, wire_tokens)
