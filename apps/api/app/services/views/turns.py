"""Turns and messages as they are stored, the audits of turns, and the exact prompts they sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from uuid import UUID

from app.db import turns as store
from app.db.audits import blocks_by_sha256
from app.db.audits import get_audit as read_audit
from app.db.messages import messages_by_id, messages_in_runs, page_of_messages
from app.domain.audit import Audit
from app.domain.content import content_text
from app.domain.errors import NotFound
from app.domain.types import JsonObject, Message, SessionId, TenantId, TurnId, TurnRecord
from app.engine.messages.image_rules import image_rule_for
from app.engine.messages.media import flat_image_tokens
from app.engine.window.layout import rebuilt_row
from app.engine.window.prompt_refs import SentHashes, needed_for, rebuild, rebuilt_parts, regions_of
from app.services.paging import Page, after_seq, page_of
from app.services.runtime import Runtime
from app.services.sessions import check_session, not_found


async def list_turns(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, limit: int, cursor: str | None
) -> Page[TurnRecord]:
    """The session's turns in time order. Raises `NotFound`, `InvalidRequest` for a cursor that is none."""
    scope = f"turns:{session_id}"
    after = after_seq(scope, cursor) or 0
    async with rt.database.autocommit() as tx:
        await check_session(tx, tenant_id, session_id)
        rows = await store.page_of_turns(tx, session_id, after, limit + 1)
    return page_of(scope, rows, limit, lambda turn: turn, lambda turn: turn.seq)


async def get_turn(rt: Runtime, tenant_id: TenantId, session_id: SessionId, turn_id: TurnId) -> TurnRecord:
    """One turn. Raises `NotFound` for the session or the turn."""
    async with rt.database.autocommit() as tx:
        turn = await store.get_turn(tx, tenant_id, session_id, turn_id)
        if turn is None:
            raise await not_found(tx, tenant_id, session_id, "turn")
    return turn


async def get_audit(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, turn_id: TurnId, round_number: int | None
) -> Audit:
    """The audit of the turn's last model call, or of the last in a round. Raises `NotFound`."""
    await get_turn(rt, tenant_id, session_id, turn_id)
    async with rt.database.autocommit() as tx:
        audit = await read_audit(tx, tenant_id, session_id, turn_id, round_number)
    if audit is None:
        raise NotFound("audit")
    return audit


async def get_prompt(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, turn_id: TurnId, round_number: int | None
) -> JsonObject:
    """The exact messages and tools that were sent, rebuilt from stored rows, their hash, and each message's region
    and tokens (`layout`).

    Raises `NotFound` when nothing was sent, `PromptTooLarge` before anything of such a prompt is built, `RuntimeError`
    when the rebuilt prompt is not the one that was sent.
    """
    await get_turn(rt, tenant_id, session_id, turn_id)
    async with rt.database.autocommit() as tx:
        audit = await read_audit(tx, tenant_id, session_id, turn_id, round_number)
        refs = audit.prompt_refs if audit else None
        if audit is None or refs is None:
            raise NotFound("prompt")
        needed = needed_for(refs)
        blocks = await blocks_by_sha256(tx, session_id, needed.sha256s)
        messages = await messages_in_runs(tx, session_id, needed.runs)
    sha256 = await asyncio.to_thread(SentHashes(blocks, messages).sha256, refs)
    if sha256 != audit.prompt_sha256:
        raise RuntimeError(f"the prompt of turn {turn_id} was rebuilt as {sha256}, sent as {audit.prompt_sha256}")
    sent, tools = rebuild(refs, blocks, messages)
    layout = await _layout(rt, audit, refs, blocks, messages)
    return {"messages": sent, "tools": tools, "prompt_sha256": sha256, "layout": layout}


async def _layout(
    rt: Runtime, audit: Audit, refs: JsonObject, blocks: Mapping[str, str], messages: Mapping[int, Message]
) -> list[JsonObject]:
    """Counted with the estimator of then; the first count of a text is made off the event loop."""
    parts = list(rebuilt_parts(refs, blocks, messages))
    texts = [content_text(part.sent["content"]) for part in parts]
    texts += [call.arguments for part in parts if part.message for call in part.message.tool_calls]
    await rt.tokenizers.count(audit.estimator, texts)
    estimate = rt.tokenizers.estimator(audit.estimator)
    alias = audit.model_alias
    images = image_rule_for(rt.catalogue.model(alias).model) if alias in rt.catalogue.aliases else flat_image_tokens
    regions = regions_of(refs, len(parts)) or [None] * len(parts)
    return await asyncio.to_thread(
        lambda: [rebuilt_row(part, region, estimate, images) for part, region in zip(parts, regions, strict=True)]
    )


async def list_messages(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, limit: int, cursor: str | None
) -> Page[JsonObject]:
    """The session's messages in time order. Raises `NotFound`, `InvalidRequest` for a cursor that is none."""
    scope = f"messages:{session_id}"
    after = after_seq(scope, cursor) or 0
    async with rt.database.autocommit() as tx:
        await check_session(tx, tenant_id, session_id)
        rows = await page_of_messages(tx, session_id, after, limit + 1)
    return page_of(scope, rows, limit, lambda row: row, lambda row: row["seq"])


async def get_messages(rt: Runtime, tenant_id: TenantId, session_id: SessionId, ids: list[UUID]) -> Page[JsonObject]:
    """Those of the messages that are the session's, in time order, on one page. Raises `NotFound` for the session."""
    async with rt.database.autocommit() as tx:
        await check_session(tx, tenant_id, session_id)
        return Page(await messages_by_id(tx, session_id, ids), None)
