"""The look-back tool of the service, with which the model of a turn reads messages that are no longer in its window.

The messages that a look-back adds to the turn's prompts are sent in that turn only, because another look-back can read
their content again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias
from uuid import UUID

from app.domain.content import canonical_json, fields_of, storable, tool_name
from app.domain.frozen import frozen, replace
from app.domain.types import Completion, JsonObject, Message, MessageId, ToolCall, ToolDefinition, Turn, TurnId
from app.engine.messages.tokens import Estimate, counted
from app.engine.messages.turns import framed_tokens
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.look_back_pages import TextPage
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
"""The definition is the same for every prompt, so that it stays in a provider's cache."""

_MAY_CALL: Final[tuple[object, ...]] = (None, "auto", "required")
MOST_CALLS: Final = 4
"""Most look-back calls in one turn."""
_PAGE_SHARE: Final = 0.3
_MOST_PAGE_SHARE: Final = 0.5
"""Most of the input budget that a page may take, where `_PAGE_SHARE` of a small budget would not be a useful page."""
_MOST_PAGE_TOKENS: Final = 2_400
"""Largest page in tokens, in a window of any size."""
_USEFUL_PAGE_TOKENS: Final = 400
_PAGES_A_TURN: Final = 3
"""Tokens that a turn may read, as a number of full pages. It may read more pages if they are shorter."""
_MOST_QUERY_CHARS: Final = 400
_MOST_HANDLE_CHARS: Final = 32
_MOST_PAGES: Final = 1_000_000

NOT_UNDERSTOOD: Final = "Nothing was read: look_back takes a query, or a handle such as m12, and perhaps a page."
NOTHING_FOUND: Final = "No earlier message that is not shown already matches these words. Other words may."
NOT_THERE: Final = "This conversation has no message of this handle."
AT_THE_CAP: Final = "Nothing was read: this turn has looked back as often as it may. Answer with what is there."
NO_ROOM: Final = "Nothing can be shown: there is no room for it beside this turn's messages. Answer with what is there."


@frozen
class LookBack:
    """What a call asks to read: the messages that match a query, or a page of the message with a handle. `page` is None
    if the call has none."""

    query: str
    handle: str | None
    page: int | None

    def arguments(self) -> JsonObject:
        values = {"query": self.query or None, "handle": self.handle, "page": self.page}
        return {name: value for name, value in values.items() if value is not None}


def may_look_back(
    policy: ContextPolicy, tools: Sequence[ToolDefinition], tool_choice: object, provider_options: Mapping[str, Any]
) -> bool:
    """Whether a turn's model, if it takes tools, may be offered the look-back tool: not if the client chooses which
    tools are called, or has a tool of the same name; nor, unless the policy says `on`, with a `response_format`, which
    not every server accepts together with tools."""
    if policy.look_back == "off":
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
    """The most tokens of a turn's next page, after `calls` have read `read_tokens`; None if it may read no more.

    With less room the page is smaller, but at least half: the window makes space for that. A message that is read page
    by page has full or half pages only, so that each continues where the one before ended. `before_tokens` are those of
    earlier results, which are removed if the page of a message would be too small to be useful. More matches of a query
    do not replace the first ones, which may contain the answer.
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
"""The pages that a turn has read, in time order, each with its call."""


@frozen
class Search:
    """Which page of the matching messages to read: page `number` of those that are not in `without`, which is shown as
    page `shown_number`. Days in the query are relative to `said_day`."""

    number: int = 1
    shown_number: int = 1
    without: frozenset[int] = frozenset()
    said_day: int | None = None


def next_search(lookup: LookBack, read: Read, sent: frozenset[int], said_day: int | None) -> Search:
    """The search for a turn that has read these pages. It excludes messages that are `sent` or were shown whole, and
    those that were already shown for the same query."""
    of_queries = [(before.query, page) for before, page in read if before.handle is None]
    of_these = [page for words, page in of_queries if words == lookup.query]
    whole = {seq for _, page in of_queries for seq in page.seqs if seq not in page.in_part}
    wanted = lookup.page or len(of_these) + 1
    without = sent.union(whole, *(page.seqs for page in of_these))
    return Search(max(1, wanted - len(of_these)), wanted, without, said_day)


def is_own(call: ToolCall) -> bool:
    """Whether the call is one of the look-back tool, provided that the tool was offered."""
    return call.name == NAME


def read_call(call: ToolCall) -> LookBack | None:
    """The look-back that a model's call requests; None if its arguments are invalid. Long texts are cut."""
    try:
        given = fields_of(json.loads(call.arguments or "{}"))
    except (ValueError, RecursionError):
        return None
    query, handle, page = given.get("query"), given.get("handle"), given.get("page")
    query = storable(query[:_MOST_QUERY_CHARS]).strip() if isinstance(query, str) else ""
    handle = storable(handle[:_MOST_HANDLE_CHARS]).strip() or None if isinstance(handle, str) else None
    is_number = isinstance(page, int) and not isinstance(page, bool) and 1 <= page <= _MOST_PAGES
    return LookBack(query, handle, page if is_number else None) if query or handle else None


def look_back_messages(
    turn_id: TurnId, after_seq: int, completion: Completion, answered: Sequence[tuple[ToolCall, LookBack | None, str]]
) -> tuple[Message, ...]:
    """The messages of a look-back, not counted yet: the model's calls as they were parsed, with its reasoning and, if
    it called no other tool, its text; then a result for each call."""

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


def round_tokens(messages: Sequence[Message], estimate: Estimate) -> int:
    """Wire tokens of the messages of a look-back, without reasoning."""
    return framed_tokens([counted(message, estimate) for message in messages])


_NO_ID: Final = MessageId(UUID(int=0))


def of_sent(turn_id: TurnId, after_seq: int, sent: JsonObject) -> Message:
    """A message of a look-back, read from the form in which it was sent and stored."""
    return message_of(sent, _NO_ID, turn_id, after_seq, 0, is_look_back=True)


def with_look_backs(turn: Turn, looked_back: Sequence[Message]) -> Turn:
    """The turn with the messages of its look-backs, each after the message that it follows."""
    if not looked_back:
        return turn
    messages = sorted((*turn.messages, *looked_back), key=lambda message: (message.seq, message.is_look_back))
    return replace(turn, messages=tuple(messages))


def without_newest(looked_back: Sequence[Message]) -> tuple[Message, ...]:
    """The same messages with a short notice in place of the results of the newest look-back."""
    first = max(at for at, message in enumerate(looked_back) if message.role == "assistant")
    notices = (
        message if message.role == "assistant" else replace(message, content=NO_ROOM) for message in looked_back[first:]
    )
    return (*looked_back[:first], *notices)
