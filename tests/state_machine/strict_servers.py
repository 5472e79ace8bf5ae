"""Servers as strict as the providers: each checks every request by the rules that docs/providers.md has, refuses a
breach in the provider's words, and otherwise answers at random, sometimes badly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from app.domain.types import ToolCall
from tests.providers.server import Answer, Seen, Step, Stream
from tests.providers.wires import ANTHROPIC, OPENAI, RESPONSES, ModelReply, Wire, event

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_WORDS = ("ledger", "bank", "port", "rain", "Oslo", "invoice", "deploy", "budget", "8443", "--force", "never", "always")
_SUMMARY: dict[str, Any] = {
    "summary_text": "Earlier.",
    "key_facts": [],
    "open_questions": [],
    "decisions": [],
    "action_items": [],
}
Body = dict[str, Any]


class Refused(Exception):
    """A breach of a provider's rules, in its words."""


def need(holds: object, sentence: str) -> None:
    if not holds:
        raise Refused(sentence)


def listed(value: Any) -> list[Body]:
    """A list of objects; empty for null and for text."""
    return cast("list[Body]", value) if isinstance(value, list) else []


def words(random: Random, count: int) -> str:
    return " ".join(random.choice(_WORDS) for _ in range(count))


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in listed(content))


def _chat(body: Body) -> list[Body]:
    """What every server of chat completions checks."""
    waiting: set[str] = set()
    messages: list[Body] = body["messages"]
    for at, message in enumerate(messages):
        role, calls = message["role"], listed(message.get("tool_calls"))
        if role == "tool":
            need(message["tool_call_id"] in waiting, f"messages[{at}] answers no call before it.")
            need(isinstance(message["content"], str), f"messages[{at}]: a tool's result is text.")
            waiting.discard(message["tool_call_id"])
            continue
        need(not waiting, f"messages[{at}] follows calls without outputs.")
        need(message.get("content") is not None or calls, f"messages[{at}] has no content.")
        waiting = {call["id"] for call in calls}
        need(len(waiting) == len(calls), f"messages[{at}] has two calls with one id.")
        need(all(_NAME.fullmatch(call["function"]["name"]) for call in calls), f"messages[{at}]: a call's name.")
        need("tool_calls" not in message or calls, f"messages[{at}]: tool_calls is empty.")
        need(message["content"] != [], f"messages[{at}]: content is empty.")
    need(not waiting, "The last calls have no outputs.")
    names = [tool["function"]["name"] for tool in body.get("tools", ())]
    need(len(names) == len(set(names)) and ("tools" not in body or names), "tools")
    need(names or not {"tool_choice", "parallel_tool_calls"} & body.keys(), "tool_choice needs tools.")
    need(any(message["role"] == "user" for message in messages), "There is no message of the user.")
    return messages


def _openai(body: Body) -> None:
    for at, message in enumerate(_chat(body)):
        long = any(len(call["id"]) > 40 for call in listed(message.get("tool_calls")))
        need(not long, f"Invalid 'messages[{at}].tool_calls[0].id': string too long. Expected at most 40 characters.")


def _mistral(body: Body) -> None:
    before = None
    for message in _chat(body):
        calls, role = listed(message.get("tool_calls")), message["role"]
        for call in calls:
            is_own = re.fullmatch(r"[a-zA-Z0-9]{9}", call["id"])
            need(is_own, "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.")
        answered = role != "assistant" or calls or _text(message["content"]).strip()
        need(answered, "Assistant message must have either content or tool_calls, but not none.")
        need(before != "tool" or role in {"tool", "assistant"}, f"Unexpected role '{role}' after role 'tool'")
        need("reasoning_content" not in message, "reasoning_content: Extra inputs are not permitted")
        before = role
    need(before in {"user", "tool"}, "Expected last role User or Tool.")


def _gemini(body: Body) -> None:
    messages = _chat(body)
    newest = max(at for at, message in enumerate(messages) if message["role"] == "user")
    for at, message in enumerate(messages[newest + 1 :], newest + 1):
        if calls := message.get("tool_calls"):
            signed = calls[0].get("extra_content", {}).get("google", {}).get("thought_signature")
            need(signed, f"Function call in the {at}. content block is missing a `thought_signature`.")


def _deepseek(body: Body) -> None:
    has_called = False
    for message in _chat(body):
        has_called = message["role"] != "user" and (has_called or "tool_calls" in message)
        given = message["role"] != "assistant" or not has_called or message.get("reasoning_content")
        need(given, "The `reasoning_content` in the thinking mode must be passed back to the API.")


