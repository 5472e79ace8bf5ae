"""Decides what a round of a turn sends: plans the prompt for the window, after making the summary that is due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from app.domain.errors import ProviderError
from app.domain.frozen import frozen
from app.domain.types import CompletionRequest, Message, Summary, Turn, TurnId
from app.engine.messages.turns import with_reasoning
from app.engine.policy.budget import Budget
from app.engine.window.look_back import may_look_back, with_look_backs, without_newest
from app.engine.window.plan import Decision, Ready, Refused, SummaryDue, plan, summary_actions
from app.engine.window.prompt import Prompt
from app.engine.window.provider_overflow import emergency_fold
from app.engine.window.snapshot import Snapshot
from app.engine.window.triggers import exact_ratio, is_near_threshold, would_be_pruned
from app.engine.window.window import lay_out
from app.providers.registry import Model
from app.services.runtime import Runtime
from app.services.turn.gather import (
    WindowRows,
    read_window,
    recounted,
    snapshot_of,
    with_all_counts,
    with_recall_anew,
)
from app.services.turn.planning import planned
from app.services.turn.record import Record
from app.services.turn.steps import Steps, of_decision
from app.services.turn.summarize import (
    IN_PROGRESS,
    STALE,
    SummaryAttempt,
    SummaryJob,
    note_emergency,
    restart_count,
    summarize,
)
from app.services.turn.types import ClaimedTurn, TurnOptions, TurnPlan
from app.tokenizers.counters import Estimator

_MOST_COUNTS = 2
"""Token counts by the provider in one round: one for the prompt as it was read, one for the prompt after a summary."""

_D = TypeVar("_D", bound=Decision)


@frozen
class _Basis:
    """The data of a decision. `estimate` and `rows` are those of the model that is to be called."""

    rows: WindowRows
    estimate: Estimator
    snapshot: Snapshot
    counted_by_provider: bool

    def plan(self, decided: Ready | Refused) -> TurnPlan:
        return TurnPlan(self.rows, self.estimate, decided, self.counted_by_provider)


async def decide(rt: Runtime, turn: ClaimedTurn, record: Record, rows: WindowRows | None = None) -> TurnPlan:
    """Counts the messages that have no count yet, tries a summary if one is due, and returns the plan or a refusal.

    `rows` are given when another model is called than the one that the turn was claimed for: it has another window and
    may have another encoding.
    """
    basis = await _basis_of(rt, turn, record, rows or turn.rows)
    decided = await _traced(rt, basis.snapshot, lambda: plan(basis.snapshot, basis.estimate))
    if isinstance(decided, SummaryDue):
        return await _decide_with_summary(rt, turn, record, basis, decided)
    if decided.summary_worthless:
        await restart_count(rt, basis.rows.session.id, turn.claim.seq)
    return basis.plan(decided)


async def _basis_of(rt: Runtime, turn: ClaimedTurn, record: Record, rows: WindowRows) -> _Basis:
    record.model_alias = rows.model.alias
    estimate = rt.tokenizers.estimator(rows.encoding)
    with rt.tracer.span("count"):
        rows, found = await first_snapshot(rt, rows, turn.claim.turn_id, turn.options, looked_back=turn.looked_back)
    snapshot = await counted_by_provider(rt, rows, found, estimate, record.steps)
    return _Basis(rows, estimate, snapshot, snapshot is not found)


async def decide_within(
    rt: Runtime, turn: ClaimedTurn, record: Record, refused: TurnPlan, budget: Budget
) -> TurnPlan | None:
    """The plan of the turn within the budget that a provider's rejection implies; None when it does not fit."""
    snapshot = await _leave_at_once(rt, turn, record, refused, refused.decided.window.after_overflow(budget))
    decided = await _traced(rt, snapshot, lambda: plan(snapshot, refused.estimate, may_summarize=False))
    return replace(refused, decided=decided) if isinstance(decided, Ready) else None


async def read_again(rt: Runtime, turn: ClaimedTurn, model_alias: str) -> WindowRows:
    """Reads the window for this model again, as it is stored now."""
    with rt.tracer.span("gather"):
        async with rt.database.autocommit() as tx:
            claim, policy = turn.claim, turn.rows.policy
            return await read_window(tx, rt, claim.session, policy, model_alias, turn_seq=claim.seq)


