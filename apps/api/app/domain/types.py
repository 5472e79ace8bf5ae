"""The basic types: ids, messages, turns, summaries, pins, and the requests to models with their answers.

All classes here are frozen and slotted and do no I/O. Token figures are integers, in tokens of the encoding
named beside them; instants are timezone-aware UTC datetimes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NewType, TypeAlias, get_args
from uuid import UUID

from annotated_types import Ge, Le, Len

from app.domain.frozen import described, frozen

SessionId = NewType("SessionId", UUID)
TurnId = NewType("TurnId", UUID)
MessageId = NewType("MessageId", UUID)
SummaryId = NewType("SummaryId", UUID)
TenantId = NewType("TenantId", str)

LARGEST: Final = 2**42
"""Largest count or number: more than any session has, and small enough that sums over a session fit into 64 bits."""
Count: TypeAlias = Annotated[int, Ge(0), Le(LARGEST)]
Difference: TypeAlias = Annotated[int, Ge(-LARGEST), Le(LARGEST)]
SmallSeq: TypeAlias = Annotated[int, Ge(1), Le(2**31 - 1)]
NumberInTurn: TypeAlias = Annotated[int, Ge(1), Le(2**30)]
"""Of a step, a round or an attempt: the 32 bits of its column leave as many for the rest of a turn that is imported."""
Name: TypeAlias = Annotated[str, Len(1, 200)]

JsonObject: TypeAlias = dict[str, Any]
ContentPart: TypeAlias = Mapping[str, Any]
"""One part of a multi-part content in the OpenAI form: `{"type": "text", "text": …}`, `{"type": "image_url", …}` …"""
Content: TypeAlias = str | Sequence[ContentPart] | None
Role: TypeAlias = Literal["user", "assistant", "tool"]
PromptMessage: TypeAlias = dict[str, Any]
"""A message as it is sent, in the neutral (OpenAI chat) form: `role`, `content`, and, if they apply, `name`,
`tool_calls`, `tool_call_id`, and one of `reasoning_content` and `reasoning_blocks`. Roles here include `system`."""
ReasoningForm: TypeAlias = Literal["text", "blocks"]
"""How reasoning is sent back to a model: as `reasoning_content`, or as the provider's own signed `reasoning_blocks`."""
REASONING_FORMS: Final[tuple[ReasoningForm | None, ...]] = (None, *get_args(ReasoningForm))
"""All forms, and None for reasoning that is not sent. A form is stored as its index in this tuple."""
ToolDefinition: TypeAlias = Mapping[str, Any]
"""A tool in the form of chat completions: `{"type": "function", "function": {"name", "description", "parameters"}}`, or
a custom one (`domain/content.py`)."""


class TurnStatus(StrEnum):
    """Status of a turn. `running` and `awaiting_tools` are open. The others are final, except that a session's newest
    turn can be tried again if it is `failed` or `cancelled`."""

    RUNNING = "running"
    AWAITING_TOOLS = "awaiting_tools"
    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


STATUS_OF: Final[Mapping[str, TurnStatus]] = {status: status for status in TurnStatus}
"""The status of a value. Calling the class takes twenty times as long, and a turn reads several."""
OPEN_STATUSES = (TurnStatus.RUNNING, TurnStatus.AWAITING_TOOLS)
"""The statuses of a turn that has not ended. A session has at most one such turn."""
ANSWERED_STATUSES = (TurnStatus.COMPLETED, TurnStatus.AWAITING_TOOLS)
"""The statuses of a turn with a reply to its newest message."""
FAILED_STATUSES = (TurnStatus.FAILED, TurnStatus.CANCELLED)
"""The statuses of a turn that ended without one, but whose messages, unlike those of a rejected one, are sent later."""


@frozen
class ToolCall:
    """A call that the model makes. `arguments` is the JSON text exactly as the model wrote it."""

    id: str
    name: str
    arguments: str


