"""The outcome of a turn: of one that is stored, or of the rounds that it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from app.db.audits import get_audit
from app.db.claims import Claim
from app.db.database import Transaction
from app.db.messages import reply_of_turn
from app.db.records import stated_of_turn
from app.db.summaries import get_summary
from app.db.turns import get_turn
from app.domain.audit import summary_made
from app.domain.errors import (
    IdempotencyInFlight,
    IdempotencyKeyReused,
    StoredFailure,
    TurnCancelled,
    TurnLost,
)
from app.domain.frozen import replace
from app.domain.types import (
    ANSWERED_STATUSES,
    Completion,
    FinishReason,
    SessionRef,
    TurnRecord,
    TurnStatus,
    Usage,
)
from app.services.turn.provider_call import sum_of
from app.services.turn.types import TurnOutcome

PARAGRAPH: Final = "\n\n"


async def answer_again(
    tx: Transaction, session: SessionRef, turn: TurnRecord, stored_sha256: str, request_sha256: str
) -> TurnOutcome:
    """The outcome of the turn stored for an idempotency key. Raises the idempotency errors and the turn's error."""
    if request_sha256 != stored_sha256:
        raise IdempotencyKeyReused("This idempotency key was used with another body.")
    return await outcome_again(tx, session, turn)


async def outcome_again(tx: Transaction, session: SessionRef, turn: TurnRecord) -> TurnOutcome:
    """The same for a request that is known to be a repeat."""
    if turn.error is not None:
        raise StoredFailure(turn.error)
    if turn.status not in ANSWERED_STATUSES:
        raise IdempotencyInFlight("The turn of this idempotency key is still running.")
    return await stored_outcome(tx, session, turn)


async def stored_outcome(tx: Transaction, session: SessionRef, turn: TurnRecord) -> TurnOutcome:
    """The outcome of a stored turn that has ended or waits for tools."""
    reply = await reply_of_turn(tx, session.id, turn.id)
    stated, stop_sequence = await stated_of_turn(tx, session.id, turn.id)
    counted = {"prompt_tokens": turn.prompt_tokens, "completion_tokens": turn.completion_tokens or 0}
    completion = Completion(
        text=reply.content if reply and isinstance(reply.content, str) else turn.assistant_output,
        finish_reason=cast("FinishReason", turn.finish_reason or "stop"),
        usage=None if turn.prompt_tokens is None else replace(stated or Usage(0, 0), **counted),
        tool_calls=turn.tool_calls,
        reasoning=reply and reply.reasoning,
        reasoning_blocks=reply.reasoning_blocks if reply else (),
        stop_sequence=stop_sequence,
    )
    audit = await get_audit(tx, session, turn.id, None)
    if audit is None:
        return TurnOutcome(turn, {}, completion)
    made = summary_made(audit.context_trim_log)
    summary = await get_summary(tx, session.id, made) if made else None
    return TurnOutcome(turn, audit.public(), completion, summary=summary)


async def ended_elsewhere(tx: Transaction, claim: Claim) -> TurnCancelled | TurnLost:
    """The error of a turn that was not ended under its claim. One that runs again was cancelled and tried again."""
    ended = await get_turn(tx, claim.session, claim.turn_id)
    if ended is not None and ended.status is TurnStatus.FAILED:
        return TurnLost("Another process ended this turn while it ran here; its answer is in no later prompt.")
    return TurnCancelled("The turn was cancelled while it ran; its answer is in no later prompt.")


def joined_completion(rounds: Sequence[Completion]) -> Completion:
    """The answer of a turn with look-backs: the texts of all its rounds in order, and the sum of their usage."""
    *_, last = rounds
    if len(rounds) == 1:
        return last
    return replace(
        last,
        text=PARAGRAPH.join(each.text for each in rounds if each.text) or last.text,
        reasoning=PARAGRAPH.join(each.reasoning for each in rounds if each.reasoning) or last.reasoning,
        usage=sum_of([each.usage for each in rounds if each.usage]),
    )
