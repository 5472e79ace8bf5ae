"""Rows as they are written to the database and read from it: summaries, and a session's turns and messages in bulk.
Jobs in other processes use them too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from app.domain.content import bytea_json, tool_call_json
from app.domain.frozen import described, frozen, values_of
from app.domain.incoming import IncomingMessage
from app.domain.types import (
    SUMMARY_LISTS,
    Content,
    Count,
    JsonObject,
    Message,
    MessageId,
    Name,
    Role,
    SessionId,
    SummaryCall,
    SummaryCallReason,
    SummaryId,
    SummaryItem,
    SummaryOrigin,
    SummaryStatus,
    TurnId,
    TurnRecord,
    TurnStatus,
)

MOST_CITED_MESSAGES: Final = 100
"""Most messages that an item of a summary cites. One that continues others would cite all of theirs."""


class JsonText(str):
    """JSON that is already encoded; the database gets it unchanged."""

    __slots__ = ()


@frozen
class StoredTexts:
    """Turns and their messages, in order, by column. The fields `turn_*` have a value for each turn (`turn_messages` is
    its number of messages), the others one for each message. Ids have 16 bytes each. `roles` has one letter per
    message: `u` and `a` have only text, with its JSON in `contents`, and a count; `-` is any other. `tokens` do not
    include `reasoning_tokens`. `said_at` is in microseconds since 1970-01-01 in UTC."""

    ids: bytes
    seqs: Sequence[int]
    tokens: Sequence[int]
    reasoning_tokens: Sequence[int]
    said_at: Sequence[int]
    roles: str
    contents: Sequence[bytes]
    turn_ids: bytes
    turn_seqs: Sequence[int]
    turn_messages: Sequence[int]
    turn_completed: Sequence[bool]

    def part(self, first: int, end: int) -> StoredTexts:
        """The turns from position `first` up to, but not including, `end`."""
        start = sum(self.turn_messages[:first])
        of_turns, of_messages = (first, end), (start, start + sum(self.turn_messages[first:end]))

        def cut(name: str, column: Any) -> Any:
            begin, stop = of_turns if name.startswith("turn_") else of_messages
            size = _ID_BYTES if name in ("ids", "turn_ids") else 1
            return column[size * begin : size * stop]

        return StoredTexts(**{name: cut(name, column) for name, column in values_of(self).items()})


_ID_BYTES: Final = 16


@frozen
class NewHistory:
    """Turns and messages to add, as JSON arrays of rows by column name; `seq` counts from 1 in each array."""

    turns: JsonText
    messages: JsonText
    turn_count: int
    message_count: int
    last_turn_id: TurnId | None


@frozen
class NewRows:
    """Rows of one section of an export, by column name."""

    section: str
    rows: JsonText


@frozen
class Counters:
    """The last numbers of a session that was just filled, from which it continues."""

    last_turn_seq: int
    last_message_seq: int
    summary_count_after_seq: int


@frozen
class StoredMessage:
    """A message with its counts by encoding: pairs of its tokens and those of its reasoning."""

    message: Message
    counts: Mapping[str, tuple[int, int]]


@frozen
class StoredTurn:
    """A turn with its messages, and the sums of its audits over the calls that were made (tokens; None without calls).
    `completion_tokens` are as the provider reported them. `trims` has, for each call with actions in its trim log,
    these actions and the references of its prompt."""

    id: UUID
    seq: int
    status: TurnStatus
    unresolved: bool
    model_alias: str
    request: JsonObject | None
    created_at: datetime
    messages: tuple[StoredMessage, ...]
    calls: int
    wire_tokens: int | None
    input_tokens: int | None
    summary: bool
    prune: bool
    completion_tokens: int | None
    cost_usd: float | None
    trims: tuple[tuple[Sequence[JsonObject], JsonObject | None], ...] = ()


def message_row(
    new_id: UUID, message: Message | IncomingMessage, counts: tuple[int, int], encoding: str, terms: bytes
) -> JsonObject:
    """The row of a new message by column, without its turn and its number. `counts` are its tokens in the encoding and
    those of its reasoning, `terms` its packed terms."""
    tokens, of_reasoning = counts
    return {
        "id": new_id,
        "role": message.role,
        "content": message.content,
        "tool_calls": [tool_call_json(call) for call in message.tool_calls] or None,
        "tool_call_id": message.tool_call_id,
        "reasoning": message.reasoning,
        "reasoning_blocks": message.reasoning_blocks or None,
        "name": message.name,
        "said_at": message.said_at,
        "token_estimate": tokens,
        "token_encoding": encoding,
        "reasoning_tokens": of_reasoning,
        "terms": bytea_json(terms),
    }


@frozen
class MessageRecord:
    """A message as it is stored and as clients read it; `token_estimate` is in `token_encoding`."""

    id: MessageId
    turn_id: TurnId
    turn_seq: int
    seq: int
    role: Role
    name: str | None = described("Speaker, where there are several people or agents.")
    content: Content
    tool_calls: Sequence[JsonObject] | None
    tool_call_id: str | None
    token_estimate: int
    token_encoding: str
    said_at: datetime = described("As the client stated it, else `created_at`.")
    created_at: datetime


@frozen
class ListedTurn(TurnRecord):
    """A turn with the speaker and the time of its user message; by default that is the time when it was posted."""

    name: str | None
    said_at: datetime


@frozen
class StoredSummary:
    """A summary of the messages from one through another, as clients read it; `created_at` is None until stored."""

    id: SummaryId
    from_message_id: MessageId
    to_message_id: MessageId
    previous_summary_id: SummaryId | None = described("The previous summary, which is included in this one.")
    summary_text: str
    key_facts: tuple[SummaryItem, ...]
    open_questions: tuple[SummaryItem, ...]
    decisions: tuple[SummaryItem, ...]
    action_items: tuple[SummaryItem, ...]
    status: SummaryStatus
    origin: SummaryOrigin
    model_alias: Name
    call: SummaryCall | None = described(
        "`cached`: as a continuation of the session's last prompt. Null if no model was called."
    )
    call_reason: SummaryCallReason | None = described("Why this kind of call was chosen.")
    token_estimate: Count
    prompt_tokens: Count | None
    completion_tokens: Count | None
    created_by_turn_id: TurnId | None = described("The turn that waited for it; null if none did.")
    created_at: datetime | None
    session_id: SessionId


def summary_lists(row: Mapping[str, Any]) -> dict[str, tuple[SummaryItem, ...]]:
    """The lists of a stored or exported summary, by column."""
    return {
        column: tuple(
            SummaryItem(
                item["text"],
                tuple(MessageId(UUID(value)) for value in item["message_ids"]),
                item.get("kept", False),  # stored since 2026-11-23
            )
            for item in row[column]
        )
        for column in SUMMARY_LISTS
    }


@frozen
class NewSummary(StoredSummary):
    """A summary to store, with the fields that clients do not read."""

    to_message_seq: int
    token_encoding: str
