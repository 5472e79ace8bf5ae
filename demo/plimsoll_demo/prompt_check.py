"""Looks at a prompt that was sent as a provider would, and holds it against its audit."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson

from plimsoll_demo.client import Answer
from plimsoll_demo.figures import PromptFault


def prompt_faults(
    prompt: Answer, audit: Mapping[str, Any], *, user_message: str, round_number: int
) -> dict[PromptFault, int]:
    """What one sent prompt breaks, from `GET …/prompt?round=N` and `GET …/audit?round=N`; empty when all is well.

    A result that answers no call right before it, a call that is not answered before the next other message, a prompt
    without the `user_message` of this turn, more tokens counted than the input budget has, and a prompt or audit
    that is not there, is of another round, or whose `prompt_sha256` is not the prompt's.
    """
    faults: Counter[PromptFault] = Counter()
    if prompt.status_code != 200 or not audit:
        faults["not_verbatim"] = 1
        return dict(faults)
    messages = cast("Sequence[Mapping[str, Any]]", prompt.body["messages"])
    faults["orphaned_results"], faults["unanswered_calls"] = _unpaired(messages)
    faults["no_user_message"] = not any(
        message["role"] == "user" and message["content"] == user_message for message in messages
    )
    faults["over_budget"] = int(audit["estimated_input_tokens_after_prune"]) > int(audit["input_budget"])
    hashes = {prompt_sha256(prompt.body), prompt.body["prompt_sha256"], audit["prompt_sha256"]}
    faults["not_verbatim"] = len(hashes) > 1 or audit["round"] != round_number
    return dict(+faults)


def prompt_sha256(prompt: Mapping[str, Any]) -> str:
    """SHA-256, hex, of compact key-sorted JSON of `{messages, tools}` (contract.md, decision 10), taken anew."""
    sent = {"messages": prompt["messages"], "tools": prompt["tools"]}
    return hashlib.sha256(orjson.dumps(sent, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _unpaired(messages: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Results without their call, and calls without their result, each in the messages' order."""
    orphaned = unanswered = 0
    open_ids: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") in open_ids:
                open_ids.remove(message["tool_call_id"])
            else:
                orphaned += 1
            continue
        unanswered += len(open_ids)
        open_ids = [call["id"] for call in message.get("tool_calls") or ()]
    return orphaned, unanswered + len(open_ids)
