"""What the service answers, typed.

Fields are those of the service's OpenAPI document (a test holds them to it). What a newer service adds is kept and can
be read like any other field, so that a client need not be as new as its service. Ids are text; instants are aware
datetimes; token figures are tokens.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")


class Answer(BaseModel):
    """Anything that was answered: frozen, and open to fields of later versions."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())


class Page(Answer, Generic[Item]):
    """One page of a list. `next_cursor` asks for the next one; None on the last."""

    items: list[Item]
    next_cursor: str | None = None


class Limits(Answer):
    """What a session may use, by minute, day or month (UTC), or in total. None is no limit."""

    turns_per_minute: int | None = None
    turns_per_day: int | None = None
    turns_total: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    tokens_total: int | None = None
    usd_per_day: float | None = None
    usd_per_month: float | None = None
    usd_total: float | None = None


class ForkedFrom(Answer):
    """Whose past a session began with, and the last turn of it; None when it began before the first."""

    session_id: str
    turn_id: str | None


class Session(Answer):
    """A conversation and how it is run. `external_id` is a client's own name for it."""

    id: str
    model_alias: str
    mode: str | None
    agent_role: str | None
    room_goal: str | None
    instructions: str | None
    policy: dict[str, Any]
    metadata: dict[str, Any]
    limits: Limits
    created_at: datetime
    updated_at: datetime
    forked_from: ForkedFrom | None
    external_id: str | None = None


class Usage(Answer):
    """What a session used of one alias for one purpose (`turn` or `summary`); `cost_usd` is None without a price."""

    model_alias: str
    purpose: str
    calls: int
    prompt_tokens: int
    cached_prompt_tokens: int
    cache_write_prompt_tokens: int
    completion_tokens: int
    reasoning_completion_tokens: int
    cost_usd: float | None


class WindowFigures(Answer):
    """The prompt of the newest turn that had one, in tokens."""

    turn_id: str
    model_alias: str
    model_context_limit: int
    input_budget: int
    estimated_input_tokens: int
    estimated_wire_tokens: int


class SessionFigures(Answer):
    """A session's newest figures. `state` is the newest turn's; token sums are the providers', summaries included."""

    turns: int
    state: str | None
    first_input: str | None
    last_turn_id: str | None
    last_turn_at: datetime | None
    window: WindowFigures | None
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None


class ListedSession(Session):
    """A session in a list; `figures` are there where they were asked for."""

    figures: SessionFigures | None = None


class SessionDetail(Session):
    """A session with what it used so far, and where it stands."""

    usage: list[Usage]
    figures: SessionFigures | None


class CalledFunction(Answer):
    """`arguments` is the JSON text as the model wrote it."""

    name: str
    arguments: str


class ToolCall(Answer):
    """A call that the model asked for."""

    id: str
    type: str = "function"
    function: CalledFunction


class Turn(Answer):
    """A turn. `error` is the problem it ended with; `tool_calls` wait for their outputs.

    `status` is one of `running`, `awaiting_tools`, `completed`, `failed`, `rejected`, `cancelled`.
    """

    id: str
    session_id: str
    seq: int
    status: str
    user_input: str
    assistant_output: str | None
    tool_calls: list[ToolCall]
    finish_reason: str | None
    error: dict[str, Any] | None
    model_alias: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    idempotency_key: str | None
    created_at: datetime
    completed_at: datetime | None


class ListedTurn(Turn):
    """A turn, and who of several people spoke its user's message (`name`) and when (`said_at`, else `created_at`)."""

    name: str | None
    said_at: datetime


class TurnChange(Answer):
    """Where a turn stands."""

    session_id: str
    turn_id: str
    seq: int
    status: str
    model_alias: str
    created_at: datetime
    completed_at: datetime | None


class TurnHead(Answer):
    """What is known of a turn when it begins."""

    id: str
    session_id: str
    seq: int
    status: str


class Regions(Answer):
    """Tokens by what they are for; they sum to the tokens on the wire."""

    system: int
    goal: int
    pins: int
    summary: int
    history: int
    recall: int
    user: int
    tools: int
    framing: int


class TrimAction(Answer):
    """One thing that was shortened or left out, and why; or `count` of them, of a range of messages or turns."""

    kind: str
    target: str
    reason: str
    tokens_removed_est: int
    count: int = 1


class RelatedWord(Answer):
    """A word that a message has instead of the user's word `of`."""

    word: str
    of: str


class RecalledMessage(Answer):
    """A recalled message, verbatim. `matched` are the user's words that it has, `related` words that it has
    instead of others, and `similarity` is how near its meaning is to the user's message, 0 to 1; without any of them it
    stands beside one that has some."""

    message_id: str
    score: float
    tokens: int
    matched: list[str] = Field(default_factory=list[str])
    related: list[RelatedWord] = Field(default_factory=list[RelatedWord])
    similarity: float | None = None


class LookedBack(Answer):
    """What the turn's look-backs added to the prompt."""

    messages: int
    tokens: int


