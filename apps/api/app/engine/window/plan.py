"""What a turn sends: `plan` decides it, `assemble` turns the decision into the exact messages.

When `plan` answers `SummaryDue` the caller tries that summary and plans again, of `due.snapshot` or, where it was made,
of `due.with_summary(...)`. Nothing here does I/O: the caller gathers the snapshot, makes the summary, calls the model
and records the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from math import ceil
from typing import Literal, TypeAlias, overload

from app.domain.content import JsonMessages
from app.domain.recalled import Recalled
from app.domain.types import JsonObject, PromptMessage, Summary, ToolDefinition
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, Estimate
from app.engine.messages.turns import wire_tokens_of
from app.engine.policy.budget import Budget
from app.engine.policy.policy import ContextPolicy
from app.engine.summary.fold import Fold
from app.engine.window.clearing import lay_out_cleared
from app.engine.window.look_back import LOOK_BACK
from app.engine.window.prompt import Block, Prompt, PromptItem, Run
from app.engine.window.prompt_refs import refs_of
from app.engine.window.shares import with_shared_budget
from app.engine.window.snapshot import Removal, Snapshot
from app.engine.window.stages import fit, fits
from app.engine.window.triggers import due_before_call
from app.engine.window.window import Window, summary_item

_LARGEST_SHOWN = 5
_SHORTENABLE = ("user", "pins", "goal", "system")
"""What the client can make smaller itself, in the order it is advised to."""
_SHARED_WITH_OUTPUT = ("user", "system")
"""What comes off before shares are given out: where the output has one, it takes that of what these give back."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """The members of a 422 `context_budget_exceeded`. Token figures are integers as they count against the input
    budget: the regions sum to the estimate, which is `over_by` more than it. `recovery` alone is in tokens of the text.
    """

    detail: str
    budget: dict[str, int]
    regions: dict[str, int]
    largest_items: list[JsonObject]
    recovery: JsonObject


@dataclass(frozen=True, slots=True)
class Accounts:
    """The figures of an audit row. `*_before`, `*_after_summary`, `*_after_prune` count against the input budget;
    `wire_before` and the prompt's own `wire_tokens` are what the trim log speaks of.

    What was recalled is in every figure, and so are the lines of days, since no stage of compression brought them in.
    """

    wire_before: int
    tokens_before: int
    tokens_after_summary: int
    tokens_after_prune: int
    summary_triggered: bool
    prune_triggered: bool
    actions: tuple[Removal, ...]
    recalled: tuple[Recalled, ...] = ()


@dataclass(frozen=True, slots=True)
class SummaryDue:
    """A summary has to be tried before the prompt can be decided; without it the turn is planned of `snapshot`."""

    fold: Fold
    snapshot: Snapshot

    def with_summary(self, summary: Summary, policy: ContextPolicy, estimate: Estimate) -> Snapshot:
        """What the turn is planned of once the summary is made."""
        actions = summary_actions(self.fold, summary, policy, estimate)
        snapshot = self.snapshot.with_summary(self.fold, summary, actions)
        return replace(snapshot, log=snapshot.log and replace(snapshot.log, summary_triggered=True))


@dataclass(frozen=True)
class Ready:
    """The prompt fits. With `summary_worthless` a summary was due by the turn count, but would not shrink anything: the
    count restarts."""

    window: Window
    accounts: Accounts
    summary_worthless: bool = False

    @cached_property
    def prompt(self) -> Prompt:
        """What is sent; a simulation never asks for it."""
        return self.window.prompt()


@dataclass(frozen=True, slots=True)
class Refused:
    """The prompt does not fit and nothing more may leave; `summary_worthless` is as of `Ready`."""

    window: Window
    prompt: Prompt
    accounts: Accounts
    overflow: Overflow
    summary_worthless: bool = False


Decision: TypeAlias = SummaryDue | Ready | Refused


@overload
def plan(
    snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate, *, may_summarize: Literal[False]
) -> Ready | Refused: ...
@overload
def plan(snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate, *, may_summarize: bool = True) -> Decision: ...
def plan(snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate, *, may_summarize: bool = True) -> Decision:
    """Decides what the running turn sends: the same snapshot gives the same decision.

    `SummaryDue` is answered only where it `may_summarize`, and never of a snapshot that a provider refused.
    """
    if snapshot.overflowed:
        policy = replace(policy, prune_protected=True)
    if policy.look_back == "on" or snapshot.summary is not None:
        snapshot = _with_look_back(snapshot, policy, estimate)
    window = lay_out_cleared(snapshot, policy, estimate)
    summary_worthless = False
    if may_summarize and not snapshot.overflowed:
        due = due_before_call(window, policy)
        if due.fold:
            return SummaryDue(due.fold, replace(snapshot, log=window.log.without_stages()))
        summary_worthless = due.reason == "turn_count"
    window = fit(window, policy)
    if window.log.actions and snapshot.may_look_back and not snapshot.offers_look_back:
        snapshot = _with_look_back(snapshot, policy, estimate)
        window = fit(lay_out_cleared(snapshot, policy, estimate), policy)
    accounts = _accounts_of(window)
    if fits(window):
        return Ready(window, accounts, summary_worthless)
    prompt = window.prompt()
    overflow = overflow_of(prompt, snapshot.budget, accounts.tokens_after_prune, snapshot.calibration_ratio)
    return Refused(window, prompt, accounts, overflow, summary_worthless)


def _with_look_back(snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate) -> Snapshot:
    """The same with the service's own tool among the tools, where it may be offered."""
    if snapshot.offers_look_back or not snapshot.may_look_back:
        return snapshot
    return with_shared_budget(replace(snapshot, tools=(*snapshot.tools, LOOK_BACK)), policy, estimate)


