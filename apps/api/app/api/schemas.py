"""What comes in, validated strictly, and what goes out, described.

Bodies take no coercion ("5" is no number) and no unknown field, so that a typo is told and not ignored. Classes that
describe answers are for the OpenAPI document; a test holds real answers to them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, cast
from uuid import UUID

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from app.api.figures_schemas import LaidOut, PinFigures, SessionFigures
from app.api.stored_schemas import Count, Difference, Id
from app.domain.types import TurnStatus

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_METADATA_BYTES = 64 * 1024
_LONGEST_VARIANT_NAME = 80


class In(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Open(BaseModel):
    """Part of a form that others define: what we need is checked, the rest is passed on."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


_Count = Annotated[int, Field(ge=0, le=10**15)]
_Usd = Annotated[float, Field(ge=0, le=10**9, allow_inf_nan=False)]


class LimitsIn(In):
    """Limits by minute, day or month (UTC), or in total from when they are set. Only what is named is limited."""

    turns_per_minute: _Count | None = None
    turns_per_day: _Count | None = None
    turns_total: _Count | None = None
    tokens_per_minute: _Count | None = Field(default=None, description="Prompt and completion together.")
    tokens_per_day: _Count | None = None
    tokens_total: _Count | None = None
    usd_per_day: _Usd | None = Field(default=None, description="At published prices; a model without one costs 0.")
    usd_per_month: _Usd | None = None
    usd_total: _Usd | None = None


