"""The vectors by which a turn recalls: the question's, asked for before the turn is claimed, and those of messages that
have left the window, made behind turns (docs/decisions/0020-embeddings.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.db.records import add_usages
from app.db.vectors import messages_without_vectors, save_vectors
from app.domain.content import content_text, named
from app.domain.errors import NotFound
from app.domain.types import Content, JsonObject, SessionId, TenantId, Usage
from app.engine.policy.policy import Recall
from app.engine.recall.ranking import MOST_RECALLED_TOKENS, most_recalled_tokens
from app.engine.recall.vectors import packed_vectors
from app.services.embeddings import Embeddings
from app.services.runtime import Runtime
from app.services.turn.provider_call import used_row

EMBEDDED_A_TURN: Final = 500
"""Messages of one session that are given vectors behind one turn."""
_BATCH: Final = 16
"""Texts of a call: of the longest vectors an answer is parsed in some milliseconds."""


async def prepare_question(rt: Runtime, tenant_id: TenantId, session_id: SessionId, content: Content) -> None:
    """Has the vector of a message made where it calls for recall and this process has recalled in the session before.

    Holds no connection; waits within the deployment's bound.
    """
    if rt.embeddings is None or not rt.embeddings.recalls_in(tenant_id, session_id):
        return
    text = content_text(content)
    if most_recalled_tokens(text, Recall(max_share=1.0), MOST_RECALLED_TOKENS):
        await rt.embeddings.prepare(tenant_id, session_id, text)


def start_vectors(rt: Runtime, session_id: SessionId, through_seq: int) -> None:
    """Starts to make the vectors that a session's messages through a number lack, behind everything else."""
    embeddings = rt.embeddings
    if embeddings is None or embeddings.is_resting:
        return
    is_due = embeddings.through(session_id) < through_seq or session_id in embeddings.question_tokens
    if is_due and session_id not in embeddings.busy:
        embeddings.busy.add(session_id)
        work = make_vectors(rt, embeddings, session_id, through_seq)
        rt.chores.start(work, f"the vectors of session {session_id}")


async def make_vectors(rt: Runtime, embeddings: Embeddings, session_id: SessionId, through_seq: int) -> None:
    """Gives a session's oldest messages without vectors some, a batch at a time. What a crash or a failing model leaves
    out is found missing behind the next turn. Raises a `ProviderError`."""
    try:
        async with embeddings.at_once:
            await _save(rt, embeddings, session_id, [], [], embeddings.question_tokens.pop(session_id, 0))
            for _ in range(0, EMBEDDED_A_TURN, _BATCH):
                if embeddings.through(session_id) >= through_seq:
                    return
                await _make_batch(rt, embeddings, session_id, through_seq)
    except NotFound:
        return  # erased meanwhile
    finally:
        embeddings.busy.discard(session_id)


async def _make_batch(rt: Runtime, embeddings: Embeddings, session_id: SessionId, through_seq: int) -> None:
    async with rt.database.autocommit() as tx:
        rows = await messages_without_vectors(tx, session_id, through_seq, embeddings.model, _BATCH)
    texts = [named(row["name"], content_text(row["content"])).strip() for row in rows]
    worded = [text for text in texts if text]
    tokens: int | None = None
    vectors: Iterator[bytes] = iter(())
    if worded:
        embedded = await embeddings.embed(worded)
        vectors, tokens = iter(packed_vectors(embedded.vectors)), embedded.prompt_tokens
    packed = [next(vectors) if text else b"" for text in texts]
    await _save(rt, embeddings, session_id, [row["seq"] for row in rows], packed, tokens or 0)
    if len(rows) < _BATCH:
        embeddings.went_through(session_id, through_seq)


async def _save(
    rt: Runtime, embeddings: Embeddings, session_id: SessionId, seqs: list[int], packed: list[bytes], tokens: int
) -> None:
    used: list[JsonObject] = []
    if tokens:
        used = [used_row(rt, rt.catalogue.model(embeddings.alias), "embedding", Usage(tokens, 0))]
    if not (seqs or used):
        return
    async with rt.database.begin() as tx:
        if seqs:
            await save_vectors(tx, session_id, embeddings.model, seqs, packed)
        if used:
            await add_usages(tx, session_id, None, used)
