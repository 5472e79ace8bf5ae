"""The window of a session as the next turn would find it, without a turn."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from app.db.sessions import get_prompt_view, state_of
from app.domain.errors import NotFound
from app.domain.figures import CurrentWindow
from app.domain.types import JsonObject, Message, SessionId, TenantId, Turn, TurnId, TurnStatus
from app.engine.policy.budget import history_budget
from app.engine.policy.policy import ContextPolicy
from app.engine.window.triggers import trigger_tokens, turns_to_next_summary
from app.engine.window.window import lay_out
from app.services.runtime import Runtime
from app.services.turn.gather import (
    WindowRows,
    estimator_of,
    read_window,
    session_policy,
    snapshot_of,
    with_all_counts,
)


async def session_window(rt: Runtime, tenant_id: TenantId, session_id: SessionId) -> WindowRows:
    """The window without a turn, for the session's own model, every message counted. Raises `NotFound`."""
    return await with_all_counts(rt, await uncounted_window(rt, tenant_id, session_id))


async def uncounted_window(
    rt: Runtime,
    tenant_id: TenantId,
    session_id: SessionId,
    *,
    policy_for: Callable[[JsonObject], ContextPolicy] | None = None,
    alias_for: Callable[[str], str] | None = None,
    query: Message | None = None,
) -> WindowRows:
    """Reads the window without a lock, and writes nothing; messages may have no count in the model's encoding.

    `query` is a user's message that is not stored, for which what left the window is searched. `policy_for` and
    `alias_for` give the policy and the model it is read for, of the session's own. Raises `NotFound`, and
    `InvalidRequest` for a policy or an alias that can not be.
    """
    async with rt.database.autocommit() as tx:
        row = await get_prompt_view(tx, tenant_id, session_id)
        if row is None:
            raise NotFound("session")
        session = state_of(row)
        return await read_window(
            tx,
            rt,
            session,
            policy_for(session.policy) if policy_for else session_policy(rt, session.policy),
            alias_for(session.model_alias) if alias_for else session.model_alias,
            before_seq=row["last_turn_seq"] + 1,
            last_message_seq=row["last_message_seq"],
            query=query,
        )


async def window_now(rt: Runtime, tenant_id: TenantId, session_id: SessionId) -> CurrentWindow:
    """Tokens by region, the budget, and how far the next summary is. Raises `NotFound`.

    The figures are those of the stored window, before the next message and before what that turn would compress.
    """
    rows = await session_window(rt, tenant_id, session_id)
    policy = rows.policy
    estimate = estimator_of(rt, rows)
    snapshot = snapshot_of(rt, rows, no_turn(rows.turn_seq))
    window = lay_out(snapshot, policy, estimate)
    budget, regions = snapshot.budget, window.prompt().regions()
    return CurrentWindow(
        model_alias=rows.model.alias,
        model_context_limit=budget.limit,
        context_limit_source=budget.limit_source,
        input_budget=budget.input_budget,
        output_reserve=budget.output_reserve,
        overhead_reserve=budget.overhead_reserve,
        estimated_input_tokens=window.input_tokens(),
        estimated_wire_tokens=window.wire_tokens,
        regions=regions,
        history_budget=history_budget(
            window_tokens=budget.limit,
            system_tokens=regions["system"] + regions["goal"] + regions["pins"],
            summary_tokens=regions["summary"],
            tools_tokens=regions["tools"],
            max_output_tokens=budget.output_reserve,
        ),
        raw_turns=snapshot.past.turn_count,
        active_summary_id=snapshot.summary.id if snapshot.summary else None,
        turns_to_next_summary=turns_to_next_summary(snapshot, policy),
        summary_trigger_tokens=trigger_tokens(policy, budget.limit, budget.input_budget),
        prune_trigger_tokens=int(policy.prune_from(budget.input_budget)),
    )


def no_turn(seq: int) -> Turn:
    """A running turn without a message yet."""
    return Turn(TurnId(UUID(int=0)), seq, TurnStatus.RUNNING, unresolved=True, messages=())