@frozen
class Message:
    """A stored message of a turn; never a system message.

    `tokens` counts content, name, tool calls and tool call id in the encoding the caller named, without framing, and
    the `reasoning_tokens` only if `reasoning_sent` names the form in which reasoning is sent back. `seq` rises through
    the session and never repeats. `name` is the speaker; `said_at` is None if it is unknown. A message with
    `is_look_back` is only in its turn's prompts and has no row: its `seq` is that of the message it follows.
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


@frozen
class ReasoningRule:
    """Which reasoning has to be sent back: of messages after the newest user message, while the turn is open
    (`tool_loop`), or of every turn with tool calls (`tool_turns`). Blocks are sent for all calls of a turn or for none,
    those `only` of one type where there are some."""

    form: ReasoningForm
    scope: Literal["tool_loop", "tool_turns"]
    only: str | None = None


@frozen
class Turn:
    """A turn as the window uses it, with its messages in `seq` order. It is `unresolved` when the status is not
    `completed`, the output is missing, or any step did not succeed."""

    id: TurnId
    seq: int
    status: TurnStatus
    unresolved: bool
    messages: tuple[Message, ...]


@frozen
class SummaryItem:
    """One fact, decision, question or action, with the messages it came from. `kept` if the service had to add it."""

    text: str
    message_ids: tuple[MessageId, ...]
    kept: bool = False


SummaryList: TypeAlias = Literal["key_facts", "open_questions", "decisions", "action_items"]
SUMMARY_LISTS: Final[tuple[SummaryList, ...]] = get_args(SummaryList)
"""The lists of a summary, in the order in which they are requested from a model and returned to clients."""
UNCHANGED_ITEMS: Final = "…"
"""The text of an item in a summarizer's answer that stands for the items of the previous summary that it cites."""
MOST_FOCUS_CHARS: Final = 500
"""Longest `focus`, the text that says what a summary is to keep in most detail."""
MOST_EXCLUDED_TOOLS: Final = 512
"""Most tools that a policy can name whose results are kept when others are cleared."""
SummaryOrigin: TypeAlias = Literal["model", "fallback", "emergency", "person"]
SummaryStatus: TypeAlias = Literal["active", "superseded", "undone"]

SummaryCall: TypeAlias = Literal["separate", "cached"]
"""How a summarizer is called: with a document of the messages, or by an instruction after the repeated last prompt."""
SummaryCallReason: TypeAlias = Literal["policy", "provider", "too_large", "not_cached", "refused", "no_price", "cost"]
"""Why this call is used, in the order above: the policy says so; the provider does not cache conversations; the prompt
leaves no space for the instruction and its answer; the provider has not cached it, as far as is known; the answer to
the repeated prompt could not be used, this time or before; a price is unknown; or this call is the cheaper one."""


@frozen(weakref_slot=True)
class SummaryBody:
    """A summary's content, in the structure in which a summarizer has to answer."""

    summary_text: str
    key_facts: tuple[SummaryItem, ...] = ()
    open_questions: tuple[SummaryItem, ...] = ()
    decisions: tuple[SummaryItem, ...] = ()
    action_items: tuple[SummaryItem, ...] = ()

    def __hash__(self) -> int:
        # Hashing all items takes as long as rendering, which is cached by body. Summaries may have the same text; their
        # numbers of facts and decisions and their newest fact keep most of them from being compared item by item.
        return hash((self.summary_text, len(self.key_facts), len(self.decisions), self.key_facts[-1:]))

    @property
    def lists(self) -> dict[SummaryList, tuple[SummaryItem, ...]]:
        return {name: getattr(self, name) for name in SUMMARY_LISTS}

    @property
    def items(self) -> list[SummaryItem]:
        """The items of all lists, in the order of `SUMMARY_LISTS`."""
        return [item for items in self.lists.values() for item in items]


@frozen
class Summary:
    """A stored summary. It replaces every message from `from_message_id` through `to_message_id` (by `seq`)."""

    id: SummaryId
    body: SummaryBody
    from_message_id: MessageId
    to_message_id: MessageId
    to_message_seq: int
    origin: SummaryOrigin
    call_reason: SummaryCallReason | None = None


MOST_PINS = 1_000
MOST_PINS_BYTES = 16 * 1024 * 1024
"""Largest total size of the contents of one session's pins: every turn reads them all."""


@frozen
class Pin:
    """Content the session's owner wants in every prompt. `relevance` is 0 to 1, or None if it was not given."""

    name: str
    content: str
    relevance: float | None = None
    source: str | None = None


@frozen
class Usage:
    """Tokens as the provider reported them. `prompt_tokens` is the whole prompt, with those read from the provider's
    cache and those written to it, which have prices of their own. `completion_tokens` include those of reasoning."""

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0
    cache_write_prompt_tokens: int = 0
    reasoning_completion_tokens: int = 0


