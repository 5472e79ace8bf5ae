"""Searches stored messages for words, in a session's window and before it, and reads stored messages back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby
from time import monotonic
from uuid import UUID

from app.db.database import record_of
from app.db.driver import Record
from app.db.recall import found_messages, messages_with_words, sessions_with_messages
from app.domain.content import content_text
from app.domain.errors import InvalidRequest, NotFound
from app.domain.figures import Found, FoundInSession, FoundMessage, FoundPage
from app.domain.recalled import reasons_of
from app.domain.types import Content, JsonObject, SessionId, SessionRef, TenantId
from app.engine.recall.bm25 import MOST_HITS, Query, search
from app.engine.recall.dates import day_of
from app.engine.recall.index import Index
from app.engine.recall.look_back_pages import handle_of, seq_of
from app.engine.recall.terms import excerpt, query_terms, terms_of
from app.engine.window.look_back import LookBack, Search, page_tokens
from app.services.paging import BY_PLACE, LAST_SEQ, Page, cursor_at, position_of
from app.services.policies import session_policy
from app.services.runtime import Runtime
from app.services.sessions import LOOKED_THROUGH, session_state
from app.services.turn.gather import budget_of
from app.services.turn.recall import prepare_search, ranked, read_page, searchable
from app.services.turn.window_rows import encoding_of

_LEAST_PAGE_TOKENS = 128
"""Smallest page of the look-back route, even for a window without an input budget."""
_EXCERPT_CHARS = 600
MESSAGES_LOOKED_THROUGH = 20_000
_MESSAGES_AT_ONCE = 1_000
"""About as many messages are searched by one statement: with 4 MB in each, these take 20 s of a processor."""
_LONGEST_SEARCH_S = 2.0
MOST_OF_A_SESSION = 3
MOST_QUERY_WORDS = 10


async def search_session(rt: Runtime, session: SessionRef, words: str, limit: int) -> Found:
    """The session's messages that match the words, best first, by the index that recall uses. Writes nothing except the
    usage for the vector of the words. Raises `NotFound`."""
    state = await rt.database.run(session_state, session)
    await prepare_search(rt, session, words)
    async with rt.database.begin(snapshot=True) as tx:
        last_seq = state.last_message_seq
        index, unpacked, query = await searchable(tx, rt, session, words, last_seq, day_of(rt.now()))
        scores, looked_for = await ranked(index, query, partial(_best, index, query, limit))
        terms = tuple(term for word in looked_for for term in terms_of(word))

        def shown(row: Record) -> FoundMessage:
            score, matched = scores[row["seq"]]
            reasons = reasons_of(matched)
            return record_of(FoundMessage, row, score=round(score, 4), **_excerpt(row["content"], terms), **reasons)

        items: list[FoundMessage] = []
        left = list(scores)
        while left and len(items) < limit:  # page by page: messages may be large, of which only excerpts are kept
            page = await found_messages(tx, session.id, left, limit - len(items))
            items += await asyncio.to_thread(list, map(shown, page.rows))
            left = left[left.index(page.rows[-1]["seq"]) + 1 :] if page.has_more else []
    return Found(items, None, last_seq - unpacked, unpacked)


def _best(index: Index, query: Query, limit: int) -> tuple[dict[int, tuple[float, tuple[str, ...]]], tuple[str, ...]]:
    """The matching messages by `seq`, best first, each with its score and why it matches; and the words looked for."""
    # Unlike recall, a search also finds words that most messages have; these matches rank last.
    hits = search(index, query, most_hits=max(MOST_HITS, 2 * limit), most_seen_share=1.0)
    matched = hits.matched(hits.positions.tolist())
    best = zip(hits.positions.tolist(), index.seqs[hits.positions].tolist(), hits.scores.tolist(), strict=True)
    scores = {seq: (score, matched[at]) for at, seq, score in best if matched[at]}
    return scores, tuple(word for word, _ in hits.words)


async def search_messages(
    rt: Runtime,
    tenant_id: TenantId,
    words: str,
    limit: int,
    cursor: str | None,
    *,
    longest_s: float = _LONGEST_SEARCH_S,
) -> Page[FoundInSession]:
    """Messages of the tenant's sessions with all of the words, newest first; at most `MOST_OF_A_SESSION` of a session.
    Words match in any case, and as parts of longer words.

    One call searches no further session after `MESSAGES_LOOKED_THROUGH` messages or `longest_s` seconds: a page may be
    short or empty and have a next one. Of a session with more messages only the newest are searched; `search_session`
    finds the others.
    """
    scope = f"search:{tenant_id}"
    before = position_of(BY_PLACE, scope, cursor) or BY_PLACE.last
    wanted, terms = words.replace("\0", " ").split()[:MOST_QUERY_WORDS], query_terms(words)
    if not wanted:
        return Page([], None)
    ends_at = monotonic() + longest_s
    sessions = await rt.database.run(sessions_with_messages, tenant_id, first=before[0], limit=LOOKED_THROUGH + 1)

    def shown(row: Record) -> FoundInSession:
        return record_of(FoundInSession, row, **_excerpt(row["content"], terms))

    found: list[FoundInSession] = []
    looked_through, place = 0, None
    for after_seqs in _parts(sessions[:LOOKED_THROUGH]):
        page = await rt.database.run(
            messages_with_words, after_seqs, wanted, before, limit - len(found), most_of_each=MOST_OF_A_SESSION
        )
        found += await asyncio.to_thread(list, map(shown, page.rows))
        looked_through += len(after_seqs)
        if page.has_more:
            place = BY_PLACE.of(found[-1])
        if page.has_more or len(found) == limit or monotonic() > ends_at:
            break
    if place is None and len(sessions) > looked_through:
        place = (UUID(int=sessions[looked_through - 1][0].int - 1), LAST_SEQ)  # none of these is searched again
    return Page(found, cursor_at(BY_PLACE, scope, place) if place else None)


def _parts(sessions: Sequence[tuple[SessionId, int]]) -> Iterator[dict[SessionId, int]]:
    """The sessions in runs of about `_MESSAGES_AT_ONCE` messages, as far as one call searches; each with the number
    after which its messages are searched."""
    before = accumulate([min(last_seq, MESSAGES_LOOKED_THROUGH) for _, last_seq in sessions], initial=0)
    for part, of_part in groupby(zip(before, sessions, strict=False), lambda each: each[0] // _MESSAGES_AT_ONCE):
        if part * _MESSAGES_AT_ONCE < MESSAGES_LOOKED_THROUGH:
            yield {session_id: max(0, last_seq - MESSAGES_LOOKED_THROUGH) for _, (session_id, last_seq) in of_part}


def _excerpt(content: Content, terms: tuple[str, ...]) -> JsonObject:
    text = content_text(content)
    part = excerpt(text, terms, _EXCERPT_CHARS)
    return {"excerpt": part, "complete": part == text}


async def look_back(rt: Runtime, session: SessionRef, *, query: str, handle: str | None, page: int | None) -> FoundPage:
    """A page of a session's stored messages, in the size that a turn of the session's model would get. Writes nothing
    except the usage for the vector of the words. Raises `NotFound` for the session or the message of the handle, and
    `InvalidRequest` for a malformed handle, or without a handle and words."""
    state = await rt.database.run(session_state, session)
    if not query and handle is None:
        raise InvalidRequest("Name a handle, or words to look for.", ("query", "q"))
    if handle is not None and seq_of(handle) is None:
        raise InvalidRequest("A handle is an m and a message's number, such as m12.", ("query", "handle"))
    policy, model = session_policy(rt, state.policy), rt.catalogue.model(state.model_alias, session.tenant_id)
    estimate = rt.tokenizers.estimator(encoding_of(model, policy))
    tokens = max(_LEAST_PAGE_TOKENS, page_tokens(budget_of(model, policy).input_budget))
    lookup, number = LookBack(query, handle, page), page or 1
    wanted = Search(number, number, said_day=day_of(rt.now()))
    found = await read_page(rt, session, lookup, wanted, state.last_message_seq, tokens, estimate)
    if found is None and handle is not None:
        raise NotFound("message")
    if found is None:
        return FoundPage(page or 1, None, has_more=False, content="", handles=(), estimated_tokens=0)
    return FoundPage(
        found.number,
        found.pages,
        has_more=found.more or found.number < (found.pages or 0),
        content=found.text,
        handles=[handle_of(seq) for seq in found.seqs],
        estimated_tokens=await asyncio.to_thread(estimate, found.text),
    )
