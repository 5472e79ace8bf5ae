"""A turn by another library, as its documentation shows it, behind a FastAPI handler in a process of its own.

    python -m bench.peers.handler langgraph|agents

Runs in the environment of the group `peers` in `pyproject.toml`, which has nothing of the project but this file. The
mock provider's address, the database's and the port are in the environment.
"""

# The libraries' signatures are partly unknown to the type checker, and they are not installed where the project is
# checked.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

import uvicorn
from fastapi import FastAPI, Request
from pydantic import BaseModel

MODEL = "bench-model"
SUMMARY_FROM_TOKENS, KEPT_MESSAGES = 4_000, 20
"""As the middleware's documentation has it."""
CONNECTIONS = 10
"""As the bare handler has."""


class Peer(Protocol):
    """One library. A message is `{"role": …, "content": …}`."""

    async def fill(self, session_id: str, messages: Sequence[Any]) -> None: ...

    async def turn(self, session_id: str, text: str) -> tuple[str, int]:
        """The answer, and the prompt's tokens as the provider counted them."""
        ...


class LangGraph:
    """LangChain's agent with SummarizationMiddleware, its state kept by AsyncPostgresSaver."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    @classmethod
    async def make(cls, stack: AsyncExitStack) -> LangGraph:
        from langchain.agents import create_agent  # noqa: PLC0415 - of the two libraries only one is loaded
        from langchain.agents.middleware import SummarizationMiddleware  # noqa: PLC0415
        from langchain_openai import ChatOpenAI  # noqa: PLC0415
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver  # noqa: PLC0415
        from psycopg.rows import dict_row  # noqa: PLC0415
        from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415

        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        pool: Any = AsyncConnectionPool(
            os.environ["DATABASE_URL"], min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=options, open=False
        )
        saver = AsyncPostgresSaver(await stack.enter_async_context(pool))
        await saver.setup()
        model: Any = ChatOpenAI(model=MODEL, base_url=os.environ["BENCH_MODEL_URL"], api_key="none")  # pyright: ignore[reportArgumentType, reportCallIssue]
        summaries = SummarizationMiddleware(
            model=model, trigger=("tokens", SUMMARY_FROM_TOKENS), keep=("messages", KEPT_MESSAGES)
        )
        instructions = os.environ["BENCH_INSTRUCTIONS"]
        return cls(
            create_agent(model, tools=[], system_prompt=instructions, middleware=[summaries], checkpointer=saver)
        )

    async def fill(self, session_id: str, messages: Sequence[Any]) -> None:
        await self._agent.aupdate_state({"configurable": {"thread_id": session_id}}, {"messages": list(messages)})

    async def turn(self, session_id: str, text: str) -> tuple[str, int]:
        result = await self._agent.ainvoke(
            {"messages": [{"role": "user", "content": text}]}, {"configurable": {"thread_id": session_id}}
        )
        answer = result["messages"][-1]
        return answer.content, answer.usage_metadata["input_tokens"]


class Agents:
    """OpenAI's Agents SDK with a SQLAlchemySession, which sends all that was ever said."""

    def __init__(self, agent: Any, engine: Any) -> None:
        self._agent = agent
        self._engine = engine

    @classmethod
    async def make(cls, stack: AsyncExitStack) -> Agents:
        from agents import Agent, OpenAIChatCompletionsModel, set_tracing_disabled  # noqa: PLC0415
        from openai import AsyncOpenAI  # noqa: PLC0415
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

        set_tracing_disabled(True)
        url = os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+asyncpg://", 1)
        engine = create_async_engine(url, pool_size=CONNECTIONS, max_overflow=0)
        stack.push_async_callback(engine.dispose)
        client = AsyncOpenAI(base_url=os.environ["BENCH_MODEL_URL"], api_key="none")
        model = OpenAIChatCompletionsModel(MODEL, client)
        peer = cls(Agent(name="bench", instructions=os.environ["BENCH_INSTRUCTIONS"], model=model), engine)
        await peer._session("tables", create_tables=True).get_items(limit=1)
        return peer

    def _session(self, session_id: str, *, create_tables: bool = False) -> Any:
        from agents.extensions.memory import SQLAlchemySession  # noqa: PLC0415

        return SQLAlchemySession(session_id, engine=self._engine, create_tables=create_tables)

    async def fill(self, session_id: str, messages: Sequence[Any]) -> None:
        await self._session(session_id).add_items(list(messages))

    async def turn(self, session_id: str, text: str) -> tuple[str, int]:
        from agents import Runner  # noqa: PLC0415

        result = await Runner.run(self._agent, text, session=self._session(session_id))
        return str(result.final_output), result.context_wrapper.usage.input_tokens


class TurnIn(BaseModel):
    content: str


class PastIn(BaseModel):
    messages: list[dict[str, str]]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        app.state.peer = await {"langgraph": LangGraph, "agents": Agents}[sys.argv[1]].make(stack)
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/readyz")
async def ready() -> dict[str, str]:
    return {"status": "ready"}


@app.post("/v1/sessions/{session_id}/past", status_code=201)
async def post_past(session_id: str, body: PastIn, request: Request) -> None:
    await request.app.state.peer.fill(session_id, body.messages)


@app.post("/v1/sessions/{session_id}/turns", status_code=201)
async def post_turn(session_id: str, body: TurnIn, request: Request) -> dict[str, Any]:
    answer, prompt_tokens = await request.app.state.peer.turn(session_id, body.content)
    return {"answer": answer, "context": {"estimated_input_tokens": prompt_tokens, "context_trim_log": {}}}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["BENCH_PORT"]), access_log=False, log_level="warning")
