"""What the service talks about: ids, messages, turns, summaries, pins, and the requests to models with their answers.

Everything here is frozen and slotted and knows no I/O. Token figures are integers in tokens of the encoding
named beside them; instants are timezone-aware UTC datetimes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NewType, TypeAlias, get_args
from uuid import UUID

from annotated_types import Ge, Le, Len

SessionId = NewType("SessionId", UUID)
TurnId = NewType("TurnId", UUID)
MessageId = NewType("MessageId", UUID)
SummaryId = NewType("SummaryId", UUID)
TenantId = NewType("TenantId", str)

LARGEST: Final = 2**42
"""Of a count or number: more than any session has, and so small that no sum over a session leaves 64 bits."""
Count: TypeAlias = Annotated[int, Ge(0), Le(LARGEST)]
Difference: TypeAlias = Annotated[int, Ge(-LARGEST), Le(LARGEST)]
SmallSeq: TypeAlias = Annotated[int, Ge(1), Le(2**31 - 1)]
Name: TypeAlias = Annotated[str, Len(1, 200)]

JsonObject: TypeAlias = dict[str, Any]
ContentPart: TypeAlias = Mapping[str, Any]
"""One part of a multi-part content in the OpenAI form: `{"type": "text", "text": …}`, `{"type": "image_url", …}` …"""
Content: TypeAlias = str | Sequence[ContentPart] | None
Role: TypeAlias = Literal["user", "assistant", "tool"]
PromptMessage: TypeAlias = dict[str, Any]
"""A message as it is sent, in the neutral (OpenAI chat) form: `role`, `content`, and where they apply `name`,
`tool_calls`, `tool_call_id`, and one of `reasoning_content` and `reasoning_blocks`. Roles here include `system`."""
ReasoningForm: TypeAlias = Literal["text", "blocks"]
"""How reasoning goes back to a model: as `reasoning_content`, or as the provider's own signed `reasoning_blocks`."""
REASONING_FORMS: Final[tuple[ReasoningForm | None, ...]] = (None, *get_args(ReasoningForm))
"""With None for reasoning that is not sent; they are stored by their places."""
ToolDefinition: TypeAlias = Mapping[str, Any]
"""A tool in the form of chat completions: `{"type": "function", "function": {"name", "description", "parameters"}}`, or
a custom one (`domain/content.py`)."""


class TurnStatus(StrEnum):
    """Life of a turn. `running` and `awaiting_tools` are open; the others are final, save that a session's newest turn
    may be tried again when it `failed` or was `cancelled`."""

    RUNNING = "running"
    AWAITING_TOOLS = "awaiting_tools"
    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


OPEN_STATUSES = (TurnStatus.RUNNING, TurnStatus.AWAITING_TOOLS)
"""Of turns that have not ended. A session has at most one such turn."""


@dataclass(frozen=True, slots=True)
class OpenTurnCount:
    """How many turns have one open status. `oldest_s` counts from when the oldest of them was posted."""

    turns: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model makes. `arguments` is the JSON text exactly as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message of a turn; never a system message.

    `tokens` counts content, name, tool calls and tool call id in the encoding the caller named, without the provider's
    per-message framing. `reasoning_tokens` is what the reasoning would cost beside that; it is part of `tokens` only
    where `reasoning_sent` says in which form it goes back. `seq` rises through the session and never repeats. `name` is
    who of several people or agents spoke; `said_at` when, None where nobody knows. One that `is_look_back` belongs to
    its turn's prompts alone and has no row: `seq` is then that of the message it follows.
    """

    id: MessageId
    turn_id: TurnId
    seq: int
    role: Role
    content: Content
    tokens: int
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_blocks: tuple[JsonObject, ...] = ()
    reasoning_tokens: int = 0
    reasoning_sent: ReasoningForm | None = None
    name: str | None = None
    said_at: datetime | None = None
    is_look_back: bool = False


@dataclass(frozen=True, slots=True)
class ReasoningRule:
    """Which reasoning a model wants back, and how.

    `tool_loop` is the assistant's messages after the newest user message, while the turn runs; `tool_turns` those of
    every turn in which tools were called.
    """

    form: ReasoningForm
    scope: Literal["tool_loop", "tool_turns"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn as the window sees it: its messages in `seq` order and whether it is settled.

    `unresolved` is true when the status is not `completed`, the output is missing, or any step did not succeed.
    """

    id: TurnId
    seq: int
    status: TurnStatus
    unresolved: bool
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class SummaryItem:
    """One fact, decision, question or action, with the messages it came from; `kept` where the summarizer left it out
    and the service added it."""

    text: str
    message_ids: tuple[MessageId, ...]
    kept: bool = False


