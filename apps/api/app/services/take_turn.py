"""One turn, from request to record: claim and gather, decide, act, record. The transaction edges stand here."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from app.db.database import UniqueViolated
from app.db.turns import Settlement, settle_turn
from app.domain.errors import ContextBudgetExceeded, PlimsollError, ProviderError, TurnInProgress, TurnLost
from app.domain.types import (
    Completion,
    CompletionRequest,
    JsonObject,
    SessionId,
    TenantId,
    Turn,
    TurnRecord,
    TurnStatus,
)
from app.engine.assembly import (
    Assembled,
    Ready,
    Refused,
    SummaryDue,
    SummaryWorthless,
    assemble,
    plan,
    plan_after_summary,
    summary_actions,
    summary_wire_tokens,
)
from app.engine.window import Snapshot
from app.services.claiming import (
    RETRY_AFTER_S,
    Claimed,
    TurnOutcome,
    TurnRequest,
    check,
    claim_and_gather,
    draft_turn,
    resolve_conflict,
)
from app.services.gathering import Gathered, count_message, estimator_of, snapshot_of, with_all_counts
from app.services.recording import Step, Steps, audit_row, block_rows, context_of, reply_row
from app.services.runtime import Runtime
from app.services.summarizing import restart_count, summarize
from app.tokenizers import Estimator


async def take_turn(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, request: TurnRequest, idempotency_key: str | None
) -> TurnOutcome:
    """Runs one turn and answers when it is stored.

    Raises `NotFound`, `InvalidRequest`, `TurnInProgress`, the idempotency errors, `ContextBudgetExceeded` (the turn is
    stored as rejected, nothing was sent), `ProviderError` (the turn is stored as failed, the user's message is kept),
    `TurnLost`. A repeated idempotency key is answered from the stored turn.
    """
    check(rt, request)
    started = perf_counter()
    draft = await draft_turn(rt, request, idempotency_key)
    for last_try in (False, True):
        try:
            turn = await claim_and_gather(rt, tenant_id, session_id, draft)
            break
        except UniqueViolated:
            replayed = await resolve_conflict(rt, tenant_id, session_id, draft, give_up=last_try)
            if replayed is not None:
                return replayed
    else:
        raise TurnInProgress("The session already runs a turn.", RETRY_AFTER_S)
    with rt.leases.held(turn.claim):
        return await _Run(rt, turn, request, started).run()


class _Run:
    """A claimed turn on its way to its record."""

    def __init__(self, rt: Runtime, turn: Claimed, request: TurnRequest, started: float) -> None:
        self.rt = rt
        self.claim = turn.claim
        self.gathered = turn.gathered
        self.request = request
        self.started = started
        self.steps = Steps(rt)
        self.steps.add("gather", turn.gathered_at, _gather_step(turn.gathered))
        self.estimate: Estimator = estimator_of(rt, turn.gathered)

    async def run(self) -> TurnOutcome:
        """Decides, acts, records. Whatever goes wrong in between, the turn gets an end."""
        try:
            self.gathered = await with_all_counts(self.rt, self.gathered)
            snapshot, decision = await self._decide()
            if isinstance(decision, Refused):
                return await self._reject(snapshot, decision)
            return await self._act(snapshot, decision)
        except (ContextBudgetExceeded, ProviderError, TurnLost):
            raise
        except Exception as error:
            await self._end_after_fault(error)
            raise

    async def _decide(self) -> tuple[Snapshot, Ready | Refused]:
        snapshot = snapshot_of(self.rt, self.gathered, self._current(), tools=self.request.tools)
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
        policy = self.gathered.session.policy
        with self.steps.step("summarize") as step:
            attempt = await summarize(self.rt, self.gathered, due.fold, self.estimate, self.claim, self.claim.seq)
            step.detail |= {
                "reason": due.fold.reason,
                "turns": len(due.fold.turns),
                "origin": attempt.origin,
                "model_alias": attempt.model_alias,
                "chunks": attempt.chunks,
                "failure": attempt.failure,
                "stored": attempt.summary is not None,
                "prompt_tokens": attempt.usage.prompt_tokens if attempt.usage else None,
                "completion_tokens": attempt.usage.completion_tokens if attempt.usage else None,
            }
        earlier = due.earlier
        if attempt.summary is not None:
            new_tokens = summary_wire_tokens(attempt.summary, policy, self.estimate)
            actions = summary_actions(due.fold, attempt.summary, new_tokens)
            earlier = replace(earlier, summary_triggered=True, actions=actions)
            folded = {turn.id for turn in due.fold.turns}
            turns = tuple(turn for turn in snapshot.turns if turn.id not in folded)
            snapshot = replace(snapshot, summary=attempt.summary, turns=turns)
        return snapshot, plan_after_summary(snapshot, policy, self.estimate, earlier)

    def _current(self) -> Turn:
        """The running turn as it was just stored."""
        for turn in self.gathered.turns:
            if turn.id == self.claim.turn_id:
                return turn
        raise RuntimeError("the claimed turn is not in its own window")

    async def _reject(self, snapshot: Snapshot, refused: Refused) -> TurnOutcome:
        overflow = refused.overflow
        error = ContextBudgetExceeded(
            overflow.detail,
            budget=overflow.budget,
            regions=overflow.regions,
            largest_items=overflow.largest_items,
            recovery=overflow.recovery,
        )
        audit = self._audit(snapshot, refused, None, None)
        await self._settle(
            Settlement(TurnStatus.REJECTED, self.gathered.model.alias, self.steps.rows, [audit], error=error.stored()),
            audit,
        )
        raise error

    async def _act(self, snapshot: Snapshot, ready: Ready) -> TurnOutcome:
        """Calls the model with no connection held, then transaction two."""
        with self.steps.step("assemble") as step:
            assembled = assemble(ready)
            step.detail |= {"messages": len(assembled.messages), "wire_tokens": ready.prompt.wire_tokens}
        alias = self.gathered.model.alias
        blocks = block_rows(assembled.blocks)
        try:
            completion = await self._call(snapshot, assembled)
        except ProviderError as error:
            audit = self._audit(snapshot, ready, assembled, None)
            await self._settle(
                Settlement(TurnStatus.FAILED, alias, self.steps.rows, [audit], blocks, error=error.stored()), audit
            )
            raise
        usage = completion.usage
        tokens, encoding = await count_message(
            self.rt, self.gathered.encoding, completion.text, reasoning=completion.reasoning
        )
        audit = self._audit(snapshot, ready, assembled, completion)
        turn = await self._settle(
            Settlement(
                TurnStatus.COMPLETED,
                alias,
                self.steps.rows,
                [audit],
                blocks,
                messages=[reply_row(self.rt, completion, self.claim.assistant_seq, tokens, encoding)],
                assistant_output=completion.text or "",
                finish_reason=completion.finish_reason,
                prompt_tokens=usage.prompt_tokens if usage else None,
                completion_tokens=usage.completion_tokens if usage else None,
            ),
            audit,
        )
        return TurnOutcome(turn, context_of(audit))

    async def _call(self, snapshot: Snapshot, assembled: Assembled) -> Completion:
        reserve = snapshot.budget.output_reserve
        request = CompletionRequest(
            messages=assembled.messages,
            max_output_tokens=min(self.request.max_output_tokens or reserve, reserve),
            tools=assembled.tools,
            tool_choice=self.request.tool_choice,
            recorded_reply=self.request.recorded_reply,
        )
        alias = self.gathered.model.alias
        error_kind: str | None = None
        started = perf_counter()
        with self.steps.step("model_call") as step:
            try:
                completion = await self.rt.catalogue.provider(alias).complete(request)
            except ProviderError as error:
                error_kind = error.kind
                step.detail |= {"model_alias": alias, "attempts": error.attempts, "code": error.code}
                raise
            finally:
                self.rt.telemetry.provider_call(
                    alias=alias, purpose="turn", seconds=perf_counter() - started, error_kind=error_kind
                )
            step.detail |= {
                "model_alias": alias,
                "attempts": completion.attempts,
                "finish_reason": completion.finish_reason,
                "provider_model": completion.provider_model,
            }
        return completion

    def _audit(
        self, snapshot: Snapshot, decided: Ready | Refused, assembled: Assembled | None, completion: Completion | None
    ) -> JsonObject:
        return audit_row(
            self.rt,
            self.claim.turn_id,
            self.gathered.model.alias,
            snapshot.budget,
            decided.prompt,
            decided.accounts,
            estimator="heuristic" if self.gathered.fell_back else self.estimate.encoding,
            calibration_ratio=snapshot.calibration_ratio,
            assembled=assembled,
            usage=completion.usage if completion else None,
        )

    async def _settle(self, settlement: Settlement, audit: JsonObject | None) -> TurnRecord:
        """Transaction two, one statement. Raises `TurnLost` when the claim is no longer ours: nothing was written."""
        async with self.rt.database.autocommit() as tx:
            turn = await settle_turn(tx, self.claim, settlement)
        if turn is None:
            raise TurnLost("Another process ended this turn while it ran here; nothing of this answer was stored.")
        self.rt.telemetry.turn_finished(
            status=turn.status.value,
            seconds=perf_counter() - self.started,
            summary=bool(audit and audit["summary_triggered"]),
            prune=bool(audit and audit["prune_triggered"]),
            overflow=turn.status is TurnStatus.REJECTED,
            prompt_tokens=turn.prompt_tokens,
            alias=turn.model_alias,
            estimated_wire_tokens=audit["estimated_wire_tokens"] if audit else None,
        )
        return turn

    async def _end_after_fault(self, error: Exception) -> None:
        """A fault of our own: the turn ends as failed, so that the session can go on."""
        stored = (
            error.stored()
            if isinstance(error, PlimsollError)
            else {"code": "internal_error", "detail": "Something broke on our side; the message is kept."}
        )
        settlement = Settlement(TurnStatus.FAILED, self.gathered.model.alias, self.steps.rows, [], error=stored)
        await self._settle(settlement, None)


def _gather_step(gathered: Gathered) -> Step:
    summary = gathered.context.summary
    return Step({"turns": len(gathered.turns), "summary_id": str(summary.id) if summary else None})
