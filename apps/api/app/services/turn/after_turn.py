"""What a completed turn leaves behind: a summary made while its client already has the answer.

Nothing here is remembered: whether a summary is due is seen in the stored window alone, so what a crash takes away the
next turn's own check, or the check before its call, finds again.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from app.domain.errors import NotFound
from app.domain.types import OPEN_STATUSES, SessionId, TenantId, ToolDefinition
from app.engine.window.plan import plan_after_turn
from app.services.runtime import Runtime
from app.services.turn.gather import estimator_of, snapshot_of
from app.services.turn.summarize import IN_PROGRESS, STALE, Ask, summarize
from app.services.views.context import no_turn, read_window_now

logger = logging.getLogger(__name__)


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
        seen = await read_window_now(rt, tenant_id, session_id)
    except NotFound:
        return  # erased meanwhile
    gathered = replace(
        seen.gathered, turns=tuple(turn for turn in seen.gathered.turns if turn.status not in OPEN_STATUSES)
    )
    estimate = estimator_of(rt, gathered)
    snapshot = snapshot_of(rt, gathered, no_turn(seen.next_seq), tools=tools)
    fold = plan_after_turn(snapshot, gathered.session.policy, estimate)
    if fold is None:
        return
    attempt = await summarize(rt, gathered, Ask(fold, "post_turn", seen.next_seq), estimate)
    if attempt.failure in (STALE, IN_PROGRESS):
        logger.info("a summary in the background was dropped (%s): another one was faster", attempt.failure)