async def first_snapshot(
    rt: Runtime,
    rows: WindowRows,
    turn_id: TurnId,
    options: TurnOptions,
    *,
    looked_back: Sequence[Message] = (),
    store_counts: bool = True,
) -> tuple[WindowRows, Snapshot]:
    """Counts the messages that have no count yet and returns the rows and the snapshot of the turn before any summary.

    `turn_id` is the running turn; `looked_back` are the messages that its look-backs added. Without `store_counts`
    nothing is written; the preview of a turn uses the same snapshot.
    """
    rows = await with_all_counts(rt, rows, store=store_counts)
    current = await _current(rt, rows, turn_id, looked_back if rows.model.takes_tools else ())
    snapshot = await snapshot_of(
        rt,
        rows,
        current,
        tools=options.tools,
        instructions=options.instructions,
        may_look_back=may_look_back(
            rows.policy,
            takes_tools=rows.model.takes_tools,
            tools=options.tools,
            tool_choice=options.tool_choice,
            provider_options=options.provider_options,
        ),
    )
    return rows, snapshot


async def _current(rt: Runtime, rows: WindowRows, turn_id: TurnId, looked_back: Sequence[Message]) -> Turn:
    """The running turn with the messages that its look-backs added, which are counted here."""
    current = next((turn for turn in rows.turns if turn.id == turn_id), None)
    if current is None:
        raise RuntimeError("the running turn is not in its own window")
    return with_look_backs(current, [(await recounted(rt, rows.encoding, message))[0] for message in looked_back])


async def decide_after_look_back(rt: Runtime, turn: ClaimedTurn, record: Record, *, again: bool) -> TurnPlan:
    """The plan of the call after a look-back. It starts from the snapshot of the prompt before; no summary is made.

    `again` says whether the model may look back once more. If the messages that were read do not fit, they are replaced
    by a notice or left out: after a prompt that fitted, a look-back never makes the turn fail.
    """
    before = record.sent
    if before is None:
        raise RuntimeError("a look-back without a prompt")
    rows, estimate, snapshot = before.rows, before.estimate, before.snapshot
    bare = snapshot.tools[:-1] if snapshot.offers_look_back else snapshot.tools
    for looked_back, offered in ((turn.looked_back, again), (without_newest(turn.looked_back), False), ((), False)):
        current = await _current(rt, rows, turn.claim.turn_id, looked_back)
        found = replace(
            snapshot,
            current=with_reasoning(current, rows.model.reasoning_rule),
            tools=snapshot.tools if offered else bare,
            may_look_back=offered,
            log=None,
        )
        decided = await _traced(rt, found, lambda found=found: plan(found, estimate, may_summarize=False))
        if isinstance(decided, Ready):
            return replace(before, decided=decided)
    raise RuntimeError("a prompt that was sent does not fit without what was added to it")


async def counted_by_provider(
    rt: Runtime, rows: WindowRows, snapshot: Snapshot, estimate: Estimator, steps: Steps
) -> Snapshot:
    """The snapshot, calibrated by the provider's own token count if the alias has `exact_counts` and the estimate is
    too near a threshold to decide. The same object if the provider does not count or its count is not credible."""
    if not rows.model.exact_counts or sum(step["kind"] == "count_tokens" for step in steps.rows) >= _MOST_COUNTS:
        return snapshot
    window = await planned(snapshot, lambda: lay_out(snapshot, estimate))
    if not is_near_threshold(window):
        return snapshot
    prompt = window.prompt
    ratio = await _ratio_by_provider(rt, rows.model, prompt, snapshot.budget.output_reserve, steps)
    return snapshot if ratio is None else replace(snapshot, calibration_ratio=ratio)


async def _ratio_by_provider(
    rt: Runtime, model: Model, prompt: Prompt, max_output_tokens: int, steps: Steps
) -> float | None:
    """The ratio of the provider's token count to the wire estimate of the prompt; None without a credible count.

    Never raises a `ProviderError`: its code is recorded in the turn's steps, and the estimate decides. The step is then
    still a success, because nothing of the turn has failed. No database connection is held.
    """
    request = CompletionRequest(messages=prompt.messages(), max_output_tokens=max_output_tokens, tools=prompt.tools)
    started_at, counted, fell_back = rt.now(), None, "not_offered"
    try:
        with (
            rt.telemetry.measured_call(model.alias, "count"),
            rt.tracer.span(f"count_tokens {model.model}", calls_out=True),
        ):
            counted = await rt.catalogue.provider(model.alias).count_tokens(request)
    except ProviderError as error:
        fell_back = error.code
    ratio = None if counted is None else exact_ratio(prompt, counted)
    detail = {"model_alias": model.alias, "estimated_wire_tokens": prompt.wire_tokens, "counted_tokens": counted}
    if ratio is None:
        detail |= {"fell_back": fell_back if counted is None else "not_credible"}
    steps.add("count_tokens", started_at, detail)
    return ratio


