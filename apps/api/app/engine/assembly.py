"""The two doors of the engine: `plan` decides what a turn sends, `assemble` turns a plan into the exact messages.

When `plan` answers `SummaryDue` the caller tries that summary and asks `plan_after_summary`. Nothing here does I/O: the
caller gathers the snapshot, makes the summary, calls the model and records the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from app.domain.types import JsonObject, PromptMessage, Summary, ToolDefinition
from app.engine.folding import MIN_SUMMARY_TOKENS, Fold, SummaryReason, wire_tokens_of
from app.engine.overflow import Overflow, overflow_of
from app.engine.policy import ContextPolicy
from app.engine.prompt import Block, Prompt, prompt_sha256
from app.engine.pruning import TrimAction
from app.engine.replay import refs_of
from app.engine.tokens import Estimate
from app.engine.window import Snapshot, Window, summary_item


@dataclass(frozen=True, slots=True)
class Accounts:
    """The figures of an audit row. `*_before`, `*_after_summary`, `*_after_prune` are charged to the input budget;
    `wire_before` and the prompt's own `wire_tokens` are what the trim log speaks of."""

    wire_before: int
    tokens_before: int
    tokens_after_summary: int
    tokens_after_prune: int
    summary_triggered: bool
    prune_triggered: bool
    actions: tuple[TrimAction, ...]


@dataclass(frozen=True, slots=True)
class Earlier:
    """What this turn's plan saw before a summary was tried, and what the summary did."""

    wire_before: int
    tokens_before: int
    summary_triggered: bool
    actions: tuple[TrimAction, ...] = ()


@dataclass(frozen=True, slots=True)
class SummaryDue:
    """A summary has to be tried before the prompt can be decided."""

    fold: Fold
    earlier: Earlier


@dataclass(frozen=True, slots=True)
class SummaryWorthless:
    """A summary is due by the turn count, but would not shrink anything: the count restarts. Carries the way on."""

    then: Ready | Refused


@dataclass(frozen=True, slots=True)
class Ready:
    """The prompt fits."""

    prompt: Prompt
    accounts: Accounts


@dataclass(frozen=True, slots=True)
class Refused:
    """The prompt does not fit and nothing more may leave."""

    prompt: Prompt
    accounts: Accounts
    overflow: Overflow


Decision: TypeAlias = SummaryDue | SummaryWorthless | Ready | Refused


def plan(snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate) -> Decision:
    """Decides what the running turn sends: the same snapshot gives the same decision."""
    window = Window(snapshot, policy, estimate)
    prompt = window.prompt(window.pieces)
    charged = window.charge(prompt)
    seen = Earlier(prompt.wire_tokens, charged, summary_triggered=False)
    # Refuse before paying: no summary is made that could not be sent beside what may never leave.
    if window.room_for_summary() < MIN_SUMMARY_TOKENS:
        return _prune(window, prompt, charged, seen)
    by_count = policy.summarizes and snapshot.completed_since_summary >= policy.mandatory_summary_turn
    reason = _summary_reason(snapshot, policy, charged, by_count=by_count)
    fold = window.fold(reason) if reason else None
    if fold and (by_count or window.at_prune_threshold(charged) or window.reclaims_enough(fold)):
        return SummaryDue(fold, seen)
    decided = _prune(window, prompt, charged, seen)
    return SummaryWorthless(decided) if by_count else decided


def plan_after_summary(
    snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate, earlier: Earlier
) -> Ready | Refused:
    """Decides when the summary that was due has been tried; `snapshot` has the new one where it was made."""
    window = Window(snapshot, policy, estimate)
    prompt = window.prompt(window.pieces)
    return _prune(window, prompt, window.charge(prompt), earlier)


def summary_actions(fold: Fold, new_summary: Summary, new_tokens: int) -> tuple[TrimAction, ...]:
    """The trim log of a summary that was made: a row for each turn it took in, and one for the block itself.

    `new_tokens` is the new block's cost on the wire; the rows sum to what the prompt lost by it.
    """
    rows = [
        TrimAction("summary_folded", f"turn:{turn.id}", fold.reason, wire_tokens_of((turn,))) for turn in fold.turns
    ]
    block = TrimAction("summary_folded", f"summary:{new_summary.id}", fold.reason, fold.previous_tokens - new_tokens)
    return (*rows, block)


def summary_wire_tokens(summary: Summary | None, policy: ContextPolicy, estimate: Estimate) -> int:
    """What a summary's block costs on the wire; nothing when there is none."""
    return summary_item(summary, policy, estimate).wire_tokens if summary else 0


@dataclass(frozen=True, slots=True)
class Assembled:
    """The exact prompt. `refs` rebuild it from stored rows, `blocks` are what must be stored for that."""

    messages: list[PromptMessage]
    tools: tuple[ToolDefinition, ...]
    sha256: str
    refs: JsonObject
    blocks: tuple[Block, ...]


def assemble(ready: Ready) -> Assembled:
    """The exact messages of a plan. Raises `AssertionError` if a tool call and its results are not together."""
    prompt = ready.prompt
    messages = prompt.messages()
    assert_tool_pairing(messages)
    return Assembled(messages, prompt.tools, prompt_sha256(messages, prompt.tools), refs_of(prompt), prompt.blocks())


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


def _summary_reason(snapshot: Snapshot, policy: ContextPolicy, charged: int, *, by_count: bool) -> SummaryReason | None:
    if policy.summarizes and charged >= policy.summary_trigger_ratio * snapshot.budget.input_budget:
        return "threshold"
    return "turn_count" if by_count else None


def _prune(window: Window, prompt: Prompt, charged: int, seen: Earlier) -> Ready | Refused:
    """Prunes to the threshold among older turns, then to the budget among protected ones, and says whether it fits."""
    after_summary, pieces, actions = charged, window.pieces, list(seen.actions)
    budget = window.snapshot.budget
    pruned: list[TrimAction] = []
    if window.at_prune_threshold(charged):
        threshold = window.policy.prune_trigger_ratio * budget.input_budget
        pieces, done = window.prune(pieces, prompt, below=threshold, protected=False, reason="prune_threshold")
        pruned += done
        prompt = window.prompt(pieces)
        charged = window.charge(prompt)
    if charged > budget.input_budget and window.policy.prune_protected:
        pieces, done = window.prune(pieces, prompt, below=budget.input_budget + 1, protected=True, reason="over_budget")
        pruned += done
        prompt = window.prompt(pieces)
        charged = window.charge(prompt)
    if charged > budget.input_budget:
        shorter, done = window.shorten_summary(prompt)
        pruned += done
        prompt = shorter
        charged = window.charge(prompt)
    accounts = Accounts(
        wire_before=seen.wire_before,
        tokens_before=seen.tokens_before,
        tokens_after_summary=after_summary,
        tokens_after_prune=charged,
        summary_triggered=seen.summary_triggered,
        prune_triggered=bool(pruned),
        actions=(*actions, *pruned),
    )
    if budget.input_budget <= 0 or charged > budget.input_budget:
        return Refused(prompt, accounts, overflow_of(prompt, budget, charged, window.snapshot.calibration_ratio))
    return Ready(prompt, accounts)
