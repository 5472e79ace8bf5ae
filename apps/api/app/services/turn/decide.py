"""Decides what a round of a turn sends: plans the prompt for the window, after making the summary that is due."""

from __future__ import annotations

from collections.abc import Sequence

from app.db.summaries import restart_count
from app.domain.errors import ProviderError
from app.domain.frozen import replace
from app.domain.types import CompletionRequest, Message, Summary, Turn, TurnId
from app.engine.messages.turns import with_reasoning
from app.engine.policy.budget import Budget
from app.engine.window.look_back import may_look_back, with_look_backs, without_newest
from app.engine.window.plan import Ready, Refused, SummaryDue, plan, with_summary
from app.engine.window.prompt import Prompt
from app.engine.window.provider_overflow import emergency_fold
from app.engine.window.snapshot import Snapshot
from app.engine.window.triggers import exact_ratio, is_near_threshold, would_be_pruned
from app.engine.window.window import lay_out
from app.providers.registry import Model
from app.services.runtime import Runtime, retried
from app.services.turn.gather import read_window, snapshot_of, with_recall_anew
from app.services.turn.planning import planned, recounted
from app.services.turn.record import Record
from app.services.turn.steps import Steps, of_decision
from app.services.turn.summarize import IN_PROGRESS, STALE, SummaryAttempt, note_emergency, summarize
from app.services.turn.summarizer_call import SummaryJob
from app.services.turn.types import TurnOptions, TurnPlan
from app.services.turn.window_rows import WindowRows, with_all_counts

_MOST_COUNTS = 2
"""Token counts by the provider in one round: one for the prompt as it was read, one for the prompt after a summary."""


async def decide(record: Record, window: WindowRows | None = None) -> TurnPlan:
    """Counts the messages that have no count yet, tries a summary if one is due, and returns the plan or a refusal.
    `window` is given when another model is called than the one that the turn was claimed for."""
    rows, snapshot = await _counted(record, window or record.turn.rows)
    with record.rt.tracer.span("decide") as span:
        decided = await planned(plan, snapshot, rows.estimate)
        span.set(of_decision, decided)
    if isinstance(decided, SummaryDue):
        return await _decide_with_summary(record, rows, snapshot, decided)
    if decided.summary_worthless:
        await retried(record.rt.database.run)(restart_count, rows.session.id, record.turn.claim.seq - 1)
    return TurnPlan(rows, decided)


async def _counted(record: Record, rows: WindowRows) -> tuple[WindowRows, Snapshot]:
    rt, turn = record.rt, record.turn
    record.model_alias = rows.model.alias
    with rt.tracer.span("count"):
        rows, snapshot = await first_snapshot(rt, rows, turn.claim.turn_id, turn.options, looked_back=turn.looked_back)
    return rows, await with_exact_count(rt, rows, snapshot, record.steps)


async def decide_within(record: Record, refused: TurnPlan, budget: Budget) -> TurnPlan | None:
    """The plan of the turn within the budget that a provider's rejection implies, without the turns that the policy's
    emergency path drops then; None when it does not fit."""
    rt, rows = record.rt, refused.rows
    snapshot = refused.decided.window.after_overflow(budget)
    fold = emergency_fold(snapshot, rows.estimate)
    if fold is not None:
        with record.steps.step("emergency_drop") as detail:
            noted = await note_emergency(rt, rows, fold, record.turn.claim)
            detail |= {"turns": len(fold.turns), "stored": noted is not None}
        if noted is None:
            await record.check_held()
        else:
            snapshot = await with_recall_anew(rt, rows, with_summary(snapshot, fold, noted, rows.estimate))
    smaller = await _without_summary(record, rows, snapshot)
    return smaller if isinstance(smaller.decided, Ready) else None


async def read_again(record: Record, model_alias: str) -> WindowRows:
    """Reads the window for this model again, as it is stored now."""
    rt, claim, policy = record.rt, record.turn.claim, record.turn.rows.policy
    with rt.tracer.span("gather"):
        return await rt.database.run(read_window, rt, claim.session, policy, model_alias, turn_seq=claim.seq)


async def first_snapshot(
    rt: Runtime,
    rows: WindowRows,
    turn_id: TurnId,
    options: TurnOptions,
    *,
    looked_back: Sequence[Message] = (),
    store_counts: bool = True,
) -> tuple[WindowRows, Snapshot]:
    """Counts the messages that have no count yet; returns the rows and the snapshot of the turn `turn_id` before any
    summary. `looked_back` are the messages that its look-backs added. Without `store_counts` nothing is written."""
    rows = await with_all_counts(rt, rows, store=store_counts)
    takes_tools = _takes_own_tool(rt, rows, options)
    current = await _current(rt, rows, turn_id, looked_back if takes_tools else ())
    snapshot = await snapshot_of(
        rt,
        rows,
        current,
        tools=options.tools,
        instructions=options.instructions,
        may_look_back=takes_tools
        and may_look_back(rows.policy, options.tools, options.tool_choice, options.provider_options),
    )
    return rows, snapshot


def _takes_own_tool(rt: Runtime, rows: WindowRows, options: TurnOptions) -> bool:
    """Whether the model may be offered a tool of the service. Its reasoning is not given up for that tool alone, unless
    the policy insists on it."""
    is_free = options.tools or rows.policy.look_back == "on"
    return rows.model.takes_tools and bool(is_free or rt.catalogue.provider(rows.model.alias).reasons_beside_tools)