class SessionIn(In):
    """A new session; every field may be left out."""

    model_alias: Name | None = Field(default=None, description="Alias of the catalogue; its default when absent.")
    mode: Name | None = Field(default=None, description="Picks system layer 2 of the catalogue's instructions.")
    agent_role: Name | None = Field(default=None, description="Picks system layer 3 of the catalogue's instructions.")
    room_goal: str | None = Field(default=None, description="What the session is for. Never dropped from a prompt.")
    instructions: str | None = Field(default=None, description="System layer 4, of this session alone.")
    policy: dict[str, Any] | None = Field(
        default=None, description='Policy overrides, for example `{"preset": "guarded"}`.'
    )
    metadata: dict[str, Any] | None = Field(default=None, description="Yours; at most 64 KiB of JSON.")
    limits: LimitsIn | None = Field(
        default=None, description="What this session may use; a turn over it is a 429 `limit_exceeded`."
    )

    @field_validator("metadata")
    @classmethod
    def _metadata_is_small(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None and len(orjson.dumps(value)) > _METADATA_BYTES:
            raise ValueError(f"At most {_METADATA_BYTES} bytes of JSON")
        return value


class SessionPatch(SessionIn):
    """Fields to set. What is absent stays; null takes a value away; objects are replaced whole."""


class TextPart(Open):
    type: Literal["text"]
    text: str


class ImageUrl(Open):
    url: Annotated[str, StringConstraints(min_length=1)]
    detail: str | None = None


class ImagePart(Open):
    type: Literal["image_url"]
    image_url: ImageUrl


class InputAudio(Open):
    data: Annotated[str, StringConstraints(min_length=1)]
    format: str


class AudioPart(Open):
    type: Literal["input_audio"]
    input_audio: InputAudio


class FilePart(Open):
    type: Literal["file"]
    file: dict[str, Any]


ContentPartIn = Annotated[TextPart | ImagePart | AudioPart | FilePart, Field(discriminator="type")]


TEXT_TAG, PARTS_TAG = "(text)", "(parts)"
"""Branches of `content`; they stand in Pydantic's error paths, and `api/problems.py` leaves them out."""


def content_branch(value: object) -> str | None:
    return TEXT_TAG if isinstance(value, str) else PARTS_TAG if isinstance(value, list) else None


ContentIn = Annotated[
    Annotated[str, Tag(TEXT_TAG)] | Annotated[list[ContentPartIn], Tag(PARTS_TAG)],
    Discriminator(
        content_branch, custom_error_type="content_type", custom_error_message="Must be text or a list of parts"
    ),
]


class FunctionIn(Open):
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolIn(Open):
    """A tool in the OpenAI function form."""

    type: Literal["function"]
    function: FunctionIn


class ChosenFunction(In):
    name: Name


class ToolChoice(In):
    type: Literal["function"]
    function: ChosenFunction


class CalledFunction(In):
    name: Name
    arguments: str


class ToolCallIn(In):
    """A tool call in the OpenAI form; `arguments` is JSON text."""

    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction


class StoredFunction(In):
    name: str
    arguments: str


class StoredCall(In):
    """A tool call as a model made it."""

    id: Annotated[str, StringConstraints(min_length=1)]
    type: Literal["function"]
    function: StoredFunction


class RecordedReplyIn(In):
    """The assistant message of a recorded conversation, to be answered by the offline model as it stands."""

    content: str | None = None
    tool_calls: list[ToolCallIn] = Field(default_factory=list[ToolCallIn], max_length=128)

    @model_validator(mode="after")
    def _says_something(self) -> RecordedReplyIn:
        if not self.content and not self.tool_calls:
            raise ValueError("A recorded reply has content or tool calls")
        return self


class _AskIn(In):
    """How a user's message is to be answered."""

    tools: list[ToolIn] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    max_output_tokens: int | None = Field(
        default=None, ge=1, le=2**31 - 1, description="Clamped to the output reserve."
    )
    model_alias: Name | None = Field(default=None, description="Another alias for this turn only.")
    stream: bool = Field(default=False, description="Answer as server-sent events.")
    policy: dict[str, Any] | None = Field(
        default=None, description="Overrides over the session's policy, for this turn alone, its tool rounds included."
    )
    recorded_reply: RecordedReplyIn | None = Field(
        default=None, description="Only for a model of the provider `offline`."
    )


def _not_blank(value: str | list[Any] | None) -> str | list[Any] | None:
    blank = (
        not value.strip()
        if isinstance(value, str)
        else value is not None and all(isinstance(part, TextPart) and not part.text.strip() for part in value)
    )
    if blank:
        raise ValueError("The content is empty")
    return value


class TurnIn(_AskIn):
    """A user's message and how to answer it."""

    content: Annotated[ContentIn, AfterValidator(_not_blank)] = Field(
        description="Text, or parts in the OpenAI form: `text`, `image_url`, `input_audio`, `file`. Not blank."
    )


class PreviewIn(TurnIn):
    """A turn's body, as it would be posted. `stream` and `recorded_reply` change nothing."""


class RegenerateIn(_AskIn):
    """What is to be different when the last turn is run again; what is absent is as it was then."""

    content: Annotated[ContentIn | None, AfterValidator(_not_blank)] = Field(
        default=None, description="Other words in the place of the user's; the same ones when absent."
    )
    model_alias: Name | None = Field(default=None, description="Another alias; the one that was asked when absent.")


class ForkIn(In):
    """Where the fork's past ends."""

    through_turn_id: Annotated[UUID | None, Field(strict=False)] = Field(
        default=None, description="The last turn it has; the last one that has ended when absent."
    )


class ToolOutputIn(In):
    """What a tool answered to one call."""

    tool_call_id: Annotated[str, StringConstraints(min_length=1, max_length=512)]
    content: str | list[ContentPartIn]


class ToolOutputsIn(In):
    """The answers to all open tool calls of a turn."""

    outputs: list[ToolOutputIn] = Field(min_length=1, max_length=256)
    stream: bool = Field(default=False, description="Answer as server-sent events.")
    recorded_reply: RecordedReplyIn | None = Field(
        default=None, description="Only for a model of the provider `offline`."
    )


class SimulateIn(In):
    """Policies to replay the session's turns under; without any, a summary at four thresholds."""

    policies: list[Any] | None = Field(
        default=None,
        min_length=1,
        max_length=8,
        description="Each the name of a preset, or an object of overrides over the session's policy, which may have a "
        "`name` for the answer.",
    )
    model_aliases: list[Name] | None = Field(
        default=None, min_length=1, max_length=4, description="Ask every turn of these, one after the other."
    )
    max_turns: int = Field(
        default=1000,
        ge=1,
        le=2000,
        description="Turns after these are left out (`truncated`); fewer with many policies and models.",
    )

    @field_validator("policies")
    @classmethod
    def _names_or_objects(cls, value: list[Any] | None) -> list[Any] | None:
        for policy in value or ():
            if not isinstance(policy, (str, dict)):
                raise ValueError("Each is the name of a preset or an object")  # noqa: TRY004 - Pydantic's way
            name = cast("dict[str, Any]", policy).get("name", "") if isinstance(policy, dict) else ""
            if not isinstance(name, str) or len(name) > _LONGEST_VARIANT_NAME:
                raise ValueError(f"A name is a text of at most {_LONGEST_VARIANT_NAME} characters")
        return value


class PinIn(In):
    """Content for every prompt of the session."""

    content: Annotated[str, StringConstraints(min_length=1)]
    relevance: float | None = Field(default=None, ge=0, le=1)
    source: Annotated[str, StringConstraints(max_length=2000)] | None = None


class Problem(BaseModel):
    """RFC 9457. `code` is the stable word to branch on."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str
    code: str


class ForkedFrom(BaseModel):
    """Whose past a session began with, and the last turn of it; null when it began before the first."""

    session_id: UUID
    turn_id: UUID | None


class SessionOut(BaseModel):
    id: UUID
    model_alias: str
    mode: str | None
    agent_role: str | None
    room_goal: str | None
    instructions: str | None
    policy: dict[str, Any]
    metadata: dict[str, Any]
    limits: LimitsIn
    created_at: datetime
    updated_at: datetime
    forked_from: ForkedFrom | None


class UsageOut(BaseModel):
    """What a session used of one alias for one purpose."""

    model_alias: str
    purpose: Literal["turn", "summary"]
    calls: int
    prompt_tokens: int
    cached_prompt_tokens: int
    cache_write_prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None = Field(description="Null where no price is known.")


class SessionDetail(SessionOut):
    """A session with what it used so far."""

    usage: list[UsageOut]
    figures: SessionFigures | None


class ListedSession(SessionOut):
    """A session in a list; `figures` stand there with `figures=true`."""

    figures: SessionFigures | None = None


class TurnOut(BaseModel):
    """A turn. `error` is the problem it ended with; token figures are the provider's."""

    id: UUID
    session_id: UUID
    seq: int
    status: TurnStatus
    user_input: str
    assistant_output: str | None
    tool_calls: list[StoredCall]
    finish_reason: str | None
    error: dict[str, Any] | None
    model_alias: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None = Field(description="Of all its calls, summaries included; null where no price is known.")
    idempotency_key: str | None
    created_at: datetime
    completed_at: datetime | None


class Regions(In):
    """Tokens by region."""

    system: Count
    goal: Count
    pins: Count
    summary: Count
    history: Count
    recall: Count
    user: Count
    tools: Count
    framing: Count


class TrimAction(Open):
    kind: str
    target: str
    reason: str
    tokens_removed_est: Difference


class RecalledOut(Open):
    """A message that came back, verbatim."""

    message_id: Id
    score: float = Field(ge=-1e9, le=1e9)
    tokens: Count


class TrimLog(Open):
    max_context_tokens: Difference
    estimated_tokens_before: Count
    estimated_tokens_after: Count
    actions: list[TrimAction]
    recalled: list[RecalledOut] = Field(default_factory=list[RecalledOut], description="Absent where nothing was.")


class ContextOut(Open):
    """How the prompt of a turn came about. All figures are tokens."""

    model_alias: Name
    model_context_limit: Count
    context_limit_source: Name
    input_budget: Difference
    output_reserve: Count
    overhead_reserve: Count
    estimated_input_tokens_before: Count
    estimated_input_tokens_after_summary: Count
    estimated_input_tokens_after_prune: Count
    summary_triggered: bool
    prune_triggered: bool
    overflow_rejected: bool
    estimated_wire_tokens: Count
    regions: Regions
    context_trim_log: TrimLog
    prompt_sha256: str | None


class PreviewOut(BaseModel):
    """What the next turn would have. `messages` and `tools` are empty where it would be refused."""

    seq: int = Field(description="The number that turn would get.")
    open_turn_id: UUID | None = Field(description="A turn that still runs or waits for tools, and has to end first.")
    summary_pending: bool = Field(description="A summary would be made first: here it is reckoned at its cap.")
    context: ContextOut
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    layout: list[LaidOut] = Field(description="One for each message.")
    estimated_prompt_cost_usd: float | None = Field(
        description="Of sending it once, at published prices, without a cache and without the summary; null where no "
        "price is known and where it would be refused."
    )
    refusal: dict[str, Any] | None = Field(description="The problem the turn would be answered with.")


class TurnAnswer(BaseModel):
    turn: TurnOut
    context: ContextOut


class RegeneratedAnswer(TurnAnswer):
    """The turn that was run again, in the session that was made for it."""

    session: SessionOut


class PinOut(BaseModel):
    name: str
    content: str
    relevance: float | None
    source: str | None


class ListedPin(PinOut):
    """A pin in a list; `figures` stand there with `figures=true`."""

    figures: PinFigures | None = None


class PromptOut(BaseModel):
    """What was sent, rebuilt from stored rows."""

    model_config = ConfigDict(extra="allow")
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    prompt_sha256: str
    layout: list[LaidOut] = Field(description="One for each message.")


class Document(BaseModel):
    """An object whose members the guides describe."""

    model_config = ConfigDict(extra="allow")


class SessionPage(BaseModel):
    items: list[ListedSession]
    next_cursor: str | None


class TurnPage(BaseModel):
    items: list[TurnOut]
    next_cursor: str | None


class PinPage(BaseModel):
    items: list[ListedPin]
    next_cursor: str | None


class PricesOut(BaseModel):
    """US dollars for a million tokens; null where nobody has published one."""

    input_usd: float | None
    output_usd: float | None
    cached_input_usd: float | None
    cache_write_usd: float | None
    above_prompt_tokens: int = Field(
        description="The size from which on a prompt pays these prices for all its tokens."
    )
    tiers: list[PricesOut] = Field(description="The prices of larger prompts.")


class ModelOut(BaseModel):
    """`context_window` is in tokens; `is_language_model` is false for the built-in offline responder."""

    alias: str
    provider: str
    model: str
    is_language_model: bool
    context_window: int
    context_window_source: Literal["catalogue", "learned", "genai_prices", "fallback"]
    encoding: str
    fallbacks: list[str]
    prices: PricesOut | None
    calibration_ratio: float = Field(description="What estimates for it are multiplied with; 1 until enough is known.")


class ListedModel(BaseModel):
    """A model as OpenAI lists it. `id` is the alias; nobody knows when it was `created`."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """`items` is our own form, `data` the same aliases in OpenAI's."""

    default: str
    items: list[ModelOut]
    next_cursor: None = None
    object: Literal["list"]
    data: list[ListedModel]


class DesignNameOut(BaseModel):
    """A setting as a design's project spells it; null stands for a value that it does not publish."""

    spellings: list[str]
    fields: list[str]
    published: Any
    unit: str


class PresetOut(BaseModel):
    """A design by name, with the value of every field."""

    name: str
    description: str
    policy: dict[str, Any]
    names: list[DesignNameOut] = Field(description="The design's own configuration, and the fields that it becomes.")


class PolicyFieldOut(BaseModel):
    """A field of a policy: what it takes, what it does, and its value by preset."""

    name: str
    takes: str
    value_schema: dict[str, Any] = Field(description="The same as JSON Schema, as far as that can say it.")
    meaning: str
    defaults: dict[str, Any]


class PolicyList(BaseModel):
    default: str
    presets: list[PresetOut]
    fields: list[PolicyFieldOut]


class SimulationOut(BaseModel):
    """Figures of each policy, of what happened and of the full history; docs/simulate.md describes them."""

    model_config = ConfigDict(extra="allow")
    session_id: UUID
    stored_turns: int
    turns: int
    truncated: bool
    gone_aliases: list[str] = Field(description="Aliases of stored turns that the catalogue does not have any more.")
    summaries_from: str
    assumed: list[str]
    happened: dict[str, Any]
    full_history: list[dict[str, Any]]
    policies: list[dict[str, Any]]


class HealthOut(BaseModel):
    status: Literal["ok"]


class ReadyOut(BaseModel):
    """`migrations` is null when the database does not answer; `behind` wants `plimsoll migrate`.

    `read_only` is a database that refuses to write, as a standby does until it is the primary."""

    status: Literal["ready", "not_ready", "draining"]
    database: Literal["ok", "read_only", "unavailable"]
    migrations: Literal["current", "behind", "ahead", "empty"] | None