class TrimLog(Answer):
    """What was done to the prompt. `looked_back` is None where the turn has not looked back."""

    max_context_tokens: int
    estimated_tokens_before: int
    estimated_tokens_after: int
    actions: list[TrimAction]
    recalled: list[RecalledMessage] = Field(default_factory=list[RecalledMessage])
    looked_back: LookedBack | None = None


class Context(Answer):
    """How the prompt of a turn was decided."""

    model_alias: str
    model_context_limit: int
    context_limit_source: str
    input_budget: int
    output_reserve: int
    overhead_reserve: int
    estimated_input_tokens_before: int
    estimated_input_tokens_after_summary: int
    estimated_input_tokens_after_prune: int
    summary_triggered: bool
    prune_triggered: bool
    overflow_rejected: bool
    estimated_wire_tokens: int
    regions: Regions
    context_trim_log: TrimLog
    prompt_sha256: str | None


class Audit(Context):
    """The stored context of one model call of a turn: of tool round `round`, after `attempt - 1` reactive retries.

    `cache_break` is what keeps the prompt from going on from the one before it; None where nothing is known to.
    """

    id: str
    turn_id: str
    session_id: str
    round: int
    attempt: int
    estimator: str
    calibration_ratio: float
    actual_prompt_tokens: int | None
    cache_break: str | None
    created_at: datetime


class TurnAnswer(Answer):
    """A turn that has ended or waits for tools, and its context."""

    turn: Turn
    context: Context


class RegeneratedAnswer(TurnAnswer):
    """The turn that was run again, in the session that was created for it."""

    session: Session


class LaidOut(Answer):
    """Where a message of a prompt stands and what it costs in tokens, without framing.

    `region` is None for prompts that were sent before this was recorded, `message_id` for what is no stored message.
    `turn_seq` is the number of the stored turn.
    """

    region: str | None
    tokens: int
    message_id: str | None
    turn_id: str | None
    shortened: bool
    turn_seq: int | None = None


class Prompt(Answer):
    """What was sent, rebuilt from stored rows: messages and tools in the OpenAI form, and each message's layout."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    prompt_sha256: str
    layout: list[LaidOut]


class Preview(Answer):
    """The prompt and figures that the next turn would have. `refusal` is the problem it would be answered with."""

    seq: int
    open_turn_id: str | None
    summary_pending: bool
    context: Context
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    estimated_prompt_cost_usd: float | None
    layout: list[LaidOut]
    refusal: dict[str, Any] | None


class Window(Answer):
    """A session's window now, before the next message. `turns_to_next_summary` is None where turns are not counted."""

    model_alias: str
    model_context_limit: int
    context_limit_source: str
    input_budget: int
    output_reserve: int
    overhead_reserve: int
    estimated_input_tokens: int
    estimated_wire_tokens: int
    regions: Regions
    history_budget: int
    raw_turns: int
    active_summary_id: str | None
    turns_to_next_summary: int | None
    summary_trigger_tokens: int | None
    prune_trigger_tokens: int


class SummaryItem(Answer):
    """One fact, decision, question or action, with the messages it came from; `kept` where the summarizer left it out
    and the service added it."""

    text: str
    message_ids: list[str]
    kept: bool = False


class Summary(Answer):
    """A summary of the messages from `from_message_id` through `to_message_id`.

    `status` is `active`, `superseded` or `undone`; `origin` is `model`, `fallback`, `emergency` or `person`. `call` is
    `cached` where the model was called behind a repetition of the session's last prompt, else `separate`.
    """

    id: str
    session_id: str
    from_message_id: str
    to_message_id: str
    previous_summary_id: str | None
    summary_text: str
    key_facts: list[SummaryItem]
    open_questions: list[SummaryItem]
    decisions: list[SummaryItem]
    action_items: list[SummaryItem]
    status: str
    origin: str
    model_alias: str
    call: str | None
    call_reason: str | None
    token_estimate: int
    prompt_tokens: int | None
    completion_tokens: int | None
    created_by_turn_id: str | None
    created_at: datetime


class Pin(Answer):
    """Content that is in every prompt of its session. `relevance` is 0 to 1, or None when nobody said."""

    name: str
    content: str
    relevance: float | None
    source: str | None


class PinFigures(Answer):
    """What a pin costs in every prompt, and how relevant it is (`relevance_from`: `given` or `computed`). Of a computed
    one `matched`, `related` and `similarity` say why, as in `RecalledMessage`."""

    tokens: int
    relevance: float
    relevance_from: str
    matched: list[str] = Field(default_factory=list[str])
    related: list[RelatedWord] = Field(default_factory=list[RelatedWord])
    similarity: float | None = None


class ListedPin(Pin):
    """A pin in a list; `figures` stand there when they are asked for."""

    figures: PinFigures | None = None


class Message(Answer):
    """A message as it is stored; `token_estimate` is in `token_encoding`. `name` is who of several people or agents
    spoke, `said_at` when: as it was given, else `created_at`."""

    id: str
    turn_id: str
    turn_seq: int
    seq: int
    role: str
    name: str | None
    content: str | list[dict[str, Any]] | None
    tool_calls: list[ToolCall] | None
    tool_call_id: str | None
    token_estimate: int
    token_encoding: str
    said_at: datetime
    created_at: datetime


