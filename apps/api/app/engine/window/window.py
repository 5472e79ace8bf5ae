"""The window of one turn: a snapshot laid out in the order it is sent, with what it costs and what was done to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Literal, TypeAlias

from app.domain.types import MessageId, Pin, Summary, Turn, TurnId
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, PROMPT_FRAMING_TOKENS, Estimate, tools_tokens
from app.engine.messages.turns import Unit, latest_unresolved, sendable_units, split_protected
from app.engine.policy.budget import Budget
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.ranking import Recalled
from app.engine.summary.block import render_summary
from app.engine.summary.summarizer_prompt import anchors_of
from app.engine.window.prompt import Prompt, PromptItem, block_item, message_item, pin_text
from app.engine.window.snapshot import Snapshot, TrimAction, TrimLog

Leaves: TypeAlias = Literal["never", "shortened", "marked", "dropped", "whole"]
"""What may leave of a piece: nothing; the middle of its tool results, when nothing else is left; its media; all of it,
which a summary cites, so that its media are not marked before; or its long texts, its media, and then all of it."""
PieceState: TypeAlias = Literal["settled", "unresolved", "running"]
"""Of its turn; unresolved is only the latest turn of the past."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit of the history with the items it became. `protected` says that its turn is, `answered` that an assistant
    spoke after it in its turn."""

    unit: Unit
    items: tuple[PromptItem, ...]
    leaves: Leaves
    state: PieceState
    protected: bool
    answered: bool

    @property
    def tokens(self) -> int:
        """Without framing."""
        return sum(item.tokens for item in self.items)

    @property
    def wire_tokens(self) -> int:
        return self.tokens + MESSAGE_FRAMING_TOKENS * len(self.items)

    @property
    def may_be_dropped(self) -> bool:
        return self.leaves in {"dropped", "whole"}

    @property
    def turn_id(self) -> TurnId:
        return self.unit.messages[0].turn_id

    @property
    def seq(self) -> int:
        """Of its first message."""
        return self.unit.messages[0].seq

    def stays(self, policy: ContextPolicy) -> bool:
        """Whether neither a summary nor a prune can take it."""
        return self.protected and not (self.may_be_dropped and policy.prune_protected)

    def may_leave_with_its_turn(self, policy: ContextPolicy) -> bool:
        """Whether a policy that shares its window out may drop it, with its turn or out of the running one."""
        if self.protected and not policy.prune_protected:
            return False
        return self.state == "settled" or self.may_be_dropped

    def with_items(self, now: Iterable[PromptItem]) -> Piece:
        """The piece with these in the place of its items of the same labels."""
        by_label = {item.label: item for item in now}
        return replace(self, items=tuple(by_label.get(item.label, item) for item in self.items))


@dataclass(frozen=True, slots=True)
class Window:
    """All that is sent for a turn, as one value; a stage takes one and gives another.

    `past` and `current` are the pieces of the settled turns and of the running one, `recalled` stands between them.
    `tokens` and `messages` are running sums over all of it, without framing and tools, and `history_tokens` over its
    pieces but for what the user says now. Prunes end when the history is within `history_floor`.
    """

    snapshot: Snapshot
    estimate: Estimate
    head: tuple[PromptItem, ...]
    summary: PromptItem | None
    past: tuple[Piece, ...]
    current: tuple[Piece, ...]
    recalled: tuple[PromptItem, ...]
    tools_tokens: int
    tokens: int
    messages: int
    history_tokens: int
    log: TrimLog
    history_floor: int = -1

    @property
    def budget(self) -> Budget:
        return self.snapshot.budget

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The history and the running turn, in time order."""
        return (*self.past, *self.current)

    @property
    def framing_tokens(self) -> int:
        return MESSAGE_FRAMING_TOKENS * self.messages + PROMPT_FRAMING_TOKENS

    @property
    def overhead_tokens(self) -> int:
        """What the overhead reserve is there for."""
        return self.framing_tokens + self.tools_tokens

    @property
    def wire_tokens(self) -> int:
        return self.tokens + self.overhead_tokens

    @property
    def pins(self) -> tuple[PromptItem, ...]:
        return tuple(item for item in self.head if item.region == "pins")

    def charged(self, less_tokens: int = 0, less_messages: int = 0) -> int:
        """What it costs the input budget once so many tokens (without framing) and messages have left it."""
        framing = MESSAGE_FRAMING_TOKENS * less_messages
        return self.budget.charge(
            wire_tokens=self.wire_tokens - less_tokens - framing,
            overhead_tokens=self.overhead_tokens - framing,
            calibration_ratio=self.snapshot.calibration_ratio,
        )

    def still_costs(self, at_tokens: float, less_tokens: int = 0, less_messages: int = 0) -> bool:
        """Whether it costs as much, and has history above the floor, once so much has left it."""
        return (
            self.history_tokens - less_tokens > self.history_floor
            and self.charged(less_tokens, less_messages) >= at_tokens
        )

    @property
    def is_over(self) -> bool:
        """Whether it costs more than its input budget."""
        return self.charged() > self.budget.input_budget

    @property
    def excess_tokens(self) -> int:
        """By how many wire tokens it is over its budget; negative where it is not."""
        return self.wire_tokens - self.budget.wire_room(
            overhead_tokens=self.overhead_tokens, calibration_ratio=self.snapshot.calibration_ratio
        )

    def at_prune_trigger(self, policy: ContextPolicy) -> bool:
        """Whether it costs so much that something has to leave."""
        return self.charged() >= policy.prune_from(self.budget.input_budget)

    def prompt(self) -> Prompt:
        """What goes over the wire."""
        summary = () if self.summary is None else (self.summary,)
        past, current = items_of(self.past), items_of(self.current)
        items = (*self.head, *summary, *past, *self.recalled, *current)
        return Prompt(items, self.snapshot.tools, self.tools_tokens)

    def with_pins(self, pins: Sequence[PromptItem]) -> Window:
        """The same with these in the place of its pins."""
        head = (*(item for item in self.head if item.region != "pins"), *pins)
        return replace(self._resized(self.pins, pins), head=head)

    def with_summary(self, summary: PromptItem | None) -> Window:
        """The same with this in the place of its summary."""
        before, now = ((item,) if item else () for item in (self.summary, summary))
        return replace(self._resized(before, now), summary=summary)

    def with_recalled(self, items: Sequence[PromptItem], rows: tuple[Recalled, ...]) -> Window:
        """The same with these brought back before the running turn."""
        window = self._resized(self.recalled, items)
        return replace(window, recalled=tuple(items), log=replace(self.log, recalled=rows))

    def with_pieces(self, pieces: Sequence[Piece], actions: Iterable[TrimAction] = ()) -> Window:
        """The same with these in the place of its pieces, and how that came about."""
        less_tokens, less_messages = (
            of_all - of_these for of_all, of_these in zip(size_of(self.pieces), size_of(pieces), strict=True)
        )
        return self.left_with(pieces, less_tokens, less_messages, actions)

    def left_with(
        self, pieces: Sequence[Piece], less_tokens: int, less_messages: int, actions: Iterable[TrimAction] = ()
    ) -> Window:
        """The same where it is known by how much these cost less than its pieces (without framing)."""
        cut = len(pieces)
        while cut and pieces[cut - 1].state == "running":
            cut -= 1
        return replace(
            self,
            past=tuple(pieces[:cut]),
            current=tuple(pieces[cut:]),
            tokens=self.tokens - less_tokens,
            messages=self.messages - less_messages,
            history_tokens=self.history_tokens - less_tokens,
        ).logged(actions)

    def logged(self, actions: Iterable[TrimAction]) -> Window:
        """The same with more actions in its log."""
        return replace(self, log=replace(self.log, actions=(*self.log.actions, *actions)))

    def after_overflow(self, budget: Budget) -> Snapshot:
        """What the turn is planned of when a provider refused this as too long; `budget` is the smaller one.

        No summary is asked for then: whoever waits has waited for one call. Protected turns are pruned whatever the
        policy says, and when nothing is left to prune whole turns leave, oldest first; goal, system layers, the running
        turn, and pins that are within a share if they have one, stay.
        """
        return replace(self.snapshot, budget=budget, log=self.log.without_stages(), overflowed=True)

    def _resized(self, before: Sequence[PromptItem], now: Sequence[PromptItem]) -> Window:
        more = sum(item.tokens for item in now) - sum(item.tokens for item in before)
        return replace(self, tokens=self.tokens + more, messages=self.messages + len(now) - len(before))


