"""The service's own tool: with it the model of a turn reads back what left its window.

Here is what the model is offered, how its calls are read, what it may read in one turn, and the messages that a
look-back adds to the turn's prompts. Those belong to the turn alone: no later turn is sent them, for what they hold can
be looked back to again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

from app.domain.content import canonical_json, tool_name
from app.domain.types import Completion, JsonObject, Message, MessageId, ToolCall, ToolDefinition, Turn, TurnId
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.pages import TextPage
from app.engine.window.prompt import message_of

NAME: Final = "look_back"
LOOK_BACK: Final[ToolDefinition] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": (
            "Reads earlier messages of this conversation that were summarized, shortened or left out. Pass words to "
            "search for, or the handle of a message, such as m12, to read it page by page. With both it opens the page "
            "of that message that has the words."
        ),
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "handle": {"type": "string"}, "page": {"type": "integer"}},
        },
    },
}
"""The same for every prompt, so that a provider's cache keeps it."""

_MAY_CALL: Final[tuple[object, ...]] = (None, "auto", "required")
MOST_CALLS: Final = 4
"""Of one turn."""
_PAGE_SHARE: Final = 0.3
_MOST_PAGE_SHARE: Final = 0.5
"""Of a budget so small that the usual share of it would be no useful page."""
_MOST_PAGE_TOKENS: Final = 2_400
"""Of a page: of the input budget, and of any window."""
_USEFUL_PAGE_TOKENS: Final = 400
_PAGES_A_TURN: Final = 3
"""Full pages that a turn may read, as tokens: shorter ones are more."""
_MOST_QUERY_CHARS: Final = 400
_MOST_HANDLE_CHARS: Final = 32
_MOST_PAGES: Final = 1_000_000

NOT_UNDERSTOOD: Final = "Nothing was read: look_back takes a query, or a handle such as m12, and perhaps a page."
NOTHING_FOUND: Final = "No earlier message that is not shown already matches these words. Other words may."
NOT_THERE: Final = "This conversation has no message of this handle."
AT_THE_CAP: Final = "Nothing was read: this turn has looked back as often as it may. Answer with what is there."
NO_ROOM: Final = "Nothing can be shown: there is no room for it beside this turn's messages. Answer with what is there."


@dataclass(frozen=True, slots=True)
class LookBack:
    """What is to be read: the messages that match a query, or a page of the message with a handle. `page` is None where
    none was named."""

    query: str
    handle: str | None
    page: int | None

    def arguments(self) -> JsonObject:
        """As a call has them."""
        values = {"query": self.query or None, "handle": self.handle, "page": self.page}
        return {name: value for name, value in values.items() if value is not None}


def may_look_back(
    policy: ContextPolicy,
    *,
    takes_tools: bool,
    tools: Sequence[ToolDefinition],
    tool_choice: object,
    provider_options: Mapping[str, Any],
) -> bool:
    """Whether a turn's model can be offered to look back, once something has left its window.

    Not where the client chose which tools are called, or has one of the same name; and unless the policy says `on`, not
    where it wants an answer of a set form, which not every server takes together with tools.
    """
    if policy.look_back == "off" or policy.whole_past or not takes_tools:
        return False
    names = set(map(tool_name, tools))
    is_free = policy.look_back == "on" or "response_format" not in provider_options
    return is_free and tool_choice in _MAY_CALL and NAME not in names


def page_tokens(input_budget: int) -> int:
    """The most tokens of one page."""
    least = min(_USEFUL_PAGE_TOKENS, _MOST_PAGE_SHARE * input_budget)
    return max(0, min(_MOST_PAGE_TOKENS, int(max(least, _PAGE_SHARE * input_budget))))


def next_page_tokens(
    lookup: LookBack, input_budget: int, calls: int, read_tokens: int, room_tokens: int, before_tokens: int = 0
) -> int | None:
    """The most tokens of a turn's next page, of which so many calls have read so much; None where it may read no more.

    Where a turn has less room it is less, but never under half of a page: the window makes room for that. A message
    that is read page by page has pages of one size or the other, so that they go on where the one before ended.
    `before_tokens` are those of what was read before, which leave where a message is opened and its page would be too
    small to be of use; more matches of a query do not push out the first ones, from which the answer may come.
    """
    if calls >= MOST_CALLS:
        return None
    whole = page_tokens(input_budget)
    half = whole // 2
    if lookup.handle and room_tokens < min(whole, _USEFUL_PAGE_TOKENS):
        room_tokens += before_tokens
    by_pages = lookup.handle is not None and (lookup.page is not None or not lookup.query)
    size = max(half, min(whole, room_tokens))
    size = half if by_pages and size < whole else size
    return size if read_tokens + size <= _PAGES_A_TURN * whole else None


