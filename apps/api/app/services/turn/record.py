"""Transaction two: stores the end of a claimed turn with all that belongs to it, whatever fails in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from time import perf_counter
from typing import Any

import orjson

from app.core.logging import add_request_fields
from app.db.claims import Claim, renew_lease
from app.db.driver import UniqueViolated
from app.db.messages import UNCOUNTED
from app.db.records import TurnEnd, record_end, recorded_before
from app.db.turns import get_turn
from app.domain.audit import PIN_KINDS, Audit, CacheBreak
from app.domain.errors import (
    ContextBudgetExceeded,
    DatabaseUnavailable,
    PlimsollError,
    ProviderError,
    TurnCancelled,
    TurnLost,
)
from app.domain.frozen import replace
from app.domain.prices import usd_of_rows
from app.domain.stored import message_row
from app.domain.types import (
    Completion,
    Delta,
    JsonObject,
    Message,
    MessageId,
    Summary,
    Turn,
    TurnRecord,
    TurnStatus,
    Usage,
)
from app.engine.messages.turns import with_reasoning
from app.engine.window.cache_break import cache_break
from app.engine.window.look_back import Read
from app.engine.window.plan import Assembled
from app.engine.window.prompt import whole_message_block
from app.openai.known_lists import with_reply
from app.services.limits import Repeats, all_of, use_of
from app.services.runtime import Runtime, once_available
from app.services.turn.outcome import PARAGRAPH, ended_elsewhere, joined_completion
from app.services.turn.planning import count_message, pack_messages, recounted
from app.services.turn.provider_call import used_row
from app.services.turn.recall import start_pin_vectors, start_vectors
from app.services.turn.steps import Steps, of_audit, of_turn
from app.services.turn.summarize import start_after_turn
from app.services.turn.types import ClaimedTurn, Listener, TurnEvent, TurnOutcome, TurnPlan

_OUR_FAULT = PlimsollError("Something broke on our side; the message is kept.").stored()


@asynccontextmanager
async def recording(rt: Runtime, turn: ClaimedTurn, started: float, listen: Listener | None) -> AsyncGenerator[Record]:
    """Yields the record of a claimed turn. If the block fails before an end was recorded, the turn is stored as failed,
    so that the session can continue. A turn that was ended elsewhere, cancelled or lost, had its end stored before its
    work is stopped here: what had happened is added to it. `started` is the time of the request by `perf_counter`."""
    claim = turn.claim
    add_request_fields(session_id=str(claim.session_id), turn_id=str(claim.turn_id))
    record = Record(rt, turn, started, listen)
    created = {"id": claim.turn_id, "session_id": claim.session_id, "seq": claim.seq, "status": TurnStatus.RUNNING}
    if listen is not None:
        listen(TurnEvent("turn.created", {"turn": created}, claim.assistant_seq))
    try:
        try:
            yield record
        except (ContextBudgetExceeded, ProviderError, TurnCancelled, TurnLost):
            raise  # the first two were recorded where they were raised
        except Exception as error:
            await record.broken(error)
            raise
    except (asyncio.CancelledError, TurnCancelled, TurnLost):
        await record.ended_elsewhere()
        raise


class Record:
    """What happened in a turn's round, and the ways in which the round may end. Each end is transaction two.

    `model_alias` is the model that is to be called now, `summary` the first summary that was made before a call.
    `found_summary_in_progress` is true when a summary was due that another process or a background task was making.
    `repeats` is None without limits. `read` are the pages that the turn's look-backs have read since the claim.
    `stopped_usages` has what the attempts of a cancelled call used.
    """

    def __init__(self, rt: Runtime, turn: ClaimedTurn, started: float, listen: Listener | None) -> None:
        self.rt = rt
        self.turn = turn
        self._started = started
        self._first_round = turn.claim.round
        self._audits: list[Audit] = []
        self._blocks: dict[str, str] = {}
        self._delivered: list[tuple[str, str]] = []
        self._counted_pieces = 0
        self._looked_back: list[Completion] = []
        self._unreported_rounds: list[int] = []
        self.repeats = Repeats(rt, turn.claim.session_id, turn.reservation) if turn.reservation else None
        self._before_text = self._before_reasoning = ""
        self._listen = listen
        self.model_alias = turn.rows.model.alias
        self._sent: TurnPlan | None = None
        self.summary: Summary | None = None
        self.found_summary_in_progress = False
        self.read: Read = ()
        self.stopped_usages: tuple[Usage, ...] = ()
        self.usages: list[JsonObject] = []
        self.steps = Steps(rt, after=turn.claim.steps)
        summary = turn.rows.summary
        found = {"turns": turn.rows.turn_count, "summary_id": str(summary.id) if summary else None}
        self.steps.add("gather", turn.gathered_at, found)

    @property
    def on_delta(self) -> Callable[[Delta], None] | None:
        """Gets the pieces of a streamed reply. Made when it is read: kept, it would refer to its own owner in a circle,
        and the window of the turn would stay in memory until the next collection."""
        return partial(self._deliver, self._listen) if self._listen is not None else None

    @property
    def sent(self) -> TurnPlan:
        """The newest prompt that was sent, to which there is a reply."""
        if self._sent is None:
            raise RuntimeError("a reply to a prompt that was never sent")
        return self._sent

    def sends(self, plan: TurnPlan, assembled: Assembled) -> None:
        """Records a prompt that is about to be sent: its audit, and the blocks that it is rebuilt from."""
        claim = self.turn.claim
        attempts = sum(audit.round == claim.round for audit in self._audits)
        broken_by = note_prompt(self.rt, self.turn, plan, assembled)
        audit = plan.audit(claim, self.rt.new_id(), attempts + 1, assembled, broken_by)
        if self._sent is None and self._listen is not None:
            self._listen(TurnEvent("context.assembled", {"context": audit.public()}, summary=self.summary))
        self._sent = plan
        self._audits.append(audit)
        self._blocks |= assembled.blocks

    def observe(self, plan: TurnPlan, prompt_tokens: int) -> None:
        """Adds the provider's count and our raw estimate of the same prompt to the calibration."""
        if plan.model.is_language_model:
            self.rt.calibrations.observe(
                self.turn.claim.session.tenant_id,
                plan.model.alias,
                plan.rows.encoding,
                estimated=plan.decided.prompt.wire_tokens,
                actual=prompt_tokens,
            )

    def note_look_back(
        self, plan: TurnPlan, new: tuple[Message, ...], started_at: datetime, detail: JsonObject
    ) -> None:
        """Records a look-back as a step, and its `new` messages as blocks, as a later round sends them."""
        claim = self.turn.claim
        alone = Turn(claim.turn_id, claim.seq, TurnStatus.RUNNING, unresolved=True, messages=new)
        sent = with_reasoning(alone, plan.model.reasoning_rule).messages
        blocks = [whole_message_block(message) for message in sent]
        self._blocks |= {block.sha256: block.text for block in blocks}
        of_step = {"after_seq": new[0].seq} | detail | {"blocks": [block.sha256 for block in blocks]}
        self.steps.add("look_back", started_at, of_step)

    def goes_on(self, completion: Completion) -> None:
        """Records the end of a round in which the model only looked back, and begins the next one."""
        self._looked_back.append(completion)
        # The text before a look-back is a separate paragraph, in the stream and in the stored answer.
        self._before_text = PARAGRAPH if any(each.text for each in self._looked_back) else ""
        self._before_reasoning = PARAGRAPH if any(each.reasoning for each in self._looked_back) else ""
        claim = self.turn.claim
        self.turn = replace(self.turn, claim=replace(claim, round=claim.round + 1))

    async def check_held(self) -> None:
        """Raises `TurnCancelled` or `TurnLost` if the turn was ended elsewhere: no further call is paid for it."""
        claim = self.turn.claim
        if not await self.rt.database.run(renew_lease, claim, self.rt.turn_lease_s):
            raise await self.rt.database.run(ended_elsewhere, claim)

    async def rejected(self, plan: TurnPlan, error: ContextBudgetExceeded) -> None:
        """Ends a turn whose prompt does not fit; nothing was sent."""
        self._audits = [plan.audit(self.turn.claim, self.rt.new_id(), 1, None)]
        self._blocks = {}
        await self._end(TurnStatus.REJECTED, error=error.stored(), added=self.turn.added)

    async def failed(self, error: ProviderError) -> None:
        """Ends a turn whose model call failed or broke off; the user's message is kept."""
        await self._end(TurnStatus.FAILED, error=self._with_streamed(error.stored()))

    async def broken(self, error: Exception) -> None:
        """Ends a turn that failed because of an error that is not the model's."""
        if not isinstance(error, PlimsollError):
            self._audits, self._blocks = [], {}  # the error may be theirs
        await self.note_unanswered(())
        stored = error.stored() if isinstance(error, PlimsollError) else _OUR_FAULT
        end = partial(self._end, TurnStatus.FAILED, error=self._with_streamed(stored))
        if not isinstance(error, DatabaseUnavailable):
            await end()
            return
        try:
            await end(patience_s=0.0)
        except DatabaseUnavailable:  # the request has waited for the database already
            self.rt.chores.start(self._end_later(end), f"the end of turn {self.turn.claim.turn_id}")

    async def _end_later(self, end: Callable[[], Awaitable[TurnRecord]]) -> None:
        try:
            await end()
        except (TurnCancelled, TurnLost):
            await self.ended_elsewhere()

    async def ended_elsewhere(self) -> None:
        """Adds to a turn that was ended elsewhere what was sent, what its calls are known to have used, and what of the
        answer was delivered. Changes nothing if it was not ended or runs again; raises nothing. It is not stopped by a
        further cancellation: a renewal of leases cancels a turn that has stopped, too."""
        adding = asyncio.create_task(self._add_to_ended())
        while not adding.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((adding,))

    async def _add_to_ended(self) -> None:
        claim = self.turn.claim
        with suppress(PlimsollError, UniqueViolated):  # the latter says that all of it was stored before
            await self.note_unanswered(self.stopped_usages)
            ended = await self.rt.database.run(get_turn, claim.session, claim.turn_id)
            if ended is not None and ended.error is not None:
                error = self._with_streamed(ended.error)
                await self._end(ended.status, error=error, patience_s=0.0, ended_elsewhere=True)

    def _with_streamed(self, error: JsonObject) -> JsonObject:
        """The error of a turn with what was streamed of its answer, by all of its calls since the claim."""
        text = "".join(text for text, _ in self._delivered)
        return error | {"partial_output": text} if text else error

    async def completed(self, completion: Completion) -> TurnOutcome:
        """Ends a turn that was answered; a turn whose reply calls tools waits for their outputs."""
        plan, claim = self.sent, self.turn.claim
        calls = completion.tool_calls
        completion = joined_completion([*self._looked_back, completion])
        usage = completion.usage
        with self.rt.tracer.span("count"):
            reply, encoding = await recounted(self.rt, plan.rows.encoding, self._reply_of(completion))
        (terms,) = await pack_messages([("assistant", reply.content, bool(reply.tool_calls), None)])
        counts = reply.tokens, reply.reasoning_tokens
        of_list = self.turn.options.list_sha256
        turn = await self._end(
            TurnStatus.AWAITING_TOOLS if calls else TurnStatus.COMPLETED,
            messages=[message_row(reply.id, reply, counts, encoding, terms) | {"seq": reply.seq}],
            assistant_output=None if calls else completion.text or "",
            finish_reason=completion.finish_reason,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            conversation_sha256=of_list and with_reply(of_list, completion.text, calls),
        )
        summary = plan.snapshot.summary if plan.rows.policy.recall.enabled else None
        start_vectors(self.rt, claim.session, summary.to_message_seq if summary else 0)
        if self.rt.embeddings and any(each.kind in PIN_KINDS for each in plan.decided.window.log.actions):
            start_pin_vectors(self.rt, claim.session, plan.snapshot.pins)
        if not calls and not self.found_summary_in_progress:  # the one in progress is enough
            succeeded = all(step["status"] == "success" for step in self.steps.rows)
            is_sound = succeeded and encoding == plan.rows.encoding
            start_after_turn(self.rt, self.turn, plan, reply, turn.completed_at, is_sound=is_sound)
        turn = replace(turn, tool_calls=calls) if calls else turn
        return TurnOutcome(turn, self._audits[-1].public(), completion, claim.assistant_seq, self.summary)

    def _reply_of(self, completion: Completion) -> Message:
        return Message(
            id=MessageId(self.rt.new_id()),
            turn_id=self.turn.claim.turn_id,
            seq=self.turn.claim.assistant_seq,
            role="assistant",
            content=completion.text,
            tokens=UNCOUNTED,
            tool_calls=completion.tool_calls,
            reasoning=completion.reasoning,
            reasoning_blocks=completion.reasoning_blocks,
        )

    def note_answered(self, plan: TurnPlan, completion: Completion) -> None:
        """Records what an answered call used, with its earlier attempts."""
        self._note_used(plan, completion.usages)
        usage = completion.usage
        if usage is None:
            self._unreported_rounds.append(self.turn.claim.round)
            return
        self._audits[-1] = replace(self._audits[-1], actual_prompt_tokens=usage.prompt_tokens)
        self.observe(plan, usage.prompt_tokens)
        self.rt.pasts.note_cached(self.turn.claim.session_id, usage)

    async def note_unanswered(self, usages: Sequence[Usage]) -> None:
        """Records what a call used that failed, or whose answer was not recorded: at least our own count of what was
        delivered, as the provider's report may cover only a part."""
        plan = self._sent
        if plan is None:
            return
        if delivered := self._delivered[self._counted_pieces :]:
            tokens, _ = await count_message(self.rt, plan.rows.encoding, "".join(map("".join, delivered)))
            *earlier, last = usages or (Usage(0, 0),)
            usages = *earlier, replace(last, completion_tokens=max(last.completion_tokens, tokens))
        self._note_used(plan, usages)

    def _note_used(self, plan: TurnPlan, usages: Sequence[Usage]) -> None:
        self._counted_pieces = len(self._delivered)
        for usage in usages:
            known = usage if usage.prompt_tokens else replace(usage, prompt_tokens=plan.decided.prompt.wire_tokens)
            self.usages.append(used_row(self.rt, plan.model, "turn", known, self.turn.claim.round))

    def _deliver(self, listen: Listener, delta: Delta) -> None:
        text, reasoning = delta.text, delta.reasoning
        refusal = {"refusal": text} if delta.is_refusal else {}
        if text:
            text, self._before_text = self._before_text + text, ""
        if reasoning:
            reasoning, self._before_reasoning = self._before_reasoning + reasoning, ""
        self._delivered.append((text, reasoning))
        thought = {"reasoning": reasoning} if reasoning else {}
        listen(TurnEvent("output.delta", {"text": text, **refusal, **thought}))

    async def _end(self, status: TurnStatus, *, patience_s: float | None = None, **fields: Any) -> TurnRecord:
        """Runs transaction two with all that was recorded, and reports the turn's metrics. Raises as `store_end`."""
        if self.repeats and status is not TurnStatus.CANCELLED:  # whoever cancels a turn releases what it reserved
            # Limits count further calls of the same claim separately (`services/limits.py`).
            of_call = [used for used in self.usages if used["round"] == self._first_round]
            is_reported, reservation = self._first_round not in self._unreported_rounds, self.repeats.reservation
            used = use_of(of_call, reservation["turns"]) if is_reported else all_of(reservation)
            if fields.get("ended_elsewhere"):  # all that a lost turn reserved was given back
                reservation = reservation | {"turns": 0, "tokens": 0, "usd": 0}
            fields["spent"] = reservation, self.repeats.beyond_counted(used)
        blocks = [{"sha256": sha256, "content": text} for sha256, text in self._blocks.items()]
        alias = self._sent.model.alias if self._sent else self.model_alias
        recorded = (self.steps.rows, self._audits, blocks)
        cost_usd = usd_of_rows(self.usages)  # that of a summary is stored with it
        fields = {"conversation_sha256": self.turn.options.list_sha256} | fields
        end = TurnEnd(status, alias, *recorded, usages=self.usages, cost_usd=cost_usd, **fields)
        with self.rt.tracer.span("settle") as span:
            turn = await store_end(self.rt, self.turn.claim, end, patience_s=patience_s)
            span.set(of_turn, turn)
            if self._audits:
                span.set(of_audit, self._audits[-1])
        self.rt.telemetry.turn_finished(turn, self._audits, perf_counter() - self._started)
        return turn


