"""Previews what a turn would send before it is posted, and counts the tokens of a list of messages. Nothing is written,
and a provider is called only to count tokens, if the turn would need such an exact count too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from app.db.messages import UNCOUNTED
from app.db.turns import turn_numbers
from app.domain.figures import LaidOut
from app.domain.frozen import described, frozen, replace
from app.domain.incoming import IncomingMessage
from app.domain.types import (
    OPEN_STATUSES,
    JsonObject,
    Message,
    MessageId,
    PromptMessage,
    SessionRef,
    Summary,
    SummaryBody,
    SummaryId,
    TenantId,
    ToolDefinition,
    Turn,
    TurnId,
    TurnStatus,
    Usage,
)
from app.engine.messages.image_rules import image_rule_for
from app.engine.messages.tokens import (
    PROMPT_FRAMING_TOKENS,
    Estimate,
    framing_tokens,
    images_over_flat,
    tokens_of,
    tools_tokens,
)
from app.engine.summary.block import render_summary
from app.engine.summary.fold import Fold
from app.engine.summary.summarizer_prompt import summary_of
from app.engine.window.layout import layout_of
from app.engine.window.plan import Ready, Refused, SummaryDue, plan, with_summary
from app.engine.window.window import head_items
from app.services.paging import LAST_SEQ
from app.services.runtime import Runtime
from app.services.sessions import check_options, session_state
from app.services.turn.claim import awake_alias, check_recorded, policy_of_turn
from app.services.turn.decide import first_snapshot, with_exact_count
from app.services.turn.gather import read_window, with_recall_anew
from app.services.turn.planning import assembled, planned
from app.services.turn.recall import prepare_question
from app.services.turn.steps import Steps
from app.services.turn.types import TurnOptions, TurnPlan, TurnRequest
from app.services.turn.window_rows import WindowRows, encoding_of
from app.services.views.turns import with_numbers

PENDING_SUMMARY_ID = SummaryId(UUID(int=0))
"""Id in the trim log of the summary that the turn would make."""


@frozen
class Preview:
    """What the next turn would send. `messages` and `tools` are empty if it would be refused."""

    seq: int = described("Number that the turn would get.")
    open_turn_id: TurnId | None = described("A turn that runs or waits for tools and must end first.")
    summary_pending: bool = described("Whether a summary would be made first; it is counted at its largest size.")
    context: JsonObject
    messages: Sequence[PromptMessage]
    tools: Sequence[ToolDefinition]
    layout: Sequence[LaidOut]
    estimated_prompt_cost_usd: float | None = described(
        "Cost of sending the prompt once, at published prices, without caching and without the "
        "summary; null if no price is known or the turn would be refused."
    )
    refusal: JsonObject | None = described("The error that the turn would return.")


async def preview_turn(rt: Runtime, session: SessionRef, request: TurnRequest) -> Preview:
    """The context, messages and tools that the next turn with this body would have, if nothing changes in between.

    A turn that would be refused has a `refusal` and no messages. If the turn would make a summary first,
    `summary_pending` is true, the summary is counted at its cap, and there is no hash. No lock is taken: a running turn
    is in the window with the messages that it has so far. Raises `NotFound`, and `InvalidRequest` when the turn would.
    """
    message = _message_of(rt, request)
    await prepare_question(rt, session, request.content)
    stored = await _window_for(rt, session, request, message)
    check_recorded(stored.model, request.options.recorded_reply)
    check_options(rt, stored.model.alias, request.options.provider_options, "body", "options")
    current = Turn(message.turn_id, stored.turn_seq, TurnStatus.RUNNING, unresolved=True, messages=(message,))
    rows = replace(stored, turns=(*stored.turns, current))
    rows, snapshot = await first_snapshot(rt, rows, current.id, request.options, store_counts=False)
    snapshot = await with_exact_count(rt, rows, snapshot, Steps(rt))
    decided = await planned(plan, snapshot, rows.estimate)
    pending = isinstance(decided, SummaryDue)
    if isinstance(decided, SummaryDue):
        summary, reckoned = _pending_summary(decided.fold, rows.estimate)
        found = await planned(with_summary, decided.snapshot, decided.fold, summary, reckoned)
        after = await with_recall_anew(rt, rows, found, for_turn=False)
        decided = await planned(plan, after, reckoned, may_summarize=False)
    prompt = await assembled(decided) if isinstance(decided, Ready) else None
    context = TurnPlan(rows, decided).context(prompt)
    messages = await asyncio.to_thread(list[PromptMessage], prompt.messages) if prompt else ()
    layout = await asyncio.to_thread(layout_of, decided.prompt) if prompt else ()
    numbers = await rt.database.run(turn_numbers, session.id, [*{row.turn_id for row in layout if row.turn_id}])
    prompt_tokens = round(decided.prompt.wire_tokens * snapshot.calibration_ratio)
    cost = rows.model.cost_of(Usage(prompt_tokens, 0)) if prompt else None
    return Preview(
        seq=stored.turn_seq,
        open_turn_id=next((turn.id for turn in stored.turns if turn.status in OPEN_STATUSES), None),
        summary_pending=pending,
        context=context | ({"prompt_sha256": None} if pending else {}),
        messages=messages,
        tools=prompt.tools if prompt else (),
        layout=await asyncio.to_thread(with_numbers, layout, numbers),
        estimated_prompt_cost_usd=None if cost is None else float(cost),
        refusal=decided.overflow.stored() if isinstance(decided, Refused) else None,
    )


async def _window_for(rt: Runtime, session: SessionRef, request: TurnRequest, message: Message) -> WindowRows:
    """The stored window as the turn would find it. Its messages may have no count in the model's encoding yet."""
    async with rt.database.autocommit() as tx:
        state = await session_state(tx, session)
        policy = policy_of_turn(rt, state.policy, request.options.policy)
        alias = awake_alias(rt, request.model_alias or state.model_alias, session.tenant_id)
        return await read_window(tx, rt, state, policy, alias, query=message)


