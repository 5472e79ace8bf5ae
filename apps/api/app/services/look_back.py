"""Reading back what a session has stored: a message by its handle, page by page, or the messages that match some words.

The same for the model of a turn, for `GET …/look-back` and for the Model Context Protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from app.db.database import Transaction
from app.db.recall import settled_seq, turns_with
from app.db.sessions import get_prompt_view
from app.domain.errors import InvalidRequest, NotFound
from app.domain.types import Message, SessionId, TenantId
from app.engine.messages.tokens import Estimate
from app.engine.recall.pages import (
    TextPage,
    handle_of,
    matching_seqs,
    page_of_matches,
    page_of_message,
    seq_of,
)
from app.engine.window.look_back import LookBack, page_tokens
from app.services.pasts import extended_index, settled_index
from app.services.runtime import Runtime
from app.services.turn.gather import budget_of, encoding_of, session_policy

_INLINE_CHARS = 32_768
_READ_AT_ONCE = 32
"""Matching messages for each page."""
_LEAST_PAGE_TOKENS = 128
"""Of a route's page, also in a window that has room for nothing."""


@dataclass(frozen=True, slots=True)
class FoundPage:
    """A page that was read back."""

    page: int = field(metadata={"description": "Its number, from 1."})
    pages: int | None = field(metadata={"description": "How many pages the message has; null where matches are shown."})
    has_more: bool = field(metadata={"description": "Whether there is a page behind it."})
    content: str = field(metadata={"description": "The text, as the model of a turn gets it."})
    handles: Sequence[str] = field(metadata={"description": "The messages in it; `m12` is the message with `seq` 12."})
    estimated_tokens: int


async def look_back(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, *, query: str, handle: str | None, page: int | None
) -> FoundPage:
    """A page of a session's stored messages, as large as a turn of its own model would get it. Writes nothing.

    Raises `NotFound` of the session, or of the message that the handle names, and `InvalidRequest` where there is
    nothing to look for.
    """
    async with rt.database.autocommit() as tx:
        row = await get_prompt_view(tx, tenant_id, session_id)
    if row is None:
        raise NotFound("session")
    if not query and handle is None:
        raise InvalidRequest("Name a handle, or words to look for.", ("query", "q"))
    if handle is not None and seq_of(handle) is None:
        raise InvalidRequest("A handle is an m and a message's number, such as m12.", ("query", "handle"))
    policy, model = session_policy(rt, row["policy"]), rt.catalogue.model(row["model_alias"], tenant_id)
    estimate = rt.tokenizers.estimator(encoding_of(model, policy))
    tokens = max(_LEAST_PAGE_TOKENS, page_tokens(budget_of(model, policy).input_budget))
    lookup = LookBack(query, handle, page)
    found = await read_page(rt, session_id, lookup, row["last_message_seq"], tokens, estimate)
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


async def read_page(
    rt: Runtime,
    session_id: SessionId,
    lookup: LookBack,
    last_seq: int,
    tokens: int,
    estimate: Estimate,
    sent: Collection[int] = (),
) -> TextPage | None:
    """A page of at most so many tokens, of the messages through a number; without those `sent` where words are looked
    for. None where there is no such message, or nothing that matches.

    At most three statements; no connection is held while texts are counted. The caller has checked whose session it is.
    """
    number = lookup.page or 1
    async with rt.database.autocommit() as tx:
        if lookup.handle is not None:
            seq = seq_of(lookup.handle)
            found = await _messages(tx, session_id, [] if seq is None else [seq])
        else:
            seqs = await _matching(rt, tx, session_id, lookup.query, last_seq, sent)
            found = await _messages(tx, session_id, seqs[: _READ_AT_ONCE * number])
    if not found:
        return None

    def made() -> TextPage | None:
        if lookup.handle is not None:
            return page_of_message(found[0], lookup.query, lookup.page, tokens, estimate)
        return page_of_matches(found, lookup.query, number, tokens, estimate)

    chars = sum(len(str(message.content)) for message in found)
    return made() if chars <= _INLINE_CHARS else await asyncio.to_thread(made)


async def _matching(
    rt: Runtime, tx: Transaction, session_id: SessionId, words: str, last_seq: int, sent: Collection[int]
) -> list[int]:
    settled = await settled_seq(tx, session_id, last_seq)
    index, _ = await settled_index(rt.pasts, tx, session_id, settled)
    index, _ = await extended_index(tx, session_id, index, last_seq)
    return matching_seqs(index, words, last_seq, sent)


async def _messages(tx: Transaction, session_id: SessionId, seqs: Sequence[int]) -> list[Message]:
    """Those of the numbers that are there, in the same order."""
    turns = await turns_with(tx, session_id, seqs, "") if seqs else ()
    found = {message.seq: message for turn in turns for message in turn.messages}
    return [found[seq] for seq in seqs if seq in found]
