"""The yardstick: the plain turn as one hand-written FastAPI handler, the way an engineer writes it in an hour.

It does the reads and writes of the service's plain turn, one statement at a time, on tables of the same shape, and
makes the same model call with the ordinary httpx client. A streamed answer is passed on piece by piece, and a turn with
tools goes on with their outputs, from what its messages say. It has none of the service's decisions: no policy, no
pruning, no retries, no replay. It runs under uvicorn with uvloop and httptools and without an access log, as the
service does.

With `BENCH_REMEMBERS` it also recalls and summarizes (`bench/bare_memory.py`): no yardstick, but the least that the
service's default can cost anybody.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import tiktoken
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.datastructures import State
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
    tools: list[dict[str, Any]] = []
    stream: bool = False


class ToolOutputIn(BaseModel):
    tool_call_id: str
    content: str


class ToolOutputsIn(BaseModel):
    outputs: list[ToolOutputIn] = Field(min_length=1)


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
    tool_calls: list[dict[str, Any]]


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


@dataclass(slots=True)
class BegunCall:
    """One call of the model for a turn; `seq` is that of the message that answers."""

    session: Any
    turn_id: UUID
    number: int
    seq: int
    summary: Any
    window: list[Any]
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    regions: dict[str, int]
    began_at: datetime
    called_at: datetime

    def request(self) -> dict[str, Any]:
        """The body of the model's call."""
        body = {"model": "bench", "messages": self.messages, "max_completion_tokens": OUTPUT_RESERVE}
        return {**body, "tools": self.tools} if self.tools else body


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


@app.post("/v1/sessions/{session_id}/turns", status_code=201, response_model=TurnAnswer)
async def post_turn(session_id: UUID, body: TurnIn, request: Request) -> TurnAnswer | StreamingResponse:
    state = request.app.state
    begun = await begin_call(state, session_id, [{"role": "user", "content": body.content}], tools=body.tools)
    if body.stream:
        return StreamingResponse(pass_on_pieces(state, begun), media_type="text/event-stream")
    return await record_answer(state, begun, await completion_of(state, begun))


@app.post("/v1/sessions/{session_id}/turns/{turn_id}/tool-outputs", status_code=201)
async def post_tool_outputs(session_id: UUID, turn_id: UUID, body: ToolOutputsIn, request: Request) -> TurnAnswer:
    state = request.app.state
    outputs = [{"role": "tool", **output.model_dump()} for output in body.outputs]
    begun = await begin_call(state, session_id, outputs, turn_id)
    return await record_answer(state, begun, await completion_of(state, begun))


