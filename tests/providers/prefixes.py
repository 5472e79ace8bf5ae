"""Providers that cache prompts: they remember what they were sent and bill the beginning that they know as cached."""

from __future__ import annotations

import json
from hashlib import sha256
from itertools import takewhile
from operator import eq
from typing import Any

from tests.providers.server import Answer, Seen
from tests.services.service import chat

_CHARS_PER_TOKEN = 4
_LEAST_CACHED_TOKENS = 1_024
_MOST_BREAKPOINTS, _LOOK_BACK_BLOCKS = 4, 20


class PrefixCache:
    """The prompts of each model, as they stand before it: the schema of the answer, the tools, then the messages."""

    def __init__(self) -> None:
        self._sent: dict[str, list[str]] = {}

    def billed(self, request: Seen, text: str) -> Answer:
        """An answer of this text with the usage that it is billed by."""
        body = request.json
        prompt = json.dumps([body.get("response_format"), body.get("tools"), *body["messages"]])
        sent = self._sent.setdefault(body["model"], [])
        cached = max((_common_chars(prompt, known) for known in sent), default=0) // _CHARS_PER_TOKEN
        sent.append(prompt)
        answer = chat(text, prompt_tokens=len(prompt) // _CHARS_PER_TOKEN, completion_tokens=len(text) // 4)
        details = {"cached_tokens": cached if cached >= _LEAST_CACHED_TOKENS else 0}
        answer.body["usage"]["prompt_tokens_details"] = details
        return answer


class BreakpointCache:
    """The same by Anthropic's published rules: tools, system text and messages are read in this order, block by block.

    What a breakpoint (four at most) stands behind is cached from so many tokens on, and found again within 20 blocks
    before another one; with another `tool_choice` or `thinking` nothing of the messages is.
    """

    def __init__(self, least_tokens: int = 1_024) -> None:
        self._least_tokens = least_tokens
        self._ends: set[str] = set()

    def billed(self, request: Seen, text: str) -> Answer:
        """An answer of this text with the usage that it is billed by."""
        ends, breakpoints, chars = _blocks(request.json)
        if len(breakpoints) > _MOST_BREAKPOINTS:
            return Answer({"type": "error", "error": {"type": "invalid_request_error", "message": "breakpoints"}}, 400)
        tokens = [-(-of // _CHARS_PER_TOKEN) for of in chars]
        near = [at for mark in breakpoints for at in range(mark, max(-1, mark - _LOOK_BACK_BLOCKS), -1)]
        read = max((tokens[at] for at in near if ends[at] in self._ends), default=0)
        kept = [at for at in breakpoints if tokens[at] >= self._least_tokens]
        self._ends |= {ends[at] for at in kept}
        written = max(0, max((tokens[at] for at in kept), default=0) - read)
        usage = {"input_tokens": tokens[-1] - read - written, "output_tokens": len(text) // _CHARS_PER_TOKEN}
        usage |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
        content = [{"type": "text", "text": text}]
        message = {"id": "m", "type": "message", "role": "assistant", "model": "served", "stop_reason": "end_turn"}
        return Answer(message | {"content": content, "usage": usage})


class NewestMessageCache:
    """The same by what OpenAI publishes of its models from GPT-5.6 on, message by message.

    What the newest message of the user or of a tool stands behind is cached, and what the last three breakpoints do. A
    prompt reads the longest of it that is its own beginning.
    """

    def __init__(self) -> None:
        self._ends: set[str] = set()

    def tokens_not_read(self, body: dict[str, Any]) -> int:
        whole, ends, marks, chars, newest = sha256(), list[str](), list[int](), list[int](), 0
        for at, message in enumerate(body.get("messages") or body["input"]):
            text, is_marked = _without_breakpoint(message)
            whole.update(text.encode())
            ends.append(whole.hexdigest())
            chars.append((chars[-1] if chars else 0) + len(text))
            marks += [at] if is_marked else []
            newest = at if message.get("role") in ("user", "tool") or "output" in message else newest
        read = max((chars[at] for at, end in enumerate(ends) if end in self._ends), default=0)
        self._ends |= {ends[at] for at in (*marks[-3:], newest)}
        return (chars[-1] - read) // _CHARS_PER_TOKEN


def _without_breakpoint(message: dict[str, Any]) -> tuple[str, bool]:
    """A message as text, whose content is the same as a string or as a part, and whether it has a breakpoint."""
    member = "output" if "output" in message else "content"
    if not isinstance(message.get(member), list):
        return json.dumps(message), False
    parts: list[dict[str, Any]] = message[member]
    texts = "".join(part["text"] for part in parts)
    return json.dumps({**message, member: texts}), any("prompt_cache_breakpoint" in part for part in parts)


def _blocks(body: dict[str, Any]) -> tuple[list[str], list[int], list[int]]:
    """Of each block the hash of all through its end, the places of breakpoints, and the characters through its end."""
    settings = {"tool_choice": body.get("tool_choice"), "thinking": body.get("thinking")}
    spoken = [{"role": each["role"], **block} for each in body["messages"] for block in each["content"]]
    blocks = [*body.get("tools", ()), *body.get("system", ()), settings, *spoken]
    whole, ends, breakpoints, chars = sha256(), list[str](), list[int](), list[int]()
    for at, block in enumerate(blocks):
        text = json.dumps({name: value for name, value in block.items() if name != "cache_control"})
        whole.update(text.encode())
        ends.append(whole.hexdigest())
        chars.append((chars[-1] if chars else 0) + len(text))
        breakpoints += [at] if "cache_control" in block else []
    return ends, breakpoints, chars


def _common_chars(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(bool, map(eq, one, other)))
