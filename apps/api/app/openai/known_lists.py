"""By what a conversation is recognized whose client resends its messages and names no session.

A digest stands for the beginning of a list, from the owner and the instructions through one of its messages: each is
SHA-256 of the one before it and the message, so that a longer list is hashed on from a shorter one. A turn keeps the
digest of the list that it answered together with its reply: what a client sends with its next request begins with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.content import call_input, canonical_json, content_text
from app.domain.incoming import IncomingMessage
from app.domain.types import Content, ToolCall

_MOST_BEGINNINGS = 64
"""A list that goes on from further back is a new conversation."""


@dataclass(frozen=True, slots=True)
class KnownList:
    """A list of messages as it is recognized: its beginnings that end with the assistant, longest first, and all of it.

    Digests have 32 bytes.
    """

    beginnings: tuple[bytes, ...]
    whole: bytes


def known_list(owner: Sequence[str | None], messages: Sequence[IncomingMessage]) -> KnownList:
    """How a list of this owner is recognized. Lists of two owners never have a digest in common."""
    digest = hashlib.sha256(canonical_json(list(owner)).encode()).digest()
    beginnings: list[bytes] = []
    for message in messages:
        digest = _after(digest, message.role, message.content, message.tool_calls, message.tool_call_id)
        if message.role == "assistant":
            beginnings.append(digest)
    return KnownList(tuple(reversed(beginnings[-_MOST_BEGINNINGS:])), digest)


def with_reply(whole: bytes, text: str | None, calls: Sequence[ToolCall]) -> bytes:
    """The digest of a list and the assistant's reply to it."""
    return _after(whole, "assistant", text, calls, None)


def _after(before: bytes, role: str, content: Content, calls: Sequence[ToolCall], call_id: str | None) -> bytes:
    # Clients send a text as it is or as a part, trim what a model wrote, and may write its arguments anew. Beside calls
    # some put a text in the place of an empty one; the ids of the calls are enough.
    is_text = content is None or isinstance(content, str) or all(part.get("type") == "text" for part in content)
    form = [
        role,
        None if calls else content_text(content).strip() if is_text else content,
        [[call.id, call.name, canonical_json(call_input(call.arguments))] for call in calls],
        call_id,
    ]
    return hashlib.sha256(before + canonical_json(form).encode()).digest()
