"""What properties read off a decision: what was sent, what could have been, and what may never be missing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import chain

from hypothesis import assume

from app.domain.types import JsonObject, Message, MessageId, PromptMessage, ToolDefinition, Turn, TurnStatus
from app.engine.messages.media import media_tokens
from app.engine.messages.turns import Unit, sendable_units, wire_tokens_of
from app.engine.window.plan import Ready
from app.engine.window.prompt import Prompt, PromptItem
from app.engine.window.prompt_refs import Needed, rebuilt_parts
from app.engine.window.pruning import remains, untouchable
from app.engine.window.snapshot import Snapshot
from app.engine.window.window import Window, lay_out
from tests.engine.histories import estimate
from tests.engine.turn_stand_in import Taken


def ready_of(taken: Taken) -> Ready:
    """The decision, of an example whose prompt fits."""
    assume(isinstance(taken.decision, Ready))
    assert isinstance(taken.decision, Ready)
    return taken.decision


def least_of(snapshot: Snapshot) -> Window:
    """What the turn needs at least. A summary may take in the whole past, where the policy makes any
    and does not shield the protected turns."""
    window = lay_out(snapshot, estimate).with_items("summary", ())
    if snapshot.policy.allocation is not None:
        window = window.with_items("pins", ())
    left = untouchable(window) if snapshot.policy.allocation is None else remains(window)
    all_leave = snapshot.policy.summarizes and snapshot.policy.prune_protected
    return window.with_pieces([each for each in left if each.state == "running" or not all_leave])


def all_units(turns: Iterable[Turn]) -> list[Unit]:
    """What of the turns may be sent, cut into units."""
    return [unit for turn in turns for unit in sendable_units(turn)]


def sendable(turns: Iterable[Turn]) -> list[Message]:
    """The messages of those units."""
    return [message for unit in all_units(turns) for message in unit.messages]


def items_of(prompt: Prompt) -> list[PromptItem]:
    """Every message of a prompt as a single item."""
    items: list[PromptItem] = []
    for part in prompt.parts:
        if isinstance(part, PromptItem):
            items.append(part)
        else:
            items += chain(*map(part.past.items, range(part.first, part.end)))
    return items


def sent_ids(prompt: Prompt) -> set[MessageId]:
    """The stored messages that a prompt holds."""
    return {item.message.id for item in items_of(prompt) if item.message}


def labels_of(turns: Iterable[Turn]) -> set[str]:
    """How trim logs name the messages of the turns."""
    return {f"message:{message.id}" for turn in turns for message in turn.messages}


def sent_turns(turns: Iterable[Turn]) -> list[Turn]:
    """Turns of which later prompts know: a rejected one was never there (contract.md, decision 7)."""
    return [turn for turn in turns if turn.status is not TurnStatus.REJECTED]


def protected_turns(snapshot: Snapshot) -> list[Turn]:
    """The newest turns by the policy, an unresolved last one whatever the policy, and the running one."""
    policy, sent = snapshot.policy, sent_turns(snapshot.past.turns)
    most = len(sent) if policy.protected_turns is None else policy.protected_turns
    kept = list(reversed(sent))[: max(most, 1 if sent and sent[-1].unresolved else 0)]
    if policy.protected_share is not None:
        room = policy.protected_share * snapshot.budget.input_budget / snapshot.calibration_ratio
        # The newest is protected however large it is.
        kept = [turn for at, turn in enumerate(kept) if not at or wire_tokens_of(kept[: at + 1]) <= room]
    return [*reversed(kept), snapshot.current]


def never_dropped(snapshot: Snapshot) -> list[Message]:
    """Users' words in the raw window, and the newest assistant and tool messages of what is unresolved."""
    kept = [message for message in sendable((*snapshot.past.turns, snapshot.current)) if message.role == "user"]
    sent = sent_turns(snapshot.past.turns)
    for turn in (*(sent[-1:] if sent and sent[-1].unresolved else ()), snapshot.current):
        for kind in ("assistant", "tool_group"):
            newest = [unit for unit in sendable_units(turn) if unit.kind == kind][-1:]
            kept += [message for unit in newest for message in unit.messages]
    return kept


def counted_tokens(messages: Iterable[JsonObject]) -> int:
    """Tokens of neutral messages, counted from what is sent and not from what is stored."""
    total = 0
    for message in messages:
        content = message["content"] or ""
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        texts = [part["text"] for part in parts if part["type"] == "text"]
        total += sum(media_tokens(part) for part in parts if part["type"] != "text")
        for call in message.get("tool_calls", ()):
            texts += [call["id"], call["function"]["name"], call["function"]["arguments"]]
            total += 3
        texts += [message.get("tool_call_id", ""), message.get("name", "")]
        total += "name" in message
        total += sum(estimate(text) for text in texts)
    return total


def read_back(
    needed: Needed, blocks: Mapping[str, str], stored: dict[int, Message]
) -> tuple[dict[str, str], dict[int, Message]]:
    """What a store gives back for what is needed, and nothing beside it."""
    found = {seq: stored[seq] for first, last in needed.runs for seq in range(first, last + 1)}
    for first, last in needed.user_runs:
        found |= {seq: each for seq, each in stored.items() if first <= seq <= last and each.role == "user"}
    return {sha256: blocks[sha256] for sha256 in needed.sha256s}, found


def rebuild(
    refs: JsonObject, blocks: Mapping[str, str], messages: Mapping[int, Message]
) -> tuple[list[PromptMessage], list[ToolDefinition]]:
    """The exact messages and tools that were sent, from what is stored."""
    tools: list[ToolDefinition] = json.loads(blocks[refs["tools"]]) if refs["tools"] else []
    return [part.sent for part in rebuilt_parts(refs, blocks, messages)], tools