def _template(body: Body) -> None:
    messages = _chat(body)
    need(all(each["role"] != "system" for each in messages[1:]), "System message must be at the beginning.")
    for message in messages:
        for call in listed(message.get("tool_calls")):
            try:
                json.loads(call["function"]["arguments"])
            except ValueError as error:
                raise Refused(str(error)) from error


def _messages(body: Body) -> None:
    need(json.dumps(body).count('"cache_control"') <= 4, "A maximum of 4 blocks with cache_control may be provided.")
    for block in body.get("system", ()):
        need(block["text"].strip(), "system: text content blocks must be non-empty")
    thinks, budget = body.get("thinking", {}).get("type") == "enabled", body.get("thinking", {}).get("budget_tokens", 0)
    need(not thinks or 1024 <= budget < body["max_tokens"], "max_tokens must be greater than budget_tokens")
    waiting, seen, role, has_tools = set[str](), set[str](), "assistant", False
    messages = listed(body["messages"])
    newest = {block["type"] for block in listed(messages[-1]["content"])}
    for at, message in enumerate(messages):
        content = listed(message["content"])
        need(content and message["role"] != role, f"messages.{at}: roles must alternate")
        role = message["role"]
        kinds = [block["type"] for block in content]
        results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        need(set(results) == waiting and len(results) == len(waiting), f"messages.{at}: tool_use without tool_result")
        need("tool_result" not in kinds[len(results) :], f"messages.{at}: tool_result after other content")
        calls = [block["id"] for block in content if block["type"] == "tool_use"]
        need(len({*calls} - seen) == len(calls), f"messages.{at}: tool_use ids must be unique")
        need(all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call) for call in calls), f"messages.{at}: tool_use.id")
        blank = any(block["type"] == "text" and not block["text"].strip() for block in content)
        need(not blank, f"messages.{at}: text content blocks must be non-empty")
        need("thinking" not in kinds or (thinks and kinds[0] == "thinking"), f"messages.{at}: thinking block")
        in_loop = calls and at == len(messages) - 2 and newest == {"tool_result"}
        need(not (in_loop and thinks) or kinds[0] == "thinking", f"messages.{at}: Expected `thinking`")
        waiting, has_tools = set(calls), has_tools or bool(calls)
        seen |= waiting
    need(not waiting and role == "user", "The conversation must end with a user message.")
    tools = "Requests which have `tool_use` or `tool_result` blocks in messages must define tools."
    need(body.get("tools") or not (has_tools or "tool_choice" in body), tools)


def _responses(body: Body) -> None:
    need(body["store"] is False, "store")
    calls, outputs = set[str](), set[str]()
    items: list[Body] = body["input"]
    for at, item in enumerate(items):
        kind = item.get("type", "message")
        need("id" not in item, f"Item with id {item.get('id')!r} not found.")
        if kind == "function_call":
            need(len(item["call_id"]) <= 64, f"Invalid 'input[{at}].call_id': string too long.")
            need(item["call_id"] not in calls - outputs and _NAME.fullmatch(item["name"]), f"input[{at}]")
            calls.add(item["call_id"])
            outputs.discard(item["call_id"])
        elif kind == "function_call_output":
            need(item["call_id"] in calls - outputs, f"No tool call found for input[{at}].")
            outputs.add(item["call_id"])
        elif kind == "reasoning":
            after = items[at + 1] if at + 1 < len(items) else {}
            follows = after.get("type") in {"function_call", "reasoning"} or after.get("role") == "assistant"
            need(item.get("encrypted_content") and follows, f"input[{at}]: reasoning without its following item")
    need(calls == outputs, "No tool output found for a function call.")
    need(body.get("tools") or "tool_choice" not in body, "tool_choice needs tools.")


