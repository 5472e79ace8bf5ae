"""`python -m bench.recall`: CPU of choosing evicted messages, in sessions of 50 to 10,000 turns, warm and cold; and of
choosing them by meaning too, with drawn vectors."""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import process_time
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import numpy as np
import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from uuid_utils.compat import uuid7

from app.db import embedded
from app.db.database import Database
from app.db.migrate import upgrade
from app.domain.types import Message, MessageId, SessionId, SessionRef, TenantId, TurnId
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.bm25 import Query
from app.engine.recall.index import packed_terms
from app.engine.recall.ranking import candidates
from app.engine.recall.vectors import packed_vectors
from app.providers.base import Embedded
from app.services.embeddings import Embeddings
from app.services.pasts import Pasts
from app.services.process_state import Chores, Cooldowns
from app.services.runtime import Runtime
from app.services.turn.recall import look_up
from app.services.turn.window_rows import WindowRows
from app.telemetry.metrics import Telemetry
from migrations.drift import with_database

LENGTHS = (50, 250, 500, 10_000)
ROUNDS = 60
VOCABULARY = 6_000
WORDS_OF_A_MESSAGE = 40
INPUT_BUDGET = 4_096
DIMENSIONS = 384
QUESTIONS = {
    "a rare name": "Where does Ottilie keep her bees?",
    "common words": "Which ba and be and bi came up with bo, bu, da, de, di and do?",
}
"""The words of the second stand in most messages: the filling draws them by Zipf's law."""


def _words() -> list[str]:
    syllables = [consonant + vowel for consonant in "bdfghklmnprstvz" for vowel in "aeiou"]
    made = syllables + [one + other for one in syllables for other in syllables]
    return (made + [word + "n" for word in made])[:VOCABULARY]