def _accounts_of(window: Window) -> Accounts:
    log, input_tokens, items = window.log, window.input_tokens, window.beside
    # What recall and the offer to look back added is no stage's: it is in the figures of every stage.
    offered = window.tools_tokens - log.tools_tokens
    tokens, messages = sum([item.tokens for item in items]), len(items)
    beside = input_tokens - window.input_tokens_without(tokens, messages) if items else 0
    with_tool = input_tokens - window.input_tokens_without(less_tools=offered) if offered else 0
    return Accounts(
        wire_before=log.wire_before + tokens + MESSAGE_FRAMING_TOKENS * messages + offered,
        tokens_before=log.tokens_before + beside + with_tool,
        tokens_after_summary=log.tokens_after_summary + beside,
        tokens_after_prune=input_tokens,
        summary_triggered=log.summary_triggered,
        prune_triggered=bool(log.actions) or any(action.kind == "emergency_drop" for action in log.stored),
        actions=(*log.stored, *log.actions),
        recalled=log.recalled,
    )


def summary_actions(fold: Fold, summary: Summary, policy: ContextPolicy, estimate: Estimate) -> tuple[Removal, ...]:
    """The trim log of a summary that was made: a row for each turn it took in, and one for the block itself.

    The rows sum to what the prompt lost by it. Turns that a provider overflow made leave at once are logged as dropped,
    and only noted in the summary.
    """
    kind = "emergency_drop" if fold.reason == "provider_overflow" else "summary_folded"
    rows = [
        Removal(kind, f"turn:{turn.id}", fold.reason, wire_tokens_of((turn,)), turn.seq, turn.seq)
        for turn in fold.turns
    ]
    block = summary_item(summary, policy, estimate)
    return (*rows, Removal(kind, block.label, fold.reason, fold.previous_tokens - block.wire_tokens))


@dataclass(frozen=True, slots=True)
class Assembled:
    """The exact prompt. `refs` rebuild it from stored rows, `blocks` are what must be stored for that."""

    messages: JsonMessages
    tools: tuple[ToolDefinition, ...]
    sha256: str
    refs: JsonObject
    blocks: tuple[Block, ...]


def assemble(ready: Ready) -> Assembled:
    """The exact messages of a plan. Raises `AssertionError` if a tool call and its results are not together."""
    prompt = ready.prompt
    for is_run, parts in groupby(prompt.parts, lambda part: isinstance(part, Run)):
        if not is_run:  # a run is of whole pieces
            items = [part for part in parts if isinstance(part, PromptItem)]
            if any(map(_is_of_tools, items)):
                assert_tool_pairing([item.as_sent() for item in items])
    messages, sha256 = prompt.hashed()
    refs = refs_of(prompt, ready.accounts.recalled, ready.window.snapshot.past.others_between)
    return Assembled(messages, prompt.tools, sha256, refs, prompt.blocks())


