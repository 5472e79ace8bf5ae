"""The window of a session as the next turn would find it, without a turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from app.db.database import Record
from app.db.sessions import get_prompt_view
from app.domain.errors import NotFound
from app.domain.types import Content, JsonObject, SessionId, TenantId, Turn, TurnId, TurnStatus
from app.engine.policy.budget import history_budget
from app.engine.policy.policy import ContextPolicy
from app.engine.window.triggers import summary_trigger_tokens, turns_to_next_summary
from app.engine.window.window import Window
from app.services.runtime import Runtime
from app.services.turn.gather import (
    Gathered,
    SessionView,
    estimator_of,
    read_window,
    session_policy,
    snapshot_of,
    with_all_counts,
)


@dataclass(frozen=True, slots=True)
class WindowNow:
    """A session's window read without a lock; `next_seq` is the number its next turn would get."""

    gathered: Gathered
    next_seq: int


async def read_window_now(rt: Runtime, tenant_id: TenantId, session_id: SessionId) -> WindowNow:
    """Reads the window for the session's own model, every message counted. Raises `NotFound`."""
    seen = await read_look(rt, tenant_id, session_id)
    return replace(seen, gathered=await with_all_counts(rt, seen.gathered))


async def read_look(
    rt: Runtime,
    tenant_id: TenantId,
    session_id: SessionId,
    *,
    policy_for: Callable[[JsonObject], ContextPolicy] | None = None,
    alias_for: Callable[[str], str] | None = None,
    asked: Content = None,
) -> WindowNow:
    """Reads the window, and writes nothing; messages without a count in the model's encoding are left uncounted.

    `asked` is a user's message that is not stored, for which older messages are searched.
    `policy_for` and `alias_for` give the policy and the alias to read it with, from the session's own.
    Raises `NotFound`, and `InvalidRequest` for a policy or an alias that can not be.
    """
    async with rt.database.begin() as tx:
        row = await get_prompt_view(tx, tenant_id, session_id)
        if row is None:
            raise NotFound("session")
        own = row["policy"]
        session = session_view(tenant_id, row, policy_for(own) if policy_for else session_policy(rt, own))
        next_seq = row["last_turn_seq"] + 1
        gathered = await read_window(
            tx,
            rt,
            session,
            alias_for(session.model_alias) if alias_for else session.model_alias,
            before_seq=next_seq,
            last_message_seq=row["last_message_seq"],
            asked=asked,
        )
    return WindowNow(gathered, next_seq)


def session_view(tenant_id: TenantId, row: Record, policy: ContextPolicy) -> SessionView:
    """A session's row as a prompt sees it, under a policy."""
    return SessionView(
        tenant_id=tenant_id,
        id=SessionId(row["id"]),
        model_alias=row["model_alias"],
        mode=row["mode"],
        agent_role=row["agent_role"],
        room_goal=row["room_goal"],
        instructions=row["instructions"],
        policy=policy,
        summary_count_after_seq=row["summary_count_after_seq"],
        summary_failures=row["summary_failures"],
        summary_failed_at=row["summary_failed_at"],
        recall_indexed_seq=row["recall_indexed_seq"],
    )


async def window_now(rt: Runtime, tenant_id: TenantId, session_id: SessionId) -> JsonObject:
    """Tokens by region, the budget, and how far the next summary is. Raises `NotFound`.

    The figures are those of the stored window, before the next message and before what that turn would compress.
    """
    seen = await read_window_now(rt, tenant_id, session_id)
    gathered = seen.gathered
    policy = gathered.session.policy
    estimate = estimator_of(rt, gathered)
    snapshot = snapshot_of(rt, gathered, no_turn(seen.next_seq))
    window = Window(snapshot, policy, estimate)
    prompt = window.prompt(window.pieces)
    budget, regions = snapshot.budget, prompt.regions()
    return {
        "model_alias": gathered.model.alias,
        "model_context_limit": budget.limit,
        "context_limit_source": budget.limit_source,
        "input_budget": budget.input_budget,
        "output_reserve": budget.output_reserve,
        "overhead_reserve": budget.overhead_reserve,
        "estimated_input_tokens": window.charge(prompt),
        "estimated_wire_tokens": prompt.wire_tokens,
        "regions": regions,
        "history_budget": history_budget(
            window_tokens=budget.limit,
            system_tokens=regions["system"] + regions["goal"] + regions["pins"],
            summary_tokens=regions["summary"],
            tools_tokens=regions["tools"],
            max_output_tokens=budget.output_reserve,
        ),
        "raw_turns": len(snapshot.turns),
        "active_summary_id": str(snapshot.summary.id) if snapshot.summary else None,
        "turns_to_next_summary": turns_to_next_summary(window),
        "summary_trigger_tokens": summary_trigger_tokens(window),
        "prune_trigger_tokens": int(policy.prune_from(budget.input_budget)),
    }


def no_turn(seq: int) -> Turn:
    """A running turn without a message yet."""
    return Turn(TurnId(UUID(int=0)), seq, TurnStatus.RUNNING, unresolved=True, messages=())
