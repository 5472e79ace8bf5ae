"""Summaries outside of a turn: listed, made on request or behind a completed turn's answer, and taken back.

Nothing of those behind an answer is remembered: whether one is due is seen in the stored window alone, so what a crash
takes away the next turn's own check, or the check before its call, finds again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from app.db import summaries as store
from app.db.messages import has_messages
from app.db.turns import newest_of
from app.domain.errors import InvalidRequest, NotFound, NothingToSummarize, SummaryNotActive, TurnInProgress, existing
from app.domain.stored import StoredSummary
from app.domain.types import (
    OPEN_STATUSES,
    Message,
    MessageId,
    SessionRef,
    SummaryId,
    SummaryItem,
    ToolDefinition,
    TurnStatus,
)
from app.engine.window.triggers import fold_behind_answer, fold_on_request, may_fold_behind_answer
from app.services.paging import Page, PageRequest, beyond_id, in_order, page_of
from app.services.runtime import Runtime, retried
from app.services.sessions import check_session
from app.services.turn.gather import (
    WindowRows,
    budget_of,
    estimator_of,
    layers_of,
    session_policy,
    snapshot_of,
    with_all_counts,
)
from app.services.turn.planning import planned
from app.services.turn.recall import start_vectors
from app.services.turn.summarize import IN_PROGRESS, STALE, SummaryJob, behind_an_answer, new_summary, summarize
from app.services.turn.summarizer_call import SummarizerCall
from app.services.turn.types import RETRY_AFTER_S, ClaimedTurn, TurnPlan
from app.services.views.context import no_turn, session_window

SummaryChanges: TypeAlias = Mapping[str, str | tuple[SummaryItem, ...]]
"""Parts of a summary by name, each as it is to be."""

logger = logging.getLogger(__name__)


async def list_summaries(rt: Runtime, session: SessionRef, wanted: PageRequest) -> Page[StoredSummary]:
    """The session's summaries, whatever their status. Raises `NotFound`, `InvalidRequest`."""
    scope = in_order(f"summaries:{session.id}", wanted, newest_by_default=True)
    position = beyond_id(scope, wanted)
    async with rt.database.autocommit() as tx:
        await check_session(tx, session)
        rows = await store.page_of_summaries(
            tx, session.id, position, wanted.limit + 1, newest_first=wanted.newest_first
        )
    return page_of(scope, rows, wanted.limit, lambda row: row.id)


async def summarize_now(
    rt: Runtime, session: SessionRef, focus: str | None = None, *, own: Mapping[str, Any] | None = None
) -> StoredSummary:
    """Summarizes what is older than the protected turns, whatever the triggers, and gives the new summary.

    `focus` is what it keeps in most detail, in place of the policy's; `own` are other values over the session's policy.

    Raises `NotFound`, `NothingToSummarize`, `LimitExceeded`, and `TurnInProgress` when a turn runs or something else
    became the active summary meanwhile.
    """
    rows = await session_window(rt, session)
    if any(turn.status in OPEN_STATUSES for turn in rows.turns):
        raise TurnInProgress("The session runs a turn; summarize when it is done.", RETRY_AFTER_S)
    if own:
        rows = replace(rows, policy=session_policy(rt, rows.session.policy, own))
    if focus is not None:
        rows = replace(rows, policy=replace(rows.policy, focus=focus))
    estimate = estimator_of(rt, rows)
    policy = rows.policy
    snapshot = await snapshot_of(rt, rows, no_turn(rows.turn_seq))
    fold = await planned(snapshot, lambda: fold_on_request(snapshot, policy, estimate))
    if fold is None:
        raise NothingToSummarize(
            "Beyond the turns that the policy protects there is nothing that a summary would make smaller."
        )
    attempt = await summarize(rt, rows, SummaryJob(fold, snapshot, "requested", rows.turn_seq), estimate)
    if attempt.summary is None and attempt.failure in (STALE, IN_PROGRESS):
        async with rt.database.autocommit() as tx:
            await check_session(tx, session)  # what is not there is not in progress either
        raise TurnInProgress("Another summary is being made, or was made meanwhile.", RETRY_AFTER_S)
    if attempt.summary is None:
        raise NothingToSummarize("No summary came out smaller than what it would replace.")
    async with rt.database.autocommit() as tx:
        return existing(await store.get_summary(tx, session.id, attempt.summary.id), "session")  # erased meanwhile


def start_after_turn(rt: Runtime, turn: ClaimedTurn, plan: TurnPlan, reply: Message, *, is_sound: bool) -> None:
    """Starts the check of a completed turn's window, where the session's own policy may have a summary made then.

    `reply` is the turn's last message; `is_sound` whether it is counted as the window is and all steps succeeded.
    """
    session, options = plan.rows.session, turn.options
    if "summary_trigger_tokens" in (options.policy or {}):
        return  # the client says when summaries are made, and is shown each
    is_own = not (options.policy or options.whole_past) and plan.model.alias == session.model_alias
    own = plan.rows.policy if is_own else session_policy(rt, session.policy)
    if not (own.summarizes_after_turns or own.summarizes_ahead):
        return
    window, reply_tokens = plan.decided.window, reply.tokens + reply.reasoning_tokens
    if not is_own or may_fold_behind_answer(window.snapshot, window.log.tokens_after_summary, reply_tokens, own):
        is_first = turn.claim.round == turn.claim.fence == 1 and plan.snapshot.summary == plan.rows.context.summary
        rows = _rows_after(turn, plan.rows, reply) if is_own and is_first and is_sound else None
        tools = plan.decided.prompt.tools
        work = summarize_after_turn(rt, session, tools, options.instructions, rows)
        rt.chores.start(work, behind_an_answer(session.id))


