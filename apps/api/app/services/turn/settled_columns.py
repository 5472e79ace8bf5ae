"""Reads a session's settled past as columns, in slices, so that the event loop is not blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import accumulate, pairwise, takewhile

from app.db.database import Transaction
from app.db.messages import UNCOUNTED, window_turns
from app.db.settled import settled_texts
from app.domain.stored import StoredTexts
from app.domain.types import SessionId, Turn
from app.engine.window.columns import Columns
from app.services.pasts import extended_columns

_SLICE_TEXTS = 2048


async def settled_columns(
    tx: Transaction,
    session_id: SessionId,
    after_seq: int,
    through_seq: int,
    encoding: str,
    as_sent: Callable[[Turn], Turn],
    take_bytes: Callable[[int], None],
    slice_messages: int = _SLICE_TEXTS,
) -> Columns:
    """The turns of a range of messages as columns, up to the first turn with a message that has no count. The range
    holds whole turns, all of them settled. `as_sent` counts and marks a turn as it is sent to the model.

    Turns that are nothing but text never become `Message` objects, except between turns that do. One statement reads
    `slice_messages` messages, or more if a single turn has more. `take_bytes` is called as by `window_turns`.
    """
    columns, size = Columns(after_seq), slice_messages
    while after_seq < through_seq:
        texts = await settled_texts(tx, session_id, after_seq, through_seq, encoding, size)
        last_seq = through_seq
        if len(texts.seqs) == size:
            if len(texts.turn_seqs) < 2:
                size *= 2
                continue
            texts = texts.part(0, len(texts.turn_seqs) - 1)  # the last one may continue in the next slice
            last_seq = texts.seqs[-1]
        take_bytes(sum([len(text) for text in texts.contents if text]))
        first, end = _more_than_text(texts)
        await _add_texts(columns, texts.part(0, first))
        if first < end:
            begins = texts.part(0, first).seqs[-1] if first else after_seq
            ends = texts.part(first, end).seqs[-1]
            turns = await window_turns(tx, session_id, begins, ends, encoding, step_failed=False, take_bytes=take_bytes)
            counted = list(takewhile(lambda turn: all(each.tokens != UNCOUNTED for each in turn.messages), turns))
            columns = await extended_columns(columns, counted, as_sent)
            if len(counted) < len(turns):
                break
            await _add_texts(columns, texts.part(end, len(texts.turn_seqs)))
        after_seq = last_seq
    return columns


async def _add_texts(columns: Columns, texts: StoredTexts) -> None:
    """Adds turns to columns that no other task uses yet. Those of a single long turn are added on a thread."""
    if len(texts.seqs) > 2 * _SLICE_TEXTS:
        await asyncio.to_thread(columns.extend_texts, texts)
    else:
        columns.extend_texts(texts)


def _more_than_text(texts: StoredTexts) -> tuple[int, int]:
    """The index of the first turn that has more than text or was not completed, and the index after the last one."""
    ends = [*accumulate(texts.turn_messages, initial=0)]
    places = [
        at
        for at, (first, end) in enumerate(pairwise(ends))
        if not texts.turn_completed[at] or "-" in texts.roles[first:end]
    ]
    return (places[0], places[-1] + 1) if places else (len(texts.turn_seqs), len(texts.turn_seqs))