def lay_out(snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate) -> Window:
    """The window of a snapshot, whole. Its log goes on from the snapshot's, or begins with what the window costs."""
    head = head_items(snapshot.layers, snapshot.goal, snapshot.pins, estimate)
    summary = summary_item(snapshot.summary, policy, estimate) if snapshot.summary else None
    anchors = anchors_of(snapshot.summary)
    unresolved = latest_unresolved(snapshot.turns)
    from_seq = protected_from(snapshot, policy, snapshot.turns, snapshot.current)
    whole_turns = policy.prune_unit == "turn"
    past = tuple(
        piece
        for turn in snapshot.turns
        for piece in _pieces_of(
            turn, "unresolved" if turn is unresolved else "settled", anchors, from_seq, whole_turns=whole_turns
        )
    )
    current = tuple(_pieces_of(snapshot.current, "running", frozenset(), from_seq))
    history_tokens, messages = size_of((*past, *current))
    items = (*head, *((summary,) if summary else ()))
    window = Window(
        snapshot=snapshot,
        estimate=estimate,
        head=head,
        summary=summary,
        past=past,
        current=current,
        recalled=(),
        tools_tokens=tools_tokens(snapshot.tools, estimate),
        tokens=sum(item.tokens for item in items) + history_tokens,
        messages=len(items) + messages,
        history_tokens=history_tokens - sum(piece.tokens for piece in current if piece.unit.kind == "user"),
        log=snapshot.log or TrimLog(0, 0, 0),
    )
    charged = window.charged()
    log = snapshot.log or TrimLog(window.wire_tokens, charged, charged)
    return replace(window, log=replace(log, tokens_after_summary=charged))