SummaryList: TypeAlias = Literal["key_facts", "open_questions", "decisions", "action_items"]
SUMMARY_LISTS: Final[tuple[SummaryList, ...]] = get_args(SummaryList)
"""The lists of a summary, in the order in which they are requested and answered."""
MOST_FOCUS_CHARS: Final = 500
"""Of what a summary is to keep in most detail."""
MOST_EXCLUDED_TOOLS: Final = 512
"""Tools whose results stay where others are cleared."""
SummaryOrigin: TypeAlias = Literal["model", "fallback", "emergency", "person"]
SUMMARY_ORIGINS: Final[tuple[SummaryOrigin, ...]] = get_args(SummaryOrigin)

SummaryCall: TypeAlias = Literal["separate", "cached"]
"""How a summarizer is called: with a document of what leaves, or behind a repetition of the session's last prompt."""
SummaryCallReason: TypeAlias = Literal["policy", "provider", "too_large", "not_cached", "refused", "no_price", "cost"]
"""Why it is called so: the policy says it; the provider caches no conversations; the prompt has no room for the
instruction; the provider has not cached it, as far as is known; the answer behind the repeated prompt could not be
used, this time or before; a price is unknown; or the one costs less than the other."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class SummaryBody:
    """The structured contract a summarizer answers with."""

    summary_text: str
    key_facts: tuple[SummaryItem, ...] = ()
    open_questions: tuple[SummaryItem, ...] = ()
    decisions: tuple[SummaryItem, ...] = ()
    action_items: tuple[SummaryItem, ...] = ()

    def __hash__(self) -> int:
        return hash(self.summary_text)  # the whole would be as dear as what is kept for a body


@dataclass(frozen=True, slots=True)
class Summary:
    """A stored summary. It stands for every message from `from_message_id` through `to_message_id` (by `seq`)."""

    id: SummaryId
    body: SummaryBody
    from_message_id: MessageId
    to_message_id: MessageId
    to_message_seq: int
    origin: SummaryOrigin
    call_reason: SummaryCallReason | None = None


MOST_PINS = 1_000
MOST_PINS_BYTES = 16 * 1024 * 1024
"""Of the contents of one session's pins: every turn reads them all."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Content the session's owner wants in every prompt. `relevance` is 0 to 1, or None when nobody gave one."""

    name: str
    content: str
    relevance: float | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider reported them.

    `prompt_tokens` is the whole prompt: it includes those read from the provider's cache (`cached_prompt_tokens`) and
    those written to it (`cache_write_prompt_tokens`), which providers sell at prices of their own.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0
    cache_write_prompt_tokens: int = 0


Region: TypeAlias = Literal["system", "goal", "pins", "summary", "history", "recall", "user", "tools", "framing"]
REGIONS: Final[tuple[Region, ...]] = get_args(Region)
"""What the tokens of a prompt are counted by, in the order in which they are answered."""

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter", "other"]
Purpose: TypeAlias = Literal["turn", "summary", "embedding"]

CHAT_OPTIONS: Final[frozenset[str]] = frozenset((
    "temperature", "top_p", "stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "response_format",
    "parallel_tool_calls", "reasoning_effort", "verbosity", "service_tier", "top_k", "min_p", "repetition_penalty",
    "chat_template_kwargs",
))  # fmt: skip
"""What a request to a model may have beside messages, tools and the length of its answer, by the names of chat
completions."""


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """An assistant message of a recorded conversation, for the `offline` provider to answer with in a replay."""

    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One call to a model, in the neutral form; an adapter translates it.

    With `names_as_text` who spoke is written before a message's text, also where the wire has a field for it.
    `response_schema` requests JSON of that schema where the provider supports it; the answer is validated anyway.
    `recorded_reply` is for the `offline` provider alone: it answers with it. `options` are what a client of chat
    completions may set besides (`temperature`, `stop`, `response_format` …), by OpenAI's names. They stand above
    the catalogue's own; an adapter takes those that its wire knows. `headers` travel beside an adapter's own, for
    whoever follows a call from one server to the next. Calls of one `cache_key` have prompts that begin alike: a
    provider with prefix caching sends them to the same cache. The first `lasting_messages` are what they begin with: a
    provider that has to be shown what to cache keeps these. `size_bytes` are those of its JSON, about.
    """

    messages: Sequence[PromptMessage]
    max_output_tokens: int
    purpose: Purpose = "turn"
    tools: Sequence[ToolDefinition] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    response_schema: Mapping[str, Any] | None = None
    recorded_reply: RecordedReply | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    names_as_text: bool = False
    cache_key: str | None = None
    lasting_messages: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer. `text` is None when it only called tools. `usage` is None when the provider reported none.

    `reasoning_blocks` are the provider's own form of its reasoning, signatures included, opaque to everyone else: an
    assistant message that carries them under this name sends them back where its provider wants them (tool loops).
    """

    text: str | None
    finish_reason: FinishReason
    usage: Usage | None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    provider_model: str | None = None
    attempts: int = 1
    reasoning_blocks: tuple[JsonObject, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What a streamed answer grew by. The texts of all deltas, joined, are the answer's text, and so its reasoning."""

    text: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation and how it is to be run, as it is stored and as clients read it.

    `forked_from` is `{session_id, turn_id}` of the session whose past it began with, through that turn. `limits` has
    values by the names of `domain/limits.py`. `external_id` is a client's own name for it.
    """

    id: SessionId
    model_alias: str
    mode: str | None
    agent_role: str | None
    room_goal: str | None
    instructions: str | None
    policy: JsonObject
    metadata: JsonObject
    limits: JsonObject
    created_at: datetime
    updated_at: datetime
    forked_from: JsonObject | None
    external_id: str | None


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """What a session used of one alias for one purpose."""

    model_alias: str
    purpose: Purpose
    calls: int
    prompt_tokens: int
    cached_prompt_tokens: int
    cache_write_prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None = field(metadata={"description": "Null where no price is known."})


@dataclass(frozen=True, slots=True)
class SessionRef:
    """Which session of which tenant: another tenant's session is not found under it."""

    tenant_id: TenantId
    id: SessionId


