"""Compaction as OpenAI's and Anthropic's clients ask for it: a session's summaries, by the policy of one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.domain.compaction import Compaction
from app.domain.errors import NothingToSummarize
from app.domain.stored import StoredSummary
from app.domain.types import JsonObject, SessionId, Summary, SummaryBody, TenantId, TurnStatus, Usage
from app.engine.summary.block import render_summary
from app.services.openai.chat import ChatRequest, new_turn, store_list
from app.services.openai.responses import ResponseRequest, resolve_target
from app.services.runtime import Runtime
from app.services.summaries import summarize_now
from app.services.views.preview import preview_turn


@dataclass(frozen=True, slots=True)
class Compacted:
    """What stands for a session, and the summary that was made for it, if one was."""

    compaction: Compaction
    summary: StoredSummary | None = None

    @property
    def usage(self) -> Usage:
        """Of the summarizer; nothing where it was not called."""
        made = self.summary
        return Usage((made and made.prompt_tokens) or 0, (made and made.completion_tokens) or 0)


def compaction_policy(trigger_tokens: int, focus: str | None = None) -> JsonObject:
    """The policy of a request that says at how many input tokens a summary is made: no other trigger of the session's
    policy makes one, except at the prune threshold."""
    return {
        "summarize_when": "preflight",
        "auto_summarize": True,
        "summary_trigger_tokens": trigger_tokens,
        "summary_trigger_ratio": None,
        "mandatory_summary_turn": None,
        "usage_threshold": None,
        "max_messages": None,
        **({"focus": focus} if focus else {}),
    }


async def compact(rt: Runtime, tenant_id: TenantId, request: ResponseRequest, idempotency_key: str | None) -> Compacted:
    """Stores what is new of a request that is `all_past`, and summarizes its session.

    Where a summary would make nothing smaller, or a turn waits for tools, the session stands as it is. Raises as
    `resolve_target`, `store_list` and `summarize_now`.
    """
    target = await resolve_target(rt, tenant_id, request, idempotency_key)
    newest = await store_list(rt, tenant_id, target.session_id, target.request)
    as_it_is = Compacted(Compaction(target.session_id, newest.last_turn_seq))
    if newest.status is TurnStatus.AWAITING_TOOLS:
        return as_it_is
    return await _summarized(rt, tenant_id, as_it_is.compaction, None) or as_it_is


async def compact_before(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, request: ChatRequest
) -> tuple[Compacted | None, ChatRequest]:
    """Makes the summary that the turn of a request would make first, and takes no turn; None where it would make none,
    and the request as it is to be answered then.

    What the list has beyond the session is stored, but for the message that would be answered. Where a turn waits for
    tools, or has been answered already, that is None too. Raises as `complete_chat` and `summarize_now`.
    """
    found = await new_turn(rt, tenant_id, session_id, request)
    if found is None:
        return None, request
    last_turn_seq, turn = found
    if request.after_turn_seq is not None:
        request = replace(request, after_turn_seq=last_turn_seq)
    if not (await preview_turn(rt, tenant_id, session_id, turn)).summary_pending:
        return None, request
    made = await _summarized(rt, tenant_id, Compaction(session_id, last_turn_seq), request.options.policy)
    return made, request


async def _summarized(
    rt: Runtime, tenant_id: TenantId, of: Compaction, own: Mapping[str, Any] | None
) -> Compacted | None:
    try:
        made = await summarize_now(rt, tenant_id, of.session_id, own=own)
    except NothingToSummarize:
        return None
    return Compacted(Compaction(of.session_id, of.turn_seq, made.id), made)


def shown_text(summary: Summary | StoredSummary) -> str:
    """The summary as a model is shown it."""
    if isinstance(summary, Summary):
        return render_summary(summary.body)
    lists = (summary.key_facts, summary.open_questions, summary.decisions, summary.action_items)
    return render_summary(SummaryBody(summary.summary_text, *lists))
