"""The messages of a resent list that a session does not have yet (contract.md, decision 18).

Chat clients send the whole history, its newest part, or only the newest message with every request. The newest of the
list's assistant messages that the session has is looked up. The messages after it are new, except those that are stored
too: the messages of a turn without an answer. A client may have changed an assistant message (for example by removing
reasoning); then it is matched by the message before it, the user's or a tool's result. Of a reply with several calls it
may have only some. Consecutive messages of the user are compared as one, as a turn stores them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby, takewhile, zip_longest
from typing import TypeAlias

from app.domain.content import canonical_json, content_text
from app.domain.errors import InvalidRequest
from app.domain.frozen import frozen, replace
from app.domain.incoming import IncomingMessage
from app.domain.types import Content, Message, ToolCall, TurnId
from app.openai.chat_messages import IncomingTurn, as_one, check_pairing, cut_turns, misplaced
from app.openai.known_lists import are_part

_Key: TypeAlias = tuple[Hashable, ...]

BEGIN, CONTINUE = "Begin.", "Continue."
"""The user's message after instructions alone, and after a list that ends with the assistant's reply."""
NOT_RUN = "Not run."
"""The output of a call that the client left out of a reply."""
_MOST_AS_ONE = 16
_MOST_REPLIES = 64
"""Most replies of a list, from the newest that is stored on, among which the session's newest is looked for."""
_MOST_PLACES = 256
"""Newest places of a stored reply that are compared, if the session has it repeatedly."""
_LONGEST_RUN = 64
"""Most messages before a reply that are compared to tell its places apart, if the session has the reply repeatedly."""


