"""What a turn sends: `plan` decides it, `assemble` turns the decision into the exact messages.

When `plan` returns `SummaryDue`, the caller tries that summary and plans again: from `with_summary(...)` if it was
made, else from `due.snapshot`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Literal, TypeAlias, overload

from app.domain.content import JsonMessages
from app.domain.errors import ContextBudgetExceeded
from app.domain.frozen import frozen, replace
from app.domain.types import JsonObject, PromptMessage, Summary, ToolDefinition
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, Estimate
from app.engine.messages.turns import wire_tokens_of
from app.engine.summary.fold import Fold
from app.engine.window.clearing import lay_out_cleared
from app.engine.window.look_back import LOOK_BACK
from app.engine.window.prompt import Prompt
from app.engine.window.prompt_refs import refs_of
from app.engine.window.shares import with_shared_budget
from app.engine.window.snapshot import PlanLog, Removal, Snapshot
from app.engine.window.stages import fit, fits, overflow_of, stays_whole
from app.engine.window.triggers import due_before_call, fold_before_refusal, reason_before_call
from app.engine.window.window import Cost, Window, summary_item


@frozen
class SummaryDue:
    """A summary has to be tried before the prompt can be decided. If it fails, the turn is planned from `snapshot`."""

    fold: Fold
    snapshot: Snapshot


@frozen(slots=False)
class Decided:
    """A window after fitting. `summary_worthless` means that a summary was due by the turn count but would not shrink
    anything, so the count restarts."""

    window: Window
    summary_worthless: bool

    @property
    def prompt(self) -> Prompt:
        return self.window.prompt

    @cached_property
    def accounts(self) -> PlanLog:
        """The window's log as an audit has it: all actions as one, and figures of every stage that include recalled
        messages, day lines and the look-back tool, because these do not come from compression."""
        window, log, items = self.window, self.window.log, self.window.beside
        offered = window.tools_tokens - log.tools_tokens
        tokens, messages = sum([item.tokens for item in items]), len(items)
        beside = window.input_tokens - window.input_tokens_without(tokens, messages)
        with_tool = window.input_tokens - window.input_tokens_without(less_tools=offered)
        return replace(
            log,
            wire_before=log.wire_before + tokens + MESSAGE_FRAMING_TOKENS * messages + offered,
            tokens_before=log.tokens_before + beside + with_tool,
            tokens_after_summary=log.tokens_after_summary + beside,
            stored=(),
            actions=(*log.stored, *log.actions),
        )


class Ready(Decided):
    """The prompt fits."""


@frozen(slots=False)
class Refused(Decided):
    """The prompt does not fit and nothing more may be removed. `overflow` is the error for the client."""

    overflow: ContextBudgetExceeded = field(compare=False)


Decision: TypeAlias = SummaryDue | Ready | Refused


@overload
def plan(snapshot: Snapshot, estimate: Estimate, *, may_summarize: Literal[False]) -> Ready | Refused: ...
@overload
def plan(snapshot: Snapshot, estimate: Estimate, *, may_summarize: bool = True) -> Decision: ...
def plan(snapshot: Snapshot, estimate: Estimate, *, may_summarize: bool = True) -> Decision:
    """Decide what the running turn sends: always the same for the same snapshot. Returns `SummaryDue` only if
    `may_summarize`, and never after a provider rejected a prompt of the turn as too long."""
    if snapshot.overflowed:  # it gets no tool that the rejected prompt did not have
        snapshot = replace(snapshot, policy=replace(snapshot.policy, prune_protected=True))
    elif snapshot.policy.look_back == "on" or snapshot.summary is not None:
        snapshot = _with_look_back(snapshot, estimate)
    window = whole = lay_out_cleared(snapshot, estimate)
    may_summarize = may_summarize and not snapshot.overflowed
    summary_worthless = False
    if may_summarize:
        reason, fold = due_before_call(whole)
        if fold:
            return _summary_due(fold, whole)
        summary_worthless = reason == "turn_count"
    if window.is_over and not snapshot.overflowed:  # something must leave
        snapshot, was = _with_look_back(snapshot, estimate), snapshot
        window = window if snapshot is was else lay_out_cleared(snapshot, estimate)
    window = fit(window)
    if window.log.actions and not snapshot.overflowed:  # a retry may not be larger than the prompt that was rejected
        offering = _with_look_back(snapshot, estimate)
        window = window if offering is snapshot else fit(lay_out_cleared(offering, estimate))
    if window.snapshot.offers_look_back and not fits(window):
        bare = replace(window.snapshot, tools=window.snapshot.tools[:-1])
        window = fit(lay_out_cleared(with_shared_budget(bare, estimate), estimate))
    if fits(window):
        return Ready(window, summary_worthless)
    if may_summarize and (fold := fold_before_refusal(whole, window)):
        return _summary_due(fold, whole)
    return Refused(window, summary_worthless, overflow_of(window))


def _summary_due(fold: Fold, window: Window) -> SummaryDue:
    return SummaryDue(fold, replace(window.snapshot, log=window.log.without_stages()))


def passes_whole(window: Cost) -> bool:
    """Whether the turn's first `plan` of a window of this cost would send it unchanged: without a summary, a removal, a
    recall or the look-back tool. It need not be laid out for that."""
    snapshot, policy = window.snapshot, window.snapshot.policy
    if policy.clear_tool_results is not None or (
        snapshot.may_look_back and (policy.look_back == "on" or snapshot.summary is not None)
    ):
        return False
    return stays_whole(window) and reason_before_call(window) is None


def _with_look_back(snapshot: Snapshot, estimate: Estimate) -> Snapshot:
    """The snapshot with the look-back tool among its tools, if that may be offered."""
    if snapshot.offers_look_back or not snapshot.may_look_back:
        return snapshot
    return with_shared_budget(replace(snapshot, tools=(*snapshot.tools, LOOK_BACK)), estimate)


def with_summary(snapshot: Snapshot, fold: Fold, summary: Summary, estimate: Estimate) -> Snapshot:
    """The snapshot in which the summary replaces the turns of the fold.

    Its log has a row for each of these turns and one for the block, which sum to the tokens by which the prompt shrank.
    Turns that were dropped at once after a provider overflow are logged as dropped; the summary only has a note.
    """
    log, is_note = snapshot.log, fold.reason == "provider_overflow"
    if log is not None:
        kind = "emergency_drop" if is_note else "summary_folded"
        rows = [
            Removal(kind, f"turn:{turn.id}", fold.reason, wire_tokens_of((turn,)), turn.seq, turn.seq)
            for turn in fold.turns
        ]
        block = summary_item(summary, snapshot.policy, estimate)
        rows.append(Removal(kind, block.label, fold.reason, fold.previous_tokens - block.wire_tokens))
        triggered = log.summary_triggered or not is_note
        log = replace(log, stored=(*log.stored, *rows), summary_triggered=triggered)
    return replace(snapshot, summary=summary, past=snapshot.past.after(fold.turns[-1].seq), log=log)


@frozen
class Assembled:
    """The exact prompt. `refs` are the references to rebuild it from stored rows. `blocks` (texts by sha256) must be
    stored for that. `size_bytes` is the size of its canonical JSON."""

    messages: JsonMessages
    tools: tuple[ToolDefinition, ...]
    sha256: str
    refs: JsonObject
    blocks: Mapping[str, str]
    size_bytes: int


def assemble(ready: Ready) -> Assembled:
    """The exact messages of a decision. Raises `AssertionError` if a tool call and its results are not together."""
    prompt = ready.prompt
    sent = prompt.as_sent()
    # A run consists of whole pieces, so it stands for a message without calls.
    assert_tool_pairing([message or {"role": "run"} for message in sent])
    messages, sha256, size_bytes = prompt.hashed(sent)
    refs = refs_of(prompt, ready.accounts.recalled, ready.window.snapshot.past.others_between)
    blocks = {block.sha256: block.text for block in prompt.blocks()}
    return Assembled(messages, prompt.tools, sha256, refs, blocks, size_bytes)


def assert_tool_pairing(messages: Sequence[PromptMessage]) -> None:
    """Raise `AssertionError` unless each tool call has exactly one result, directly after its message."""
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_calls:
                raise AssertionError("a tool result without its call would be sent")
            open_calls.discard(str(message["tool_call_id"]))
            continue
        if open_calls:
            raise AssertionError("a tool call without its result would be sent")
        if calls := message.get("tool_calls"):  # few messages have any
            open_calls = {str(call["id"]) for call in calls}
    if open_calls:
        raise AssertionError("a tool call without its result would be sent")
