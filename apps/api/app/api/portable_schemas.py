"""The rows of an exported session as they may come back: each by itself. `engine/portable.py` holds them together."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, field_validator

from app.api.chat_schemas import ChatIn, ChatMessageIn
from app.api.schemas import ContentIn, In, Name, Open, SessionIn, ToolChoice, ToolIn
from app.domain.errors import InvalidRequest
from app.engine.policy_fields import read_fields
from app.engine.portable import FORMAT, VERSION
from app.providers.base import CHAT_OPTIONS

_INT32 = 2**31 - 1
_LARGEST = 2**53

Id = Annotated[str, StringConstraints(pattern="^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$")]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Seq = Annotated[int, Field(ge=1, le=_LARGEST)]
SmallSeq = Annotated[int, Field(ge=1, le=_INT32)]
Dollars = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}(\.[0-9]{1,10})?$")]


def _instant(value: str) -> str:
    if not 1970 <= datetime.fromisoformat(value).year < 9000:
        raise ValueError("An instant lies between 1970 and 9000")
    return value


Instant = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|\+00:00)$"),
    AfterValidator(_instant),
]


class SessionRow(SessionIn):
    id: Id
    summary_count_after_seq: Count
    created_at: Instant
    updated_at: Instant


class PinRow(In):
    name: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    content: Annotated[str, StringConstraints(min_length=1)]
    relevance: Annotated[float, Field(ge=0, le=1)] | None
    source: Annotated[str, StringConstraints(max_length=2000)] | None
    created_at: Instant
    updated_at: Instant


class BlockRow(In):
    sha256: Sha256
    content: str


class StoredError(Open):
    code: Name
    detail: str


class StoredRequest(In):
    tools: list[ToolIn]
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None
    max_output_tokens: SmallSeq | None
    instructions: str | None = None
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    policy: dict[str, Any] | None = None

    @field_validator("policy")
    @classmethod
    def _of_fields_that_are_there(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """What they come to over the session's own is judged when the turn is run again."""
        try:
            read_fields(value or {})
        except InvalidRequest as error:
            raise ValueError(error.detail) from error
        return value

    @field_validator("options")
    @classmethod
    def _as_a_client_could_wish(cls, value: dict[str, Any]) -> dict[str, Any]:
        """They go into a provider's request as they are, so they must be what chat completions would have taken."""
        if not value.keys() <= CHAT_OPTIONS:
            raise ValueError("There is an option that no client can set")
        ChatIn.model_validate({"model": "any", "messages": [{"role": "user", "content": "any"}], **value})
        return value


class TurnRow(In):
    id: Id
    seq: Seq
    status: Literal["completed", "failed", "rejected", "cancelled"]
    user_input: str
    assistant_output: str | None
    error: StoredError | None
    model_alias: Name
    finish_reason: Annotated[str, StringConstraints(max_length=200)] | None
    prompt_tokens: Count | None
    completion_tokens: Count | None
    cost_usd: Dollars | None
    request: StoredRequest | None
    created_at: Instant
    completed_at: Instant | None


class StoredFunction(In):
    name: str
    arguments: str


class StoredCall(In):
    id: Annotated[str, StringConstraints(min_length=1)]
    type: Literal["function"]
    function: StoredFunction


class MessageRow(In):
    id: Id
    turn_id: Id
    seq: Seq
    role: Literal["user", "assistant", "tool"]
    content: ContentIn | None
    tool_calls: Annotated[list[StoredCall], Field(min_length=1)] | None
    tool_call_id: Annotated[str, StringConstraints(min_length=1)] | None
    reasoning: str | None
    reasoning_blocks: list[dict[str, Any]] | None
    reasoning_tokens: Count
    token_estimate: Count
    token_encoding: Name
    created_at: Instant
    withdrawn: bool = False


class StepRow(In):
    id: Id
    turn_id: Id
    seq: SmallSeq
    kind: Name
    status: Name
    detail: dict[str, Any]
    started_at: Instant
    finished_at: Instant | None


class ItemRow(In):
    text: str
    message_ids: list[Id]


class SummaryRow(In):
    id: Id
    from_message_id: Id
    to_message_id: Id
    previous_summary_id: Id | None
    summary_text: str
    key_facts: list[ItemRow]
    open_questions: list[ItemRow]
    decisions: list[ItemRow]
    action_items: list[ItemRow]
    status: Literal["active", "superseded", "undone"]
    origin: Literal["model", "fallback", "emergency"]
    model_alias: Name
    token_estimate: Count
    token_encoding: Name
    prompt_tokens: Count | None
    completion_tokens: Count | None
    created_by_turn_id: Id | None
    created_at: Instant


class ActionRow(Open):
    kind: str
    target: str
    reason: str
    tokens_removed_est: int


class TrimLogRow(Open):
    max_context_tokens: int
    estimated_tokens_before: int
    estimated_tokens_after: int
    actions: list[ActionRow]


class AuditRow(In):
    id: Id
    turn_id: Id
    round: SmallSeq
    attempt: SmallSeq
    model_alias: Name
    model_context_limit: Count
    context_limit_source: Name
    output_reserve: Count
    overhead_reserve: Count
    input_budget: Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
    estimator: Name
    calibration_ratio: Annotated[float, Field(ge=0, le=1000)]
    estimated_input_tokens_before: Count
    estimated_input_tokens_after_summary: Count
    estimated_input_tokens_after_prune: Count
    estimated_wire_tokens: Count
    actual_prompt_tokens: Count | None
    summary_triggered: bool
    prune_triggered: bool
    overflow_rejected: bool
    regions: dict[str, Count]
    context_trim_log: TrimLogRow
    prompt_refs: dict[str, Any] | None
    prompt_sha256: Sha256 | None
    created_at: Instant


ROWS: Final[Mapping[str, type[BaseModel]]] = {
    "pins": PinRow,
    "blocks": BlockRow,
    "turns": TurnRow,
    "messages": MessageRow,
    "steps": StepRow,
    "summaries": SummaryRow,
    "audits": AuditRow,
}


class ExportHead(Open):
    """What a document says before its rows; each of those is validated by itself."""

    format: Literal["plimsoll.session"]
    version: Literal[1]
    session: SessionRow
    pins: list[Any]
    blocks: list[Any]
    turns: list[Any]
    messages: list[Any]
    steps: list[Any]
    summaries: list[Any]
    audits: list[Any]


class ConversationIn(SessionIn):
    """A conversation that was had elsewhere, as OpenAI-style messages, beside the fields of a new session."""

    messages: list[ChatMessageIn] = Field(min_length=1)


class ImportIn(Open):
    """Either what `GET …/export` gave, or OpenAI-style `messages` beside the fields of a new session."""

    format: str | None = Field(default=None, description=f"`{FORMAT}` for an export; absent for messages.")
    version: int | None = Field(default=None, description=f"{VERSION}, with `format`.")
    messages: list[dict[str, Any]] = Field(description="An export's messages, or OpenAI-style ones.")