async def begin_call(
    state: State,
    session_id: UUID,
    incoming: list[dict[str, Any]],
    open_turn_id: UUID | None = None,
    tools: list[dict[str, Any]] | None = None,
) -> BegunCall:
    """Stores what came in, of a new turn or of the open one, and reads what is sent with it."""
    counts = [len(state.encoding.encode(message["content"], disallowed_special=())) for message in incoming]
    turn_id = open_turn_id or uuid7()
    began_at = datetime.now(UTC)

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
        running = await connection.fetchrow(
            "SELECT id, status, request FROM turns WHERE session_id = $1"
            " AND status IN ('pending', 'running', 'awaiting_tools')",
            session_id,
        )
        turn_seq, first_seq = session["last_turn_seq"], session["last_message_seq"] + 1
        number = 1
        recalled: list[Any] = []
        if open_turn_id is not None:
            calls = window[-1]["tool_calls"] if window else None
            if running is None or running["id"] != turn_id or running["status"] != "awaiting_tools":
                raise HTTPException(409, "the turn does not wait for tools")
            if [call["id"] for call in calls or ()] != [output["tool_call_id"] for output in incoming]:
                raise HTTPException(422, "these are not the outputs of the open calls")
            tools = running["request"]["tools"]
            number += sum(row["turn_id"] == turn_id and row["role"] == "assistant" for row in window)
            await connection.execute(
                "UPDATE turns SET status = 'running' WHERE session_id = $1 AND id = $2", session_id, turn_id
            )
        else:
            if running is not None:
                raise HTTPException(409, "the session already runs a turn")
            text = incoming[0]["content"]
            recalled = await state.memory.recalled(connection, session_id, summary, text)
            turn_seq += 1
            await connection.execute(
                "INSERT INTO turns (id, session_id, seq, status, user_input, model_alias, request_sha256, request,"
                " created_at) VALUES ($1, $2, $3, 'running', $4, $5, $6, $7, $8)",
                turn_id,
                session_id,
                turn_seq,
                text,
                session["model_alias"],
                hashlib.sha256(text.encode()).hexdigest(),
                {"tools": tools} if tools else None,
                began_at,
            )
        for seq, (message, tokens) in enumerate(zip(incoming, counts, strict=True), first_seq):
            await connection.execute(
                "INSERT INTO messages (id, session_id, turn_id, seq, role, content, tool_call_id, token_estimate,"
                " token_encoding, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
                uuid7(),
                session_id,
                turn_id,
                seq,
                message["role"],
                message["content"],
                message.get("tool_call_id"),
                tokens,
                ENCODING,
                began_at,
            )
        await connection.execute(
            "UPDATE sessions SET last_turn_seq = $2, last_message_seq = $3, updated_at = $4 WHERE id = $1",
            session_id,
            turn_seq,
            first_seq + len(incoming),
            began_at,
        )

    messages: list[dict[str, Any]] = [{"role": "system", "content": state.instructions}]
    if summary is not None:
        record = {name: summary[name] for name in ("summary_text", "key_facts", "open_questions", "decisions")}
        messages.append({"role": "system", "content": "Summary of the conversation so far:\n" + json.dumps(record)})
    messages.extend(map(as_sent, window))
    messages.extend({"role": row["role"], "content": row["content"]} for row in recalled)
    messages.extend(incoming)
    regions = {
        "summary": summary["token_estimate"] if summary else 0,
        "history": sum(row["token_estimate"] for row in (*window, *recalled)),
        "user": sum(counts),
        "framing": FRAMING_TOKENS * len(messages),
    }
    if sum(regions.values()) > INPUT_BUDGET:
        raise HTTPException(422, "over the input budget")
    return BegunCall(
        session,
        turn_id,
        number,
        first_seq + len(incoming),
        summary,
        window,
        messages,
        tools or [],
        regions,
        began_at,
        datetime.now(UTC),
    )


def as_sent(row: Any) -> dict[str, Any]:
    message = {"role": row["role"], "content": row["content"]}
    if row["tool_calls"] is not None:
        message["tool_calls"] = row["tool_calls"]
    elif row["tool_call_id"] is not None:
        message["tool_call_id"] = row["tool_call_id"]
    return message


async def completion_of(state: State, begun: BegunCall) -> dict[str, Any]:
    """The model's whole answer."""
    response = await state.client.post("chat/completions", json=begun.request())
    return response.raise_for_status().json()


