"""The yardstick: the plain turn as one hand-written FastAPI handler, the way an engineer writes it in an hour.

It does the reads and writes of the service's plain turn, one statement at a time, on tables of the same shape, and
makes the same model call with the ordinary httpx client. It has none of the service's decisions: no policy, no pruning,
no retries, no replay. It runs under uvicorn with uvloop and httptools and without an access log, as the service does.

With `BENCH_REMEMBERS` it also recalls and summarizes (`bench/bare_memory.py`): no yardstick, but the least that the
service's default can cost anybody.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import tiktoken
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field
from uuid_utils.compat import uuid7

from bench.bare_memory import Memory, NoMemory

MODEL_ALIAS = "bench"
ENCODING = "o200k_base"
CONTEXT_LIMIT = 1_000_000
OUTPUT_RESERVE = 2048
OVERHEAD_RESERVE = 6400
INPUT_BUDGET = CONTEXT_LIMIT - OUTPUT_RESERVE - OVERHEAD_RESERVE
FRAMING_TOKENS = 4


class TurnIn(BaseModel):
    content: str = Field(min_length=1)


class TurnOut(BaseModel):
    id: UUID
    session_id: UUID
    seq: int
    status: str
    user_input: str
    assistant_output: str | None
    model_alias: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    created_at: datetime
    completed_at: datetime | None


class ContextOut(BaseModel):
    model_alias: str
    model_context_limit: int
    input_budget: int
    output_reserve: int
    overhead_reserve: int
    estimated_input_tokens: int
    regions: dict[str, int]
    context_trim_log: dict[str, Any]
    summary_triggered: bool = False


class TurnAnswer(BaseModel):
    turn: TurnOut
    context: ContextOut


async def prepare_connection(connection: Any) -> None:
    await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    app.state.encoding = tiktoken.get_encoding(ENCODING)
    app.state.instructions = os.environ["BENCH_INSTRUCTIONS"]
    app.state.memory = Memory() if os.environ["BENCH_REMEMBERS"] else NoMemory()
    async with (
        asyncpg.create_pool(  # pyright: ignore[reportUnknownMemberType] asyncpg is only half typed
            os.environ["DATABASE_URL"], min_size=10, max_size=10, init=prepare_connection
        ) as pool,
        httpx.AsyncClient(base_url=os.environ["BENCH_MODEL_URL"], timeout=120) as client,
    ):
        app.state.pool = pool
        app.state.client = client
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/readyz")
async def ready() -> dict[str, str]:
    return {"status": "ready"}


@app.post("/v1/sessions/{session_id}/turns", status_code=201)
async def post_turn(session_id: UUID, body: TurnIn, request: Request) -> TurnAnswer:
    state = request.app.state
    user_tokens = len(state.encoding.encode(body.content, disallowed_special=()))
    turn_id = uuid7()
    created_at = datetime.now(UTC)

    async with state.pool.acquire() as connection, connection.transaction():
        session = await connection.fetchrow(
            "SELECT id, model_alias, last_turn_seq, last_message_seq FROM sessions WHERE id = $1 FOR UPDATE", session_id
        )
        if session is None:
            raise HTTPException(404, "no such session")
        summary = await connection.fetchrow(
            "SELECT id, to_message_seq, summary_text, key_facts, open_questions, decisions, action_items,"
            " token_estimate FROM session_summaries WHERE session_id = $1 AND status = 'active'",
            session_id,
        )
        window = await connection.fetch(
            "SELECT id, turn_id, seq, role, content, tool_calls, tool_call_id, token_estimate FROM messages"
            " WHERE session_id = $1 AND seq > $2 ORDER BY seq",
            session_id,
            summary["to_message_seq"] if summary else 0,
        )
        running = await connection.fetchval(
            "SELECT id FROM turns WHERE session_id = $1 AND status IN ('pending', 'running', 'awaiting_tools')",
            session_id,
        )
        if running is not None:
            raise HTTPException(409, "the session already runs a turn")
        recalled: list[Any] = await state.memory.recalled(connection, session_id, summary, body.content)
        turn_seq = session["last_turn_seq"] + 1
        user_seq = session["last_message_seq"] + 1
        await connection.execute(
            "INSERT INTO turns (id, session_id, seq, status, user_input, model_alias, request_sha256, created_at)"
            " VALUES ($1, $2, $3, 'running', $4, $5, $6, $7)",
            turn_id,
            session_id,
            turn_seq,
            body.content,
            session["model_alias"],
            hashlib.sha256(body.content.encode()).hexdigest(),
            created_at,
        )
        await connection.execute(
            "INSERT INTO messages (id, session_id, turn_id, seq, role, content, token_estimate, token_encoding,"
            " created_at) VALUES ($1, $2, $3, $4, 'user', $5, $6, $7, $8)",
            uuid7(),
            session_id,
            turn_id,
            user_seq,
            body.content,
            user_tokens,
            ENCODING,
            created_at,
        )
        await connection.execute(
            "UPDATE sessions SET last_turn_seq = $2, last_message_seq = $3, updated_at = $4 WHERE id = $1",
            session_id,
            turn_seq,
            user_seq + 1,
            created_at,
        )

    messages: list[dict[str, Any]] = [{"role": "system", "content": state.instructions}]
    if summary is not None:
        record = {name: summary[name] for name in ("summary_text", "key_facts", "open_questions", "decisions")}
        messages.append({"role": "system", "content": "Summary of the conversation so far:\n" + json.dumps(record)})
    messages.extend({"role": row["role"], "content": row["content"]} for row in (*window, *recalled))
    messages.append({"role": "user", "content": body.content})
    regions = {
        "summary": summary["token_estimate"] if summary else 0,
        "history": sum(row["token_estimate"] for row in (*window, *recalled)),
        "user": user_tokens,
        "framing": FRAMING_TOKENS * len(messages),
    }
    estimated_tokens = sum(regions.values())
    if estimated_tokens > INPUT_BUDGET:
        raise HTTPException(422, "over the input budget")

    called_at = datetime.now(UTC)
    response = await state.client.post(
        "chat/completions", json={"model": "bench", "messages": messages, "max_completion_tokens": OUTPUT_RESERVE}
    )
    response.raise_for_status()
    completion = response.json()
    choice = completion["choices"][0]
    text = choice["message"]["content"]
    usage = completion["usage"]
    reply_tokens = len(state.encoding.encode(text, disallowed_special=()))
    completed_at = datetime.now(UTC)
    trim_log: dict[str, Any] = {
        "max_context_tokens": INPUT_BUDGET,
        "estimated_tokens_before": estimated_tokens,
        "estimated_tokens_after": estimated_tokens,
        "actions": [],
    }

    async with state.pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "INSERT INTO messages (id, session_id, turn_id, seq, role, content, token_estimate, token_encoding,"
            " created_at) VALUES ($1, $2, $3, $4, 'assistant', $5, $6, $7, $8)",
            uuid7(),
            session_id,
            turn_id,
            user_seq + 1,
            text,
            reply_tokens,
            ENCODING,
            completed_at,
        )
        turn = await connection.fetchrow(
            "UPDATE turns SET status = 'completed', assistant_output = $3, finish_reason = $4, prompt_tokens = $5,"
            " completion_tokens = $6, completed_at = $7 WHERE session_id = $1 AND id = $2 RETURNING *",
            session_id,
            turn_id,
            text,
            choice["finish_reason"],
            usage["prompt_tokens"],
            usage["completion_tokens"],
            completed_at,
        )
        await connection.execute(
            "INSERT INTO turn_context_audit (id, turn_id, session_id, model_alias, model_context_limit,"
            " context_limit_source, output_reserve, overhead_reserve, input_budget, estimator, calibration_ratio,"
            " estimated_input_tokens_before, estimated_input_tokens_after_summary,"
            " estimated_input_tokens_after_prune, estimated_wire_tokens,"
            " actual_prompt_tokens, summary_triggered, prune_triggered, overflow_rejected, regions, context_trim_log)"
            " VALUES ($1, $2, $3, $4, $5, 'catalogue', $6, $7, $8, 'tiktoken', 1.0, $9, $9, $9, $9, $10,"
            " false, false, false, $11, $12)",
            uuid7(),
            turn_id,
            session_id,
            session["model_alias"],
            CONTEXT_LIMIT,
            OUTPUT_RESERVE,
            OVERHEAD_RESERVE,
            INPUT_BUDGET,
            estimated_tokens,
            usage["prompt_tokens"],
            regions,
            trim_log,
        )
        steps: list[tuple[int, str, dict[str, Any], datetime, datetime]] = [
            (1, "assemble", {"messages": len(messages)}, created_at, called_at),
            (2, "model", {"prompt_tokens": usage["prompt_tokens"]}, called_at, completed_at),
        ]
        for seq, kind, detail, started_at, finished_at in steps:
            await connection.execute(
                "INSERT INTO turn_steps (id, turn_id, session_id, seq, kind, status, detail, started_at, finished_at)"
                " VALUES ($1, $2, $3, $4, $5, 'success', $6, $7, $8)",
                uuid7(),
                turn_id,
                session_id,
                seq,
                kind,
                detail,
                started_at,
                finished_at,
            )

    state.memory.answered(state.pool, state.client, session_id, summary, window)
    return TurnAnswer(
        turn=TurnOut(**{name: turn[name] for name in TurnOut.model_fields}),
        context=ContextOut(
            model_alias=session["model_alias"],
            model_context_limit=CONTEXT_LIMIT,
            input_budget=INPUT_BUDGET,
            output_reserve=OUTPUT_RESERVE,
            overhead_reserve=OVERHEAD_RESERVE,
            estimated_input_tokens=estimated_tokens,
            regions=regions,
            context_trim_log=trim_log,
        ),
    )


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["BENCH_PORT"]), access_log=False, log_level="warning")
