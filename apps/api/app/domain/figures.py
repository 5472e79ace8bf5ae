"""Figures of sessions, pins, windows and turns, for lists and plots, and what searches find: as clients read them, and
for metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from app.domain.frozen import described, frozen
from app.domain.types import JsonObject, MessageId, Purpose, Role, SessionId, SummaryId, TurnId, TurnStatus


@frozen
class WindowFigures:
    """The prompt of the newest turn that had one, in tokens."""

    turn_id: TurnId
    model_alias: str
    model_context_limit: int
    input_budget: int
    estimated_input_tokens: int
    estimated_wire_tokens: int


@frozen
class SessionUsage:
    """What a session used of one alias for one purpose."""

    model_alias: str
    purpose: Purpose
    calls: int
    prompt_tokens: int
    cached_prompt_tokens: int = described("The part of `prompt_tokens` that the provider read from its cache.")
    cache_write_prompt_tokens: int = described("The part of `prompt_tokens` that it wrote to its cache.")
    completion_tokens: int
    reasoning_completion_tokens: int = described("The part of `completion_tokens` that is reasoning, where reported.")
    cost_usd: float | None = described("Null if no price is known.")


@frozen
class SessionFigures:
    """State and usage of a session. Token sums are the providers', including summaries."""

    turns: int
    state: TurnStatus | None = described("Status of the newest turn; null before the first.")
    first_input: str | None = described("The beginning of the first message.")
    last_turn_id: TurnId | None
    last_turn_at: datetime | None
    window: WindowFigures | None
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None = described("Cost of the calls with a known price; null if there are none.")


@frozen
class PinFigures:
    """A pin's tokens in every prompt, and its relevance: if pins have to be trimmed, the least relevant is first."""

    tokens: int = described("Tokens in a prompt, without framing.")
    relevance: float = described("0 to 1.")
    relevance_from: Literal["given", "computed"] = described(
        "Computed: by a search for the words of the room goal and the newest message."
    )
    matched: Sequence[str] = described("Which of these words the pin has, if computed.")
    related: Sequence[JsonObject] = described("Related words in the pin in place of others.")
    similarity: float | None = described("Similarity in meaning to the newest message; null if it is not near.")


@frozen
class CurrentWindow:
    """The stored window, before the next message and its compression. All figures are tokens."""

    model_alias: str
    model_context_limit: int
    context_limit_source: str
    input_budget: int
    output_reserve: int
    overhead_reserve: int
    estimated_input_tokens: int
    estimated_wire_tokens: int
    regions: Mapping[str, int]
    history_budget: int
    raw_turns: int = described("Turns that are not summarized.")
    active_summary_id: SummaryId | None
    turns_to_next_summary: int | None = described("Null if the policy does not count turns.")
    summary_trigger_tokens: int | None = described("Null if no number of tokens triggers a summary.")
    prune_trigger_tokens: int


@frozen
class PointWindow:
    """The window of a turn's last call. All figures are tokens."""

    model_alias: str
    model_context_limit: int
    input_budget: int
    output_reserve: int
    overhead_reserve: int
    estimated_input_tokens_before: int
    estimated_input_tokens_after_summary: int
    estimated_input_tokens_after_prune: int
    estimated_wire_tokens: int
    calibration_ratio: float
    regions: Mapping[str, Any]
    summary_trigger_tokens: int | None = described("By the session's current policy and the turn's own overrides.")
    prune_trigger_tokens: int | None
    prompt_sha256: str | None


@frozen
class TurnPoint:
    """A turn as a point of a plot. `window` is null if no prompt was made."""

    turn_id: TurnId
    seq: int
    status: TurnStatus
    model_alias: str
    user_input: str = described("Beginning of the user's message.")
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    created_at: datetime
    completed_at: datetime | None
    rounds: int
    attempts: int
    window: PointWindow | None
    events: Sequence[JsonObject]


@frozen
class EventCounts:
    """Number of turns of a range with each kind of event, and of turns that failed."""

    summary: int
    later_summary: int
    prune: int
    recall: int
    overflow: int
    emergency: int
    failed: int


@frozen
class TimelineRange:
    """Turns `first_seq` through `last_seq` as one point of a plot. `peak` is the one with the largest prompt."""

    first_seq: int
    last_seq: int
    events: EventCounts
    peak: TurnPoint


@frozen
class LaidOut:
    """The region and tokens of a message of a prompt, without framing."""

    region: str | None = described("Null for prompts sent before this was recorded.")
    tokens: int
    message_id: MessageId | None = described("The stored message; null for other content.")
    turn_id: TurnId | None
    shortened: bool
    turn_seq: int | None = described("Number of the stored turn.", default=None)


@frozen
class TurnChange:
    """The status of a turn."""

    session_id: SessionId
    turn_id: TurnId
    seq: int
    status: TurnStatus
    model_alias: str
    created_at: datetime
    completed_at: datetime | None


@frozen
class OpenTurnCount:
    """How many turns have one open status. `oldest_s` is the number of seconds since the oldest of them was posted, or
    since its newest message if it runs."""

    turns: int
    oldest_s: float


@frozen
class FoundInSession:
    """A message that has the words. `complete` says whether the excerpt is all of its text."""

    session_id: SessionId
    message_id: MessageId
    turn_id: TurnId
    turn_seq: int
    seq: int
    role: Role
    name: str | None
    said_at: datetime
    excerpt: str
    complete: bool


@frozen
class FoundMessage(FoundInSession):
    """A message that matches, with its score and the reasons. Within one answer, a higher `score` matches better."""

    score: float
    matched: Sequence[str] = described("Words of the query that the message has.")
    related: Sequence[JsonObject] = described("Related words that the message has in place of others.")
    similarity: float | None = described(
        "Similarity in meaning to the query, by the deployment's embedding model; null if it is "
        "not near, or if there is no such model."
    )


@frozen
class Found:
    """The results of a search, best first, on one page."""

    items: Sequence[FoundMessage]
    next_cursor: None
    searched_messages: int = described("Number of messages searched.")
    unsearched_messages: int = described(
        "Older messages that are not searched: those of a very long session before its newest, and those that are not "
        "indexed yet, of which each turn that recalls indexes some."
    )


@frozen
class FoundPage:
    """A page that was read back."""

    page: int = described("Page number, from 1.")
    pages: int | None = described("Number of the message's pages; null for a list of matches.")
    has_more: bool = described("Whether there is a next page.")
    content: str = described("The text as a turn's model receives it.")
    handles: Sequence[str] = described("Handles of the messages in it; `m12` has `seq` 12.")
    estimated_tokens: int