async def store_end(rt: Runtime, claim: Claim, end: TurnEnd, *, patience_s: float | None = None) -> TurnRecord:
    """Stores the end of the turn at once, in one statement if `record_end` needs no other. While the database is not
    available it retries for `patience_s`, by default the time of a lease, after which the turn no longer belongs to
    this process.

    A commit whose answer was lost is found by the retry. Raises `DatabaseUnavailable` when the time is over,
    `TurnCancelled` when the turn was cancelled or its session erased, and `TurnLost` when it was ended otherwise.
    """
    is_one_statement, retried = end.spent is None and end.added is None, False

    async def stored() -> TurnRecord:
        nonlocal retried
        may_be_stored, retried = retried, True
        async with rt.database.autocommit() if is_one_statement else rt.database.begin() as tx:
            turn = await record_end(tx, claim, end)
            if turn is None and may_be_stored:
                turn = await recorded_before(tx, claim)
            if turn is None:
                raise await ended_elsewhere(tx, claim)
            return turn

    return await once_available(stored, rt.turn_lease_s if patience_s is None else patience_s, "the end of a turn")


def note_prompt(rt: Runtime, turn: ClaimedTurn, plan: TurnPlan, assembled: Assembled) -> CacheBreak | None:
    """Caches the prompt as the session's last one. Returns why it does not extend the one before; a metric counts that.
    None if it does, or if another process sent the one before, or a turn was rejected since."""
    session_id, reply_seq = turn.claim.session_id, turn.claim.assistant_seq
    before = rt.pasts.last_prompt(session_id)
    rt.pasts.keep_last_prompt(session_id, plan.model.alias, orjson.dumps(assembled.refs), reply_seq)
    if before is None:
        return None
    new = sum(message.seq > before.reply_seq for message in plan.snapshot.current.messages)
    if reply_seq not in (before.reply_seq, before.reply_seq + new + 1):
        return None
    if before.model_alias != plan.model.alias:
        cause: CacheBreak | None = "model"
    else:
        cause = cache_break(orjson.loads(before.refs), assembled.refs)
    if cause is not None:
        rt.telemetry.prompt_cache_broken(cause)
    return cause
