"""Limits of a turn: what its model call may use is set aside in transaction one, and settled in transaction two."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from math import ceil

from app.db.claims import Claim
from app.db.database import Transaction
from app.db.limits import charge, reserve
from app.db.settling import Settlement, Spent
from app.domain.errors import LimitExceeded
from app.domain.limits import Asked, Exceeded, exceeded
from app.domain.types import JsonObject, SessionId, TenantId, ToolDefinition, TurnStatus, Usage
from app.engine.summary_block import render_summary
from app.engine.tokens import MESSAGE_FRAMING_TOKENS, PROMPT_FRAMING_TOKENS
from app.providers.registry import Model
from app.services.costing import cost_of
from app.services.gathering import Gathered, budget_of, layers_of
from app.services.runtime import Runtime

_WHILE_OTHERS_RUN_S = 1
_INSTANT = "%Y-%m-%dT%H:%M:%SZ"
_CHARS_PER_TOKEN = 2
"""Of text that is not counted yet; on the high side, as what comes back of a reservation is used later."""


async def reserve_call(
    tx: Transaction,
    rt: Runtime,
    tenant_id: TenantId,
    claim: Claim,
    gathered: Gathered,
    *,
    turns: int,
    max_output_tokens: int | None,
    tools: tuple[ToolDefinition, ...],
    instructions: str | None,
) -> JsonObject | None:
    """Sets aside what the call may use, where a limit is set; the reservation as the turn holds it.

    `turns` is 0 for a later round of a turn. Raises `LimitExceeded`, whereupon the transaction is to be rolled back:
    nothing of the turn is stored, and no model is called.
    """
    if not claim.limits:
        return None
    asked = _worst_case(rt, gathered, turns, max_output_tokens, tools, instructions)
    counted, reservation = await reserve(tx, tenant_id, claim.session_id, claim.turn_id, claim.limits, asked)
    over = exceeded(claim.limits, counted, asked)
    if over is not None:
        raise _refusal(over)
    return reservation


def spent_of(reservation: JsonObject, settlement: Settlement) -> Spent:
    """What a turn's end leaves of its reservation: nothing where it failed or was refused, else what was used.

    A provider that reports no usage is taken to have used all that was set aside.
    """
    if settlement.status not in (TurnStatus.COMPLETED, TurnStatus.AWAITING_TOOLS):
        return Spent(reservation, 0, 0, Decimal(0))
    if not settlement.usages:
        return Spent(reservation, reservation["turns"], reservation["tokens"], Decimal(str(reservation["usd"])))
    tokens = sum(used["prompt_tokens"] + used["completion_tokens"] for used in settlement.usages)
    usd = sum((used["cost_usd"] or Decimal(0) for used in settlement.usages), Decimal(0))
    return Spent(reservation, reservation["turns"], tokens, usd)


async def charge_usages(tx: Transaction, session_id: SessionId, usages: Sequence[JsonObject]) -> None:
    """Counts calls that nothing was set aside for: summaries. They may take a limit over its value, once."""
    tokens = sum(used["prompt_tokens"] + used["completion_tokens"] for used in usages)
    usd = sum((used["cost_usd"] or Decimal(0) for used in usages), Decimal(0))
    await charge(tx, session_id, tokens, usd)


def _worst_case(
    rt: Runtime,
    gathered: Gathered,
    turns: int,
    max_output_tokens: int | None,
    tools: tuple[ToolDefinition, ...],
    instructions: str | None,
) -> Asked:
    """All that the window holds before anything leaves it and all that may be recalled, no more than may be sent, and
    the longest answer."""
    budget = budget_of(gathered.model, gathered.session.policy)
    messages = list(gathered.messages())
    summary = gathered.context.summary
    texts = [text for _, text in layers_of(rt, gathered.session, instructions)]
    texts += [pin.content for pin in gathered.context.pins]
    texts += [
        gathered.session.room_goal or "",
        json.dumps(tools) if tools else "",
        render_summary(summary.body) if summary else "",
    ]
    uncounted = any(message.tokens < 0 for message in messages)
    prompt = sum(message.tokens + message.reasoning_tokens + MESSAGE_FRAMING_TOKENS for message in messages)
    prompt += ceil(sum(map(len, texts)) / _CHARS_PER_TOKEN) + PROMPT_FRAMING_TOKENS
    prompt = budget.prompt_ceiling if uncounted else min(prompt, max(budget.prompt_ceiling, 0))
    output = min(max_output_tokens or budget.output_reserve, budget.output_reserve)
    usage = Usage(prompt, output)
    aliases = (gathered.model.alias, *gathered.model.fallbacks)
    costs = [_cost(rt.catalogue.model(alias), usage) for alias in aliases]
    return Asked(turns, prompt + output, max(costs))


def _cost(model: Model, usage: Usage) -> Decimal:
    """A model without a known price costs nothing here, as in every other sum: a limit of tokens holds it."""
    return cost_of(model, usage) or Decimal(0)


def _refusal(over: Exceeded) -> LimitExceeded:
    retry_after_s = _WHILE_OTHERS_RUN_S if over.waits_for_others else over.retry_after_s
    whose = "The tenant" if over.scope == "tenant" else "This session"
    when = f" It starts anew at {over.resets_at:{_INSTANT}}." if over.resets_at else ""
    running = " Turns that run now hold the rest of it." if over.waits_for_others else ""
    return LimitExceeded(
        f"{whose} has a limit {over.name} of {over.value.normalize():f}, and this turn would go over it.{running}{when}"
        " Nothing was stored or sent to the model.",
        {
            "scope": over.scope,
            "name": over.name,
            "value": _number(over.value),
            "used": _number(over.used),
            "reserved": _number(over.reserved),
            "asked": _number(over.asked),
            "resets_at": f"{over.resets_at:{_INSTANT}}" if over.resets_at else None,
        },
        retry_after_s,
    )


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)
