"""What a completed turn leaves behind: a summary made while its client already has the answer.

Nothing here is remembered: whether a summary is due is seen in the stored window alone, so what a crash takes away the
next turn's own check, or the check before its call, finds again.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from app.domain.errors import NotFound
from app.domain.types import OPEN_STATUSES, SessionId, TenantId, ToolDefinition
from app.engine.window.triggers import fold_after_turn
from app.services.runtime import Runtime
from app.services.turn.gather import estimator_of, session_policy, snapshot_of
from app.services.turn.summarize import IN_PROGRESS, STALE, SummaryJob, summarize
from app.services.turn.types import ClaimedTurn, TurnPlan
from app.services.views.context import no_turn, session_window

logger = logging.getLogger(__name__)


def start_after_turn(rt: Runtime, turn: ClaimedTurn, plan: TurnPlan) -> None:
    """Starts the check of a completed turn's window, where the session's own policy has summaries made then."""
    session, options = plan.rows.session, turn.options
    overridden = options.policy or options.whole_past
    own = session_policy(rt, session.policy) if overridden else plan.rows.policy
    if own.summarizes_after_turns:
        work = summarize_after_turn(rt, session.tenant_id, session.id, plan.decided.prompt.tools)
        rt.chores.start(work, f"the summary after turn {turn.claim.turn_id}")


async def summarize_after_turn(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, tools: tuple[ToolDefinition, ...]
) -> None:
    """Makes the summary that is due in the session's window, if one is; `tools` are those of its last turn.

    A turn that has arrived meanwhile is left out, and is raw in the window that the summary leaves. A result whose
    ground somebody else has changed is dropped and logged.
    """
    with rt.tracer.span("after_turn"):
        await _summarize_if_due(rt, tenant_id, session_id, tools)


async def _summarize_if_due(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, tools: tuple[ToolDefinition, ...]
) -> None:
    try:
        rows = await session_window(rt, tenant_id, session_id)
    except NotFound:
        return  # erased meanwhile
    rows = replace(rows, turns=tuple(turn for turn in rows.turns if turn.status not in OPEN_STATUSES))
    estimate = estimator_of(rt, rows)
    snapshot = snapshot_of(rt, rows, no_turn(rows.turn_seq), tools=tools)
    fold = fold_after_turn(snapshot, rows.policy, estimate)
    if fold is None:
        return
    attempt = await summarize(rt, rows, SummaryJob(fold, "post_turn", rows.turn_seq), estimate)
    if attempt.failure in (STALE, IN_PROGRESS):
        logger.info("a summary in the background was dropped (%s): another one was faster", attempt.failure)
