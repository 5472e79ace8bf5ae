"""The rows of an exported session, as written and as accepted in an import.

Each row is checked by itself here; `archive/document.py` checks rows against each other. This runs in the same process
as `services/archive/new_rows.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    TypeAdapter,
    ValidationError,
    create_model,
    field_validator,
)

from app.api.schemas.bodies import MOST_VALUES_OF_IMPORT, parse_body, places
from app.api.schemas.chat import ChatIn, ChatMessageIn
from app.api.schemas.content import ContentIn, ContentPartIn, StoredCall, StoredToolIn, ToolCallIn, ToolChoice
from app.api.schemas.context import ContextOut, SummaryFields
from app.api.schemas.sessions import SessionIn
from app.api.schemas.values import Dollars, Id, In, Instant, NotEmpty, Open, OutputTokens, Seq, Sha256, Speaker, row_of
from app.archive.document import MOST_FAULTS
from app.domain.audit import REFS_OF_BLOCKS, REFS_OF_RUNS, REFS_OF_SHORTENED, Audit, CacheBreak
from app.domain.errors import ImportRefused, InvalidRequest
from app.domain.types import (
    CHAT_OPTIONS,
    Count,
    JsonObject,
    Name,
    NumberInTurn,
    Region,
    Role,
    SummaryCall,
    SummaryCallReason,
)
from app.services.archive.new_rows import ImportedMessages
from app.services.policies import read_fields


class SessionRow(SessionIn):
    id: Id
    summary_count_after_seq: Count
    created_at: Instant
    updated_at: Instant


class PinRow(In):
    name: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    content: NotEmpty
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
    tools: list[StoredToolIn]
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None
    max_output_tokens: OutputTokens
    instructions: str | None = None
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    policy: dict[str, Any] | None = None

    @field_validator("policy")
    @classmethod
    def _of_fields_that_are_there(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """Checks these fields alone; together with the session's policy they are checked when the turn is run again."""
        try:
            read_fields(value or {})
        except InvalidRequest as error:
            raise ValueError(error.detail) from error
        return value

    @field_validator("options")
    @classmethod
    def _as_a_client_can_set_them(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Checks that chat completions accept the options, because they are sent to the provider unchanged."""
        if (ChatIn.model_fields.keys() - CHAT_OPTIONS) & value.keys():
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


class MessageRow(In):
    id: Id
    turn_id: Id
    seq: Seq
    role: Role
    content: ContentIn | None
    tool_calls: Annotated[list[StoredCall], Field(min_length=1)] | None
    tool_call_id: NotEmpty | None
    reasoning: str | None
    token_estimate: Count
    token_encoding: Name
    created_at: Instant
    reasoning_blocks: list[dict[str, Any]] | None = None
    reasoning_tokens: Count = 0
    withdrawn: bool = False
    name: Speaker | None = None
    said_at: Instant | None = None


class StepRow(In):
    id: Id
    turn_id: Id
    seq: NumberInTurn
    kind: Name
    status: Name
    detail: dict[str, Any]
    started_at: Instant
    finished_at: Instant | None


class SummaryRow(SummaryFields):
    model_config = ConfigDict(extra="forbid")
    token_encoding: Name
    call: SummaryCall | None = None
    call_reason: SummaryCallReason | None = None


_LIST = Field(strict=False)  # JSON has no tuples

_KINDS: Final = {
    "block": re.compile(f"[{''.join(REFS_OF_BLOCKS)}]"),
    "run": re.compile(f"u|[{''.join(REFS_OF_RUNS - {'u'})}][tb]?"),
    "shortened": re.compile(f"[{''.join(REFS_OF_SHORTENED)}][tb]?"),
}


def _kind_of_ref(value: object) -> str | None:
    kind = cast("list[object]", value)[0] if isinstance(value, list) and value else None
    return next((name for name, kinds in _KINDS.items() if isinstance(kind, str) and kinds.fullmatch(kind)), None)


Ref = Annotated[
    Annotated[tuple[str, Sha256, Literal["system", "user", "assistant", "tool"]], _LIST, Tag("block")]
    | Annotated[tuple[str, Seq, Seq], _LIST, Tag("run")]
    | Annotated[tuple[str, Seq, Sha256], _LIST, Tag("shortened")],
    Discriminator(_kind_of_ref, custom_error_type="ref", custom_error_message="Is no reference to a part of a prompt"),
]


class PromptRefs(In):
    """References to the parts of a prompt. `engine/window/prompt_refs.py` describes the form."""

    items: list[Ref]
    tools: Sha256 | None
    regions: list[Annotated[tuple[Region, Count], _LIST]] | None = None


class AuditRow(row_of(Audit, ContextOut, without=("session_id",))):
    model_config = ConfigDict(extra="forbid")
    created_at: Instant
    prompt_refs: PromptRefs | None
    prompt_sha256: Sha256 | None
    cache_break: CacheBreak | None = None


class LookBackMessage(In):
    """A message of a look-back, as it was sent."""

    role: Literal["assistant", "tool"]
    content: str | None
    tool_calls: list[ToolCallIn] = Field(default_factory=list[ToolCallIn])
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning_blocks: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])


BLOCKS: Final[Mapping[str, TypeAdapter[Any]]] = {
    "tools": TypeAdapter(list[StoredToolIn]),
    "j": TypeAdapter(list[ContentPartIn]),
    "w": TypeAdapter(LookBackMessage),
}
"""The form of a block's JSON, by the kind of reference that a prompt has to it."""

ROWS: Final[Mapping[str, type[BaseModel]]] = {
    "pins": PinRow,
    "blocks": BlockRow,
    "turns": TurnRow,
    "messages": MessageRow,
    "steps": StepRow,
    "summaries": SummaryRow,
    "audits": AuditRow,
}


_HEAD: dict[str, Any] = {
    "format": (Literal["plimsoll.session"], ...),
    "version": (Literal[1], ...),
    "session": (SessionRow, ...),
    **dict.fromkeys(ROWS, (list[Any], ...)),
}


class ExportHead(create_model("ExportHead", __base__=In, **_HEAD)):
    """A document with its rows as lists of anything: each row is validated by itself."""


class ArchivedConversationIn(SessionIn):
    """A conversation from elsewhere as OpenAI-style messages, beside the fields of a new session."""

    messages: list[ChatMessageIn] = Field(min_length=1)


Schema = TypeVar("Schema", bound=BaseModel)


def read_conversation(document: JsonObject) -> ImportedMessages:
    """The messages of an import, checked, and the fields of its session. Raises `ImportRefused`."""
    conversation = _validated(ArchivedConversationIn, document)
    fields = {name: document[name] for name in conversation.model_fields_set - {"messages"}}
    return ImportedMessages(fields, document["messages"])


def check_rows(document: JsonObject) -> None:
    """Checks each row of an exported session by itself. Raises `ImportRefused`."""
    _validated(ExportHead, document)
    faults: list[tuple[str, str]] = []
    for section, model in ROWS.items():
        for at, row in enumerate(document[section]):
            try:
                model.model_validate(row)
            except ValidationError as error:
                faults += places(error, row, "body", section, str(at))
            if len(faults) >= MOST_FAULTS:
                raise ImportRefused(faults[:MOST_FAULTS])
    for at, pin in enumerate(document["pins"] if not faults else ()):
        if not pin["name"].isprintable():
            faults.append((f"body.pins.{at}.name", "A pin's name has printable characters only."))
    if not faults:
        faults = _faults_of_blocks(document)[:MOST_FAULTS]
    if faults:
        raise ImportRefused(faults)


def _faults_of_blocks(document: JsonObject) -> list[tuple[str, str]]:
    """Faults in the JSON of blocks that prompts use as tools, as a shortened message's parts, or as a whole message."""
    named: dict[str, set[str]] = {}
    for refs in (audit["prompt_refs"] for audit in document["audits"] if audit["prompt_refs"]):
        if refs["tools"]:
            named.setdefault(refs["tools"], set()).add("tools")
        for kind, first, second in refs["items"]:
            if kind[0] in "jw":
                named.setdefault(first if kind == "w" else second, set()).add(kind[0])
    faults: list[tuple[str, str]] = []
    for at, block in enumerate(document["blocks"] if named else ()):
        for form in sorted(named.get(block["sha256"], ())):
            try:
                BLOCKS[form].validate_python(parse_body(block["content"].encode(), MOST_VALUES_OF_IMPORT))
            except (ValidationError, InvalidRequest):
                faults.append((f"body.blocks.{at}.content", "A prompt needs this to be JSON of another form."))
    return faults


def _validated(model: type[Schema], document: JsonObject) -> Schema:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise ImportRefused(places(error, document, "body")) from None