def items_of(pieces: Iterable[Piece]) -> tuple[PromptItem, ...]:
    """All items of the pieces, in order."""
    return tuple(item for piece in pieces for item in piece.items)


def size_of(pieces: Sequence[Piece]) -> tuple[int, int]:
    """Tokens without framing, and messages."""
    return sum(piece.tokens for piece in pieces), sum(len(piece.items) for piece in pieces)


def _pieces_of(
    turn: Turn, state: PieceState, anchors: frozenset[MessageId], from_seq: int, *, whole_turns: bool = False
) -> Iterator[Piece]:
    units = sendable_units(turn)
    for at, unit in enumerate(units):
        later = units[at + 1 :]
        region = "user" if state == "running" and unit.kind == "user" else "history"
        yield Piece(
            unit=unit,
            items=tuple(message_item(region, message) for message in unit.messages),
            leaves=_leaves(unit, later, state, anchors, whole_turns=whole_turns),
            state=state,
            protected=unit.messages[0].seq >= from_seq,
            answered=any(each.kind != "user" for each in later),
        )


def _leaves(
    unit: Unit, later: Sequence[Unit], state: PieceState, anchors: frozenset[MessageId], *, whole_turns: bool
) -> Leaves:
    """What may leave of a unit (contract.md, decisions 5, 7 and 8); with `whole_turns` users' words go with theirs."""
    if unit.kind == "user":
        if state == "running":
            return "never"
        return "whole" if whole_turns and state == "settled" else "marked"
    if state != "settled" and not any(each.kind == unit.kind for each in later):
        return "shortened" if unit.kind == "tool_group" else "never"
    if any(message.id in anchors for message in unit.messages):
        return "dropped" if whole_turns and state == "settled" else "never"
    return "marked" if whole_turns and state == "unresolved" else "whole"


def head_items(
    layers: Sequence[tuple[str, str]], goal: str | None, pins: Sequence[Pin], estimate: Estimate
) -> tuple[PromptItem, ...]:
    """What stands before the summary: system layers, goal, pins."""
    items = [block_item("system", label, "system", text, estimate) for label, text in layers]
    if goal:
        items.append(block_item("goal", "goal", "system", goal, estimate))
    items += [block_item("pins", f"pin:{pin.name}", "system", pin_text(pin), estimate) for pin in pins]
    return tuple(items)


def summary_item(summary: Summary, policy: ContextPolicy, estimate: Estimate) -> PromptItem:
    """The summary as its own message, in the role the policy gives it."""
    return block_item("summary", f"summary:{summary.id}", policy.summary_role, render_summary(summary.body), estimate)


def split_past(
    snapshot: Snapshot, policy: ContextPolicy, turns: Sequence[Turn]
) -> tuple[tuple[Turn, ...], tuple[Turn, ...]]:
    """Of these past turns those that a summary may take in, and the protected ones."""
    share = policy.protected_share
    room_tokens = None
    if share is not None:
        room_tokens = floor(share * snapshot.budget.input_budget / snapshot.calibration_ratio)
    return split_protected(turns, policy.protected_turns, room_tokens)


def protected_from(snapshot: Snapshot, policy: ContextPolicy, turns: Sequence[Turn], running: Turn) -> int:
    """The first `seq` of what is protected when `turns` are the past and `running` is the running turn."""
    _, protected = split_past(snapshot, policy, turns)
    return min((message.seq for turn in (*protected, running) for message in turn.messages), default=0)
