"""Breakpoints in prompts for OpenAI's models from GPT-5.6 on, of both APIs.

Older models find every prefix of an earlier prompt. These find only what ended at a breakpoint, and writing costs 1.25
times the price of input. They have one by themselves, at the newest message of the user or of a tool: a prompt that
ended with what was recalled for its turn would be found by none, and nothing in front of a summary once it changes.
developers.openai.com/api/docs/guides/prompt-caching
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from app.domain.types import JsonObject
from app.providers.wire import list_of

_WITH_BREAKPOINTS: Final = re.compile(r"\bgpt-(?:5\.(?:[6-9]|\d\d)|[6-9])(?!\d)", re.IGNORECASE)
_MARKABLE: Final = frozenset({"text", "image_url", "file", "input_text", "input_image", "input_file"})


def takes_breakpoints(model: str | None) -> bool:
    """Whether the model of this name has them; older ones refuse the member."""
    return _WITH_BREAKPOINTS.search(model or "") is not None


def with_breakpoints(sent: Sequence[JsonObject], lasting: int, *, text_type: str) -> list[JsonObject]:
    """The messages or items with at most four breakpoints, of which the API writes the last three.

    Two are at the last system messages before the conversation, as the last is the summary once there is one. Two are
    where this turn's first prompt and the one before it ended of what later prompts repeat (the first `lasting`), or
    before an answer of the model there, which cannot have one."""
    leading = sum(1 for _ in takewhile(lambda each: each.get("role") == "system", sent))
    possible = [at for at in range(leading, min(lasting, len(sent) - 1)) if _is_markable(sent[at])]
    turn_begins = max((at for at in possible if sent[at].get("role") == "user"), default=0)
    before_turn = [at for at in possible if at < turn_begins]
    places = {*range(leading)[-2:], *before_turn[-1:], *possible[-1:]}
    return [_marked(each, text_type) if at in places else each for at, each in enumerate(sent)]


def _content_member(sent: JsonObject) -> str:
    return "output" if "output" in sent else "content"


def _is_markable(sent: JsonObject) -> bool:
    content = sent.get(_content_member(sent))
    if not content or sent.get("role") == "assistant":
        return False
    return isinstance(content, str) or list_of(content)[-1].get("type") in _MARKABLE


def _marked(sent: JsonObject, text_type: str) -> JsonObject:
    if not _is_markable(sent):
        return sent
    member = _content_member(sent)
    content = sent[member]
    parts = [{"type": text_type, "text": content}] if isinstance(content, str) else list_of(content)
    return {**sent, member: [*parts[:-1], {**parts[-1], "prompt_cache_breakpoint": {"mode": "explicit"}}]}
