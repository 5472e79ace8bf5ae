"""How many tokens a prompt of Anthropic's form has, as a turn counts it: nothing is stored and no model is called."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from app.domain.incoming import IncomingMessage
from app.domain.types import Message, MessageId, TenantId, TurnId
from app.engine.messages.image_rules import image_rule_for
from app.engine.messages.tokens import Estimate, message_tokens, tools_tokens, with_images_by_rule
from app.engine.window.prompt import Prompt, PromptItem
from app.engine.window.window import head_items
from app.services.runtime import Runtime
from app.services.turn.gather import encoding_of
from app.services.turn.types import TurnOptions

_NO_ID = UUID(int=0)


async def count_tokens(
    rt: Runtime, tenant_id: TenantId, model_alias: str, messages: Sequence[IncomingMessage], options: TurnOptions
) -> int:
    """The estimate of what the first turn of a new session would send, had nothing of the list to leave.

    Raises `InvalidRequest` for an unknown alias.
    """
    model = rt.catalogue.model(model_alias, tenant_id)
    rule = image_rule_for(model.model)
    system = (("system:global", rt.catalogue.instructions.global_), ("system:turn", options.instructions))
    layers = tuple((label, text) for label, text in system if text)

    def item(incoming: IncomingMessage, estimate: Estimate) -> PromptItem:
        calls, call_id = incoming.tool_calls, incoming.tool_call_id
        tokens = message_tokens(incoming.content, estimate, tool_calls=calls, tool_call_id=call_id)
        message = Message(MessageId(_NO_ID), TurnId(_NO_ID), 0, incoming.role, incoming.content, tokens, calls, call_id)
        return PromptItem("history", with_images_by_rule(message, rule).tokens, message=message)

    def counted(estimate: Estimate) -> int:
        items = (*head_items(layers, None, (), estimate), *(item(message, estimate) for message in messages))
        return Prompt(items, options.tools, tools_tokens(options.tools, estimate)).wire_tokens

    encoding = encoding_of(model, rt.guarded)
    tokens, _ = await rt.tokenizers.off_loop(lambda: rt.tokenizers.count_with(encoding, counted))
    return tokens
