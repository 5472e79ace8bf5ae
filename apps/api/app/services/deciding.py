"""What one round of a turn sends: the window gathered for a model, the summary that may be due, and the decision."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from app.db.claims import Claim
from app.domain.types import JsonObject, Summary, ToolDefinition, Turn
from app.engine.assembly import (
    Assembled,
    Ready,
    Refused,
    SummaryDue,
    SummaryWorthless,
    plan,
    plan_after_summary,
    summary_actions,
    summary_wire_tokens,
    would_be_pruned,
)
from app.engine.emergency import emergency_actions, emergency_fold
from app.engine.pruning import TrimAction
from app.engine.thresholds import is_near_threshold
from app.engine.window import Snapshot, Window
from app.providers.registry import Model
from app.services.counting import ratio_by_provider
from app.services.gathering import Gathered, estimator_of, read_window, snapshot_of, with_all_counts
from app.services.recording import Steps, audit_row
from app.services.runtime import Runtime
from app.services.summarizing import IN_PROGRESS, Ask, Attempt, note_emergency, restart_count, summarize
from app.tokenizers import Estimator

_MOST_COUNTS = 2
"""Of a round: one for the prompt as it was found, one for what a summary made of it."""


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
        self.gathered = await with_all_counts(self.rt, self.gathered)
        self._counted_by_provider = False
        snapshot = await self._counted(
            snapshot_of(self.rt, self.gathered, self._current(), tools=self.tools, instructions=self.instructions)
        )
        policy = self.gathered.session.policy
        match plan(snapshot, policy, self.estimate):
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
            new_tokens = summary_wire_tokens(attempt.summary, policy, self.estimate)
            actions = summary_actions(due.fold, attempt.summary, new_tokens)
            earlier = replace(earlier, summary_triggered=True, actions=actions)
            snapshot = await self._counted(snapshot.with_summary(due.fold, attempt.summary))
        return snapshot, plan_after_summary(snapshot, policy, self.estimate, earlier)

    async def _counted(self, snapshot: Snapshot) -> Snapshot:
        """The same, calibrated by the provider's own count where the estimate is too near a threshold to decide."""
        if not (self.model.exact_counts and self._counts_left):
            return snapshot
        window = Window(snapshot, self.gathered.session.policy, self.estimate)
        prompt = window.prompt(window.pieces)
        if not is_near_threshold(window, prompt):
            return snapshot
        self._counts_left -= 1
        ratio = await ratio_by_provider(self.rt, self.model, prompt, snapshot.budget.output_reserve, self.steps)
        if ratio is None:
            return snapshot
        self._counted_by_provider = True
        return replace(snapshot, calibration_ratio=ratio)

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

    def _current(self) -> Turn:
        """The running turn as it was just stored."""
        for turn in self.gathered.turns:
            if turn.id == self.claim.turn_id:
                return turn
        raise RuntimeError("the claimed turn is not in its own window")

    async def switch(self, alias: str) -> None:
        """Gathers again for another model: another window, perhaps another encoding."""
        async with self.rt.database.autocommit() as tx:
            self.gathered = await read_window(
                tx,
                self.rt,
                self.gathered.session,
                alias,
                before_seq=self.claim.seq,
                last_message_seq=self.claim.assistant_seq,
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
