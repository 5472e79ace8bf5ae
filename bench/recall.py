"""`python -m bench.recall`: what looking up evicted messages costs, in sessions of 10 to 10,000 turns."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import asyncpg
import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from uuid_utils.compat import uuid7

from app.db import embedded
from app.db.database import Database
from app.db.migrate import upgrade
from app.db.recall import add_postings
from app.domain.evicted import Evicted
from app.domain.types import SessionId
from app.engine.policy.policy import Recall
from app.engine.recall.ranking import AlreadyInPrompt, candidates, choose
from app.engine.recall.terms import query_terms, weighed_terms
from app.services.turn.recall import look_up
from migrations.drift import with_database

LENGTHS = (10, 1_000, 10_000)
ROUNDS = 60
VOCABULARY = 6_000
WORDS_OF_A_MESSAGE = 40
ROOM_TOKENS = 2_000
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


async def _connect(dsn: str) -> Any:
    driver: Any = asyncpg  # its own types are incomplete
    return await driver.connect(dsn)


async def _fill(dsn: str, database: Database, turns: int) -> SessionId:
    """A session of so many turns, all of them evicted and indexed."""
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
        "INSERT INTO messages (id, session_id, turn_id, seq, role, content, token_estimate, token_encoding)"
        " VALUES ($1, $2, $3, $4, $5, to_jsonb($6::text), $7, 'o200k_base')",
        [
            (uuid7(), session_id, ids[at // 2], at + 1, ("user", "assistant")[at % 2], text, WORDS_OF_A_MESSAGE + 10)
            for at, text in enumerate(texts)
        ],
    )
    await connection.close()
    for first in range(0, len(texts), 500):
        postings = {at + 1: weighed_terms(texts[at]) for at in range(first, min(first + 500, len(texts)))}
        async with database.begin() as tx:
            await add_postings(tx, session_id, postings, after_seq=first, last_seq=first + len(postings))
    return session_id


async def _timed(database: Database, session_id: SessionId, turns: int, asked: str) -> tuple[list[float], list[float]]:
    """Milliseconds of the statement and of the choice among what it found."""
    statements: list[float] = []
    choices: list[float] = []
    for _ in range(ROUNDS):
        started = perf_counter()
        async with database.begin() as tx:
            found = await look_up(
                tx, session_id, asked, last_seq=2 * turns, encoding="o200k_base", most_tokens=ROOM_TOKENS
            )
        between = perf_counter()
        choose(
            candidates(found or Evicted(query_terms(asked))),
            min_score_ratio=Recall().min_score_ratio,
            said=AlreadyInPrompt((), asked),
            fits=lambda tokens, _messages: tokens <= ROOM_TOKENS,
        )
        statements.append((between - started) * 1000)
        choices.append((perf_counter() - between) * 1000)
    return statements, choices


async def _fold_ms(database: Database, session_id: SessionId, turns: int) -> list[float]:
    """Milliseconds to index the sixteen messages of a summary of eight turns."""
    took: list[float] = []
    for at in range(10):
        texts, after_seq = _texts(16), 2 * turns + 16 * at
        started = perf_counter()
        postings = {after_seq + 1 + place: weighed_terms(text) for place, text in enumerate(texts)}
        async with database.begin() as tx:
            await add_postings(tx, session_id, postings, after_seq=after_seq, last_seq=after_seq + 16)
        took.append((perf_counter() - started) * 1000)
    return took


async def _measure(dsn: str, lengths: Sequence[int]) -> Table:
    database = Database(dsn, pool_size=2)
    table = Table(title="Recall, ms, medians", box=SIMPLE_HEAD, pad_edge=False)
    for header in ("turns", "question", "look up", "choose", "index a fold", "index, bytes a message"):
        table.add_column(header, justify="left" if header == "question" else "right")
    before = 0
    for turns in lengths:
        session_id = await _fill(dsn, database, turns)
        connection = await _connect(dsn)
        await connection.execute("VACUUM ANALYZE")
        size = await connection.fetchval("SELECT pg_total_relation_size('message_terms')")
        await connection.close()
        for name, asked in QUESTIONS.items():
            statements, choices = await _timed(database, session_id, turns, asked)
            fold = await _fold_ms(database, session_id, turns) if name == "a rare name" else []
            table.add_row(
                f"{turns:,}",
                name,
                f"{median(statements):.2f}",
                f"{median(choices):.2f}",
                f"{median(fold):.2f}" if fold else "",
                f"{(size - before) // (2 * turns):,}" if fold else "",
            )
        before = size
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
