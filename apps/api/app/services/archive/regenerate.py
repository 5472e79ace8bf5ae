"""The last turn once more, in a fork that ends before it: nothing that is stored changes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.db.forks import LastTurn
from app.domain.errors import InvalidRequest
from app.domain.types import Session, SessionId, TenantId, TurnId
from app.openai.chat_messages import joined
from app.services.archive.fork import fork_before_last
from app.services.runtime import Runtime
from app.services.sessions import delete_session
from app.services.turn.claim import Asking, TurnOutcome, TurnRequest, check
from app.services.turn.events import Listener
from app.services.turn.take import take_turn


@dataclass(frozen=True, slots=True)
class Again:
    """A turn that is to be run again: the fork it runs in, and what is posted there."""

    session: Session
    request: TurnRequest


async def prepare_again(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, turn_id: TurnId, wanted: TurnRequest
) -> Again:
    """Forks the session before its last turn, and says what to post there to run that turn again.

    What `wanted` leaves out (content None, no tools, no alias) is as it was: the user's words, the tools, and the alias
    that was asked. Raises `NotFound`, `InvalidRequest`, `TurnNotLast`, `TurnInProgress` when the turn has not ended.
    """
    check(rt, wanted)
    before = await fork_before_last(rt, tenant_id, session_id, turn_id, has_words=wanted.content is not None)
    request = replace(
        wanted,
        content=joined(before.turn.contents) if wanted.content is None else wanted.content,
        asking=_asking(before.turn, wanted.asking),
        model_alias=wanted.model_alias or _asked_alias(rt, before.session, before.turn),
    )
    return Again(before.session, request)


async def take_again(rt: Runtime, tenant_id: TenantId, again: Again, listen: Listener | None = None) -> TurnOutcome:
    """Runs the prepared turn. Raises as `take_turn`; a request that can never work leaves no fork behind."""
    try:
        return await take_turn(rt, tenant_id, again.session.id, again.request, None, listen)
    except InvalidRequest:
        await delete_session(rt, tenant_id, again.session.id)
        raise


def _asking(turn: LastTurn, wanted: Asking) -> Asking:
    stored = turn.request or {}
    as_it_was = replace(
        wanted,
        max_output_tokens=wanted.max_output_tokens or stored.get("max_output_tokens"),
        instructions=wanted.instructions or stored.get("instructions"),
        options=wanted.options or stored.get("options") or {},
        policy=stored.get("policy") if wanted.policy is None else wanted.policy,
    )
    if wanted.tools:
        return as_it_was
    choice = wanted.tool_choice if wanted.tool_choice is not None else stored.get("tool_choice")
    return replace(as_it_was, tools=tuple(stored.get("tools", ())), tool_choice=choice)


def _asked_alias(rt: Runtime, session: Session, turn: LastTurn) -> str | None:
    """The alias that was asked first, where it was not the session's and there still is such a one."""
    asked = turn.asked_alias
    return asked if asked != session.model_alias and asked in rt.catalogue.aliases else None
