"""What recall and summaries cost at least: the bare handler's own, written by hand in the simplest way that does both.

Words of old messages are kept in the process as postings and ranked by BM25; the chosen messages are read in one
statement. After every eighth turn what is older than four turns goes to the summarizer, behind the answer, and the
summary is stored in one statement. Nothing is checked, bounded, cited, priced, logged, or safe beside a second process.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx
import numpy as np
from uuid_utils.compat import uuid7

PROTECTED_TURNS = 4
SUMMARY_TURNS = 8
RECALLED = 8
_WORD = re.compile(r"[a-z0-9]{3,}")
_ASK = "Summarize the conversation as JSON: summary_text, key_facts, open_questions, decisions, action_items."
_MESSAGES = "SELECT seq, content FROM messages WHERE session_id = $1 AND seq > $2 AND seq <= $3 ORDER BY seq"
_CHOSEN = "SELECT role, content, token_estimate FROM messages WHERE session_id = $1 AND seq = ANY($2) ORDER BY seq"
_STORE = """
    WITH before AS (
        UPDATE session_summaries SET status = 'superseded' WHERE session_id = $2 AND status = 'active'
        RETURNING from_message_id
    )
    INSERT INTO session_summaries (id, session_id, from_message_id, to_message_id, to_message_seq, summary_text,
        key_facts, open_questions, decisions, action_items, status, origin, model_alias, token_estimate, token_encoding)
    SELECT $1, $2, from_message_id, $3, $4, $5, $6, $7, $8, $9, 'active', 'model', 'bench', $10, 'o200k_base'
    FROM before
"""


@dataclass(slots=True)
class Postings:
    """Of a session's messages through `seq`: by word, the places of the messages that have it and how often."""

    seq: int = 0
    seqs: list[int] = field(default_factory=list[int])
    lengths: list[int] = field(default_factory=list[int])
    places: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict[str, list[int]](list))
    counts: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict[str, list[int]](list))

    def add(self, seq: int, text: str) -> None:
        words = Counter(_WORD.findall(text.lower()))
        for word, count in words.items():
            self.places[word].append(len(self.seqs))
            self.counts[word].append(count)
        self.seq = seq
        self.seqs.append(seq)
        self.lengths.append(words.total())

    def best(self, text: str) -> list[int]:
        """The numbers of the messages that match best."""
        words = [word for word in set(_WORD.findall(text.lower())) if word in self.places]
        if not words:
            return []
        seen = np.array([len(self.places[word]) for word in words])
        places = np.concatenate([self.places[word] for word in words])
        counts = np.concatenate([self.counts[word] for word in words])
        rare = np.log1p((len(self.seqs) - seen + 0.5) / (seen + 0.5)).repeat(seen)
        norm = 0.72 + 0.03 * np.array(self.lengths)[places]
        scores = np.bincount(places, rare * counts * 2.2 / (counts + norm), len(self.seqs))
        return [self.seqs[place] for place in np.argpartition(scores, -RECALLED)[-RECALLED:] if scores[place] > 0]


class NoMemory:
    """What is sent is the raw window and the summary that is there."""

    async def recalled(self, _connection: Any, _session_id: UUID, _summary: Any, _text: str) -> list[Any]:
        return []

    def answered(self, _pool: Any, _client: httpx.AsyncClient, _session_id: UUID, _summary: Any, _raw: Any) -> None:
        return None


class Memory(NoMemory):
    """Recall and summaries of all sessions of one process."""

    def __init__(self) -> None:
        self._postings: dict[UUID, Postings] = {}
        self._behind = set[asyncio.Task[None]]()

    async def recalled(self, connection: Any, session_id: UUID, summary: Any, text: str) -> list[Any]:
        """The messages that come back before the user's, in time order."""
        if summary is None:
            return []
        postings = self._postings.setdefault(session_id, Postings())
        if postings.seq < summary["to_message_seq"]:
            for row in await connection.fetch(_MESSAGES, session_id, postings.seq, summary["to_message_seq"]):
                postings.add(row["seq"], row["content"])
        seqs = postings.best(text)
        return await connection.fetch(_CHOSEN, session_id, seqs) if seqs else []

    def answered(self, pool: Any, client: httpx.AsyncClient, session_id: UUID, summary: Any, raw: Any) -> None:
        """Has the summary made that is due behind an answer to these raw messages and one more."""
        if summary is None or len(raw) < 2 * (PROTECTED_TURNS + SUMMARY_TURNS):
            return
        task = asyncio.create_task(_summarize(pool, client, session_id, summary, raw[: -2 * PROTECTED_TURNS]))
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)


async def _summarize(pool: Any, client: httpx.AsyncClient, session_id: UUID, summary: Any, folded: Any) -> None:
    """Makes the summary of these messages and of the summary before, and stores it."""
    shown = {"previous": summary["summary_text"], "messages": [[row["role"], row["content"]] for row in folded]}
    asked = [{"role": "system", "content": _ASK}, {"role": "user", "content": json.dumps(shown)}]
    schema = {"type": "json_schema", "json_schema": {"name": "summary", "schema": {"type": "object"}}}
    body = {"model": "bench", "messages": asked, "response_format": schema}
    completion = (await client.post("chat/completions", json=body)).raise_for_status().json()
    made = json.loads(completion["choices"][0]["message"]["content"])
    lists = [made[name] for name in ("key_facts", "open_questions", "decisions", "action_items")]
    last, tokens = folded[-1], completion["usage"]["completion_tokens"]
    async with pool.acquire() as connection:
        await connection.execute(
            _STORE, uuid7(), session_id, last["id"], last["seq"], made["summary_text"], *lists, tokens
        )