def _is_of_tools(item: PromptItem) -> bool:
    message = item.message
    return message is not None and (message.role == "tool" or bool(message.tool_calls))


def assert_tool_pairing(messages: Sequence[PromptMessage]) -> None:
    """Every tool result follows its call, and every call has exactly one result before the next other message."""
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_calls:
                raise AssertionError("a tool result without its call would be sent")
            open_calls.discard(str(message["tool_call_id"]))
            continue
        if open_calls:
            raise AssertionError("a tool call without its result would be sent")
        open_calls = {str(call["id"]) for call in message.get("tool_calls", ())}
    if open_calls:
        raise AssertionError("a tool call without its result would be sent")


def overflow_of(prompt: Prompt, budget: Budget, input_tokens: int, calibration_ratio: float) -> Overflow:
    """Explains why this prompt can not be sent."""
    over_by = input_tokens - budget.input_budget
    cut = ceil(over_by / calibration_ratio)
    counted = _counted(prompt.regions(), budget)
    return Overflow(
        detail=_detail(budget, input_tokens),
        budget={
            "limit": budget.limit,
            "input_budget": budget.input_budget,
            "estimated": input_tokens,
            "over_by": over_by,
        },
        regions=dict(zip(counted, _parts_of(input_tokens, list(counted.values())), strict=True)),
        largest_items=[
            {
                "item": item.label,
                "region": item.region,
                "tokens": item.tokens * input_tokens // max(1, sum(counted.values())),
            }
            for item in prompt.largest(_LARGEST_SHOWN)
        ],
        recovery=_recovery(prompt, budget, cut),
    )


def _counted(regions: dict[str, int], budget: Budget) -> dict[str, int]:
    """The regions less what the overhead reserve pays for: framing first, then tools."""
    of_framing = min(budget.overhead_reserve, regions["framing"])
    of_tools = min(budget.overhead_reserve - of_framing, regions["tools"])
    return {**regions, "tools": regions["tools"] - of_tools, "framing": regions["framing"] - of_framing}


def _parts_of(whole: int, shares: Sequence[int]) -> list[int]:
    """The whole number in proportion to the shares; rounded, and still its sum."""
    ends = list(accumulate(shares, initial=0))
    if not ends[-1]:
        return [*(0 for _ in shares[1:]), whole]
    return [end * whole // ends[-1] - begin * whole // ends[-1] for begin, end in pairwise(ends)]


def _detail(budget: Budget, input_tokens: int) -> str:
    if budget.input_budget <= 0:
        return (
            f"A window of {budget.limit} tokens has no room for input: the output reserve takes "
            f"{budget.output_reserve} and the overhead reserve {budget.overhead_reserve}."
        )
    return (
        f"The turn needs {input_tokens} tokens after everything that may leave has left; the input budget is "
        f"{budget.input_budget}. Nothing was sent to the model."
    )


def _recovery(prompt: Prompt, budget: Budget, cut_tokens: int) -> JsonObject:
    """Each entry of `shorten` is enough by itself; without one, only a larger window or a new session helps."""
    shorten = [
        {"item": item.label, "region": item.region, "by_tokens": by_tokens}
        for region in _SHORTENABLE
        for by_tokens in [_with_outputs_part(cut_tokens, budget) if region in _SHARED_WITH_OUTPUT else cut_tokens]
        for item in _largest_first(prompt, region)
        if item.tokens > by_tokens
    ]
    return {
        "shorten": shorten if budget.input_budget > 0 else [],
        "or": "use a model with a larger window" if budget.input_budget <= 0 else "start a new session",
    }


def _with_outputs_part(cut_tokens: int, budget: Budget) -> int:
    """So many that `cut_tokens` are left when the output has taken its share of them, rounded up."""
    return ceil((cut_tokens + 1) / (1 - budget.output_pct / 100)) if budget.output_pct else cut_tokens


def _largest_first(prompt: Prompt, region: str) -> list[PromptItem]:
    items = [part for part in prompt.parts if isinstance(part, PromptItem) and part.region == region]
    return sorted(items, key=lambda item: -item.tokens)
