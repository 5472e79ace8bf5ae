"""LangChain's chat models over the wires of both vendors, and an agent of LangGraph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent
from talk import SYSTEM, Client, Job, talk


def chat_openai(job: Job, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model="main", base_url=job.v1, api_key=job.key, default_headers=job.headers, **options)


def conversation(job: Job, model: Any) -> Client:
    tool = StructuredTool.from_function(job.look_up, name="look_up")
    bound = model.bind_tools([tool])
    history: list[Any] = [SystemMessage(SYSTEM)]

    def took(reply: Any) -> bool:
        """Adds a reply and the outputs of its calls; whether there are any."""
        history.append(reply)
        history.extend(tool.invoke(call) for call in reply.tool_calls)
        return bool(reply.tool_calls)

    def ask(text: str) -> str:
        history.append(HumanMessage(text))
        while took(reply := bound.invoke(history)):
            pass
        return reply.text

    def stream(text: str) -> Iterator[str]:
        history.append(HumanMessage(text))
        more = True
        while more:
            whole: Any = None
            for chunk in bound.stream(history):
                whole = chunk if whole is None else whole + chunk
                yield chunk.text
            more = took(whole)

    return Client(ask, stream)


def chat(job: Job) -> Client:
    return conversation(job, chat_openai(job))


def responses(job: Job) -> Client:
    return conversation(job, chat_openai(job, use_responses_api=True, output_version="responses/v1"))


def anthropic(job: Job) -> Client:
    return conversation(
        job, ChatAnthropic(model_name="main", base_url=job.address, api_key=job.key, default_headers=job.headers)
    )


def langgraph(job: Job) -> Client:
    tool = StructuredTool.from_function(job.look_up, name="look_up")
    agent = create_react_agent(chat_openai(job), [tool], prompt=SYSTEM, checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "one"}}

    def ask(text: str) -> str:
        return agent.invoke({"messages": [HumanMessage(text)]}, thread)["messages"][-1].text

    def stream(text: str) -> Iterator[str]:
        for chunk, _ in agent.stream({"messages": [HumanMessage(text)]}, thread, stream_mode="messages"):
            if chunk.type == "AIMessageChunk":
                yield chunk.text

    return Client(ask, stream)


talk(
    {
        ("chat", "langchain-openai"): chat,
        ("responses", "langchain-openai"): responses,
        ("anthropic", "langchain-anthropic"): anthropic,
        ("langgraph", "langgraph"): langgraph,
    }
)
