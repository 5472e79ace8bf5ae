"""What one round of a turn sends: the window gathered for a model, the summary that may be due, and the decision."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from app.db.claims import Claim
from app.domain.errors import ContextBudgetExceeded
from app.domain.types import JsonObject, Summary, ToolDefinition, TurnId
from app.engine.window.emergency import emergency_actions, emergency_fold
from app.engine.window.plan import (
    Assembled,
    Ready,
    Refused,
    SummaryDue,
    SummaryWorthless,
    plan,
    plan_after_summary,
    summary_wire_tokens,
    with_summary,
    would_be_pruned,
)
from app.engine.window.pruning import TrimAction
from app.engine.window.thresholds import is_near_threshold
from app.engine.window.window import Snapshot, Window
from app.providers.registry import Model
from app.services.runtime import Runtime
from app.services.turn.exact_count import ratio_by_provider
from app.services.turn.gather import Gathered, estimator_of, read_window, snapshot_of, with_all_counts
from app.services.turn.record import Steps, audit_row
from app.services.turn.spans import of_decision
from app.services.turn.summarize import IN_PROGRESS, Ask, Attempt, note_emergency, restart_count, summarize
from app.tokenizers import Estimator

_MOST_COUNTS = 2
"""Of a round: one for the prompt as it was found, one for what a summary made of it."""


async def first_snapshot(
    rt: Runtime,
    gathered: Gathered,
    turn_id: TurnId,
    tools: tuple[ToolDefinition, ...],
    instructions: str | None,
    *,
    store_counts: bool = True,
) -> tuple[Gathered, Snapshot]:
    """Counts what has no count yet and gives what the turn is decided on, before any summary; `turn_id` is the turn's.

    With `store_counts` off it writes nothing: a preview of a turn decides on this very snapshot.
    """
    gathered = await with_all_counts(rt, gathered, store=store_counts)
    current = next((turn for turn in gathered.turns if turn.id == turn_id), None)
    if current is None:
        raise RuntimeError("the running turn is not in its own window")
    return gathered, snapshot_of(rt, gathered, current, tools=tools, instructions=instructions)


async def counted_by_provider(
    rt: Runtime, gathered: Gathered, snapshot: Snapshot, estimate: Estimator, steps: Steps
) -> tuple[Snapshot, bool]:
    """The same, calibrated by the provider's own count where the alias asks for one and the estimate is too near a
    threshold to decide; and whether the provider was asked."""
    if not gathered.model.exact_counts:
        return snapshot, False
    window = Window(snapshot, gathered.session.policy, estimate)
    prompt = window.prompt(window.pieces)
    if not is_near_threshold(window, prompt):
        return snapshot, False
    ratio = await ratio_by_provider(rt, gathered.model, prompt, snapshot.budget.output_reserve, steps)
    return snapshot if ratio is None else replace(snapshot, calibration_ratio=ratio), True


def refusal_of(refused: Refused) -> ContextBudgetExceeded:
    """The error of a turn that does not fit."""
    overflow = refused.overflow
    return ContextBudgetExceeded(
        overflow.detail,
        budget=overflow.budget,
        regions=overflow.regions,
        largest_items=overflow.largest_items,
        recovery=overflow.recovery,
    )


class Deciding:
    """The decision of a claimed turn. `gathered` and `estimate` are of the model that is to be asked now."""

    def __init__(
        self,
        rt: Runtime,
        claim: Claim,
        gathered: Gathered,
        tools: tuple[ToolDefinition, ...],
        steps: Steps,
        instructions: str | None = None,
    ) -> None:
        self.rt = rt
        self.claim = claim
        self.gathered = gathered
        self.tools = tools
        self.instructions = instructions
        self.steps = steps
        self.estimate: Estimator = estimator_of(rt, gathered)
        self.summary_costs: list[Decimal | None] = []
        self._counts_left = _MOST_COUNTS
        self._counted_by_provider = False

    @property
    def model(self) -> Model:
        """The model that is to be asked as things stand."""
        return self.gathered.model

    async def decide(self) -> tuple[Snapshot, Ready | Refused]:
        """Counts what has no count yet, tries a summary where one is due, and says what is sent or why not."""
        with self.rt.tracer.span("count"):
            self.gathered, snapshot = await first_snapshot(
                self.rt, self.gathered, self.claim.turn_id, self.tools, self.instructions
            )
        self._counted_by_provider = False
        snapshot = await self._counted(snapshot)
        with self.rt.tracer.span("decide") as span:
            planned = plan(snapshot, self.gathered.session.policy, self.estimate)
            if span.recording:
                span.set(of_decision(planned))
        match planned:
            case SummaryDue() as due:
                return await self._summarize(snapshot, due)
            case SummaryWorthless(then):
                await restart_count(self.rt, self.gathered.session.id, self.claim.seq)
                return snapshot, then
            case Ready() | Refused() as decided:
                return snapshot, decided

    async def _summarize(self, snapshot: Snapshot, due: SummaryDue) -> tuple[Snapshot, Ready | Refused]:
        """Tries the summary that is due and decides again, with it or without."""
        attempt = await self._try_summary(snapshot, due, whatever_others_do=False)
        decided = await self._after_summary(snapshot, due, attempt)
        if attempt.failure == IN_PROGRESS and isinstance(decided[1], Refused):
            # What another process is making can not be waited for, but no turn is refused because of it.
            attempt = await self._try_summary(snapshot, due, whatever_others_do=True)
            decided = await self._after_summary(snapshot, due, attempt)
        return decided

    async def _try_summary(self, snapshot: Snapshot, due: SummaryDue, *, whatever_others_do: bool) -> Attempt:
        policy = self.gathered.session.policy

        def still_too_large(summary: Summary) -> bool:
            return would_be_pruned(snapshot.with_summary(due.fold, summary), policy, self.estimate)

        ask = Ask(
            due.fold,
            "preflight",
            self.claim.seq,
            self.claim,
            still_too_large if policy.incremental else None,
            whatever_others_do,
        )
        with self.steps.step("summarize") as step:
            attempt = await summarize(self.rt, self.gathered, ask, self.estimate)
            step.detail |= {
                "reason": due.fold.reason,
                "turns": len(due.fold.turns),
                "origin": attempt.origin,
                "model_alias": attempt.model_alias,
                "chunks": attempt.chunks,
                "failure": attempt.failure,
                "stored": attempt.summary is not None,
                "cost_usd": attempt.cost_usd,
                "prompt_tokens": attempt.usage.prompt_tokens if attempt.usage else None,
                "completion_tokens": attempt.usage.completion_tokens if attempt.usage else None,
            }
        if attempt.usage is not None:
            self.summary_costs.append(attempt.cost_usd)
        return attempt

    async def _after_summary(
        self, snapshot: Snapshot, due: SummaryDue, attempt: Attempt
    ) -> tuple[Snapshot, Ready | Refused]:
        policy = self.gathered.session.policy
        earlier = due.earlier
        if attempt.summary is not None:
            snapshot, earlier = with_summary(snapshot, due, attempt.summary, policy, self.estimate)
            snapshot = await self._counted(snapshot)
        with self.rt.tracer.span("decide") as span:
            decided = plan_after_summary(snapshot, policy, self.estimate, earlier)
            if span.recording:
                span.set(of_decision(decided))
        return snapshot, decided

    async def _counted(self, snapshot: Snapshot) -> Snapshot:
        """The same by the provider's own count, as often as a round may ask for one."""
        if not self._counts_left:
            return snapshot
        counted, asked = await counted_by_provider(self.rt, self.gathered, snapshot, self.estimate, self.steps)
        self._counts_left -= asked
        self._counted_by_provider |= counted is not snapshot
        return counted

    async def leave_at_once(self, snapshot: Snapshot) -> tuple[Snapshot, tuple[TrimAction, ...]]:
        """The turns that a policy's emergency path takes out when the provider refused, and the log of it."""
        policy = self.gathered.session.policy
        previous_tokens = summary_wire_tokens(snapshot.summary, policy, self.estimate)
        fold = emergency_fold(snapshot, policy, previous_tokens)
        if fold is None:
            return snapshot, ()
        with self.steps.step("emergency_drop") as step:
            noted = await note_emergency(self.rt, self.gathered, fold, self.estimate, self.claim)
            step.detail |= {"turns": len(fold.turns), "stored": noted is not None}
        if noted is None:
            return snapshot, ()
        new_tokens = summary_wire_tokens(noted, policy, self.estimate)
        return snapshot.with_summary(fold, noted), emergency_actions(fold, noted, new_tokens)

    async def switch(self, alias: str) -> None:
        """Gathers again for another model: another window, perhaps another encoding."""
        with self.rt.tracer.span("gather"):
            async with self.rt.database.autocommit() as tx:
                self.gathered = await read_window(
                    tx,
                    self.rt,
                    self.gathered.session,
                    alias,
                    before_seq=self.claim.seq,
                    last_message_seq=self.claim.assistant_seq,
                    for_turn=True,
                )
        self.estimate = estimator_of(self.rt, self.gathered)

    def audit(self, snapshot: Snapshot, decided: Ready | Refused, assembled: Assembled | None) -> JsonObject:
        """The audit row of what was decided; without `assembled` nothing is sent."""
        return audit_row(
            self.rt,
            self.claim,
            self.gathered.model.alias,
            snapshot.budget,
            decided.prompt,
            decided.accounts,
            estimator=self._estimator(),
            calibration_ratio=snapshot.calibration_ratio,
            assembled=assembled,
        )

    def _estimator(self) -> str:
        """Who counted: the encoding, the heuristic where the tokenizer failed, or the provider itself."""
        if self._counted_by_provider:
            return "provider"
        return "heuristic" if self.gathered.fell_back else self.estimate.encoding
