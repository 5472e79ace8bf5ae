"""Turns and messages as they are stored, the audits of turns, and the exact prompts that they sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from uuid import UUID

from app.db import turns as store
from app.db.audits import blocks_by_sha256, turns_in_ranges
from app.db.audits import get_audit as read_audit
from app.db.database import Transaction
from app.db.messages import messages_by_id, messages_in_runs, page_of_messages
from app.domain.audit import Audit, TrimAction
from app.domain.content import content_text
from app.domain.errors import InvalidRequest, NotFound, existing
from app.domain.figures import LaidOut
from app.domain.frozen import frozen, replace
from app.domain.stored import ListedTurn, MessageRecord
from app.domain.types import (
    JsonObject,
    Message,
    PromptMessage,
    SessionRef,
    ToolDefinition,
    Turn,
    TurnId,
    TurnRecord,
    TurnStatus,
)
from app.engine.messages.image_rules import image_rule_for
from app.engine.messages.media import ImageTokens, flat_image_tokens
from app.engine.messages.turns import with_reasoning
from app.engine.window.layout import counted_turn, rebuilt_row, singly
from app.engine.window.look_back import LOOK_BACK
from app.engine.window.prompt_refs import RebuiltPart, SentHashes, needed_for, rebuilt_parts, regions_of
from app.services.paging import BY_SEQ, Page, PageRequest, bounds_of, page_of
from app.services.runtime import Runtime
from app.services.sessions import check_session, existing_in
from app.tokenizers.counters import Estimator


@frozen
class SentPrompt:
    """The exact messages and tools of a model call, rebuilt from stored rows."""

    messages: list[PromptMessage]
    tools: list[ToolDefinition]
    prompt_sha256: str
    layout: Sequence[LaidOut]


async def list_turns(rt: Runtime, session: SessionRef, wanted: PageRequest, first_seq: int = 1) -> Page[ListedTurn]:
    """The session's turns from `first_seq` on. Raises `NotFound`, and `InvalidRequest` for a cursor of another list."""
    scope = f"turns:{session.id}"
    scope, bounds = bounds_of(BY_SEQ, scope, wanted, newest_by_default=False, after=first_seq - 1)
    async with rt.database.autocommit() as tx:
        await check_session(tx, session)
        return page_of(BY_SEQ, scope, await store.page_of_turns(tx, session.id, bounds))


async def get_turn(rt: Runtime, session: SessionRef, turn_id: TurnId) -> TurnRecord:
    """One turn. Raises `NotFound` for the session or the turn."""
    async with rt.database.autocommit() as tx:
        return await existing_in(tx, session, await store.get_turn(tx, session, turn_id), "turn")


async def get_audit(rt: Runtime, session: SessionRef, turn_id: TurnId, round_number: int | None) -> Audit:
    """The audit of the turn's last model call, or of the last in a round. Raises `NotFound`."""
    async with rt.database.read_only() as tx:  # else the session can be erased between two statements
        return await _audit(tx, session, turn_id, round_number, "audit")


async def _audit(tx: Transaction, session: SessionRef, turn_id: TurnId, round_number: int | None, wanted: str) -> Audit:
    audit = await read_audit(tx, session, turn_id, round_number)
    if audit is None:
        await existing_in(tx, session, await store.get_turn(tx, session, turn_id), "turn")
        raise NotFound(wanted)
    return audit


async def get_expanded_audit(rt: Runtime, session: SessionRef, turn_id: TurnId, round_number: int | None) -> Audit:
    """The audit, with each range of its trim log replaced by the single actions that it stands for. Removed messages
    are counted again with the audit's estimator. Raises `NotFound`."""
    async with rt.database.read_only() as tx:
        audit = await _audit(tx, session, turn_id, round_number, "audit")
        actions = [TrimAction.of_row(action) for action in audit.context_trim_log["actions"]]
        turns = await turns_in_ranges(tx, session.id, actions)
        tools_sha256 = audit.prompt_refs["tools"] if audit.prompt_refs else None
        tools = await blocks_by_sha256(tx, session.id, (tools_sha256,)) if tools_sha256 else {}
    offered = any(LOOK_BACK in json.loads(text) for text in tools.values())
    estimate, images = await _counting(rt, audit, [message for turn in turns for message in turn.messages])
    alias = audit.model_alias
    rule = rt.catalogue.model(alias).reasoning_rule if alias in rt.catalogue.aliases else None

    def as_then(turn: Turn) -> Turn:
        then = replace(turn, status=TurnStatus.RUNNING) if turn.id == turn_id else turn
        return counted_turn(with_reasoning(then, rule), estimate, images)

    def expanded() -> list[JsonObject]:
        counted = [*map(as_then, turns)]
        single = singly(actions, counted, audit.prompt_refs, audit.input_budget, estimate, with_handles=offered)
        return [action.public() for action in single]

    log = audit.context_trim_log | {"actions": await asyncio.to_thread(expanded)}
    return replace(audit, context_trim_log=log)


