"""A provider that caches prompts: it remembers what it was sent and bills the beginning that it knows as cached."""

from __future__ import annotations

import json
from itertools import takewhile
from operator import eq

from tests.providers.server import Answer, Seen
from tests.services.service import chat

_CHARS_PER_TOKEN = 4
_LEAST_CACHED_TOKENS = 1_024


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


def _common_chars(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(bool, map(eq, one, other)))
