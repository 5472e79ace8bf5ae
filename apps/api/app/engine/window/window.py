"""The window of one turn: a snapshot laid out in the order it is sent, with its tokens and what was done to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import ceil
from typing import Any, Final, Literal, TypeAlias

from app.domain.frozen import frozen, replace
from app.domain.recalled import Recalled
from app.domain.types import REGIONS, Pin, Region, Summary
from app.engine.messages.tokens import Estimate, framing_tokens, tools_tokens
from app.engine.policy.budget import Budget
from app.engine.policy.policy import ContextPolicy
from app.engine.summary.block import render_summary
from app.engine.window.past import parts_of, pieces_from
from app.engine.window.pieces import Piece, pieces_of
from app.engine.window.prompt import Part, Prompt, PromptItem, block_item, pin_text
from app.engine.window.snapshot import PlanLog, Removal, Snapshot

Leaves: TypeAlias = Literal["never", "shortened", "marked", "dropped", "whole"]
"""What may be removed of a piece: nothing; the middle of its tool results, as the last resort; its media; all of it,
but not its media first, because a summary cites it; or its long texts, then its media, then all of it."""
_RATIO_STEPS: Final = 32
"""Values between 1 and 2 that a steady calibration may have."""


@frozen(slots=False)
class Cost:
    """The size of a window without its content. `tokens` are those of its `messages`, without framing and tools."""

    snapshot: Snapshot
    tokens: int
    messages: int
    tools_tokens: int

    @property
    def budget(self) -> Budget:
        return self.snapshot.budget

    @property
    def overhead_tokens(self) -> int:
        """Tokens of framing and tools, which use the overhead reserve first."""
        return framing_tokens(self.messages) + self.tools_tokens

    @property
    def wire_tokens(self) -> int:
        return self.tokens + self.overhead_tokens

    @cached_property
    def input_tokens(self) -> int:
        """Tokens that count against the input budget. Every stage reads this."""
        return self.input_tokens_without()

    def input_tokens_without(
        self, less_tokens: int = 0, less_messages: int = 0, less_tools: int = 0, *, steadily: bool = False
    ) -> int:
        """The same if so many tokens (without framing), messages and tool tokens were removed. `steadily` is by a
        calibration that is rounded up, for what a turn's calls have in common: it changes a little in each of them."""
        ratio = self.snapshot.calibration_ratio
        overhead_tokens = framing_tokens(self.messages - less_messages) + self.tools_tokens - less_tools
        return self.budget.input_tokens(
            wire_tokens=self.tokens - less_tokens + overhead_tokens,
            overhead_tokens=overhead_tokens,
            calibration_ratio=ceil(ratio * _RATIO_STEPS) / _RATIO_STEPS if steadily else ratio,
        )

    @property
    def is_over(self) -> bool:
        return self.input_tokens > self.budget.input_budget

    @property
    def excess_tokens(self) -> int:
        """By how many wire tokens it is over its budget; negative when it is under."""
        return self.wire_tokens - self.wire_room(self.overhead_tokens)

    def wire_room(self, overhead_tokens: int) -> int:
        """The most wire tokens, including `overhead_tokens`, that fit the input budget."""
        return self.budget.wire_room(overhead_tokens=overhead_tokens, calibration_ratio=self.snapshot.calibration_ratio)

    @property
    def at_prune_trigger(self) -> bool:
        """Whether it is so large that something must be removed."""
        return self.input_tokens >= self.prune_from

    @cached_property
    def prune_from(self) -> int:
        """The input tokens from which something must be removed, below which older messages are recalled."""
        return self.snapshot.policy.prune_from(self.budget.input_budget)