@dataclass(frozen=True, slots=True)
class SessionState(SessionRef):
    """What a prompt depends on of a session's row, read under its lock for a turn, or without one where none runs.

    `policy` holds the session's own fields. A turn count towards the mandatory summary begins after
    `summary_count_after_seq`. What was read of the settled past under one `past_version` holds as long as it is that.
    """

    model_alias: str
    mode: str | None
    agent_role: str | None
    room_goal: str | None
    instructions: str | None
    policy: JsonObject
    summary_count_after_seq: int
    summary_failures: int
    summary_failed_at: datetime | None
    past_version: int = 0


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """A message as it is stored and as clients read it; `token_estimate` is in `token_encoding`."""

    id: MessageId
    turn_id: TurnId
    turn_seq: int
    seq: int
    role: Role
    name: str | None = field(metadata={"description": "Who of several people or agents spoke."})
    content: Content
    tool_calls: Sequence[JsonObject] | None
    tool_call_id: str | None
    token_estimate: int
    token_encoding: str
    said_at: datetime = field(metadata={"description": "As the client gave it, else `created_at`."})
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn as it is stored and as clients read it. `error` is the problem it ended with, in the shape the HTTP answer
    had; `tool_calls` are those that wait for their outputs."""

    id: TurnId
    session_id: SessionId
    seq: int
    status: TurnStatus
    user_input: str
    assistant_output: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    error: JsonObject | None
    model_alias: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: Decimal | None
    idempotency_key: str | None
    created_at: datetime
    completed_at: datetime | None