async def pass_on_pieces(state: State, begun: BegunCall) -> AsyncGenerator[str]:
    """The pieces of the model's answer as events, and after the last one the stored turn."""
    pieces: list[str] = []
    finish_reason, usage = None, None
    body = {**begun.request(), "stream": True, "stream_options": {"include_usage": True}}
    async with state.client.stream("POST", "chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk["usage"]
            for choice in chunk["choices"]:
                finish_reason = choice["finish_reason"]
                if text := choice["delta"].get("content"):
                    pieces.append(text)
                    yield f"event: output.delta\ndata: {json.dumps({'text': text})}\n\n"
    choice = {"message": {"content": "".join(pieces)}, "finish_reason": finish_reason}
    answer = await record_answer(state, begun, {"choices": [choice], "usage": usage})
    yield f"event: turn.completed\ndata: {answer.model_dump_json()}\n\n"


async def record_answer(state: State, begun: BegunCall, completion: dict[str, Any]) -> TurnAnswer:
    """Stores the answer."""
    session_id, turn_id = begun.session["id"], begun.turn_id
    choice = completion["choices"][0]
    text, tool_calls = choice["message"]["content"], choice["message"].get("tool_calls")
    usage = completion["usage"]
    counted = text if tool_calls is None else json.dumps(tool_calls)
    reply_tokens = len(state.encoding.encode(counted, disallowed_special=()))
    completed_at = datetime.now(UTC)
    estimated_tokens = sum(begun.regions.values())
    trim_log: dict[str, Any] = {
        "max_context_tokens": INPUT_BUDGET,
        "estimated_tokens_before": estimated_tokens,
        "estimated_tokens_after": estimated_tokens,
        "actions": [],
    }

    async with state.pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "INSERT INTO messages (id, session_id, turn_id, seq, role, content, tool_calls, token_estimate,"
            " token_encoding, created_at) VALUES ($1, $2, $3, $4, 'assistant', $5, $6, $7, $8, $9)",
            uuid7(),
            session_id,
            turn_id,
            begun.seq,
            text,
            tool_calls,
            reply_tokens,
            ENCODING,
            completed_at,
        )
        turn = await connection.fetchrow(
            "UPDATE turns SET status = $3, assistant_output = $4, finish_reason = $5, prompt_tokens = $6,"
            " completion_tokens = $7, completed_at = $8 WHERE session_id = $1 AND id = $2 RETURNING *",
            session_id,
            turn_id,
            "awaiting_tools" if tool_calls else "completed",
            text,
            choice["finish_reason"],
            usage["prompt_tokens"],
            usage["completion_tokens"],
            None if tool_calls else completed_at,
        )
        await connection.execute(
            "INSERT INTO turn_context_audit (id, turn_id, session_id, round, model_alias, model_context_limit,"
            " context_limit_source, output_reserve, overhead_reserve, input_budget, estimator, calibration_ratio,"
            " estimated_input_tokens_before, estimated_input_tokens_after_summary,"
            " estimated_input_tokens_after_prune, estimated_wire_tokens,"
            " actual_prompt_tokens, summary_triggered, prune_triggered, overflow_rejected, regions, context_trim_log)"
            " VALUES ($1, $2, $3, $4, $5, $6, 'catalogue', $7, $8, $9, 'tiktoken', 1.0, $10, $10, $10, $10, $11,"
            " false, false, false, $12, $13)",
            uuid7(),
            turn_id,
            session_id,
            begun.number,
            begun.session["model_alias"],
            CONTEXT_LIMIT,
            OUTPUT_RESERVE,
            OVERHEAD_RESERVE,
            INPUT_BUDGET,
            estimated_tokens,
            usage["prompt_tokens"],
            begun.regions,
            trim_log,
        )
        steps: list[tuple[int, str, dict[str, Any], datetime, datetime]] = [
            (2 * begun.number - 1, "assemble", {"messages": len(begun.messages)}, begun.began_at, begun.called_at),
            (2 * begun.number, "model", {"prompt_tokens": usage["prompt_tokens"]}, begun.called_at, completed_at),
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

    state.memory.answered(state.pool, state.client, session_id, begun.summary, begun.window)
    return TurnAnswer(
        turn=TurnOut(**turn, tool_calls=tool_calls or []),
        context=ContextOut(
            model_alias=begun.session["model_alias"],
            model_context_limit=CONTEXT_LIMIT,
            input_budget=INPUT_BUDGET,
            output_reserve=OUTPUT_RESERVE,
            overhead_reserve=OVERHEAD_RESERVE,
            estimated_input_tokens=estimated_tokens,
            regions=begun.regions,
            context_trim_log=trim_log,
        ),
    )


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["BENCH_PORT"]), access_log=False, log_level="warning")
