"""A past that was had elsewhere, as a session's own: counted, cut into turns, stored whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.db.append_turns import NewHistory, append_history
from app.db.database import Transaction
from app.domain.content import canonical_json, sha256_hex
from app.domain.errors import InvalidRequest, NotFound, located
from app.domain.types import JsonObject, Session, SessionId, TenantId, TurnId, TurnStatus
from app.engine.messages.tokens import message_tokens
from app.engine.window.prompt import tool_call_json
from app.openai.chat_messages import IncomingMessage, IncomingTurn, check_pairing, cut_turns, read_messages
from app.services.runtime import Runtime
from app.services.sessions import insert_checked, with_defaults, with_given_policy

_UNANSWERED: JsonObject = {
    "code": "turn_cancelled",
    "detail": "The turn came from elsewhere without a final answer; the message is kept.",
}


async def import_messages(
    rt: Runtime, tenant_id: TenantId, fields: JsonObject, messages: Sequence[Mapping[str, Any]]
) -> Session:
    """Makes a session of a list of OpenAI chat messages, in one transaction: all of it, or nothing.

    `fields` are those of `create_session`. `messages` has been validated as a list of `ChatMessageIn`. Its system and
    developer messages become the session's instructions, behind those that `fields` gives. Each turn begins with the
    user's words; one that ends with the assistant's is `completed`, with what it said as `assistant_output`. A turn
    without a final answer is `cancelled`: later prompts hold the user's words and its complete tool groups. Every
    message is counted in the encoding of the session's model.

    Raises `InvalidRequest`: for a field, for a list that says nothing, and for a tool call without its result or a
    result without its call, which it names by its place (`body.messages.<index>`).
    """
    listed = read_messages(messages)
    if not listed.messages:
        raise InvalidRequest("There is no message of a user, an assistant or a tool.", ("body", "messages"))
    with located("body", "messages"):
        check_pairing(listed.messages)
    texts = [text for text in (fields.get("instructions"), listed.instructions) if text]
    fields = with_defaults(rt, with_given_policy(rt, fields) | {"instructions": "\n\n".join(texts) or None})
    history = await draft_history(rt, fields["model_alias"], cut_turns(listed.messages))
    async with rt.heavy.database.begin() as tx:
        session = await insert_checked(rt, tx, tenant_id, fields)
        await add_history(tx, tenant_id, session.id, history)
    return session


async def draft_history(rt: Runtime, model_alias: str, turns: Sequence[IncomingTurn]) -> NewHistory:
    """Counts the messages of turns for a model, before any connection is taken, and gives them ids.

    The last turn may have open tool calls: it is drafted as `awaiting_tools`. Pairing has been checked.
    """
    encoding = rt.catalogue.model(model_alias).encoding
    return await rt.tokenizers.off_loop(lambda: _drafted(rt, encoding, model_alias, turns))


def _drafted(rt: Runtime, encoding: str, model_alias: str, turns: Sequence[IncomingTurn]) -> NewHistory:
    rows: list[JsonObject] = []
    messages: list[JsonObject] = []
    for seq, turn in enumerate(turns, start=1):
        row = _turn_row(TurnId(rt.new_id()), seq, turn, model_alias)
        rows.append(row)
        for said in turn.messages:
            message = _message_row(rt, encoding, said)
            messages.append({**message, "turn_id": row["id"], "seq": len(messages) + 1})
    return NewHistory(rows, messages)


async def add_history(tx: Transaction, tenant_id: TenantId, session_id: SessionId, history: NewHistory) -> None:
    """Stores drafted turns at the end of a session. Raises `NotFound`, and `UniqueViolated` for a second open turn."""
    if not await append_history(tx, tenant_id, session_id, history):
        raise NotFound("session")


def _turn_row(turn_id: TurnId, seq: int, turn: IncomingTurn, model_alias: str) -> JsonObject:
    output = turn.assistant_output
    status = TurnStatus.COMPLETED if output is not None else TurnStatus.CANCELLED
    if turn.open_calls:
        status = TurnStatus.AWAITING_TOOLS
    return {
        "id": turn_id,
        "seq": seq,
        "status": status.value,
        "user_input": turn.user_input,
        "assistant_output": output,
        "error": _UNANSWERED if status is TurnStatus.CANCELLED else None,
        "model_alias": model_alias,
        "finish_reason": {TurnStatus.COMPLETED: "stop", TurnStatus.AWAITING_TOOLS: "tool_calls"}.get(status),
        # No request asked for it here; the column tells two requests apart.
        "request_sha256": sha256_hex(canonical_json([turn.user_input, output])),
    }


def _message_row(rt: Runtime, encoding: str, said: IncomingMessage) -> JsonObject:
    tokens, used = rt.tokenizers.count_with(
        encoding,
        lambda estimate: message_tokens(
            said.content, estimate, tool_calls=said.tool_calls, tool_call_id=said.tool_call_id
        ),
    )
    return {
        "id": rt.new_id(),
        "role": said.role,
        "content": said.content,
        "tool_calls": [tool_call_json(call) for call in said.tool_calls] or None,
        "tool_call_id": said.tool_call_id,
        "token_estimate": tokens,
        "token_encoding": used,
    }
