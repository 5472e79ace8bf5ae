"""Summaries outside of a turn: listed, made on request, edited, and undone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeAlias

from app.db import summaries as store
from app.db.messages import has_messages
from app.db.turns import newest_of
from app.domain.errors import InvalidRequest, NotFound, NothingToSummarize, SummaryNotActive, TurnInProgress, existing
from app.domain.frozen import replace
from app.domain.stored import StoredSummary
from app.domain.types import OPEN_STATUSES, SessionRef, SummaryId, SummaryItem
from app.engine.messages.turns import no_turn
from app.engine.window.triggers import fold_on_request
from app.services.paging import BY_ID, Page, PageRequest, bounds_of, page_of
from app.services.policies import session_policy
from app.services.runtime import Runtime, retried
from app.services.sessions import check_session
from app.services.turn.gather import budget_of, session_window, snapshot_of
from app.services.turn.planning import planned
from app.services.turn.summarize import IN_PROGRESS, STALE, new_summary, summarize
from app.services.turn.summarizer_call import SummaryJob
from app.services.turn.window_rows import encoding_of

SummaryChanges: TypeAlias = Mapping[str, str | tuple[SummaryItem, ...]]


async def list_summaries(rt: Runtime, session: SessionRef, wanted: PageRequest) -> Page[StoredSummary]:
    """The session's summaries of any status. Raises `NotFound`, `InvalidRequest`."""
    scope, bounds = bounds_of(BY_ID, f"summaries:{session.id}", wanted, newest_by_default=True)
    async with rt.database.autocommit() as tx:
        await check_session(tx, session)
        return page_of(BY_ID, scope, await store.page_of_summaries(tx, session.id, bounds))


async def summarize_now(
    rt: Runtime, session: SessionRef, focus: str | None = None, *, own: Mapping[str, Any] | None = None
) -> StoredSummary:
    """Summarizes what is older than the protected turns, whatever the triggers say, and returns the new summary.
    `focus` is what it keeps in most detail, in place of the policy's focus; `own` are other overrides of the policy.

    Raises `NotFound`, `NothingToSummarize`, `LimitExceeded`, and `TurnInProgress` if a turn is open, if another
    summary is being made or became active meanwhile, or if a turn of the past was run again or rejected.
    """
    rows = await session_window(rt, session)
    if any(turn.status in OPEN_STATUSES for turn in rows.turns):
        raise TurnInProgress("The session runs a turn; summarize when it is done.")
    if own:
        policy = session_policy(rt, rows.session.policy, own)
        rows = replace(rows, policy=policy, estimate=rt.tokenizers.estimator(encoding_of(rows.model, policy)))
    if focus is not None:
        rows = replace(rows, policy=replace(rows.policy, focus=focus))
    snapshot = await snapshot_of(rt, rows, no_turn(rows.turn_seq))
    fold = await planned(fold_on_request, snapshot, rows.estimate)
    if fold is None:
        raise NothingToSummarize(
            "Beyond the turns that the policy protects there is nothing that a summary would make smaller."
        )
    attempt = await summarize(rt, SummaryJob(rows, fold, snapshot, "requested"))
    if attempt.summary is None and attempt.failure in (STALE, IN_PROGRESS):
        await rt.database.run(check_session, session)  # an erased session is `NotFound`, not in progress
        raise TurnInProgress("Another summary is being made, or was made meanwhile, or the past changed.")
    if attempt.summary is None:
        raise NothingToSummarize("No summary came out smaller than what it would replace.")
    made = await rt.database.run(store.get_summary, session.id, attempt.summary.id)
    return existing(made, "session")  # erased meanwhile


async def edit_summary(
    rt: Runtime, session: SessionRef, summary_id: SummaryId, changes: SummaryChanges
) -> StoredSummary:
    """Changes parts of the active summary: stores the result as a new summary of the same messages, which becomes the
    active one and is returned. An undo takes it back.

    Raises `NotFound`, `SummaryNotActive`, `TurnInProgress` while a turn is open, and `InvalidRequest` for no change,
    for messages that are not the session's, and for more tokens than the policy lets a summary have.
    """
    lists = [items for items in changes.values() if not isinstance(items, str)]
    cited = {message_id for items in lists for item in items for message_id in item.message_ids}
    rows = await session_window(rt, session)
    async with rt.database.autocommit() as tx:
        edited = existing(await store.get_summary(tx, session.id, summary_id), "summary")
        is_cited = not cited or await has_messages(tx, session.id, cited)
    active = rows.summary
    if active is None or active.id != summary_id:
        raise SummaryNotActive(f"The summary is {edited.status}; only the active one can be edited.")
    if any(turn.status in OPEN_STATUSES for turn in rows.turns):
        raise TurnInProgress("The session runs a turn; edit the summary when it is done.")
    if not is_cited:
        raise InvalidRequest("An item cites a message that the session does not have.")
    version = replace(active, id=SummaryId(rt.new_id()), body=replace(active.body, **changes), origin="person")
    if version.body == active.body:
        raise InvalidRequest("Nothing of the summary would be changed.")
    new = await asyncio.to_thread(new_summary, session.id, version, active, edited.model_alias, rows.estimate)
    most_tokens = rows.policy.most_summary_tokens(budget_of(rows.model, rows.policy).input_budget)
    if new.token_estimate > most_tokens:
        raise InvalidRequest(f"It has {new.token_estimate} tokens; the policy lets a summary have {most_tokens}.")
    async with rt.database.autocommit() as tx:
        if not await store.store_attempt(tx, rows.session, new, store.AttemptNote(), None):
            raise SummaryNotActive("Another summary became active meanwhile, or the past changed.")
        return existing(await store.get_summary(tx, session.id, new.id), "session")  # erased meanwhile


@retried
async def undo_summary(rt: Runtime, session: SessionRef, summary_id: SummaryId | None) -> StoredSummary:
    """Undoes the active summary and returns it with its new status. Without `summary_id`, it is whichever is active.

    The summary that it had replaced becomes active again, the other messages that it summarized are sent verbatim
    again, and the turn count restarts, so the next turn decides anew. Prompts that contained it can still be rebuilt.
    Raises `NotFound`, `SummaryNotActive`, and `TurnInProgress` while a turn is open.
    """
    async with rt.database.begin() as tx:
        if not await store.lock_and_restart_count(tx, session):
            raise NotFound("session")
        found = existing(await store.get_summary(tx, session.id, summary_id), "summary")
        if found.status != "active":
            raise SummaryNotActive(f"The summary is {found.status}; only the active one can be taken back.")
        newest = existing(await newest_of(tx, session), "session")
        if newest.status in OPEN_STATUSES:
            raise TurnInProgress("The session runs a turn; take the summary back when it is done.")
        await store.undo_active(tx, found)
    return replace(found, status="undone")