@frozen(slots=False)
class Window(Cost):
    """All that is sent for a turn, as one value. A stage takes a window and returns another.

    `head` has the system layers, goal, pins and summary, in this order. `past` has the pieces of the past turns,
    `current` those of the running turn. `added` are day lines and recalled messages, in order, each with the position
    in `past` of the piece that it precedes; what precedes the running turn is behind the last piece. `tokens` and
    `messages` are sums over all, without framing and tools. Prunes end when `history_tokens` are at `history_floor`.
    """

    estimate: Estimate
    head: tuple[PromptItem, ...]
    past: Sequence[Piece]
    current: tuple[Piece, ...]
    log: PlanLog
    history_floor: int = -1
    added: tuple[tuple[int, PromptItem], ...] = ()

    @property
    def beside(self) -> tuple[PromptItem, ...]:
        """Day lines and recalled messages. They are added last, if they fit, so no decision on removals counts them."""
        return tuple([item for _, item in self.added])

    @property
    def recalled(self) -> tuple[PromptItem, ...]:
        """The recalled messages, with the lines among them."""
        return tuple([item for item in self.beside if item.region == "recall"])

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return (*self.past, *self.current)

    @cached_property
    def protected(self) -> tuple[Piece, ...]:
        """Those of the protected turns and of the running turn."""
        return (*pieces_from(self.past, self.snapshot.protected_from), *self.current)

    @property
    def summary(self) -> PromptItem | None:
        return next(iter(self.items_of("summary")), None)

    def items_of(self, region: Region) -> tuple[PromptItem, ...]:
        """The items of the head that are in this region."""
        return tuple([item for item in self.head if item.region == region])

    @cached_property
    def prune_from(self) -> int:
        """As of a cost. The result of a look-back uses the whole budget: it is needed in this turn only, and a prune
        would change the prompt's beginning, which is in the provider's cache."""
        own, over = self.snapshot.policy.prune_from(self.budget.input_budget), self.budget.input_budget + 1
        return max(own, over) if any(piece.kind == "look_back" for piece in self.current) else own

    @cached_property
    def history_tokens(self) -> int:
        """Tokens of pieces and day lines without the user's current message."""
        return sum([part.tokens for part in (*self.pieces, *self.beside) if part.region == "history"])

    def leaves_of(self, piece: Piece) -> Leaves:
        """What may be removed of the piece (contract.md, decisions 5, 7 and 8)."""
        whole_turns = self.snapshot.policy.prune_unit == "turn"  # users' text is dropped with them
        settled = piece.state == "settled"
        if piece.kind == "user":
            if piece.state == "running":
                return "never"
            return "whole" if whole_turns and settled else "marked"
        if not settled and piece.newest and (piece.kind != "look_back" or not piece.answered):
            return "shortened" if piece.kind == "tool_group" else "never"
        if piece.state == "running":
            return "whole"
        if piece.seq in self.snapshot.cited:
            return "dropped" if whole_turns and settled else "never"
        return "whole" if settled or not whole_turns else "marked"

    def may_drop(self, piece: Piece) -> bool:
        return self.leaves_of(piece) in {"dropped", "whole"}

    def may_mark(self, piece: Piece) -> bool:
        return self.leaves_of(piece) in {"marked", "whole"}

    def may_drop_with_its_turn(self, piece: Piece) -> bool:
        """Whether a policy with an allocation may drop the piece, together with its turn or from the running turn."""
        if piece.seq >= self.snapshot.protected_from and not self.snapshot.policy.prune_protected:
            return False
        return piece.state == "settled" or self.may_drop(piece)

    @cached_property
    def prompt(self) -> Prompt:
        parts = (*self.head, *self._parts_of_past(), *parts_of(self.current))
        return Prompt(parts, self.snapshot.tools, self.tools_tokens)

    def _parts_of_past(self) -> Iterator[Part]:
        first = 0
        for at, item in self.added:
            if first < at:  # all that is recalled precedes one piece
                yield from parts_of(self.past[first:at])
            yield item
            first = at
        yield from parts_of(self.past[first:])

    def with_items(self, region: Region, now: Sequence[PromptItem]) -> Window:
        """A copy with these items in place of those of the region in the head."""
        others = [item for item in self.head if item.region != region]
        head = tuple(sorted((*others, *now), key=lambda item: REGIONS.index(item.region)))
        return self._resized(self.items_of(region), now, head=head)

    def with_added(self, added: Sequence[tuple[int, PromptItem]], recalled: tuple[Recalled, ...] = ()) -> Window:
        """A copy with these items; `recalled` are the rows of the recalled messages among them."""
        log = replace(self.log, recalled=recalled)
        return self._resized(self.beside, [item for _, item in added], added=tuple(added), log=log)

    def with_pieces(self, pieces: Sequence[Piece], actions: Iterable[Removal] = ()) -> Window:
        """A copy with these pieces, and with the actions that led to them added to its log."""
        cut = len(pieces)
        while cut and pieces[cut - 1].state == "running":
            cut -= 1
        parts = (*self.head, *self.beside, *pieces)
        return replace(
            self,
            past=tuple(pieces[:cut]),
            current=tuple(pieces[cut:]),
            tokens=sum([part.tokens for part in parts]),
            messages=sum([part.messages for part in parts]),
        ).logged(actions)

    def logged(self, actions: Iterable[Removal]) -> Window:
        return replace(self, log=replace(self.log, actions=(*self.log.actions, *actions)))

    def after_overflow(self, budget: Budget) -> Snapshot:
        """The snapshot to plan from, within this budget, after a provider rejected this window as too long. No summary
        is made then, because the client has waited for one call already."""
        return replace(self.snapshot, budget=budget, log=self.log.without_stages(), overflowed=True)

    def _resized(self, before: Sequence[PromptItem], now: Sequence[PromptItem], **changes: Any) -> Window:
        """A copy with these changes, which replace the items `before` by the items `now`."""
        tokens = self.tokens + sum([item.tokens for item in now]) - sum([item.tokens for item in before])
        return replace(self, tokens=tokens, messages=self.messages + len(now) - len(before), **changes)


