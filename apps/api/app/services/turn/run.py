"""A claimed turn on its way to its record: decide, act, record. The second transaction edge stands here."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from time import perf_counter

from app.core.logging import add_request_fields
from app.db.records import Settlement
from app.domain.errors import (
    ContextBudgetExceeded,
    DatabaseUnavailable,
    PlimsollError,
    ProviderDown,
    ProviderError,
    ProviderOverflow,
    ProviderRateLimited,
    ProviderTimeout,
    TurnLost,
)
from app.domain.types import Completion, CompletionRequest, Delta, JsonObject, TurnRecord, TurnStatus, Usage
from app.engine.window.plan import Ready, Refused, assemble, plan_after_overflow
from app.engine.window.provider_overflow import Stated, learned_limit, react
from app.engine.window.window import Snapshot
from app.services.limits.reserve import spent_of
from app.services.runtime import Runtime
from app.services.turn.after_turn import summarize_after_turn
from app.services.turn.attempts import Attempts, ModelCall
from app.services.turn.call import call_model
from app.services.turn.claim import Claimed, TurnOutcome
from app.services.turn.cost import total_cost, used_row
from app.services.turn.decide import Deciding, refusal_of
from app.services.turn.events import Listener, TurnEvent, to_nobody
from app.services.turn.gather import Gathered, count_message, count_reasoning, session_policy
from app.services.turn.record import Step, Steps, context_of, reply_row, with_own_ids
from app.services.turn.settle import settle
from app.services.turn.spans import of_audit, of_decision, of_turn
from app.services.upkeep.learned_windows import learn


class TurnRun:
    """A claimed turn on its way to its record."""

    def __init__(self, rt: Runtime, turn: Claimed, started: float, listen: Listener | None = None) -> None:
        self.rt = rt
        self.tenant_id = turn.tenant_id
        self.claim = turn.claim
        self.asking = turn.asking
        self.reservation = turn.reservation
        self.started = started
        self.listen = listen or to_nobody
        self.on_delta = self._tell_delta if listen else None
        self.delivered: list[str] = []
        self.attempts: Attempts | None = None
        self.steps = Steps(rt, after=turn.claim.steps)
        self.steps.add("gather", turn.gathered_at, _gather_step(turn.gathered))
        self.deciding = Deciding(rt, turn.claim, turn.gathered, turn.asking.tools, self.steps, turn.asking.instructions)

    async def run(self) -> TurnOutcome:
        """One model call of the turn. Whatever goes wrong in between, the turn gets an end."""
        add_request_fields(session_id=str(self.claim.session_id), turn_id=str(self.claim.turn_id))
        self.listen(TurnEvent("turn.created", {"turn": self._created()}, self.claim.assistant_seq))
        try:
            snapshot, decision = await self.deciding.decide()
            if isinstance(decision, Refused):
                return await self._reject(snapshot, decision)
            return await self._act(snapshot, decision)
        except (ContextBudgetExceeded, ProviderError, TurnLost):
            raise
        except Exception as error:
            await self._end_after_fault(error)
            raise

    async def _reject(self, snapshot: Snapshot, refused: Refused) -> TurnOutcome:
        error = refusal_of(refused)
        audit = self.deciding.audit(snapshot, refused, None)
        await self._settle(
            Settlement(
                TurnStatus.REJECTED,
                self.deciding.model.alias,
                self.steps.rows,
                [audit],
                error=error.stored(),
                cost_usd=total_cost(self.deciding.summary_costs),
            ),
            audit,
        )
        raise error

    async def _act(self, snapshot: Snapshot, ready: Ready) -> TurnOutcome:
        """Calls the model with no connection held, and again where that can help; then transaction two.

        A prompt that the provider calls too long is made smaller, twice at most. An alias that is down gives way to its
        fallbacks, each with a prompt of its own budget. Nothing is asked again once a delta has been told.
        """
        attempts = self.attempts = Attempts(self.deciding.model)
        started_at = self.rt.now()
        while True:
            call = self._prepare(snapshot, ready)
            if not attempts.audits:
                self.listen(TurnEvent("context.assembled", {"context": context_of(call.audit)}))
            attempts.add(call)
            try:
                completion = await self._call(call, attempts)
            except ProviderError as error:
                again = await self._after_failure(error, call, attempts)
                if again is not None:
                    snapshot, ready = again
                    continue
                self.steps.add("model_call", started_at, Step(attempts.detail(), "failed"))
                await self._fail(error, attempts)
                raise
            self.steps.add("model_call", started_at, Step(attempts.detail()))
            return await self._complete(completion, call, attempts)

    def _prepare(self, snapshot: Snapshot, ready: Ready) -> ModelCall:
        with self.steps.step("assemble") as step:
            assembled = assemble(ready)
            step.detail |= {"messages": len(assembled.messages), "wire_tokens": ready.prompt.wire_tokens}
        reserve = snapshot.budget.output_reserve
        request = CompletionRequest(
            messages=assembled.messages,
            max_output_tokens=min(self.asking.max_output_tokens or reserve, reserve),
            tools=assembled.tools,
            tool_choice=self.asking.tool_choice,
            recorded_reply=self.asking.recorded_reply,
            options=self.asking.options,
        )
        audit = self.deciding.audit(snapshot, ready, assembled)
        return ModelCall(self.deciding.model, snapshot, ready, assembled, request, audit)

    async def _call(self, call: ModelCall, attempts: Attempts) -> Completion:
        try:
            completion = await call_model(self.rt, self.claim.session_id, call.model, call.request, self.on_delta)
        except ProviderError as error:
            attempts.note(call.model.alias, error.attempts, code=error.code)
            raise
        attempts.note(
            call.model.alias,
            completion.attempts,
            finish_reason=completion.finish_reason,
            provider_model=completion.provider_model,
        )
        return completion

    async def _after_failure(
        self, error: ProviderError, call: ModelCall, attempts: Attempts
    ) -> tuple[Snapshot, Ready] | None:
        """What to send next, or None when the failure stands."""
        if error.partial is not None:
            return None
        if isinstance(error, ProviderOverflow):
            return await self._shrink(error, call, attempts)
        if isinstance(error, ProviderDown | ProviderTimeout | ProviderRateLimited):
            return await self._fall_back(call, attempts)
        return None

    async def _shrink(
        self, error: ProviderOverflow, call: ModelCall, attempts: Attempts
    ) -> tuple[Snapshot, Ready] | None:
        """The same turn within what the provider turned out to take; what it stated is learned."""
        stated = Stated(error.limit_tokens, error.requested_tokens, error.prompt_tokens, error.limit_is_window)
        budget, sent = call.snapshot.budget, call.ready
        limit = learned_limit(
            stated,
            configured=call.model.context_window,
            sent_wire_tokens=sent.prompt.wire_tokens,
            output_tokens=call.request.max_output_tokens,
        )
        if error.prompt_tokens is not None and error.limit_is_window:
            # A refused call reports no usage, but its refusal may count the prompt, where that can be no echo of it.
            self._observe(call, error.prompt_tokens)
        if limit is not None and call.model.context_limit_source != "catalogue":
            with suppress(DatabaseUnavailable):
                await learn(self.rt, self.tenant_id, self.claim.turn_id, call.model.alias, limit)
        policy = self.deciding.gathered.session.policy
        if policy.whole_past:
            return None
        reaction = react(
            attempts.reactions,
            stated,
            sent=sent.prompt,
            output_tokens=call.request.max_output_tokens,
            budget=budget,
            max_output_tokens=policy.max_output_tokens,
            calibration_ratio=call.snapshot.calibration_ratio,
        )
        if reaction is None:
            return None
        attempts.reactions += 1
        snapshot, left = await self.deciding.leave_at_once(replace(call.snapshot, budget=reaction.budget))
        with self.rt.tracer.span("decide") as span:
            decided = plan_after_overflow(snapshot, policy, self.deciding.estimate, sent.accounts, left)
            if span.recording:
                span.set(of_decision(decided))
        return (snapshot, decided) if isinstance(decided, Ready) else None

    async def _fall_back(self, call: ModelCall, attempts: Attempts) -> tuple[Snapshot, Ready] | None:
        """The same turn for the next fallback in whose window it fits."""
        self.rt.cooldowns.rest(call.model.alias)
        while attempts.fallbacks:
            alias = attempts.fallbacks.pop(0)
            if self.rt.cooldowns.is_resting(alias):
                continue
            await self.deciding.switch(alias)
            attempts.reactions = 0
            snapshot, decided = await self.deciding.decide()
            if isinstance(decided, Ready):
                return snapshot, decided
        return None

    async def _fail(self, error: ProviderError, attempts: Attempts) -> None:
        partial = {"partial_output": error.partial} if error.partial else {}
        usages = await self._delivered_usages(attempts.last, error.usage)
        await self._settle(
            Settlement(
                TurnStatus.FAILED,
                attempts.last.model.alias,
                self.steps.rows,
                attempts.audits,
                attempts.blocks(),
                error=error.stored() | partial,
                cost_usd=total_cost([*self.deciding.summary_costs, *(used["cost_usd"] for used in usages)]),
                usages=usages,
            ),
            attempts.last.audit,
        )

    async def _delivered_usages(self, call: ModelCall, reported: Usage | None) -> list[JsonObject]:
        """The use of an answer that broke after some of it had been delivered; nothing of it is free.

        What the provider reported on the way may be of a part only: it is held to our own count of what was delivered.
        """
        if not self.delivered:
            return []
        tokens, _ = await count_message(self.rt, self.deciding.gathered.encoding, "".join(self.delivered))
        usage = reported or Usage(0, 0)
        usage = replace(
            usage,
            prompt_tokens=usage.prompt_tokens or call.ready.prompt.wire_tokens,
            completion_tokens=max(usage.completion_tokens, tokens),
        )
        return [used_row(self.rt, call.model, "turn", usage, self.claim.round)]

    async def _complete(self, completion: Completion, call: ModelCall, attempts: Attempts) -> TurnOutcome:
        """Stores the reply; a turn whose reply calls tools waits for them."""
        calls = with_own_ids(completion.tool_calls, self.claim.turn_id.hex[-8:], self.claim.round)
        wanted = self.deciding.gathered.encoding
        with self.rt.tracer.span("count"):
            tokens, encoding = await count_message(self.rt, wanted, completion.text, tool_calls=calls)
            of_reasoning = await count_reasoning(self.rt, encoding, completion.reasoning, completion.reasoning_blocks)
        usage = completion.usage
        used = used_row(self.rt, call.model, "turn", usage, self.claim.round) if usage else None
        if usage:
            call.audit["actual_prompt_tokens"] = usage.prompt_tokens
            self._observe(call, usage.prompt_tokens)
        settlement = Settlement(
            TurnStatus.AWAITING_TOOLS if calls else TurnStatus.COMPLETED,
            call.model.alias,
            self.steps.rows,
            attempts.audits,
            attempts.blocks(),
            messages=[reply_row(self.rt, completion, calls, self.claim.assistant_seq, tokens, of_reasoning, encoding)],
            assistant_output=None if calls else completion.text or "",
            finish_reason=completion.finish_reason,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            cost_usd=total_cost([*self.deciding.summary_costs, used["cost_usd"] if used else None]),
            usages=[used] if used else [],
        )
        turn = await self._settle(settlement, call.audit)
        if not calls:
            self._leave_behind(call)
        completion = replace(completion, tool_calls=calls)
        return TurnOutcome(
            replace(turn, tool_calls=calls), context_of(call.audit), completion, self.claim.assistant_seq
        )

    def _leave_behind(self, call: ModelCall) -> None:
        """The look at a completed turn's window, where the session's own policy has summaries made then."""
        session = self.deciding.gathered.session
        overridden = self.asking.policy or self.asking.whole_past
        own = session_policy(self.rt, self.claim.policy) if overridden else session.policy
        if own.summarizes_after_turns:
            work = summarize_after_turn(self.rt, self.tenant_id, session.id, call.assembled.tools)
            self.rt.chores.start(work, f"the summary after turn {self.claim.turn_id}")

    def _observe(self, call: ModelCall, prompt_tokens: int) -> None:
        """What the provider counted, beside our raw estimate of the same prompt."""
        if call.model.is_language_model:
            self.rt.calibrations.observe(
                self.tenant_id,
                call.model.alias,
                self.deciding.gathered.encoding,
                estimated=call.ready.prompt.wire_tokens,
                actual=prompt_tokens,
            )

    def _tell_delta(self, delta: Delta) -> None:
        self.delivered += (delta.text, delta.reasoning)
        told: JsonObject = {"text": delta.text}
        if delta.reasoning:
            told["reasoning"] = delta.reasoning
        self.listen(TurnEvent("output.delta", told))

    def _created(self) -> JsonObject:
        """The turn as it stands when it has been claimed."""
        return {
            "id": self.claim.turn_id,
            "session_id": self.claim.session_id,
            "seq": self.claim.seq,
            "status": TurnStatus.RUNNING,
        }

    async def _settle(
        self, settlement: Settlement, audit: JsonObject | None, *, patience_s: float | None = None
    ) -> TurnRecord:
        """Transaction two, and what is measured of the turn. Raises as `settle`."""
        if self.reservation is not None:
            settlement = replace(settlement, spent=spent_of(self.reservation, settlement))
        with self.rt.tracer.span("settle") as span:
            turn = await settle(self.rt, self.claim, settlement, patience_s=patience_s)
            if span.recording:
                span.set({**of_turn(turn), **(of_audit(audit) if audit else {})})
        self.rt.telemetry.turn_finished(
            status=turn.status.value,
            seconds=perf_counter() - self.started,
            summary=bool(audit and audit["summary_triggered"]),
            prune=bool(audit and audit["prune_triggered"]),
            overflow=turn.status is TurnStatus.REJECTED,
            prompt_tokens=turn.prompt_tokens,
            alias=turn.model_alias,
            estimated_wire_tokens=audit["estimated_wire_tokens"] if audit else None,
            actual_prompt_tokens=audit["actual_prompt_tokens"] if audit else None,
            calibration_ratio=audit["calibration_ratio"] if audit else None,
            budget_use=_budget_use(audit) if audit else None,
        )
        return turn

    async def _end_after_fault(self, error: Exception) -> None:
        """A fault of our own: the turn ends as failed, so that the session can go on."""
        stored = (
            error.stored()
            if isinstance(error, PlimsollError)
            else {"code": "internal_error", "detail": "Something broke on our side; the message is kept."}
        )
        usages = await self._delivered_usages(self.attempts.last, None) if self.attempts and self.delivered else []
        settlement = Settlement(
            TurnStatus.FAILED, self.deciding.model.alias, self.steps.rows, [], error=stored, usages=usages
        )
        # A database that was waited for in vain is not waited for again: the lease ends the turn.
        patience_s = 0.0 if isinstance(error, DatabaseUnavailable) else None
        await self._settle(settlement, None, patience_s=patience_s)


def _budget_use(audit: JsonObject) -> float | None:
    budget = audit["input_budget"]
    return audit["estimated_input_tokens_after_prune"] / budget if budget > 0 else None


def _gather_step(gathered: Gathered) -> Step:
    summary = gathered.context.summary
    return Step({"turns": len(gathered.turns), "summary_id": str(summary.id) if summary else None})