Region: TypeAlias = Literal["system", "goal", "pins", "summary", "history", "recall", "user", "tools", "framing"]
REGIONS: Final[tuple[Region, ...]] = get_args(Region)
"""The parts of a prompt whose tokens are counted separately, in the order in which answers list them."""

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter", "refusal", "other"]
"""With `refusal` the text says that the model declines, and is no answer in the form that was asked for."""
Purpose: TypeAlias = Literal["turn", "summary", "embedding"]

CHAT_OPTIONS: Final[frozenset[str]] = frozenset((
    "temperature", "top_p", "stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "response_format",
    "parallel_tool_calls", "reasoning_effort", "verbosity", "service_tier", "top_k", "min_p", "repetition_penalty",
    "chat_template_kwargs",
))  # fmt: skip
"""What a request to a model may contain besides messages, tools and the length of its answer, by the names that chat
completions use."""


@frozen
class RecordedReply:
    """An assistant message of a recorded conversation, which the `offline` provider answers with in a replay."""

    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()


@frozen
class CompletionRequest:
    """One call to a model, in the neutral form; an adapter translates it.

    With `names_as_text` the speaker is written before a message's text, even if the wire format has a field for it.
    `response_schema` requests JSON of that schema where the provider supports it; the answer is validated anyway.
    `options` are the other fields that a client of chat completions can set (`temperature`, `stop`, `response_format`
    …), by OpenAI's names. They override the catalogue's own; an adapter sends those that its wire format has. `headers`
    are sent in addition to the adapter's own, for traces across servers. Calls with one `cache_key` have prompts with a
    common prefix: a provider with prefix caching sends them to the same cache. The first `lasting_messages` messages
    are that prefix; a provider that caches only marked messages caches these. `size_bytes` is about the size of its
    JSON. After an attempt that used tokens, the call is repeated only if `may_repeat` allows it.
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
    may_repeat: Callable[[], Awaitable[bool]] | None = None

    @property
    def stop_sequences(self) -> Sequence[str]:
        """The texts at which the client wants the answer to end."""
        stop = self.options.get("stop") or ()
        return (stop,) if isinstance(stop, str) else stop


@frozen
class Completion:
    """A model's answer. `text` is None when it only called tools, `usage` when the provider reported none, and
    `stop_sequence` when it did not say that a requested one ended the answer. `earlier_usages` are those of the
    attempts before it, in the form of `ProviderError.usages`. `reasoning_blocks` are in the provider's own form, with
    signatures; no other code interprets them."""

    text: str | None
    finish_reason: FinishReason
    usage: Usage | None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    provider_model: str | None = None
    attempts: int = 1
    reasoning_blocks: tuple[JsonObject, ...] = ()
    earlier_usages: tuple[Usage, ...] = ()
    stop_sequence: str | None = None

    @property
    def usages(self) -> tuple[Usage, ...]:
        """Those of all attempts that are known."""
        return (*self.earlier_usages, self.usage) if self.usage else self.earlier_usages


@frozen
class Delta:
    """One increment of a streamed answer, or of a refusal. Joined, they are its text, and likewise its reasoning."""

    text: str = ""
    reasoning: str = ""
    is_refusal: bool = False


@frozen
class Session:
    """A conversation and its settings, as it is stored and as clients read it. `forked_from` is `{session_id, turn_id}`
    if it began with that session's past through that turn. `limits` has values by the names in `domain/limits.py`.
    `external_id` is a client's own name for it."""

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
    external_id: str | None = described("The client's own name of the session, from `X-Session-Id`.")


@frozen
class SessionRef:
    """A session's id with its tenant, so that another tenant's session is never found."""

    tenant_id: TenantId
    id: SessionId


@frozen
class SessionState(SessionRef):
    """The part of a session's row that a prompt depends on, read under the row's lock for a turn, else without a lock.

    The turn count towards the mandatory summary begins after `summary_count_after_seq`. What was read of the settled
    past is valid as long as `past_version` is the same. `last_turn_seq` and `last_message_seq` are the last numbers
    given out, under a claim's lock those of its turn. `cache_key` is the key of its prompts' cache at the provider, if
    that is not the session's id.
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
    past_version: int
    last_turn_seq: int
    last_message_seq: int
    forked_from: JsonObject | None
    cache_key: str | None


@frozen
class TurnRecord:
    """A turn as it is stored and as clients read it. `error` is the problem it ended with, in the form of the HTTP
    answer; `tool_calls` are those that wait for their outputs."""

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