async def _decide_with_summary(
    rt: Runtime, turn: ClaimedTurn, record: Record, basis: _Basis, due: SummaryDue
) -> TurnPlan:
    """Tries the summary that is due and plans again, with the summary or without it."""
    attempt = await _try_summary(rt, turn, record, basis, due, whatever_others_do=False)
    decided = await _after_summary(rt, record, basis, due, attempt)
    if attempt.failure == IN_PROGRESS and _loses(decided.decided):
        # While another process makes the summary, its turns are sent in full. If they do not fit, this turn makes one
        # itself. It does not wait, since the other process may be dead, and nothing is dropped because of it.
        attempt = await _try_summary(rt, turn, record, basis, due, whatever_others_do=True)
        decided = await _after_summary(rt, record, basis, due, attempt)
    if attempt.failure == STALE and _loses(decided.decided):
        # Another process's summary was stored first: the turn may fit with that one.
        basis = await _basis_of(rt, turn, record, await read_again(rt, turn, basis.rows.model.alias))
        decided = await _without_another_summary(rt, basis)
    return decided


def _loses(decided: Ready | Refused) -> bool:
    return isinstance(decided, Refused) or decided.accounts.prune_triggered


async def _try_summary(
    rt: Runtime, turn: ClaimedTurn, record: Record, basis: _Basis, due: SummaryDue, *, whatever_others_do: bool
) -> SummaryAttempt:
    def still_too_large(summary: Summary) -> bool:
        return would_be_pruned(basis.snapshot.with_summary(due.fold, summary), basis.estimate)

    job = SummaryJob(
        due.fold,
        due.snapshot,
        "preflight",
        turn.claim.seq,
        turn.claim,
        still_too_large if basis.rows.policy.incremental else None,
        whatever_others_do,
    )
    with record.steps.step("summarize") as detail:
        attempt = await summarize(rt, basis.rows, job, basis.estimate)
        detail |= {
            "reason": due.fold.reason,
            "turns": len(due.fold.turns),
            "origin": attempt.origin,
            "model_alias": attempt.model_alias,
            "call": attempt.choice and attempt.choice.call,
            "call_reason": attempt.choice and attempt.choice.reason,
            "chunks": attempt.chunks,
            "failure": attempt.failure,
            "kept": attempt.kept_items,
            "stored": attempt.summary is not None,
            "summary_id": str(attempt.summary.id) if attempt.summary else None,
            "cost_usd": attempt.cost_usd,
            "prompt_tokens": attempt.usage.prompt_tokens if attempt.usage else None,
            "completion_tokens": attempt.usage.completion_tokens if attempt.usage else None,
        }
    record.summary = record.summary or attempt.summary
    record.found_summary_in_progress |= attempt.failure == IN_PROGRESS
    if attempt.usage is not None:
        record.summary_costs.append(attempt.cost_usd)
    return attempt


async def _after_summary(
    rt: Runtime, record: Record, basis: _Basis, due: SummaryDue, attempt: SummaryAttempt
) -> TurnPlan:
    rows, estimate, snapshot, is_counted = basis.rows, basis.estimate, due.snapshot, basis.counted_by_provider
    if (summary := attempt.summary) is not None:
        found = await planned(due.snapshot, lambda: due.with_summary(summary, estimate))
        found = await with_recall_anew(rt, rows, found)
        snapshot = await counted_by_provider(rt, rows, found, estimate, record.steps)
        is_counted = is_counted or snapshot is not found
    return await _without_another_summary(rt, replace(basis, snapshot=snapshot, counted_by_provider=is_counted))


async def _without_another_summary(rt: Runtime, basis: _Basis) -> TurnPlan:
    snapshot, estimate = basis.snapshot, basis.estimate
    return basis.plan(await _traced(rt, snapshot, lambda: plan(snapshot, estimate, may_summarize=False)))


async def _leave_at_once(
    rt: Runtime, turn: ClaimedTurn, record: Record, refused: TurnPlan, snapshot: Snapshot
) -> Snapshot:
    """The snapshot without the turns that the policy's emergency path drops after a provider's rejection."""
    rows, estimate = refused.rows, refused.estimate
    fold = emergency_fold(snapshot, estimate)
    if fold is None:
        return snapshot
    with record.steps.step("emergency_drop") as detail:
        noted = await note_emergency(rt, rows, fold, estimate, turn.claim)
        detail |= {"turns": len(fold.turns), "stored": noted is not None}
    if noted is None:
        return snapshot
    snapshot = snapshot.with_summary(fold, noted, summary_actions(fold, noted, snapshot.policy, estimate))
    return await with_recall_anew(rt, rows, snapshot)


async def _traced(rt: Runtime, snapshot: Snapshot, decision: Callable[[], _D]) -> _D:
    with rt.tracer.span("decide") as span:
        decided = await planned(snapshot, decision)
        if span.recording:
            span.set(of_decision(decided))
    return decided
