"""How a conversation is recognized if its client names no session: by digests of the list that it resends.

A digest stands for the beginning of a list, from the owner and the instructions through one of its messages. It is the
SHA-256 of the previous digest and that message. A turn stores the digest of the list that it answered and its reply:
the client's next list begins with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from app.domain.content import call_input, canonical_bytes, canonical_json, content_text
from app.domain.frozen import frozen
from app.domain.incoming import IncomingMessage
from app.domain.types import Content, ToolCall

_MOST_BEGINNINGS = 64
"""Most beginnings of a list that are looked up, longest first. If only a shorter one is known, the list is new."""


@frozen
class KnownList:
    """The digests by which a list is recognized, each of 32 bytes: of its beginnings that end with an assistant
    message, longest first, and of the whole list."""

    beginnings: tuple[bytes, ...]
    whole: bytes


def known_list(owner: Sequence[str | None], messages: Sequence[IncomingMessage]) -> KnownList:
    """The digests of a list of this owner. Lists of different owners never have a digest in common."""
    digest = hashlib.sha256(canonical_bytes(list(owner))).digest()
    beginnings: list[bytes] = []
    for message in messages:
        digest = _after(digest, message.role, message.content, message.tool_calls, message.tool_call_id)
        if message.role == "assistant":
            beginnings.append(digest)
    return KnownList(tuple(reversed(beginnings[-_MOST_BEGINNINGS:])), digest)


def with_reply(whole: bytes, text: str | None, calls: Sequence[ToolCall]) -> bytes:
    """The digest of a list and the assistant's reply to it."""
    return _after(whole, "assistant", text, calls, None)


def are_part(calls: Sequence[ToolCall], stored: Sequence[ToolCall]) -> bool:
    """Whether all calls of a reply in a list are calls of the stored one."""
    forms = [_form_of(call) for call in stored]
    return all(_form_of(call) in forms for call in calls)


def _after(before: bytes, role: str, content: Content, calls: Sequence[ToolCall], call_id: str | None) -> bytes:
    # Clients send a text as a string or as a part, trim what a model wrote, and may format arguments anew. Some send a
    # text beside calls that had none, so the text of a message with calls is left out; the ids of its calls are enough.
    # n8n's agent adds that text, and to the input of each call the call's id. gptme keeps the first call alone.
    is_text = content is None or isinstance(content, str) or all(part.get("type") == "text" for part in content)
    form = [
        role,
        None if calls else content_text(content).strip() if is_text else content,
        [_form_of(call) for call in calls[:1]],
        call_id,
    ]
    return hashlib.sha256(before + canonical_bytes(form)).digest()


def _form_of(call: ToolCall) -> list[str]:
    given = call_input(call.arguments)
    without_id = {name: value for name, value in given.items() if (name, value) != ("id", call.id)}
    return [call.id, call.name, canonical_json(without_id)]
