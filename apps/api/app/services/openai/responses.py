"""Responses: finds the session and place that a request continues, and takes one more turn there
(docs/decisions/0012-responses-as-turns.md); and compaction, as OpenAI's and Anthropic's clients request it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from app.db import responses as store
from app.db.database import Transaction
from app.db.sessions import turn_of_list
from app.db.turns import Newest, newest_of
from app.domain.content import sha256_hex
from app.domain.errors import InvalidRequest, NothingToSummarize, TurnInProgress, TurnNotOpen, existing
from app.domain.frozen import frozen, names_of, replace
from app.domain.incoming import Compaction
from app.domain.responses import Lifetime, ResponseRef, StoredResponse
from app.domain.stored import StoredSummary
from app.domain.types import (
    ANSWERED_STATUSES,
    JsonObject,
    SessionId,
    SessionRef,
    Summary,
    SummaryBody,
    TenantId,
    TurnStatus,
    Usage,
)
from app.engine.summary.block import render_summary
from app.openai.items import joined_directions
from app.openai.new_messages import Anchor
from app.services.archive.transfer import fork_session, fork_within
from app.services.openai.chat import ChatRequest, count_behind, divided, new_turn, store_list
from app.services.openai.conversations import of_conversation, page_of_items
from app.services.openai.open_session import (
    Target,
    check_compaction,
    erased_unless_kept,
    in_fork,
    open_session,
    stored_for_now,
)
from app.services.paging import PageRequest
from app.services.runtime import Runtime
from app.services.sessions import check_options, erase_if
from app.services.summaries import summarize_now
from app.services.turn.additions import answered_in, keep_session
from app.services.turn.take import cancel_turn
from app.services.turn.types import TurnOutcome
from app.services.views.preview import count_tokens, preview_turn


@frozen
class ResponseRequest:
    """What a client of Responses sends: at most one of `named`, `previous` and `conversation`."""

    chat: ChatRequest
    previous: ResponseRef | None = None
    conversation: SessionId | None = None
    named: SessionId | str | None = None


async def resolve_target(rt: Runtime, tenant_id: TenantId, request: ResponseRequest) -> Target:
    """Finds or makes the session of a request. Raises `NotFound` for the conversation or the previous response,
    `TurnInProgress` while that runs, and `InvalidRequest` before anything is stored."""
    chat = request.chat
    if request.conversation is not None:
        with of_conversation():
            target = await open_session(rt, tenant_id, request.conversation, chat)
        if chat.known is not None and chat.known.beginnings:
            resent = await rt.database.run(turn_of_list, tenant_id, chat.known.beginnings, None)
            # If others follow the turn, the list may have them, too.
            anchor = Anchor(resent.turn_id, resent.place) if resent and resent.is_last else None
            target = replace(target, request=replace(chat, all_new=resent is None, anchor=anchor))
        return target
    if request.previous is not None:
        return await _after(rt, tenant_id, request.previous, chat)
    return await open_session(rt, tenant_id, request.named, chat)


async def _after(rt: Runtime, tenant_id: TenantId, previous: ResponseRef, chat: ChatRequest) -> Target:
    """The target after a previous response: its session if nothing has followed it, else a fork."""
    session, key = SessionRef(tenant_id, previous.session_id), chat.session_key
    check_options(rt, chat.model_alias, chat.options.provider_options, "body")
    check_compaction(chat, session.id)
    async with rt.database.begin() as tx:
        found = existing(await store.get_response(tx, tenant_id, previous), "previous_response")
        newest = await newest_of(tx, session)
        if key and (answered := await answered_in(tx, tenant_id, key, session)):
            return Target(answered, chat)
    if chat.is_kept and newest and chat.repeats(newest):
        return Target(session, chat)
    if found.reply is None:
        if is_running(found):
            raise TurnInProgress("The previous response is still in progress.")
        reason = "The previous response failed or was cancelled; there is no output to go on with."
        raise InvalidRequest(reason, ("body", "previous_response_id"))
    await divided(chat, chat.messages, waiting=bool(found.reply.tool_calls))
    if chat.is_kept and found.ends_session and found.turn_status in ANSWERED_STATUSES:
        return Target(session, replace(chat, after_message_seq=found.last_message_seq))
    if found.ends_turn and found.turn_status is TurnStatus.COMPLETED:
        forked = await fork_session(rt, session, found.turn_id, Lifetime.FOR_ANSWER)
    else:
        forked, _ = await fork_within(rt, session, found.turn_id, previous.reply_seq, Lifetime.FOR_ANSWER)
    return in_fork(forked, session, chat)


async def stored_response(rt: Runtime, tenant_id: TenantId, ref: ResponseRef) -> StoredResponse:
    """The tenant's response. Raises `NotFound`."""
    return existing(await rt.database.run(store.get_response, tenant_id, ref), "response")


async def response_of_outcome(
    rt: Runtime, tenant_id: TenantId, outcome: TurnOutcome, request_sha256: str
) -> StoredResponse:
    """The stored response of a request that has been answered before. Raises `NotFound` if it was erased."""
    turn = outcome.turn
    found = await rt.database.run(
        store.response_of_request, SessionRef(tenant_id, turn.session_id), turn.id, request_sha256
    )
    return existing(found, "response")


async def input_items(
    rt: Runtime, tenant_id: TenantId, ref: ResponseRef, wanted: PageRequest
) -> tuple[list[JsonObject], bool]:
    """The input items of a response, as `page_of_items`. Raises `NotFound`, `InvalidRequest`."""
    found = await stored_response(rt, tenant_id, ref)
    session = SessionRef(tenant_id, ref.session_id)
    return await page_of_items(rt, session, wanted, first_seq=found.first_seq, last_seq=ref.reply_seq - 1)


