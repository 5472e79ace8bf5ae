"""The window of one turn: a snapshot laid out in prompt order, and the figures a decision asks of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import floor

from app.domain.evicted import Evicted
from app.domain.types import MessageId, Pin, Summary, ToolDefinition, Turn
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, Estimate
from app.engine.messages.turns import (
    latest_unresolved,
    sendable_messages,
    sendable_units,
    split_protected,
    wire_tokens_of,
)
from app.engine.policy.budget import Budget, exceeds_window
from app.engine.policy.policy import ContextPolicy
from app.engine.summary.block import fit_summary, render_summary
from app.engine.summary.fold import Fold, SummaryReason, choose_fold, reclaims_enough
from app.engine.summary.summarizer_prompt import anchors_of
from app.engine.window.blocks import first_seq_of, prune_as_it_grew
from app.engine.window.prompt import Prompt, PromptItem, block_item, build_prompt, message_item, pin_text
from app.engine.window.pruning import (
    Piece,
    StillOver,
    TrimAction,
    cites,
    prune_messages,
    prune_turns,
    shortening_action,
    size_of,
    without_media,
)
from app.engine.window.shortening import Shortening, fit_results

NEWEST_TOO_LARGE = "newest_result_too_large"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision may depend on, as gathered in one transaction.

    `layers` are the active system layers as (label, text), outermost first. `turns` are the past turns after the active
    summary, in time order; `current` is the running one, whose first message is the user's. `completed_since_summary`
    counts completed turns since the active summary was made or the count was restarted. `evicted` is what was found of
    the past before the window, `folded_now` are turns that have left the window since then.
    """

    budget: Budget
    layers: tuple[tuple[str, str], ...]
    goal: str | None
    pins: tuple[Pin, ...]
    summary: Summary | None
    turns: tuple[Turn, ...]
    current: Turn
    tools: tuple[ToolDefinition, ...] = ()
    completed_since_summary: int = 0
    calibration_ratio: float = 1.0
    evicted: Evicted | None = None
    folded_now: tuple[Turn, ...] = ()

    def with_summary(self, fold: Fold, summary: Summary) -> Snapshot:
        """The same with the summary in the place of the turns that it took in."""
        folded = {turn.id for turn in fold.turns}
        left = tuple(turn for turn in self.turns if turn.id not in folded)
        return replace(self, summary=summary, turns=left, folded_now=(*self.folded_now, *fold.turns))


