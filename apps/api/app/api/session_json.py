"""A session as clients read it."""

from __future__ import annotations

from app.domain.types import JsonObject, Session


def session_json(session: Session) -> JsonObject:
    """The session's JSON."""
    return {
        "id": session.id,
        "model_alias": session.model_alias,
        "mode": session.mode,
        "agent_role": session.agent_role,
        "room_goal": session.room_goal,
        "instructions": session.instructions,
        "policy": session.policy,
        "metadata": session.metadata,
        "limits": session.limits,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "forked_from": session.forked_from,
    }
