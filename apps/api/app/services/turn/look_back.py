"""Look-backs: reads a session's message by its handle, page by page, or messages that match some words; and answers the
look-back calls of a turn's model within the turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from app.db.database import Transaction
from app.db.recall import turns_with
from app.domain.types import Completion, JsonObject, Message, SessionId, SessionRef, ToolCall
from app.engine.messages.tokens import Estimate
from app.engine.recall.dates import day_said
from app.engine.recall.look_back_pages import (
    TextPage,
    handle_of,
    matching_seqs,
    messages_to_read,
    page_of_matches,
    page_of_message,
    seq_of,
)
from app.engine.window.look_back import (
    AT_THE_CAP,
    MOST_CALLS,
    NOT_THERE,
    NOT_UNDERSTOOD,
    NOTHING_FOUND,
    LookBack,
    Search,
    is_own,
    look_back_messages,
    next_page_tokens,
    next_search,
    read_call,
)
from app.engine.window.recalled import looked_back_tokens, room_for_result, seqs_beside_result
from app.services.runtime import Runtime
from app.services.turn.provider_call import with_own_ids
from app.services.turn.recall import prepare_search, ranked, searchable
from app.services.turn.record import Record
from app.services.turn.types import TurnPlan

_INLINE_CHARS = 32_768


def wants_look_back(record: Record, completion: Completion) -> bool:
    """Whether the model called the look-back tool, which its prompt or an earlier one of the turn offered."""
    sent = record.sent
    offered = bool(record.turn.looked_back) or (sent is not None and sent.decided.window.offers_look_back)
    return offered and any(map(is_own, completion.tool_calls))


async def look_back(record: Record, completion: Completion) -> tuple[Completion | None, bool]:
    """Answers the model's look-back calls. A call beyond the turn's limits gets a result that says so.

    Returns an answer or None, and whether the model may look back once more. There is an answer if the model also
    called tools of the client, which must be run first, or if look-backs were not offered any more; it has the client's
    calls only. With None the turn is in its next round. No database connection is held except while reading.
    """
    plan, turn = record.sent, record.turn
    claim = turn.claim
    if plan is None:
        raise RuntimeError("a reply to a prompt that was never sent")
    others = tuple(call for call in completion.tool_calls if not is_own(call))
    finish = completion.finish_reason if others or completion.finish_reason != "tool_calls" else "stop"
    answer = replace(completion, tool_calls=others, finish_reason=finish)
    if not plan.decided.window.offers_look_back:
        return answer, False  # no more look-backs: a result has said so
    started_at = record.rt.now()
    results = [message.content for message in turn.looked_back if message.role == "tool"]
    calls, before = len(results), sum(plan.rows.estimate(text) for text in results if isinstance(text, str))
    used_tokens = before
    # Of many calls at once, the first one beyond the limit gets the result that says so; the rest are left out.
    own = tuple(call for call in completion.tool_calls if is_own(call))[: MOST_CALLS + 1]
    answered: list[tuple[ToolCall, LookBack | None, str]] = []
    rows: list[JsonObject] = []
    for call in with_own_ids(own, f"{claim.turn_id.hex[-8:]}_back", claim.round):
        lookup = read_call(call)
        page, text = await _result(record, plan, lookup, calls, used_tokens, before)
        if lookup is not None and page is not None:
            record.read += ((lookup, page),)
        tokens = plan.rows.estimate(text)
        calls, used_tokens = calls + 1, used_tokens + tokens
        answered.append((call, lookup, text))
        found = [handle_of(seq) for seq in page.seqs] if page else []
        rows.append({**(lookup.arguments() if lookup else {}), "messages": found, "tokens": tokens})
    again = all(text != AT_THE_CAP for _, _, text in answered)
    new = look_back_messages(claim.turn_id, claim.assistant_seq - 1, completion, answered)
    record.turn = replace(turn, looked_back=(*turn.looked_back, *new))
    record.note_look_back(plan, new, started_at, {"calls": rows, "may_look_back_again": again})
    if others:
        return answer, again
    record.goes_on(completion)
    return None, again


async def _result(
    record: Record, plan: TurnPlan, lookup: LookBack | None, calls: int, used_tokens: int, before: int
) -> tuple[TextPage | None, str]:
    """The page that a call reads, and the text of its result.

    `calls` is the number of the turn's look-back calls so far, `used_tokens` are those of their results, and `before`
    is the number of these that are already in the prompt.
    """
    window = plan.decided.window
    if lookup is None:
        return None, NOT_UNDERSTOOD if calls < MOST_CALLS else AT_THE_CAP
    of_round = used_tokens - before + plan.rows.estimate(lookup.query)
    size = next_page_tokens(
        lookup,
        window.budget.input_budget,
        calls,
        used_tokens,
        room_for_result(window, of_round),
        looked_back_tokens(window),
    )
    if size is None:
        return None, AT_THE_CAP
    claim = record.turn.claim
    last_seq, said_day = claim.assistant_seq - 1, day_said(window.snapshot.current.messages[0])
    wanted = next_search(lookup, record.read, seqs_beside_result(window, of_round + size), said_day)
    page = await read_page(record.rt, claim.session, lookup, wanted, last_seq, size, plan.rows.estimate)
    nothing = NOT_THERE if lookup.handle else NOTHING_FOUND
    return page, page.text if page else nothing


async def read_page(
    rt: Runtime, session: SessionRef, lookup: LookBack, wanted: Search, last_seq: int, tokens: int, estimate: Estimate
) -> TextPage | None:
    """A page of at most `tokens` tokens: of the message with the handle, or of the messages through `last_seq` that
    match. None if there is no such message.

    Runs at most three statements, and two for vectors. No database connection is held while texts are counted or a
    vector is made. The caller has checked that the session belongs to the tenant.
    """
    if lookup.handle is None:
        await prepare_search(rt, session, lookup.query)
    async with rt.database.autocommit() as tx:
        if lookup.handle is not None:
            seq = seq_of(lookup.handle)
            found = await _messages(tx, session.id, [] if seq is None else [seq])
        else:
            index, _, meaning = await searchable(tx, rt, session, lookup.query, last_seq)
            match = partial(matching_seqs, index, lookup.query, last_seq, wanted.without, wanted.said_day, meaning)
            seqs = await ranked(index, lookup.query, last_seq, meaning, match)
            found = await _messages(tx, session.id, seqs[: messages_to_read(wanted.number, tokens)])
    if not found:
        return None

    def made() -> TextPage | None:
        if lookup.handle is not None:
            return page_of_message(found[0], lookup.query, lookup.page, tokens, estimate)
        return page_of_matches(found, lookup.query, wanted.number, tokens, estimate, wanted.shown_number)

    chars = sum(len(str(message.content)) for message in found)
    return made() if chars <= _INLINE_CHARS else await asyncio.to_thread(made)


async def _messages(tx: Transaction, session_id: SessionId, seqs: Sequence[int]) -> list[Message]:
    """The messages with these numbers, in the same order, without those that do not exist."""
    turns = await turns_with(tx, session_id, seqs, "") if seqs else ()
    found = {message.seq: message for turn in turns for message in turn.messages}
    return [found[seq] for seq in seqs if seq in found]