class Window:
    """A snapshot laid out in prompt order, with the figures a decision asks for."""

    def __init__(self, snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.estimate = estimate
        self.anchors = anchors_of(snapshot.summary)
        self.head = head_items(snapshot.layers, snapshot.goal, snapshot.pins, estimate)
        self.summary_item = summary_item(snapshot.summary, policy, estimate) if snapshot.summary else None
        self.pieces = self._past_pieces() + self._current_pieces()
        self._older, self._protected = _split(snapshot, policy)
        self._protected_from = _first_seq((*self._protected, snapshot.current))
        self._no_items = build_prompt((), snapshot.tools, estimate)
        self._summary_share: int | None = None
        self._least_history_tokens = -1
        # What a fold takes the place of, whatever shares made of it here.
        self._stored_summary_tokens = self.summary_item.wire_tokens if self.summary_item else 0

    def with_pins(self, pins: Sequence[PromptItem]) -> Window:
        """The window with these in place of its pins."""
        window = copy(self)
        window.head = (*(item for item in self.head if item.region != "pins"), *pins)
        return window

    def with_summary_item(self, summary: PromptItem | None) -> Window:
        """The window with this in place of its summary."""
        window = copy(self)
        window.summary_item = summary
        return window

    def with_shares(self, *, summary_tokens: int, history_tokens: int) -> Window:
        """The window in which a new summary may take so many tokens.

        Protected turns that `history_tokens` have no room for would leave: a summary may take them in before they do.
        """
        window = copy(self)
        window._summary_share = summary_tokens
        if self.policy.prune_protected and wire_tokens_of(self._protected) > history_tokens:
            window._protect_at_most(history_tokens)
        return window

    def _protect_at_most(self, tokens: int) -> None:
        turns = self.snapshot.turns
        older, protected = split_protected(turns, self.policy.protected_turns, tokens)
        if wire_tokens_of(protected) > tokens:
            older, protected = split_protected(turns, 0)
        self._older, self._protected = older, protected
        self._protected_from = _first_seq((*protected, self.snapshot.current))

    def prompt(self, pieces: Sequence[Piece], *, with_summary: bool = True) -> Prompt:
        """The prompt of these pieces behind the head and the summary."""
        summary = (self.summary_item,) if self.summary_item and with_summary else ()
        items = (*self.head, *summary, *(item for piece in pieces for item in piece.items))
        return replace(self._no_items, items=items)

    def charge(self, prompt: Prompt) -> int:
        """What the prompt costs the input budget."""
        return self.snapshot.budget.charge(
            wire_tokens=prompt.wire_tokens,
            overhead_tokens=prompt.overhead_tokens,
            calibration_ratio=self.snapshot.calibration_ratio,
        )

    def charge_with(self, prompt: Prompt, tokens: int, messages: int) -> int:
        """What it costs with so many more tokens (without framing) in so many more messages."""
        return self._charge_without(prompt, -tokens, -messages)

    def at_prune_threshold(self, charged: int) -> bool:
        """Whether so many charged tokens call for a prune."""
        return charged >= self.policy.prune_from(self.snapshot.budget.input_budget)

    def reclaims_enough(self, fold: Fold) -> bool:
        """Whether the fold is worth a summary that only the threshold asks for."""
        return reclaims_enough(fold, self.snapshot.budget.input_budget)

    def exceeds_limit(self, prompt: Prompt) -> bool:
        """Whether the prompt and the output reserve do not fit into the model's window together."""
        budget = self.snapshot.budget
        return exceeds_window(
            messages_tokens=prompt.wire_tokens - prompt.tools_tokens,
            tools_tokens=prompt.tools_tokens,
            max_output_tokens=budget.output_reserve,
            window_tokens=budget.limit,
        )

    def raw_messages(self) -> int:
        """How many messages of past turns the raw window sends."""
        return len(sendable_messages(self.snapshot.turns))

    def fold(self, reason: SummaryReason) -> Fold | None:
        """What a summary would take in now, or None when it would not shrink anything."""
        return choose_fold(
            self._older,
            self._protected,
            policy=self.policy if self._summary_share is None else replace(self.policy, summary_max_ratio=1.0),
            input_budget=self.snapshot.budget.input_budget,
            reason=reason,
            previous=self.snapshot.summary,
            previous_tokens=self._stored_summary_tokens,
            room_tokens=self.room_for_summary(),
        )

    def room_for_summary(self) -> int:
        """The largest summary that fits beside what may never leave; negative when that alone is over the budget."""
        if self._summary_share is not None:
            return min(self._summary_share, self._room_beside(self.remains()))
        room = self._room_beside([piece for piece in self.pieces if self._stays(piece)])
        largest = int(self.snapshot.budget.input_budget * self.policy.summary_max_ratio)
        return room if room >= largest else self._room_beside(self.untouchable())

    def untouchable(self) -> list[Piece]:
        """What neither a summary nor a prune can take, as small as it can be made.

        Users' words of protected turns, what the summary of now cites of them (the next one takes over what it can),
        and what may never leave: the newest results of an open turn at their floor, older media as their markers.
        """
        return [self._at_least(piece) for piece in self.pieces if self._stays(piece)]

    def remains(self, *, shortened: bool = True) -> list[Piece]:
        """What is left when every turn has left that may leave whole, as small as it can be made or as it is."""
        staying = [piece for piece in self.pieces if not self._may_leave(piece)]
        return [self._at_least(piece) for piece in staying] if shortened else staying

    def keeping_history(self, least_tokens: int) -> Window:
        """The window in which prunes end when the history is within so many tokens (without framing)."""
        window = copy(self)
        window._least_history_tokens = least_tokens
        return window

    def prune_older(self, pieces: Sequence[Piece], prompt: Prompt) -> tuple[list[Piece], list[TrimAction]]:
        """Prunes what is older than the protected turns until what is charged is under the prune threshold.

        A policy that prunes by value or in blocks does so as it did for the calls before, so that what has left stays
        away: by value, what is new would else bring old messages back into the middle of the prompt.
        """
        policy, input_budget = self.policy, self.snapshot.budget.input_budget
        threshold = policy.prune_from(input_budget)

        def prune(
            pieces: Sequence[Piece], still_over: StillOver, in_reach: Callable[[Piece], bool]
        ) -> tuple[list[Piece], list[TrimAction]]:
            take = self._prune_messages if policy.prune_unit == "message" else self._prune_turns
            return take(pieces, still_over, in_reach, "prune_threshold", by_value=policy.prune_order == "value")

        if policy.prune_order == "oldest" and not policy.prune_block_share:
            return prune(pieces, self._over(prompt, threshold), lambda piece: not self._is_protected(piece))
        return prune_as_it_grew(
            pieces,
            over_at=self._over(prompt, threshold),
            still_over=self._over(prompt, threshold - policy.prune_block_share * input_budget),
            protected_from=self._protected_when_newest(),
            prune=prune,
        )

    def prune_anywhere(self, pieces: Sequence[Piece], prompt: Prompt) -> tuple[list[Piece], list[TrimAction]]:
        """Prunes until the prompt is within the input budget, the oldest first, protected turns as well."""
        input_budget = self.snapshot.budget.input_budget

        def prune(
            pieces: Sequence[Piece], still_over: StillOver, in_reach: Callable[[Piece], bool]
        ) -> tuple[list[Piece], list[TrimAction]]:
            if self.policy.prune_unit == "message":
                return self._prune_messages(pieces, still_over, in_reach, "over_budget")
            kept, actions = self._prune_turns(pieces, still_over, in_reach, "over_budget")
            tokens, messages = (all_of - left for all_of, left in zip(size_of(pieces), size_of(kept), strict=True))
            # Earlier rounds of the running turn may leave, whatever the unit (contract.md, decision 8).
            kept, more = self._prune_messages(
                kept,
                lambda more_tokens, more_messages: still_over(tokens + more_tokens, messages + more_messages),
                in_reach,
                "over_budget",
            )
            return kept, actions + more

        over = self._over(prompt, input_budget + 1)
        if not self.policy.prune_block_share:
            return prune(pieces, over, lambda _piece: True)
        return prune_as_it_grew(
            pieces,
            over_at=over,
            still_over=self._over(prompt, input_budget + 1 - self.policy.prune_block_share * input_budget),
            protected_from=first_seq_of,
            prune=prune,
        )

    def _over(self, prompt: Prompt, at_tokens: float) -> StillOver:
        """Whether the prompt costs as many tokens once something has left it; its own size is summed up once."""
        wire_tokens, overhead_tokens = prompt.wire_tokens, prompt.overhead_tokens
        may_lose = prompt.regions()["history"] - self._least_history_tokens
        return lambda tokens, messages: (
            tokens < may_lose and self._charge_less(wire_tokens, overhead_tokens, tokens, messages) >= at_tokens
        )

    def _prune_messages(
        self,
        pieces: Sequence[Piece],
        still_over: StillOver,
        in_reach: Callable[[Piece], bool],
        reason: str,
        *,
        by_value: bool = False,
    ) -> tuple[list[Piece], list[TrimAction]]:
        return prune_messages(
            pieces,
            still_over=still_over,
            in_reach=in_reach,
            reason=reason,
            estimate=self.estimate,
            largest_tokens=self.snapshot.budget.input_budget,
            by_value=by_value,
        )

    def _prune_turns(
        self,
        pieces: Sequence[Piece],
        still_over: StillOver,
        in_reach: Callable[[Piece], bool],
        reason: str,
        *,
        by_value: bool = False,
    ) -> tuple[list[Piece], list[TrimAction]]:
        return prune_turns(
            pieces,
            still_over=still_over,
            may_leave=lambda piece: piece.droppable and in_reach(piece),
            reason=reason,
            kind="turn_dropped" if self.policy.allocation is None else "history_drop",
            by_value=by_value,
        )

    def _protected_when_newest(self) -> Callable[[Piece], int]:
        """The first `seq` of the turns that were protected when a piece was the newest."""
        turns = self.snapshot.turns
        place_of = {turn.id: at for at, turn in enumerate(turns)}

        def protected_from(piece: Piece) -> int:
            at = place_of.get(piece.unit.messages[0].turn_id, len(turns))
            _, protected = _split(replace(self.snapshot, turns=turns[:at]), self.policy)
            running = turns[at] if at < len(turns) else self.snapshot.current
            return min(_first_seq((*protected, running)), self._protected_from)

        return protected_from

    def drop_turns(self, pieces: Sequence[Piece], prompt: Prompt) -> tuple[list[Piece], list[TrimAction]]:
        """Whole turns leave, users' words with them, oldest first, until the prompt is within its budget."""
        return prune_turns(
            pieces,
            still_over=self._over(prompt, self.snapshot.budget.input_budget + 1),
            may_leave=self._may_leave,
            reason="over_budget",
            kind="history_drop",
        )

    def shorten_summary(self, prompt: Prompt) -> tuple[Prompt, list[TrimAction]]:
        """A summary made for a larger window is cut to this one's cap: the last thing tried before a refusal."""
        item, summary = self.summary_item, self.snapshot.summary
        if item is None or summary is None:
            return prompt, []
        cap_tokens = int(self.snapshot.budget.input_budget * self.policy.summary_max_ratio)
        body = fit_summary(summary.body, cap_tokens, self.estimate)
        if body is None or body == summary.body:
            return prompt, []
        shorter = summary_item(replace(summary, body=body), self.policy, self.estimate)
        action = TrimAction("summary_shortened", item.label, "over_budget", item.tokens - shorter.tokens)
        items = tuple(shorter if each is item else each for each in prompt.items)
        return replace(prompt, items=items), [action]

    def excess_tokens(self, prompt: Prompt) -> int:
        """By how many wire tokens the prompt is over its budget; negative where it is not."""
        return prompt.wire_tokens - self.snapshot.budget.wire_room(
            overhead_tokens=prompt.overhead_tokens, calibration_ratio=self.snapshot.calibration_ratio
        )

    def shorten_newest(self, prompt: Prompt) -> tuple[Prompt, list[TrimAction]]:
        """Shortens the newest results of open turns to what fits (contract.md, decision 8), an older turn's first."""
        there = {id(item) for item in prompt.items}
        pieces = [piece for piece in self.pieces if id(piece.items[0]) in there]
        done = self.shortened_newest(pieces, self.excess_tokens(prompt))
        now = {id(each.was): each.now for each in done}
        items = tuple(now.get(id(item), item) for item in prompt.items)
        return replace(prompt, items=items), [shortening_action(each, NEWEST_TOO_LARGE) for each in done]

    def shortened_newest(self, pieces: Sequence[Piece], excess_tokens: int) -> list[Shortening]:
        """How the newest results of open turns among the pieces become shorter by so many tokens, or what they can."""
        done: list[Shortening] = []
        for piece in pieces:
            if piece.newest_results and excess_tokens > 0:
                shortened = fit_results(piece.items, excess_tokens, self.estimate)
                excess_tokens -= sum(each.tokens_removed for each in shortened)
                done += shortened
        return done

    def drop_oldest_turns(self, prompt: Prompt) -> tuple[Prompt, list[TrimAction]]:
        """Whole past turns leave, oldest first, until the prompt fits: what is left when a provider has refused it."""
        actions: list[TrimAction] = []
        tokens = messages = 0
        for turn in self.snapshot.turns:
            if self._charge_without(prompt, tokens, messages) <= self.snapshot.budget.input_budget:
                break
            items = [item for item in prompt.items if item.message and item.message.turn_id == turn.id]
            if items:
                wire_tokens = sum(item.wire_tokens for item in items)
                actions.append(TrimAction("emergency_drop", f"turn:{turn.id}", "provider_overflow", wire_tokens))
                tokens += sum(item.tokens for item in items)
                messages += len(items)
        gone = {action.target for action in actions}
        left = tuple(item for item in prompt.items if not item.message or f"turn:{item.message.turn_id}" not in gone)
        return replace(prompt, items=left), actions

    def _charge_without(self, prompt: Prompt, tokens: int, messages: int) -> int:
        """What the prompt costs once so many tokens (without framing) and messages have left it."""
        return self._charge_less(prompt.wire_tokens, prompt.overhead_tokens, tokens, messages)

    def _charge_less(self, wire_tokens: int, overhead_tokens: int, tokens: int, messages: int) -> int:
        framing = MESSAGE_FRAMING_TOKENS * messages
        return self.snapshot.budget.charge(
            wire_tokens=wire_tokens - tokens - framing,
            overhead_tokens=overhead_tokens - framing,
            calibration_ratio=self.snapshot.calibration_ratio,
        )

    def _room_beside(self, pieces: Sequence[Piece]) -> int:
        left = self.snapshot.budget.input_budget - self.charge(self.prompt(pieces, with_summary=False))
        return floor(left / self.snapshot.calibration_ratio) - MESSAGE_FRAMING_TOKENS

    def _stays(self, piece: Piece) -> bool:
        return self._is_protected(piece) and not (piece.droppable and self.policy.prune_protected)

    def _may_leave(self, piece: Piece) -> bool:
        """Whether a policy that shares its window out may drop the piece, with its turn or out of the running one."""
        if self._is_protected(piece) and not self.policy.prune_protected:
            return False
        turn_id = piece.unit.messages[0].turn_id
        unresolved = latest_unresolved(self.snapshot.turns)
        settled = turn_id != self.snapshot.current.id and (unresolved is None or turn_id != unresolved.id)
        return settled or piece.droppable

    def _at_least(self, piece: Piece) -> Piece:
        if piece.newest_results:
            return piece.with_shortened(fit_results(piece.items, piece.wire_tokens, self.estimate))
        return without_media(piece, self.estimate)[0] if self.policy.prune_protected else piece

    def _past_pieces(self) -> list[Piece]:
        unresolved = latest_unresolved(self.snapshot.turns)
        return [
            piece
            for turn in self.snapshot.turns
            for piece in self._leaving_whole(
                _pieces_of(turn, self.anchors, latest_stays=turn is unresolved), stays=turn is unresolved
            )
        ]

    def _leaving_whole(self, pieces: list[Piece], *, stays: bool) -> list[Piece]:
        """Where turns leave whole, the user's words leave with theirs; a latest turn that is unsettled stays whole."""
        if self.policy.prune_unit != "turn":
            return pieces
        return [replace(piece, droppable=not stays) for piece in pieces]

    def _current_pieces(self) -> list[Piece]:
        return _pieces_of(self.snapshot.current, frozenset[MessageId](), latest_stays=True, running=True)

    def _is_protected(self, piece: Piece) -> bool:
        return piece.unit.messages[0].seq >= self._protected_from


def _pieces_of(turn: Turn, anchors: frozenset[MessageId], *, latest_stays: bool, running: bool = False) -> list[Piece]:
    units = sendable_units(turn)
    pieces: list[Piece] = []
    for at, unit in enumerate(units):
        is_latest = (
            latest_stays and unit.kind != "user" and not any(later.kind == unit.kind for later in units[at + 1 :])
        )
        region = "user" if running and unit.kind == "user" else "history"
        droppable = unit.kind != "user" and not is_latest and not cites(unit, anchors)
        pieces.append(
            Piece(
                unit=unit,
                items=tuple(message_item(region, message) for message in unit.messages),
                droppable=droppable,
                markable=droppable or (unit.kind == "user" and not running),
                answered=any(later.kind != "user" for later in units[at + 1 :]),
                newest_results=is_latest and unit.kind == "tool_group",
            )
        )
    return pieces


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


def _split(snapshot: Snapshot, policy: ContextPolicy) -> tuple[tuple[Turn, ...], tuple[Turn, ...]]:
    """The past turns that a summary may take in, and the protected ones."""
    share = policy.protected_share
    room_tokens = None
    if share is not None:
        room_tokens = floor(share * snapshot.budget.input_budget / snapshot.calibration_ratio)
    return split_protected(snapshot.turns, policy.protected_turns, room_tokens)


def _first_seq(turns: Sequence[Turn]) -> int:
    """The `seq` of the first message of the turns."""
    return min((message.seq for turn in turns for message in turn.messages), default=0)