@dataclass
class StrictServer:
    """The model of an alias. `learned` are the sentences of refusals of which a process learns what the server is; each
    may be met once, or again if the call failed otherwise. `toml` are lines of the alias in the catalogue."""

    alias: str
    check: Callable[[Body], object]
    wire: Wire = OPENAI
    toml: str = ""
    learned: tuple[str, ...] = ()
    thinks: bool = False
    refusals: list[tuple[str, Body]] = field(default_factory=list[tuple[str, Body]])
    answered: int = 0
    random: Random = field(default_factory=Random)

    def play(self, seen: Seen) -> Step:
        body: Body = seen.json
        if self.random.random() < 0.02:
            return Answer({"error": {"message": "Later."}}, status=500)
        try:
            self.check(body)
        except Refused as breach:
            self.refusals.append((str(breach), body))
            return Answer({"error": {"message": str(breach), "type": "invalid_request_error"}}, status=400)
        self.answered += 1
        reply = self._reply(body)
        if self.alias == "gemini":
            return self._signed(reply, stream="stream" in body)
        if "stream" not in body:
            return self.wire.whole(reply)
        if self.random.random() < 0.05:
            return Stream((*self.wire.begin(), *self.wire.fragments(reply)[:1]), ending="cut")
        return self.wire.stream(reply)

    def unexpected(self) -> list[tuple[str, Body]]:
        """The refusals of which nothing was to be learned, or that was learned before."""
        left, found = [*self.learned] * 3, list[tuple[str, Body]]()
        for sentence, body in self.refusals:
            known = next((each for each in left if each in sentence), None)
            if known is None:
                found.append((sentence, body))
            else:
                left.remove(known)
        return found

    def _reply(self, body: Body) -> ModelReply:
        if "context_messages" in json.dumps(body.get("messages") or body["input"]):
            return ModelReply(json.dumps(_SUMMARY))
        random = self.random
        calls = self._calls(body) if body.get("tools") and random.random() < 0.5 else []
        text = words(random, random.choice((3, 10, 60))) if not calls or random.random() < 0.4 else ""
        blank = random.random() < 0.04
        stop = self.wire.length if random.random() < 0.03 and not calls else ""
        reasoning = words(random, 6) if self.thinks and random.random() < 0.85 else ""
        return ModelReply(" \n" if blank and not calls else text, reasoning, tuple(calls), stop)

    def _calls(self, body: Body) -> list[ToolCall]:
        random = self.random
        names = [str((tool.get("function") or tool)["name"]) for tool in body["tools"]]
        made: list[ToolCall] = []
        for _ in range(random.choice((1, 1, 2, 3))):
            name = random.choice(names) if random.random() < 0.95 else random.choice(("unknown", "no name!"))
            arguments = json.dumps({"query": words(random, 2)})
            if self.wire is OPENAI and random.random() < 0.08:
                arguments = random.choice(('{"a":', "", "[1]"))
            made.append(ToolCall(self._call_id(), name, arguments))
        if len(made) > 1 and random.random() < 0.1:
            made[1] = ToolCall(made[0].id, made[1].name, made[1].arguments)
        return made

    def _call_id(self) -> str:
        random, number = self.random, f"{self.random.getrandbits(32):08x}"
        if self.alias == "mistral":
            return number + "m"
        if random.random() < 0.06:
            return random.choice(("call_0", f"call:{number}", "call_" + number * 7, "call__thought__" + number * 20))
        return f"call_{number}"

    def _signed(self, reply: ModelReply, *, stream: bool) -> Step:
        """The answer with the signature that Gemini gives the first call."""
        answer = OPENAI.answer(reply)
        message: Body = answer["choices"][0]["message"]
        for call in message.get("tool_calls", ())[:1]:
            call["extra_content"] = {"google": {"thought_signature": "signed"}}
        if not stream:
            return Answer(answer)
        delta = {name: value for name, value in message.items() if value is not None}
        return Stream((event({"choices": [{"index": 0, "delta": delta}]}), *OPENAI.end(reply)))


def strict_servers() -> Sequence[StrictServer]:
    no_answer = "must have either content or tool_calls"
    return (
        StrictServer("openai", _openai, learned=("string too long",)),
        StrictServer("mistral", _mistral, learned=(no_answer, "length of 9", "after role 'tool'")),
        StrictServer("gemini", _gemini, toml='return_reasoning = "signatures"\n', learned=("thought_signature",)),
        StrictServer(
            "deepseek",
            _deepseek,
            toml='return_reasoning = "tool_turns"\n',
            learned=("must be passed back",),
            thinks=True,
        ),
        StrictServer("template", _template, learned=("at the beginning", "Expecting", "Expecting")),
        StrictServer(
            "claude",
            _messages,
            ANTHROPIC,
            'parameters = { thinking = { type = "enabled", budget_tokens = 1024 } }\n',
            learned=("must define tools",),
            thinks=True,
        ),
        StrictServer("responses", _responses, RESPONSES, thinks=True),
    )