async def _current(rt: Runtime, rows: WindowRows, turn_id: TurnId, looked_back: Sequence[Message]) -> Turn:
    """The running turn with the messages that its look-backs added, which are counted here."""
    current = next((turn for turn in rows.turns if turn.id == turn_id), None)
    if current is None:
        raise RuntimeError("the running turn is not in its own window")
    return with_look_backs(current, [(await recounted(rt, rows.encoding, message))[0] for message in looked_back])


async def decide_after_look_back(record: Record, *, again: bool) -> TurnPlan:
    """The plan of the call after a look-back, from the snapshot of the prompt before; no summary is made. `again` says
    whether the model may look back once more. If the messages that were read do not fit, they are replaced by a notice
    or left out: after a prompt that fitted, a look-back never makes the turn fail."""
    turn, rows, snapshot = record.turn, record.sent.rows, record.sent.snapshot
    bare = snapshot.tools[:-1] if snapshot.offers_look_back else snapshot.tools
    for looked_back, offered in ((turn.looked_back, again), (without_newest(turn.looked_back), False), ((), False)):
        current = await _current(record.rt, rows, turn.claim.turn_id, looked_back)
        found = replace(
            snapshot,
            current=with_reasoning(current, rows.model.reasoning_rule),
            tools=snapshot.tools if offered else bare,
            may_look_back=offered,
            log=None,
        )
        following = await _without_summary(record, rows, found)
        if isinstance(following.decided, Ready):
            return following
    raise RuntimeError("a prompt that was sent does not fit without what was added to it")


async def with_exact_count(rt: Runtime, rows: WindowRows, snapshot: Snapshot, steps: Steps) -> Snapshot:
    """The snapshot, calibrated by the provider's own token count if the alias has `exact_counts` and the estimate is
    too near a threshold to decide. Nothing changes if the provider does not count, or its count is not credible."""
    if not rows.model.exact_counts or sum(step["kind"] == "count_tokens" for step in steps.rows) >= _MOST_COUNTS:
        return snapshot
    window = await planned(lay_out, snapshot, rows.estimate)
    if not is_near_threshold(window):
        return snapshot
    ratio = await _ratio_by_provider(rt, rows.model, window.prompt, snapshot.budget.output_reserve, steps)
    return snapshot if ratio is None else replace(snapshot, calibration_ratio=ratio, is_counted_exactly=True)


async def _ratio_by_provider(
    rt: Runtime, model: Model, prompt: Prompt, max_output_tokens: int, steps: Steps
) -> float | None:
    """The ratio of the provider's token count to the wire estimate of the prompt; None without a credible count. Never
    raises a `ProviderError`: its code is in the turn's step, which is still a success, because the estimate decides. No
    database connection is held."""
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


async def _decide_with_summary(record: Record, rows: WindowRows, snapshot: Snapshot, due: SummaryDue) -> TurnPlan:
    attempt = await _try_summary(record, rows, snapshot, due, whatever_others_do=False)
    found = await _after_summary(record, rows, due, attempt.summary)
    if attempt.failure == IN_PROGRESS and _loses(found.decided):
        # While another process makes the summary, its turns are sent in full. If they do not fit, this turn makes one
        # itself. It does not wait, since the other process may be dead, and nothing is dropped because of it.
        attempt = await _try_summary(record, rows, snapshot, due, whatever_others_do=True)
        found = await _after_summary(record, rows, due, attempt.summary)
    if attempt.failure == STALE and _loses(found.decided):
        # Another process's summary was stored first: the turn may fit with that one.
        found = await _without_summary(record, *await _counted(record, await read_again(record, rows.model.alias)))
    return found


def _loses(decided: Ready | Refused) -> bool:
    return isinstance(decided, Refused) or decided.accounts.prune_triggered


async def _try_summary(
    record: Record, rows: WindowRows, snapshot: Snapshot, due: SummaryDue, *, whatever_others_do: bool
) -> SummaryAttempt:
    def still_too_large(summary: Summary) -> bool:
        return would_be_pruned(with_summary(snapshot, due.fold, summary, rows.estimate), rows.estimate)

    checks = still_too_large if rows.policy.incremental else None
    job = SummaryJob(rows, due.fold, due.snapshot, "preflight", record.turn.claim, checks, whatever_others_do)
    with record.steps.step("summarize") as detail:
        attempt = await summarize(record.rt, job)
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
    if attempt.summary is None:
        await record.check_held()
    return attempt


async def _after_summary(record: Record, rows: WindowRows, due: SummaryDue, summary: Summary | None) -> TurnPlan:
    rt, snapshot = record.rt, due.snapshot
    if summary is not None:
        snapshot = await planned(with_summary, snapshot, due.fold, summary, rows.estimate)
        snapshot = await with_recall_anew(rt, rows, snapshot)
        snapshot = await with_exact_count(rt, rows, snapshot, record.steps)
    return await _without_summary(record, rows, snapshot)


async def _without_summary(record: Record, rows: WindowRows, snapshot: Snapshot) -> TurnPlan:
    """The plan of the snapshot; no further summary is made."""
    with record.rt.tracer.span("decide") as span:
        decided = await planned(plan, snapshot, rows.estimate, may_summarize=False)
        span.set(of_decision, decided)
    return TurnPlan(rows, decided)