def lay_out(snapshot: Snapshot, estimate: Estimate) -> Window:
    """The whole window of a snapshot. Its log continues the snapshot's, or begins with the tokens of this window."""
    head = head_items(snapshot.layers, snapshot.goal, snapshot.pins, estimate)
    if snapshot.summary:
        head = (*head, summary_item(snapshot.summary, snapshot.policy, estimate))
    past, current = snapshot.past, tuple(pieces_of(snapshot.current, "running"))
    parts = (*head, *current)
    tokens = sum([part.tokens for part in parts]) + past.tokens[-1]
    messages = sum([part.messages for part in parts]) + past.messages[-1]
    tools = tools_tokens(snapshot.tools, estimate)
    cost, log = Cost(snapshot, tokens, messages, tools), snapshot.log
    input_tokens = cost.input_tokens
    return Window(
        snapshot=snapshot,
        estimate=estimate,
        head=head,
        past=past.pieces,
        current=current,
        tools_tokens=tools,
        tokens=tokens,
        messages=messages,
        log=replace(log, tokens_after_summary=input_tokens)
        if log
        else PlanLog(cost.wire_tokens, input_tokens, input_tokens, tools),
    )


def head_items(
    layers: Sequence[tuple[str, str]], goal: str | None, pins: Sequence[Pin], estimate: Estimate
) -> tuple[PromptItem, ...]:
    """The items before the summary: system layers, goal, pins."""
    items = [block_item("system", label, "system", text, estimate) for label, text in layers]
    if goal:
        items.append(block_item("goal", "goal", "system", goal, estimate))
    items += [block_item("pins", f"pin:{pin.name}", "system", pin_text(pin), estimate) for pin in pins]
    return tuple(items)


def summary_item(summary: Summary, policy: ContextPolicy, estimate: Estimate) -> PromptItem:
    """The summary as a message of its own, in the policy's `summary_role`."""
    return block_item("summary", f"summary:{summary.id}", policy.summary_role, render_summary(summary.body), estimate)