Read: TypeAlias = tuple[tuple[LookBack, TextPage], ...]
"""The pages that a turn has read, in time order, each with what was asked for."""


@dataclass(frozen=True, slots=True)
class Search:
    """Which page of the messages that match is wanted: the one of this number of those that are not `without`, which is
    called `shown_number`. Days that the words name are understood on `said_day`."""

    number: int = 1
    shown_number: int = 1
    without: frozenset[int] = frozenset()
    said_day: int | None = None


def next_search(lookup: LookBack, read: Read, sent: frozenset[int], said_day: int | None) -> Search:
    """What a turn that has read these pages is shown: nothing that is `sent` or was shown whole, and nothing again that
    was shown for the same words."""
    of_queries = [(before.query, page) for before, page in read if before.handle is None]
    of_these = [page for words, page in of_queries if words == lookup.query]
    whole = {seq for _, page in of_queries for seq in page.seqs if seq not in page.in_part}
    wanted = lookup.page or len(of_these) + 1
    without = sent.union(whole, *(page.seqs for page in of_these))
    return Search(max(1, wanted - len(of_these)), wanted, without, said_day)


def is_own(call: ToolCall) -> bool:
    """Whether the call is of the service's own tool, where that was offered."""
    return call.name == NAME


def read_call(call: ToolCall) -> LookBack | None:
    """What a model's call wants; None where it cannot be understood. Texts are cut to what a search reads."""
    try:
        given = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict):
        return None
    values = cast("dict[str, Any]", given)
    query, handle, page = values.get("query"), values.get("handle"), values.get("page")
    query = _storable(query[:_MOST_QUERY_CHARS]) if isinstance(query, str) else ""
    handle = _storable(handle[:_MOST_HANDLE_CHARS]) or None if isinstance(handle, str) else None
    is_number = isinstance(page, int) and not isinstance(page, bool) and 1 <= page <= _MOST_PAGES
    return LookBack(query, handle, page if is_number else None) if query or handle else None


def _storable(text: str) -> str:
    """Without what JSON can escape and no database keeps."""
    return text.encode(errors="replace").decode().replace("\0", " ").strip()


def look_back_messages(
    turn_id: TurnId, after_seq: int, completion: Completion, answered: Sequence[tuple[ToolCall, LookBack | None, str]]
) -> tuple[Message, ...]:
    """The messages of a look-back: the model's calls as they were understood, with its reasoning and, where it called
    nothing else, its words; and a result for each. They are not counted yet."""

    def message(role: Any, content: str | None, **fields: Any) -> Message:
        return Message(_NO_ID, turn_id, after_seq, role, content, 0, is_look_back=True, **fields)

    calls = tuple(
        ToolCall(call.id, NAME, canonical_json(lookup.arguments() if lookup else {})) for call, lookup, _ in answered
    )
    has_others = any(not is_own(call) for call in completion.tool_calls)
    caller = message(
        "assistant",
        None if has_others else completion.text or None,
        tool_calls=calls,
        reasoning=completion.reasoning,
        reasoning_blocks=completion.reasoning_blocks,
    )
    return (caller, *(message("tool", text, tool_call_id=call.id) for call, _, text in answered))


_NO_ID: Final = MessageId(UUID(int=0))


def of_sent(turn_id: TurnId, after_seq: int, sent: JsonObject) -> Message:
    """A message of a look-back as it was stored: in the form in which it was sent."""
    return message_of(sent, _NO_ID, turn_id, after_seq, 0, is_look_back=True)


def with_look_backs(turn: Turn, looked_back: Sequence[Message]) -> Turn:
    """The turn with the messages of its look-backs, each behind the message that it follows."""
    if not looked_back:
        return turn
    messages = sorted((*turn.messages, *looked_back), key=lambda message: (message.seq, message.is_look_back))
    return replace(turn, messages=tuple(messages))


def without_newest(looked_back: Sequence[Message]) -> tuple[Message, ...]:
    """The same with a short notice in the place of what the newest look-back read."""
    first = max(at for at, message in enumerate(looked_back) if message.role == "assistant")
    notices = (
        message if message.role == "assistant" else replace(message, content=NO_ROOM) for message in looked_back[first:]
    )
    return (*looked_back[:first], *notices)