def _texts(count: int) -> list[str]:
    draw, words = random.Random(1), _words()  # noqa: S311 - texts to fill a session with
    shares = [1 / (rank + 1) for rank in range(len(words))]
    texts = [" ".join(draw.choices(words, shares, k=WORDS_OF_A_MESSAGE)) for _ in range(count)]
    texts[count // 2] = "My sister Ottilie keeps bees behind the lighthouse."
    return texts


class _DrawnVectors:
    """A model whose vectors mean nothing: comparing them takes what it takes with others."""

    vector_space = "drawn"

    async def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedded:
        del timeout_s
        return Embedded(np.random.default_rng(1).normal(0.3, 1, (len(texts), DIMENSIONS)).astype(np.float32), None)


def _embeddings(telemetry: Telemetry) -> Embeddings:
    chores, cooldowns = Chores(), Cooldowns(lambda: 0.0)
    return Embeddings(_DrawnVectors(), alias="m", wait_s=1.0, chores=chores, cooldowns=cooldowns, telemetry=telemetry)


async def _connect(dsn: str) -> Any:
    driver: Any = asyncpg  # its own types are incomplete
    return await driver.connect(dsn)


async def _fill(dsn: str, turns: int) -> SessionId:
    """A session of so many turns, all of them evicted."""
    session_id, texts = SessionId(uuid7()), _texts(2 * turns)
    connection = await _connect(dsn)
    now = datetime.now(UTC)
    ids = [uuid7() for _ in range(turns)]
    await connection.execute(
        "INSERT INTO sessions (id, tenant_id, model_alias, policy, metadata) VALUES ($1, 'bench', 'm', '{}', '{}')",
        session_id,
    )
    await connection.copy_records_to_table(
        "turns",
        columns=["id", "session_id", "seq", "status", "user_input", "model_alias", "request_sha256", "created_at"],
        records=[(ids[at], session_id, at + 1, "completed", "", "m", "", now) for at in range(turns)],
    )
    await connection.executemany(
        "INSERT INTO messages (id, session_id, turn_id, seq, role, content, token_estimate, token_encoding, terms)"
        " VALUES ($1, $2, $3, $4, $5, to_jsonb($6::text), $7, 'o200k_base', $8)",
        [
            (
                *(uuid7(), session_id, ids[at // 2], at + 1, ("user", "assistant")[at % 2], text),
                *(WORDS_OF_A_MESSAGE + 10, packed_terms("user", text)),
            )
            for at, text in enumerate(texts)
        ],
    )
    drawn = (await _DrawnVectors().embed(texts, timeout_s=0)).vectors
    model = _embeddings(Telemetry(())).model
    await connection.copy_records_to_table(
        "message_vectors",
        columns=["session_id", "message_seq", "model", "vector"],
        records=[(session_id, seq, model, vector) for seq, vector in enumerate(packed_vectors(drawn), 1)],
    )
    await connection.close()
    return session_id


async def _stores_nothing(_embedded: Embedded) -> None: ...


async def _timed(database: Database, session_id: SessionId, turns: int, asked: str) -> dict[str, float]:
    """Medians of this process's milliseconds, of the choice and of look-ups, by the columns of the table.

    Those of Postgres are not in them.
    """
    policy, telemetry, through_seq = ContextPolicy(), Telemetry(()), 2 * turns
    warm = Pasts(2**30, lambda: 0.0, telemetry)
    embeddings, session = _embeddings(telemetry), SessionRef(TenantId("bench"), session_id)
    await embeddings.prepare(session.tenant_id, asked, _stores_nothing)
    message = Message(MessageId(uuid7()), TurnId(uuid7()), through_seq + 1, "user", asked, 0, said_at=datetime.now(UTC))
    took: defaultdict[str, list[float]] = defaultdict(list)
    state = SimpleNamespace(tenant_id=session.tenant_id, id=session.id, past_version=0)
    rows = cast(WindowRows, SimpleNamespace(session=state, policy=policy, encoding="o200k_base"))
    for _ in range(ROUNDS):
        cold = Pasts(2**30, lambda: 0.0, telemetry)
        for name, pasts, by in (("kept", warm, None), ("kept, by meaning", warm, embeddings), ("not kept", cold, None)):
            rt = cast(Runtime, SimpleNamespace(pasts=pasts, embeddings=by))
            async with database.begin() as tx:
                started = process_time()
                await look_up(tx, rt, rows, message, through_seq, INPUT_BUDGET, pack=False)
                took[name].append((process_time() - started) * 1000)
        index, started = warm.index(session_id, 0), process_time()
        candidates(index, Query(asked, through_seq), INPUT_BUDGET, policy.recall.min_score_ratio)
        took["choose"].append((process_time() - started) * 1000)
    return {name: median(times) for name, times in took.items()}


async def _measure(dsn: str, lengths: Sequence[int]) -> Table:
    database = Database(dsn, pool_size=2)
    table = Table(
        title="Recall: the choice, and look-ups of sessions; ms of the service's CPU, medians",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    figures = ("choose", "kept", "kept, by meaning", "not kept")
    for header in ("messages", "question", *figures, "stored, bytes a message"):
        table.add_column(header, justify="left" if header == "question" else "right")
    for turns in lengths:
        session_id = await _fill(dsn, turns)
        connection = await _connect(dsn)
        await connection.execute("VACUUM ANALYZE")
        size = await connection.fetchval(
            "SELECT avg(pg_column_size(terms)) FROM messages WHERE session_id = $1", session_id
        )
        await connection.close()
        for name, asked in QUESTIONS.items():
            found = await _timed(database, session_id, turns, asked)
            table.add_row(f"{2 * turns:,}", name, *(f"{found[figure]:.2f}" for figure in figures), f"{size:.0f}")
    await database.aclose()
    return table


async def _run(server_dsn: str) -> None:
    connection = await _connect(server_dsn)
    await connection.execute("CREATE DATABASE bench_recall")
    await connection.close()
    dsn = with_database(server_dsn, "bench_recall")
    await upgrade(dsn)
    Console(width=100).print(await _measure(dsn, LENGTHS))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="plimsoll-recall-", ignore_cleanup_errors=True) as folder:
        server = embedded.start(Path(folder))
        try:
            uvloop.run(_run(server.dsn))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