def _rows_after(turn: ClaimedTurn, rows: WindowRows, reply: Message) -> WindowRows:
    """What a read of the window finds now that the turn, the first try of it, was completed by this reply."""
    *before, last = [replace(each, unresolved=False) for each in rows.turns]
    assert last.id == turn.claim.turn_id, "the running turn is the newest"
    completed = replace(last, status=TurnStatus.COMPLETED, messages=(*last.messages, reply))
    context = replace(rows.context, step_failed=False)
    return replace(rows, turn_seq=turn.claim.seq + 1, context=context, turns=(*before, completed), evicted=None)


async def summarize_after_turn(
    rt: Runtime,
    session: SessionRef,
    tools: tuple[ToolDefinition, ...],
    instructions: str | None = None,
    rows: WindowRows | None = None,
) -> None:
    """Makes the summary that is due in the session's window, or that its next turn would have to make, if one is;
    `tools` and `instructions` are those of its last turn, `rows` the window as that turn left it, read where they are
    not given: whoever read it anew would come too late for a client that goes on at once.

    A turn that has arrived meanwhile is left out, and is raw in the window that the summary leaves. A result whose
    ground somebody else has changed is dropped and logged.
    """
    with rt.tracer.span("after_turn"):
        try:
            if rows is None:
                rows = await session_window(rt, session)
            else:
                rows = await with_all_counts(rt, rows)
        except NotFound:
            return  # erased meanwhile
        rows = replace(rows, turns=tuple(turn for turn in rows.turns if turn.status not in OPEN_STATUSES))
        estimate = estimator_of(rt, rows)
        snapshot, policy = await snapshot_of(rt, rows, no_turn(rows.turn_seq), tools=tools), rows.policy
        fold = await planned(snapshot, lambda: fold_behind_answer(snapshot, policy, estimate))
        if fold is None:
            return
        sent = replace(snapshot, layers=layers_of(rt, rows.session, instructions))
        attempt = await summarize(rt, rows, SummaryJob(fold, sent, "post_turn", rows.turns[-1].seq + 1), estimate)
        if attempt.summary is not None and policy.recall.enabled:
            start_vectors(rt, session.id, attempt.summary.to_message_seq)
        if attempt.failure in (STALE, IN_PROGRESS):
            logger.info("a summary in the background was dropped (%s): another one was faster", attempt.failure)


async def edit_summary(
    rt: Runtime, session: SessionRef, summary_id: SummaryId, changes: SummaryChanges
) -> StoredSummary:
    """Makes the active summary with these parts of it changed the active one, and gives it: a row of its own, of the
    same messages, which an undo takes back.

    Raises `NotFound`, `SummaryNotActive`, `TurnInProgress` while a turn decides on it, and `InvalidRequest` for no
    change, for messages that are not the session's, and for more tokens than the policy lets a summary have.
    """
    rows = await session_window(rt, session)
    async with rt.database.autocommit() as tx:
        edited = existing(await store.get_summary(tx, session.id, summary_id), "summary")
        is_cited = not (cited := _cited(changes)) or await has_messages(tx, session.id, cited)
    active = rows.context.summary
    if active is None or active.id != summary_id:
        raise SummaryNotActive(f"The summary is {edited.status}; only the active one can be edited.")
    if any(turn.status in OPEN_STATUSES for turn in rows.turns):
        raise TurnInProgress("The session runs a turn; edit the summary when it is done.", RETRY_AFTER_S)
    if not is_cited:
        raise InvalidRequest("An item cites a message that the session does not have.")
    version = replace(active, id=SummaryId(rt.new_id()), body=replace(active.body, **changes), origin="person")
    if version.body == active.body:
        raise InvalidRequest("Nothing of the summary would be changed.")
    summarizer = SummarizerCall(rows, edited.model_alias, estimator_of(rt, rows))
    new = await asyncio.to_thread(new_summary, summarizer, version, active)
    most_tokens = rows.policy.most_summary_tokens(budget_of(rows.model, rows.policy).input_budget)
    if new.token_estimate > most_tokens:
        raise InvalidRequest(f"It has {new.token_estimate} tokens; the policy lets a summary have {most_tokens}.")
    async with rt.database.autocommit() as tx:
        if not await store.store_attempt(tx, session.id, new, store.AttemptNote(), None):
            raise SummaryNotActive("Another summary became active meanwhile.")
        return existing(await store.get_summary(tx, session.id, new.id), "session")  # erased meanwhile


def _cited(changes: SummaryChanges) -> frozenset[MessageId]:
    lists = [items for items in changes.values() if not isinstance(items, str)]
    return frozenset(message_id for items in lists for item in items for message_id in item.message_ids)


@retried
async def undo_summary(rt: Runtime, session: SessionRef, summary_id: SummaryId | None) -> StoredSummary:
    """Takes the active summary back and gives it as it is then. Without a `summary_id` it is whichever is active now.

    The summary it had folded in is active again, what it stood for beyond that one is raw again, and the turn count
    begins anew, so the next turn decides afresh. Prompts that had it can still be rebuilt. Raises `NotFound`,
    `SummaryNotActive`, and `TurnInProgress` while a turn decides on it.
    """
    async with rt.database.begin() as tx:
        if not await store.lock_and_restart_count(tx, session):
            raise NotFound("session")
        found = existing(await store.get_summary(tx, session.id, summary_id), "summary")
        if found.status != "active":
            raise SummaryNotActive(f"The summary is {found.status}; only the active one can be taken back.")
        newest = existing(await newest_of(tx, session), "session")
        if newest.status in OPEN_STATUSES:
            raise TurnInProgress("The session runs a turn; take the summary back when it is done.", RETRY_AFTER_S)
        await store.undo_active(tx, found)
    return replace(found, status="undone")
