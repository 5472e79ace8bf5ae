"""A session's rows in bulk, as they go into the database and come out of it; jobs in other processes know them too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.domain.types import JsonObject, Message, TurnId, TurnStatus


class JsonText(str):
    """JSON that has been written already; the database gets it as it is."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class NewHistory:
    """Turns to add, and their messages, as rows by column; `seq` counts from 1 in each list."""

    turns: JsonText
    messages: JsonText
    turn_count: int
    message_count: int
    last_turn_id: TurnId | None


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows of one section of an export, by column."""

    section: str
    rows: JsonText


@dataclass(frozen=True, slots=True)
class Counters:
    """Where the numbers of a session that was just filled go on."""

    last_turn_seq: int
    last_message_seq: int
    summary_count_after_seq: int


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message with its counts by encoding: its tokens, and those of its reasoning."""

    message: Message
    counts: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn with its messages, and what its audits sum to over the calls that were made (tokens; None where none).

    `unresolved` is as `Turn` says; `prompt_tokens` and `completion_tokens` are as reported.
    """

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
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