async def get_prompt(rt: Runtime, session: SessionRef, turn_id: TurnId, round_number: int | None) -> SentPrompt:
    """The prompt that was sent, with each message's region and tokens (`layout`). Raises `NotFound` when nothing was
    sent, `PromptTooLarge` before a part of it is built, and `RuntimeError` when the rebuilt prompt is another one."""
    async with rt.database.read_only() as tx:
        audit = await _audit(tx, session, turn_id, round_number, "prompt")
        refs = existing(audit.prompt_refs, "prompt")
        needed = needed_for(refs)
        blocks = await blocks_by_sha256(tx, session.id, needed.sha256s)
        messages = await messages_in_runs(tx, session.id, needed.runs, needed.user_runs)
        numbers = await store.turn_numbers(tx, session.id, [*{message.turn_id for message in messages.values()}])

    def rebuilt() -> tuple[str, list[RebuiltPart]]:
        sha256 = SentHashes(blocks, messages).sha256(refs)
        if sha256 != audit.prompt_sha256:
            raise RuntimeError(f"the prompt of turn {turn_id} was rebuilt as {sha256}, sent as {audit.prompt_sha256}")
        return sha256, list(rebuilt_parts(refs, blocks, messages))

    sha256, parts = await asyncio.to_thread(rebuilt)
    tools: list[ToolDefinition] = json.loads(blocks[refs["tools"]]) if refs["tools"] else []
    layout = await _layout(rt, audit, refs, parts, numbers)
    return SentPrompt([part.sent for part in parts], tools, sha256, layout)


def with_numbers(layout: Sequence[LaidOut], numbers: Mapping[TurnId, int]) -> list[LaidOut]:
    """The layout with the numbers of those of its turns that are stored."""
    return [replace(row, turn_seq=numbers.get(row.turn_id)) if row.turn_id else row for row in layout]


async def _layout(
    rt: Runtime, audit: Audit, refs: JsonObject, parts: Sequence[RebuiltPart], numbers: Mapping[TurnId, int]
) -> list[LaidOut]:
    """The layout, counted with the audit's estimator. Each text is counted for the first time off the event loop."""
    texts = [content_text(part.sent["content"]) for part in parts]
    estimate, images = await _counting(rt, audit, [part.message for part in parts if part.message], texts)
    regions = regions_of(refs, len(parts)) or [None] * len(parts)

    def rows() -> list[LaidOut]:
        counted = [rebuilt_row(part, region, estimate, images) for part, region in zip(parts, regions, strict=True)]
        return with_numbers(counted, numbers)

    return await asyncio.to_thread(rows)


async def _counting(
    rt: Runtime, audit: Audit, messages: Sequence[Message], texts: Sequence[str] = ()
) -> tuple[Estimator, ImageTokens]:
    """The estimator and the image rule of the audit's prompt, after counting the texts off the event loop."""
    of_messages = [content_text(message.content) for message in messages]
    of_messages += [call.arguments for message in messages for call in message.tool_calls]
    await rt.tokenizers.count(audit.estimator, [*texts, *of_messages])
    alias = audit.model_alias
    images = image_rule_for(rt.catalogue.model(alias).model) if alias in rt.catalogue.aliases else flat_image_tokens
    return rt.tokenizers.estimator(audit.estimator), images


async def list_messages(rt: Runtime, session: SessionRef, wanted: PageRequest) -> Page[MessageRecord]:
    """The session's messages. Raises `NotFound`, and `InvalidRequest` for an invalid cursor."""
    scope, bounds = bounds_of(BY_SEQ, f"messages:{session.id}", wanted, newest_by_default=False)
    async with rt.database.autocommit() as tx:
        await check_session(tx, session)
        return page_of(BY_SEQ, scope, await page_of_messages(tx, session.id, bounds))


async def get_messages(rt: Runtime, session: SessionRef, ids: Sequence[UUID]) -> Page[MessageRecord]:
    """The session's messages with these ids, in time order, on one page. Raises `NotFound` for the session, and
    `InvalidRequest` if they are too large for a page."""
    async with rt.database.autocommit() as tx:
        await check_session(tx, session)
        found = await messages_by_id(tx, session.id, ids)
    if found.has_more:
        raise InvalidRequest(f"Only the first {len(found.rows)} of these messages fit on one page.", ("query", "ids"))
    return Page(found.rows, None)