def _message_of(rt: Runtime, request: TurnRequest) -> Message:
    """The message as it would be stored; `LAST_SEQ` puts it after every stored message."""
    return Message(
        MessageId(rt.new_id()),
        TurnId(rt.new_id()),
        LAST_SEQ,
        "user",
        request.content,
        UNCOUNTED,
        name=request.name,
        said_at=request.said_at or rt.now(),
    )


def _pending_summary(fold: Fold, estimate: Estimate) -> tuple[Summary, Estimate]:
    """A placeholder for the summary, and an estimate that counts the placeholder at the summary's cap."""
    first, last = fold.turns[0].seq, fold.turns[-1].seq
    body = SummaryBody(
        f"Here stands a summary that takes turns {first} to {last} in; {fold.cap_tokens} tokens at most."
    )
    rendered = render_summary(body)
    pending = summary_of(PENDING_SUMMARY_ID, fold, body, "fallback")
    return pending, lambda shown: fold.cap_tokens if shown == rendered else estimate(shown)


async def count_tokens(
    rt: Runtime,
    tenant_id: TenantId,
    model_alias: str,
    messages: Sequence[IncomingMessage],
    options: TurnOptions,
    *,
    is_new: bool = True,
) -> int:
    """The estimated tokens that the first turn of a new session would send if nothing of the list were pruned; without
    `is_new`, those that the list adds to the window of a session. Raises `InvalidRequest` for an unknown alias."""
    model = rt.catalogue.model(model_alias, tenant_id)
    rule = image_rule_for(model.model)
    of_session = rt.catalogue.instructions.global_ if is_new else None
    system = (("system:global", of_session), ("system:turn", options.instructions))
    layers = tuple((label, text) for label, text in system if text)

    def counted(estimate: Estimate) -> int:
        items = [item.tokens for item in head_items(layers, None, (), estimate)]
        items += [tokens_of(message, estimate) + images_over_flat(message.content, rule) for message in messages]
        framing = framing_tokens(len(items)) - (0 if is_new else PROMPT_FRAMING_TOKENS)
        return sum(items) + tools_tokens(options.tools, estimate) + framing

    encoding = encoding_of(model, rt.guarded)
    tokens, _ = await rt.tokenizers.off_loop(lambda: rt.tokenizers.count_with(encoding, counted))
    return tokens