class TimelineWindow(Answer):
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
    regions: Regions
    summary_trigger_tokens: int | None
    prune_trigger_tokens: int | None
    prompt_sha256: str | None


class TimelineEvent(Answer):
    """Something that changed what was sent. `tokens` are those removed from the prompt, or recalled into it.

    `kind` is `summary`, `later_summary`, `prune`, `recall`, `overflow` or `emergency`; `count` is of turns folded, or
    of messages pruned, recalled or dropped.
    """

    kind: str
    tokens: int | None = None
    count: int | None = None
    summary_id: str | None = None
    origin: str | None = None
    status: str | None = None


class TimelineTurn(Answer):
    """A turn as a point of a plot. `window` is None if no prompt was decided; `user_input` is its beginning."""

    turn_id: str
    seq: int
    status: str
    model_alias: str
    user_input: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    created_at: datetime
    completed_at: datetime | None
    rounds: int
    attempts: int
    window: TimelineWindow | None
    events: list[TimelineEvent]


class EventCounts(Answer):
    """In how many turns of a range something changed what was sent, by kind of event; and how many failed."""

    summary: int
    later_summary: int
    prune: int
    recall: int
    overflow: int
    emergency: int
    failed: int


class TimelineRange(Answer):
    """Turns `first_seq` through `last_seq` as one point of a plot. `peak` is the one with the largest prompt."""

    first_seq: int
    last_seq: int
    events: EventCounts
    peak: TimelineTurn


class FoundInSession(Answer):
    """A message of any session that has the words of a search. `complete` says whether `excerpt` is all of its text."""

    session_id: str
    message_id: str
    turn_id: str
    turn_seq: int
    seq: int
    role: str
    name: str | None
    said_at: datetime
    excerpt: str
    complete: bool


class FoundMessage(FoundInSession):
    """A message of one session that matches a search, how well, and why, as in `RecalledMessage`."""

    score: float
    matched: list[str] = Field(default_factory=list[str])
    related: list[RelatedWord] = Field(default_factory=list[RelatedWord])
    similarity: float | None = None


class Found(Page[FoundMessage]):
    """What a search found, best first. `unsearched_messages` of the oldest were not looked through."""

    searched_messages: int
    unsearched_messages: int


class LookBackPage(Answer):
    """A page of a session's stored messages. `pages` is None where matches are shown; `content` is the text as a model
    gets it, `handles` name the messages in it."""

    page: int
    pages: int | None
    has_more: bool
    content: str
    handles: list[str]
    estimated_tokens: int


class Simulation(Answer):
    """Stored turns under other policies; docs/simulate.md describes the figures."""

    session_id: str
    stored_turns: int
    turns: int
    truncated: bool
    gone_aliases: list[str]
    summaries_from: str
    assumed: list[str]
    happened: dict[str, Any]
    full_history: list[dict[str, Any]]
    policies: list[dict[str, Any]]


class Prices(Answer):
    """US dollars for a million tokens; None where nobody has published one. `tiers` are those of larger prompts."""

    input_usd: float | None
    output_usd: float | None
    cached_input_usd: float | None
    cache_write_usd: float | None
    above_prompt_tokens: int
    tiers: list[Prices]


class Model(Answer):
    """An alias of the catalogue. `context_window` is in tokens."""

    alias: str
    provider: str
    model: str
    is_language_model: bool
    context_window: int
    context_window_source: str
    encoding: str
    fallbacks: list[str]
    prices: Prices | None
    calibration_ratio: float


class ListedModel(Answer):
    """A model in OpenAI's and Anthropic's form; `id` is the alias."""

    id: str
    object: str
    created: int
    owned_by: str
    type: str = "model"
    created_at: str = ""
    display_name: str = ""


class Models(Page[Model]):
    """The catalogue. `data` has the same aliases in OpenAI's and Anthropic's form."""

    default: str
    object: str
    data: list[ListedModel]


class DesignName(Answer):
    """A setting as a design's project spells it; null stands for a value that it does not publish."""

    spellings: list[str]
    fields: list[str]
    published: Any
    unit: str


class Preset(Answer):
    """A design by name, with the value of every field."""

    name: str
    description: str
    policy: dict[str, Any]
    names: list[DesignName] = Field(default_factory=list[DesignName])


class PolicyField(Answer):
    """A field of a policy: what it takes, what it does, and its value by preset."""

    name: str
    takes: str
    value_schema: dict[str, Any]
    meaning: str
    defaults: dict[str, Any]


class Policies(Answer):
    """The presets, and the fields that a policy may have."""

    default: str
    presets: list[Preset]
    fields: list[PolicyField]


class Root(Answer):
    """Who answers at an address: the service's name and version, and its other addresses by what is there."""

    name: str
    version: str
    links: dict[str, str]


class Health(Answer):
    """`ok` while the process serves."""

    status: str


class Readiness(Answer):
    """Whether the service can be used now; `migrations` is None when the database does not answer."""

    status: str
    database: str
    migrations: str | None
