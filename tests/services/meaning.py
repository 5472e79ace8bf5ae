"""Sessions whose older messages have left the window, and an endpoint that makes vectors of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.domain.types import SessionId
from app.providers.base import Embedded
from app.services.sessions import session_usage
from tests.providers.server import Answer, ScriptedServer, Seen
from tests.services.service import Service, model, models_toml

FACT = "My sister Ottilie keeps bees behind the lighthouse."
SAID = (FACT, "The invoice of the harbour crane is number 4711.", "We painted the boathouse green last August.")
QUESTION = "Which insects did Otto own?"
"""Has no word of the fact nor a related one, and its meaning."""
TOPICS = (("bees", "insects"), ("crane", "bill"), ("boathouse", "shed"), ("weather", "clouds"))
REPLY = "The clouds drift on and nobody minds. " * 6
SMALL_TALK = "Small talk about the weather today."
POLICY = {"mandatory_summary_turn": 3, "protected_turns": 1}


def vector_of(text: str) -> list[float]:
    return [1.0 * any(word in text for word in words) for words in TOPICS] + [0.1]


def vectors(request: Seen) -> Answer:
    texts = request.json["input"]
    data = [{"index": at, "embedding": vector_of(text)} for at, text in enumerate(texts)]
    return Answer({"data": data, "usage": {"prompt_tokens": 3 * len(texts)}})


def answers(
    vectors: Callable[[Seen], Answer] = vectors, reply: Callable[[Seen], Answer] | str = REPLY
) -> Callable[[Seen], Answer]:
    """One server for both: chat completions, and vectors."""
    chats = model(reply)
    return lambda request: vectors(request) if request.path.endswith("/embeddings") else chats(request)


def models_with(server: ScriptedServer, *aliases: str) -> str:
    own = "".join(
        f'[models.{alias}]\nprovider = "openai"\nmodel = "{alias}-1"\nbase_url = "{server.base_url}"\n'
        for alias in aliases or ("vectors",)
    )
    return models_toml(server, window=8192, extra=own)


def texts_for(server: ScriptedServer) -> list[str]:
    """The texts of which vectors were asked for."""
    return [text for seen in server.seen if seen.path.endswith("/embeddings") for text in seen.json["input"]]


def answered(*said: str) -> list[dict[str, str]]:
    pairs = [(("user", each), ("assistant", REPLY)) for each in said]
    return [{"role": role, "content": text} for pair in pairs for role, text in pair]


async def talked(at: Service) -> SessionId:
    """A session whose facts have left the window, with the vectors that there can be of them."""
    messages = answered(*SAID)
    session = await at.imported({"messages": messages, "policy": POLICY})
    await small_talk(at, session.id)
    return session.id


async def small_talk(at: Service, session_id: SessionId) -> None:
    await at.turn(session_id, SMALL_TALK)
    await at.rt.chores.settle()


async def recalled_by(at: Service, session_id: SessionId, question: str = QUESTION) -> dict[str, Any]:
    """What came back for a question, by its text."""
    outcome = await at.turn(session_id, question)
    await at.rt.chores.settle()
    stored = {str(row["id"]): row["content"] for row in await at.rows("SELECT id, content FROM messages")}
    return {stored[row["message_id"]]: row for row in outcome.context["context_trim_log"].get("recalled", ())}


async def stores_nothing(_embedded: Embedded) -> None: ...


async def used_tokens(at: Service, session_id: SessionId) -> int | None:
    """Of a session's vectors, as its usage has them."""
    usage = {(each.purpose, each.model_alias): each for each in await session_usage(at.rt, session_id)}
    return usage["embedding", "vectors"].prompt_tokens


async def vector_rows(at: Service, session_id: SessionId) -> dict[int, tuple[str, int]]:
    """By message, the model of its vector and how many dimensions it has."""
    rows = await at.rows(
        "SELECT message_seq, model, length(vector) AS size FROM message_vectors"
        " WHERE session_id = CAST(:session_id AS uuid)",
        session_id=session_id,
    )
    return {row["message_seq"]: (row["model"], row["size"]) for row in rows}