@frozen
class NextStep:
    """How new messages are processed: `outputs` answer the open calls of the stored turn that waits for tools. `past`
    is stored as turns. Then the model is called: with the user's `message` of a new turn; or, if that is None, with
    `last_outputs`, which answer the open calls at the end of `past`; or, without those, with `outputs`. `lacking` are
    stored messages that the list does not have."""

    outputs: tuple[IncomingMessage, ...]
    past: tuple[IncomingTurn, ...]
    message: IncomingMessage | None = None
    last_outputs: tuple[IncomingMessage, ...] = ()
    lacking: tuple[Message, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Whether the model continues the stored turn that waits for tools."""
        return self.message is None and not self.past


def answerable_list(messages: Sequence[IncomingMessage], alone: str | None) -> tuple[IncomingMessage, ...]:
    """The list, ending with a message that the model can answer. Clients also send a list that ends with a reply, or
    instructions alone: then `alone` is given. Not every provider answers these, so a short user message is added."""
    if not messages:
        return (IncomingMessage(0, "user", alone),) if alone else ()
    last = messages[-1]
    if last.role != "assistant" or last.tool_calls:
        return tuple(messages)
    return (*messages, IncomingMessage(last.place + 1, "user", CONTINUE))


@frozen
class Anchor:
    """The reply with which a recognized list continues its session: its turn, and the number of replies after it."""

    turn_id: TurnId
    replies_after: int


@frozen
class Comparison:
    """A list beside its session: the messages of it that may be new (`tail`) and the stored ones that these may repeat
    (`known`), behind a reply that both have if it `has_common`. The first `at` of the tail are stored; of `known`, the
    last are `unseen` in it."""

    stored: Sequence[Message]
    has_common: bool
    tail: Sequence[IncomingMessage]
    known: Sequence[Message]
    at: int
    unseen: tuple[Message, ...]

    @property
    def new(self) -> tuple[IncomingMessage, ...] | None:
        """The messages that the session does not have; None if the list requests the newest turn again. Calls that are
        answered otherwise than before begin a branch, which is a turn of its own: the stored messages of their turn up
        to them are before the outputs."""
        at = self.at
        if at == len(self.tail) and at:
            last_turn_id = self.stored[-1].turn_id
            # Its reply is stored already, or it has none. Further back in the past it is a branch, and therefore new.
            if not self.unseen or (self.unseen[0].role == "assistant" and self.unseen[0].turn_id == last_turn_id):
                return None
            at = 0
        before = () if at else self._before_branch
        return (*(IncomingMessage.of_stored(self.tail[0].place, message) for message in before), *self.tail[at:])

    @property
    def lacking(self) -> tuple[Message, ...]:
        """The stored messages after the newest reply of the list that are not in the list, or again in `new`. Empty if
        no reply is common: then the list may be only the newest messages of the client's."""
        if not self.has_common:
            return ()
        return self.unseen if 0 < self.at < len(self.tail) else (*self._before_branch, *self.known)

    @property
    def goes_on(self) -> bool:
        """Whether the list has the newest reply of the session with all that got no answer after it, or repeats the
        messages that it answered. One that ends before calls whose outputs got no answer does not: these are not in
        it."""
        if self.has_common and not self.unseen:
            return True
        return self.new is None and (not self.unseen or self.stored[-1].role == "assistant")

    @property
    def _before_branch(self) -> Sequence[Message]:
        """The stored messages before outputs of a turn, if the list answers the same calls in a branch."""
        outputs = _outputs_by_call(self.tail)
        if not outputs or outputs.keys() != _outputs_by_call(self.known).keys():
            return ()
        settled = self.stored[: len(self.stored) - len(self.known)]
        return [message for message in settled if message.turn_id == self.known[0].turn_id]


def compared(
    messages: Sequence[IncomingMessage], stored: Sequence[Message], anchor: Anchor | None = None
) -> Comparison:
    """Compares a list with the session's newest messages by time, without those of rejected turns."""
    messages = _with_left_out(messages, stored)
    first, known = (anchor and _after_turn(messages, stored, anchor)) or _after_anchor(messages, stored)
    tail = messages[first:]
    outputs = _outputs_by_call(tail)
    at = taken = len(outputs) if outputs == _outputs_by_call(known) else 0
    while taken < len(known) and (span := _span(tail[at:], known[taken])):
        at += span
        taken += 1
    return Comparison(stored, first > 0, tail, known, at, tuple(known[taken:]))


def next_step(messages: Sequence[IncomingMessage], *, waiting: bool) -> NextStep:
    """Divides new messages into those that are stored and those that the model answers. `waiting` is whether a stored
    turn waits for tools. Raises `InvalidRequest` with the index of a misplaced message."""
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
    message = as_one(rest[end:])
    if not content_text(message.content).strip():
        raise misplaced(last, "The content is empty.")
    return NextStep(outputs, cut_turns(rest[:end]), message)


def past_step(messages: Sequence[IncomingMessage], *, waiting: bool) -> NextStep:
    """The same if nothing is to be answered: all messages are stored, and tool calls without an output stay open."""
    outputs, rest = _outputs_first(messages, waiting=waiting)
    check_pairing(rest, may_end_open=True)
    return NextStep(outputs, cut_turns(rest))


def _outputs_first(
    messages: Sequence[IncomingMessage], *, waiting: bool
) -> tuple[tuple[IncomingMessage, ...], tuple[IncomingMessage, ...]]:
    """Split off tool outputs at the beginning, which answer the waiting turn. Raises `InvalidRequest` if none waits."""
    led = next((at for at, message in enumerate(messages) if message.role != "tool"), len(messages))
    if led and not waiting:
        raise misplaced(messages[0], "This answers no open tool call.")
    return tuple(messages[:led]), tuple(messages[led:])


def _with_left_out(messages: Sequence[IncomingMessage], stored: Sequence[Message]) -> Sequence[IncomingMessage]:
    """The list with the calls that the client left out of stored replies, whose first calls it ran: their outputs say
    that they were not run. gptme runs one call of a reply, and forgets the others."""
    whole = {message.tool_calls[0].id: message for message in stored if len(message.tool_calls) > 1}
    if not whole:
        return messages
    exact = {_key(message) for message in stored if message.tool_calls}
    found: list[IncomingMessage] = []
    left_out: list[ToolCall] = []
    for message, after in zip_longest(messages, messages[1:]):
        reply = whole.get(message.tool_calls[0].id) if message.tool_calls else None
        if reply and _key(message) not in exact and are_part(message.tool_calls, reply.tool_calls):
            ids = {call.id for call in message.tool_calls}
            left_out = [call for call in reply.tool_calls if call.id not in ids]
            found.append(replace(message, tool_calls=reply.tool_calls))
        else:
            found.append(message)
        if after is None or after.role != "tool":
            if message.role == "tool":
                found += [replace(message, content=NOT_RUN, tool_call_id=call.id) for call in left_out]
            left_out = []
    return found


def _after_turn(
    messages: Sequence[IncomingMessage], stored: Sequence[Message], anchor: Anchor
) -> tuple[int, Sequence[Message]] | None:
    """As `_after_anchor`; None if the turn no longer has the reply."""
    at = [place for place, message in enumerate(messages) if message.role == "assistant"][-1 - anchor.replies_after]
    for place in range(len(stored) - 1, -1, -1):
        if stored[place].turn_id == anchor.turn_id and _key(stored[place]) == _key(messages[at]):
            first, known = _after_anchor(messages[at + 1 :], stored[place + 1 :])
            return at + 1 + first, known
    return None


def _after_anchor(messages: Sequence[IncomingMessage], stored: Sequence[Message]) -> tuple[int, Sequence[Message]]:
    """Return the index from which messages of the list may be new, and the stored messages that these may repeat."""
    (ours, our_ends), (theirs, their_ends) = _joined_keys(stored), _joined_keys(messages)
    replied = next((place for place in range(len(ours) - 1, -1, -1) if _is_reply(ours[place])), -1)
    after = our_ends[replied] if replied >= 0 else 0
    if 0 < len(ours) < len(theirs) and theirs[: len(ours)] == ours:
        end = their_ends[len(ours) - 1]
        outputs = _outputs_by_call(messages[their_ends[replied] if replied >= 0 else 0 : end])
        if outputs == _outputs_by_call(stored[after:]):
            return end, ()  # what follows may read like earlier messages, but was answered elsewhere
    if common := _newest_common(theirs, ours):
        at, place = common
        return their_ends[at], stored[our_ends[place] :]
    if messages and messages[0].role == "tool" and theirs[0] in ours:
        if any(call.id == messages[0].tool_call_id for call in stored[-1].tool_calls):
            return 0, ()  # some models give the calls of each round the same ids
        place = our_ends[len(ours) - 1 - ours[::-1].index(theirs[0])] - 1
        return 0, stored[next((at for at in range(place, 0, -1) if stored[at - 1].role != "tool"), 0) :]
    # No common message: the whole list is new, unless it repeats the last input, which has no answer.
    return 0, stored[after:]


def _joined_keys(messages: Sequence[IncomingMessage | Message]) -> tuple[list[_Key], list[int]]:
    """The keys of messages, consecutive ones of the user as the one that a turn stores; and the index after each."""
    keys: list[_Key] = []
    ends: list[int] = []
    for is_user, group in groupby(messages, lambda message: message.role == "user"):
        run, end = list(group), ends[-1] if ends else 0
        if is_user and len(run) > 1:
            keys.append(_key(as_one(run)))
            ends.append(end + len(run))
        else:
            keys += map(_key, run)
            ends += range(end + 1, end + len(run) + 1)
    return keys, ends


def _is_reply(key: _Key) -> bool:
    return key[0] in ("assistant", "calls")


def _newest_common(theirs: Sequence[_Key], ours: Sequence[_Key]) -> tuple[int, int] | None:
    """The indexes, in the list and here, of the newest reply that both have. One that only reads like an older one that
    is stored, or follows the same message, is none: a reply before it in the list is stored after that one, with more
    of the same before it."""
    exact, by_previous = _places(ours)
    best: tuple[int, int] | None = None
    newest, longest, is_changed, left = -1, -1, True, _MOST_REPLIES
    for at in range(len(theirs) - 1, -1, -1):
        if not _is_reply(theirs[at]):
            continue
        left -= best is not None
        if not left:
            break
        places = exact.get(theirs[at])
        found = places or (by_previous.get(theirs[at - 1]) if _follows_input(theirs, at) else None)
        if not found or found[0] < newest or (found[0] == newest and not places):
            continue
        if best and found[0] == newest:  # the best may repeat this one: then it is new
            if is_changed or _run(theirs, at, ours, best[1]) > longest:
                run, place = _longest_run(theirs, at, ours, found[_MOST_PLACES - 1 :: -1])
                if place == best[1]:
                    best, longest, is_changed = (at, place), run, False
            continue
        run, place = _longest_run(theirs, at, ours, found[:_MOST_PLACES])
        if place > newest and (is_changed or (places and run > longest)):
            best, newest, longest, is_changed = (at, place), found[0], run, places is None
    return best


def _follows_input(keys: Sequence[_Key], at: int) -> bool:
    """Whether this is a text of the assistant behind a message of the user or a tool."""
    return keys[at][0] == "assistant" and at > 0 and not _is_reply(keys[at - 1])


def _places(keys: Sequence[_Key]) -> tuple[Mapping[_Key, list[int]], Mapping[_Key, list[int]]]:
    """The indexes of replies, newest first: by their key, and of those without calls by the key of the message before
    each."""
    exact: dict[_Key, list[int]] = {}
    by_previous: dict[_Key, list[int]] = {}
    for place in range(len(keys) - 1, -1, -1):
        if _is_reply(keys[place]):
            exact.setdefault(keys[place], []).append(place)
            if _follows_input(keys, place):
                by_previous.setdefault(keys[place - 1], []).append(place)
    return exact, by_previous


def _longest_run(theirs: Sequence[_Key], at: int, ours: Sequence[_Key], places: Sequence[int]) -> tuple[int, int]:
    """The longest of the runs before the places, and its place: the first of those."""
    runs = [_run(theirs, at, ours, place) for place in places]
    return max(runs), places[runs.index(max(runs))]


def _run(theirs: Sequence[_Key], at: int, ours: Sequence[_Key], place: int) -> int:
    """The number of equal messages before both places."""
    longest = min(at, place, _LONGEST_RUN)
    return next((back - 1 for back in range(1, longest + 1) if theirs[at - back] != ours[place - back]), longest)


def _outputs_by_call(messages: Sequence[IncomingMessage | Message]) -> Mapping[str | None, str]:
    """The tool outputs at the beginning, by call id. Clients that run tools at once send them in any order."""
    led = takewhile(lambda message: message.role == "tool", messages)
    return {message.tool_call_id: _content_key(message.content) for message in led}


def _span(tail: Sequence[IncomingMessage], message: Message) -> int:
    """How many messages at the start of `tail` are this stored one of a user: a turn joins consecutive ones into
    one."""
    if message.role != "user":
        return 0
    wanted = _content_key(message.content)
    users = next((at for at, each in enumerate(tail) if each.role != "user"), len(tail))
    counts = range(1, min(users, _MOST_AS_ONE) + 1)
    return next((count for count in counts if _content_key(as_one(tail[:count]).content) == wanted), 0)


def _key(message: IncomingMessage | Message) -> _Key:
    """A key that equal messages share. It is made of call ids if there are any: clients may reformat arguments."""
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
