"""The two doors of the engine: `plan` decides what a turn sends, `assemble` turns a plan into the exact messages.

When `plan` answers `SummaryDue` the caller tries that summary and asks `plan_after_summary`. Nothing here does I/O: the
caller gathers the snapshot, makes the summary, calls the model and records the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from app.domain.types import JsonObject, PromptMessage, Summary, ToolDefinition
from app.engine.messages.tokens import Estimate
from app.engine.messages.turns import wire_tokens_of
from app.engine.policy.policy import ContextPolicy
from app.engine.summary.fold import MIN_SUMMARY_TOKENS, Fold
from app.engine.window.prompt import Block, prompt_sha256
from app.engine.window.prompt_refs import refs_of
from app.engine.window.pruning import TrimAction
from app.engine.window.recalled import with_recall
from app.engine.window.shares import share_out
from app.engine.window.stages import Accounts, Earlier, Ready, Refused, fit
from app.engine.window.triggers import due_after_turn, due_before_call, worth_making
from app.engine.window.window import Snapshot, Window, summary_item

__all__ = [
    "Accounts",
    "Assembled",
    "Decision",
    "Earlier",
    "Ready",
    "Refused",
    "SummaryDue",
    "SummaryWorthless",
    "assemble",
    "assert_tool_pairing",
    "plan",
    "plan_after_overflow",
    "plan_after_summary",
    "plan_after_turn",
    "summary_actions",
    "summary_wire_tokens",
    "with_summary",
    "would_be_pruned",
]


@dataclass(frozen=True, slots=True)
class SummaryDue:
    """A summary has to be tried before the prompt can be decided."""

    fold: Fold
    earlier: Earlier


@dataclass(frozen=True, slots=True)
class SummaryWorthless:
    """A summary is due by the turn count, but would not shrink anything: the count restarts. Carries the way on."""

    then: Ready | Refused


Decision: TypeAlias = SummaryDue | SummaryWorthless | Ready | Refused


def plan(snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate) -> Decision:
    """Decides what the running turn sends: the same snapshot gives the same decision."""
    window = Window(snapshot, policy, estimate)
    prompt = window.prompt(window.pieces)
    charged = window.charge(prompt)
    seen = Earlier(prompt.wire_tokens, charged, summary_triggered=False)
    held = share_out(window)
    # Refuse before paying: no summary is made that could not be sent beside what may never leave.
    if held.room_for_summary() < MIN_SUMMARY_TOKENS:
        return with_recall(window, fit(window, seen))
    if held is not window:
        prompt = held.prompt(held.pieces)
        charged = held.charge(prompt)
    reason = due_before_call(held, prompt, charged)
    fold = held.fold(reason) if reason else None
    if reason and fold and worth_making(held, fold, charged):
        return SummaryDue(fold, seen)
    decided = with_recall(window, fit(window, seen))
    return SummaryWorthless(decided) if reason == "turn_count" else decided


def plan_after_turn(snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate) -> Fold | None:
    """What a summary in the background is to take in, of a snapshot whose running turn has said nothing yet."""
    window = share_out(Window(snapshot, policy, estimate))
    reason = due_after_turn(window, window.charge(window.prompt(window.pieces)))
    if reason is None or window.room_for_summary() < MIN_SUMMARY_TOKENS:
        return None
    fold = window.fold(reason)
    return fold if fold and worth_making(window, fold) else None


def plan_after_summary(
    snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate, earlier: Earlier
) -> Ready | Refused:
    """Decides when the summary that was due has been tried; `snapshot` has the new one where it was made."""
    window = Window(snapshot, policy, estimate)
    return with_recall(window, fit(window, earlier))


def would_be_pruned(snapshot: Snapshot, policy: ContextPolicy, estimate: Estimate) -> bool:
    """Whether the prompt of this snapshot is at the prune threshold as it stands."""
    window = share_out(Window(snapshot, policy, estimate))
    return window.at_prune_threshold(window.charge(window.prompt(window.pieces)))


def plan_after_overflow(
    snapshot: Snapshot,
    policy: ContextPolicy,
    estimate: Estimate,
    sent: Accounts,
    left_at_once: tuple[TrimAction, ...] = (),
) -> Ready | Refused:
    """Decides anew when the provider refused a prompt as too long; `snapshot` has the smaller budget.

    `sent` is the accounts of the refused prompt, `left_at_once` the log of turns that a policy's emergency path has
    taken out of the snapshot since. No summary is asked for: whoever waits has waited for one call.
    Protected turns are pruned whatever the policy says, and when nothing is left to prune whole turns leave, oldest
    first; goal, system layers, the running turn, and pins that are within a share if they have one, stay.
    """
    window = Window(snapshot, replace(policy, prune_protected=True), estimate)
    return fit(window, sent.earlier(left_at_once), emergency=True)


def with_summary(
    snapshot: Snapshot, due: SummaryDue, summary: Summary, policy: ContextPolicy, estimate: Estimate
) -> tuple[Snapshot, Earlier]:
    """The snapshot with the summary that was due in place of what it folded, and the accounts that go on from it."""
    actions = summary_actions(due.fold, summary, summary_wire_tokens(summary, policy, estimate))
    earlier = replace(due.earlier, summary_triggered=True, actions=actions)
    return snapshot.with_summary(due.fold, summary), earlier


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
