"""How many tokens a prompt of Anthropic's form has, as a turn counts it: nothing is stored and no model is called."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from app.db.turns import newest_messages, newest_of
from app.domain.compaction import Compaction
from app.domain.errors import NotFound, located
from app.domain.incoming import IncomingMessage
from app.domain.types import Message, MessageId, TenantId, TurnId, TurnStatus
from app.engine.messages.image_rules import image_rule_for
from app.engine.messages.tokens import (
    PROMPT_FRAMING_TOKENS,
    Estimate,
    tokens_of,
    tools_tokens,
    with_images_by_rule,
)
from app.engine.window.prompt import Prompt, PromptItem
from app.engine.window.window import head_items
from app.services.openai.chat import ChatRequest, beyond, divided, most_compared, turn_of
from app.services.runtime import Runtime
from app.services.turn.gather import encoding_of
from app.services.turn.types import TurnOptions
from app.services.views.context import window_now
from app.services.views.preview import preview_turn

_NO_ID = UUID(int=0)


async def count_behind(rt: Runtime, tenant_id: TenantId, request: ChatRequest, compaction: Compaction) -> int:
    """The estimate of what a list behind a compaction would send, of its session as it stands.

    As the preview of the next turn has it; where the list is no new turn, or has past that the session has not, the
    session's window and what of the list is new. Raises `NotFound` and `InvalidRequest` as the request would.
    """
    session_id = compaction.session_id
    async with rt.database.autocommit() as tx:
        newest = await newest_of(tx, tenant_id, session_id)
        stored = await newest_messages(tx, session_id, most_compared(request)) if newest else ()
    if newest is None:
        raise NotFound("compaction")
    new = (await beyond(request, stored)).messages
    is_waiting = newest.status is TurnStatus.AWAITING_TOOLS
    with located("body", request.within):
        step = await divided(request, new, waiting=is_waiting) if new else None
    if step is not None and not step.past and not is_waiting:
        turn = turn_of(request, step, request.options)
        if turn is not None:
            preview = await preview_turn(rt, tenant_id, session_id, turn)
            return preview.context["estimated_wire_tokens"]
    window = await window_now(rt, tenant_id, session_id)
    return window.estimated_wire_tokens + await count_tokens(
        rt, tenant_id, request.model_alias, new, request.options, is_new=False
    )


async def count_tokens(
    rt: Runtime,
    tenant_id: TenantId,
    model_alias: str,
    messages: Sequence[IncomingMessage],
    options: TurnOptions,
    *,
    is_new: bool = True,
) -> int:
    """The estimate of what the first turn of a new session would send, had nothing of the list to leave; or of what
    comes to the window of one.

    Raises `InvalidRequest` for an unknown alias.
    """
    model = rt.catalogue.model(model_alias, tenant_id)
    rule = image_rule_for(model.model)
    of_session = rt.catalogue.instructions.global_ if is_new else None
    system = (("system:global", of_session), ("system:turn", options.instructions))
    layers = tuple((label, text) for label, text in system if text)

    def item(incoming: IncomingMessage, estimate: Estimate) -> PromptItem:
        calls, call_id, tokens = incoming.tool_calls, incoming.tool_call_id, tokens_of(incoming, estimate)
        message = Message(MessageId(_NO_ID), TurnId(_NO_ID), 0, incoming.role, incoming.content, tokens, calls, call_id)
        return PromptItem("history", with_images_by_rule(message, rule).tokens, message=message)

    def counted(estimate: Estimate) -> int:
        items = (*head_items(layers, None, (), estimate), *(item(message, estimate) for message in messages))
        prompt = Prompt(items, options.tools, tools_tokens(options.tools, estimate))
        return prompt.wire_tokens - (0 if is_new else PROMPT_FRAMING_TOKENS)

    encoding = encoding_of(model, rt.guarded)
    tokens, _ = await rt.tokenizers.off_loop(lambda: rt.tokenizers.count_with(encoding, counted))
    return tokens