async def cancel_response(rt: Runtime, tenant_id: TenantId, ref: ResponseRef) -> StoredResponse:
    """Cancels a response that runs; one that has ended is not changed. Raises `NotFound`."""
    found = await stored_response(rt, tenant_id, ref)
    if not is_running(found):
        return found
    with suppress(TurnNotOpen):  # it ended by itself meanwhile
        await cancel_turn(rt, SessionRef(tenant_id, ref.session_id), found.turn_id)
    return await stored_response(rt, tenant_id, ref)


async def delete_response(rt: Runtime, tenant_id: TenantId, ref: ResponseRef) -> None:
    """Erases a response: it can no longer be fetched or continued. With the last one, a session that was made for a
    response and used for nothing else is erased; until then its messages are the past of other responses. Raises
    `NotFound`, and `TurnInProgress` while it runs."""
    session = SessionRef(tenant_id, ref.session_id)

    async def was_the_last(tx: Transaction) -> bool:
        found = existing(await store.get_response(tx, tenant_id, ref), "response")
        if is_running(found):
            raise TurnInProgress("The response is still in progress; cancel it first.")
        await store.erase_response(tx, ref)
        return await store.has_lost_its_responses(tx, session)

    await erase_if(rt, rt.database, session, was_the_last)


def is_running(found: StoredResponse) -> bool:
    return found.reply is None and found.is_last_of_turn and found.turn_status is TurnStatus.RUNNING


async def count_input(rt: Runtime, tenant_id: TenantId, request: ResponseRequest) -> int:
    """The estimated tokens of the prompt for a request, of which nothing is stored. Raises `NotFound`, and
    `InvalidRequest` for a previous response that something follows in its session."""
    chat, session_id, noun = request.chat, request.conversation, "conversation"
    instructions = joined_directions(chat.options.instructions, chat.directions)
    chat = replace(chat, options=replace(chat.options, instructions=instructions))
    if chat.compaction is not None:
        session_id, noun = chat.compaction.session_id, "compaction"
    if request.previous is not None:
        session_id, noun = request.previous.session_id, "previous_response"
        found = existing(await rt.database.run(store.get_response, tenant_id, request.previous), noun)
        if not found.ends_session:
            raise InvalidRequest("Input is counted after the last response alone.", ("body", "previous_response_id"))
    if session_id is not None:
        return await count_behind(rt, SessionRef(tenant_id, session_id), chat, noun)
    return await count_tokens(rt, tenant_id, chat.model_alias, chat.messages, chat.options)


@frozen
class Compacted:
    """A compaction of a session, and the summary that was made for it, if there is one."""

    compaction: Compaction
    summary: StoredSummary | None = None

    @property
    def usage(self) -> Usage:
        """The usage of the summarizer; zero if it was not called."""
        made = self.summary
        return Usage((made and made.prompt_tokens) or 0, (made and made.completion_tokens) or 0)


def compaction_policy(trigger_tokens: int, focus: str | None = None) -> JsonObject:
    """The policy of a request that states at how many input tokens a summary is made. The other triggers of the
    session's policy are off, except the one at the prune threshold."""
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


async def compact(rt: Runtime, tenant_id: TenantId, request: ResponseRequest) -> Compacted:
    """Stores what is new in a request that is `all_past`, and summarizes its session, unless that would make nothing
    smaller, or a turn waits for tools. Raises as `resolve_target`, `store_list` and `summarize_now`."""
    # Its session is found by key and body: no turn remembers the body, with which another request would be mixed.
    chat = request.chat
    key = chat.idempotency_key and sha256_hex(f"{chat.idempotency_key} {chat.request_sha256}")
    target = await resolve_target(rt, tenant_id, replace(request, chat=replace(chat, idempotency_key=key)))
    target = await stored_for_now(rt, target)
    async with erased_unless_kept(rt, target):
        newest = await store_list(rt, target.session, replace(target.request, keeping=None))
        is_waiting = newest.status is TurnStatus.AWAITING_TOOLS
        made = None if is_waiting else await _summarized(rt, target.session, newest)
        await keep_session(rt, target.session, target.request.keeping)
    return made or Compacted(Compaction(target.session.id, newest.last_turn_seq))


async def compact_before(rt: Runtime, target: Target) -> tuple[Compacted | None, Target]:
    """Stores what the list has beyond the session, except the message to be answered, and makes the summary that its
    turn would make first, without taking the turn. Returns the summary, and where and how the request is to be answered
    afterwards. It is None if the turn would make none, a turn is open, or the request has been answered already. Raises
    as `complete_chat` and `summarize_now`."""
    target = await stored_for_now(rt, target)
    session, request = target.session, target.request
    async with erased_unless_kept(rt, target):
        found = await new_turn(rt, session, replace(request, keeping=None))
        if found is None:
            return None, target
        newest, turn = found
        if request.after_message_seq is not None:
            target = Target(session, replace(request, after_message_seq=newest.last_message_seq))
        if not (await preview_turn(rt, session, turn)).summary_pending:
            return None, target
        made = await _summarized(rt, session, newest, request.options.policy)
        if made is not None:
            await keep_session(rt, session, request.keeping)
    return made, target


async def _summarized(
    rt: Runtime, session: SessionRef, newest: Newest, own: Mapping[str, Any] | None = None
) -> Compacted | None:
    try:
        made = await summarize_now(rt, session, own=own)
    except NothingToSummarize:
        return None
    return Compacted(Compaction(session.id, newest.last_turn_seq, made.id), made)


def shown_text(summary: Summary | StoredSummary) -> str:
    """The summary as a model sees it."""
    if isinstance(summary, Summary):
        return render_summary(summary.body)
    return render_summary(SummaryBody(**{name: getattr(summary, name) for name in names_of(SummaryBody)}))
