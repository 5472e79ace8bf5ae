"""The messages of a resent list that a session does not have yet (contract.md, decision 18).

Chat clients send the whole history, its newest part, or only the newest message with every request. The newest of their
assistant messages that the session has is looked up, and what follows it is new, except messages that are stored too:
those of a turn without an answer. A client may have changed an assistant message (for example by removing reasoning);
it is matched by the user message before it.

Where a client names no session, its conversation is recognized by digests: each stands for the beginning of a list,
from the owner and the instructions through one of its messages, and is SHA-256 of the one before it and the message. A
turn keeps the digest of the list that it answered together with its reply: the client's next request begins with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from app.domain.content import call_input, canonical_json, content_text
from app.domain.errors import InvalidRequest
from app.domain.incoming import IncomingMessage
from app.domain.types import Content, Message, ToolCall
from app.openai.chat_messages import IncomingTurn, as_one, check_pairing, cut_turns, misplaced

_Key: TypeAlias = tuple[Hashable, ...]

BEGIN, CONTINUE = "Begin.", "Continue."
"""What follows instructions alone, and a list that ends with the assistant's reply."""
_MOST_AS_ONE = 16
_LONGEST_RUN = 64
"""Two places of a reply that was given several times are distinguished by at most so many messages before them."""


@dataclass(frozen=True, slots=True)
class NewMessages:
    """The new messages of a list. With `repeats_newest` nothing is new: it requests the newest stored turn again."""

    messages: tuple[IncomingMessage, ...]
    repeats_newest: bool = False


@dataclass(frozen=True, slots=True)
class NextStep:
    """How new messages are processed, in this order.

    `outputs` answer the open calls of the stored turn that waits for tools; `past` is to be stored. Then the model is
    called: with `content`, the user's message of a new turn, said by `name` at `said_at`; or, where that is None, with
    `last_outputs`, which answer the open calls that `past` ends with, or else about `outputs`.
    """

    outputs: tuple[IncomingMessage, ...]
    past: tuple[IncomingTurn, ...]
    content: Content = None
    name: str | None = None
    said_at: datetime | None = None
    last_outputs: tuple[IncomingMessage, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Whether the model continues the stored turn that waits for tools."""
        return self.content is None and not self.past


def answerable_list(messages: Sequence[IncomingMessage], *, is_directed: bool) -> tuple[IncomingMessage, ...]:
    """The same list, ending with something to answer.

    Clients also send instructions alone (`is_directed`), or a list that ends with a reply. Not every provider answers
    those, so a short message of the user follows.
    """
    if not messages:
        return (IncomingMessage(0, "user", BEGIN),) if is_directed else ()
    last = messages[-1]
    if last.role != "assistant" or last.tool_calls:
        return tuple(messages)
    return (*messages, IncomingMessage(last.place + 1, "user", CONTINUE))


def new_messages(messages: Sequence[IncomingMessage], stored: Sequence[Message]) -> NewMessages:
    """The messages that the session does not have. `stored` are its newest in time order, without rejected turns."""
    first, known = _after_anchor(messages, stored)
    tail = messages[first:]
    at = taken = 0
    while taken < len(known) and (span := _span(tail[at:], known[taken])):
        at += span
        taken += 1
    if at == len(tail) and at:
        unseen = known[taken:]
        # The reply to it is stored already, or it never got one. Deeper in the past it is a branch, and new.
        if not unseen or (unseen[0].role == "assistant" and unseen[0].turn_id == stored[-1].turn_id):
            return NewMessages((), repeats_newest=True)
        return NewMessages(tuple(tail))
    return NewMessages(tuple(tail[at:]))


def goes_on(messages: Sequence[IncomingMessage], stored: Sequence[Message]) -> bool:
    """Whether a list goes on from the newest reply of the session, or repeats what was answered by it."""
    first, known = _after_anchor(messages, stored)
    is_anchored = first > 0 and all(message.role != "assistant" for message in known)
    return is_anchored or new_messages(messages, stored).repeats_newest


def next_step(messages: Sequence[IncomingMessage], *, waiting: bool) -> NextStep:
    """Divides new messages into what is stored and what the model answers.

    `waiting` is whether a stored turn waits for tools.

    Raises `InvalidRequest` that names a message that can not stand there by its index.
    """
    if not messages:
        raise InvalidRequest("There is nothing here that has not been answered.")
    outputs, rest = _outputs_first(messages, waiting=waiting)
    if not rest:
        return NextStep(outputs, ())
    last = rest[-1]
    end = next((at for at in range(len(rest), 0, -1) if rest[at - 1].role != last.role), 0)
    check_pairing(rest)
    if last.role == "assistant":
        raise misplaced(last, "The last message is the assistant's; end with the user's or a tool's.")
    if last.role == "tool":
        return NextStep(outputs, cut_turns(rest[:end]), last_outputs=rest[end:])
    said = as_one(rest[end:])
    if not content_text(said.content).strip():
        raise misplaced(last, "The content is empty.")
    return NextStep(outputs, cut_turns(rest[:end]), content=said.content, name=said.name, said_at=said.said_at)


def past_step(messages: Sequence[IncomingMessage], *, waiting: bool) -> NextStep:
    """The same where nothing is to be answered: all is stored, and calls that nothing answers wait."""
    outputs, rest = _outputs_first(messages, waiting=waiting)
    check_pairing(rest, may_end_open=True)
    return NextStep(outputs, cut_turns(rest))


def _outputs_first(
    messages: Sequence[IncomingMessage], *, waiting: bool
) -> tuple[tuple[IncomingMessage, ...], tuple[IncomingMessage, ...]]:
    """The outputs that the messages begin with, which answer a turn that waits for them, and the rest."""
    led = next((at for at, message in enumerate(messages) if message.role != "tool"), len(messages))
    if led and not waiting:
        raise misplaced(messages[0], "This answers no open tool call.")
    return tuple(messages[:led]), tuple(messages[led:])


def _after_anchor(messages: Sequence[IncomingMessage], stored: Sequence[Message]) -> tuple[int, Sequence[Message]]:
    """Where in the list the unknown begins, and what of the stored messages comes after what is known of both."""
    ours, theirs = [_key(message) for message in stored], [_key(message) for message in messages]
    exact, by_question = _places(stored, ours)
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].role != "assistant":
            continue
        places = exact.get(theirs[at], [])
        if not places and at and messages[at - 1].role == "user" and not messages[at].tool_calls:
            places = by_question.get(theirs[at - 1], [])
        if places:
            place = max(places, key=lambda place: _run(theirs, at, ours, place))
            return at + 1, stored[place + 1 :]
    if messages and messages[0].role == "tool" and theirs[0] in ours:
        return 0, stored[len(ours) - 1 - ours[::-1].index(theirs[0]) :]
    # No common message: all of it is new, unless it repeats the last input without an answer.
    replied = next((place for place in range(len(stored) - 1, -1, -1) if stored[place].role == "assistant"), -1)
    return 0, stored[replied + 1 :]


def _places(
    stored: Sequence[Message], keys: Sequence[_Key]
) -> tuple[Mapping[_Key, list[int]], Mapping[_Key, list[int]]]:
    """The places of each assistant message, newest first: by its own key, and by that of the user message before it."""
    exact: dict[_Key, list[int]] = {}
    by_question: dict[_Key, list[int]] = {}
    for place in range(len(stored) - 1, -1, -1):
        if stored[place].role == "assistant":
            exact.setdefault(keys[place], []).append(place)
            if place and stored[place - 1].role == "user" and not stored[place].tool_calls:
                by_question.setdefault(keys[place - 1], []).append(place)
    return exact, by_question


def _run(theirs: Sequence[_Key], at: int, ours: Sequence[_Key], place: int) -> int:
    """How many messages before both places agree; the newest place wins where several agree as far."""
    longest = min(at, place, _LONGEST_RUN)
    return next((back - 1 for back in range(1, longest + 1) if theirs[at - back] != ours[place - back]), longest)


def _span(tail: Sequence[IncomingMessage], message: Message) -> int:
    """How many messages at the head of `tail` are this stored one: a turn holds several of the user's as one."""
    if message.role == "assistant" or not tail:
        return 0
    if message.role == "tool":
        return 1 if _key(tail[0]) == _key(message) else 0
    wanted = _content_key(message.content)
    users = next((at for at, each in enumerate(tail) if each.role != "user"), len(tail))
    for count in range(1, min(users, _MOST_AS_ONE) + 1):
        if _content_key(as_one(tail[:count]).content) == wanted:
            return count
    return 0


def _key(message: IncomingMessage | Message) -> _Key:
    """Equal for equal messages: ids where there are any, because clients may reformat arguments."""
    if message.role == "tool":
        return ("tool", message.tool_call_id)
    if message.tool_calls:
        return ("calls", *sorted(call.id for call in message.tool_calls))
    return (message.role, _content_key(message.content))


def _content_key(content: Content) -> str:
    if content is None or isinstance(content, str):
        return (content or "").strip()
    if len(content) == 1 and content[0].get("type") == "text":
        return str(content[0].get("text")).strip()
    return canonical_json(content)


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
