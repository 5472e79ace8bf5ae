"""The model behind the service: it answers questions about invoices, with a call of `look_up` where it is offered."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast
from uuid import uuid4

from app.tokenizers.vocabularies import load_vocabulary
from tests.api.chatting import say, tool_call
from tests.providers.server import Answer, Seen, Step
from tests.services.service import is_summary, sound_summary

_QUESTION = re.compile(r"Is invoice (\d+) paid\?")
_FOUND = re.compile(r"Invoice (\d+) is paid")
_FIELD = re.compile(r"\[\[ ## (\w+) ## \]\]")
REMARK = " ".join(f"The payment was checked against statement {number}." for number in range(8))


def play(seen: Seen) -> Step:
    """Answers as the question and the offered tools need it, with the tokens of what was sent."""
    asked = seen.json
    sent = {name: asked[name] for name in ("messages", "tools") if name in asked}
    prompt_tokens = load_vocabulary("o200k_base").count(json.dumps(sent, ensure_ascii=False))
    if is_summary(seen):
        answer = sound_summary(seen)
        return Answer({**answer.body, "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 20}})
    text, calls = _reply(asked, f"call_{uuid4().hex}")
    step = say(text, *calls, prompt_tokens=prompt_tokens)
    return step(seen) if callable(step) else step


def _reply(asked: Mapping[str, Any], call_id: str) -> tuple[str | None, list[dict[str, Any]]]:
    texts = [_text(message) for message in asked["messages"]]
    at, number = max((at, found[-1]) for at, text in enumerate(texts) if (found := _QUESTION.findall(text)))
    tools = {tool["function"]["name"]: tool["function"] for tool in asked.get("tools") or ()}
    forced = _forced(asked.get("tool_choice"))
    known = any(number in _FOUND.findall(text) for text in texts[at + 1 :])
    sentence = f"Invoice {number} is paid. {REMARK}"
    if forced in tools:
        return None, [tool_call(call_id, forced, _arguments(tools[forced], number))]
    # Semantic Kernel puts a plugin's name before it.
    look_up = next((name for name in tools if name.endswith("look_up")), None)
    if look_up is not None and not known:
        return None, [tool_call(call_id, look_up, {"id": number})]
    if "final_answer" in tools:
        return None, [tool_call(call_id, "final_answer", {"answer": sentence})]
    if fields := [name for name in _FIELD.findall(texts[-1]) if name != "completed"]:
        return "\n\n".join(f"[[ ## {name} ## ]]\n{sentence}" for name in fields) + "\n\n[[ ## completed ## ]]", []
    return sentence, []


def _forced(choice: object) -> str:
    return str(cast("dict[str, Any]", choice)["function"]["name"]) if isinstance(choice, dict) else ""


def _arguments(function: Mapping[str, Any], number: str) -> dict[str, Any]:
    """Arguments of the types that the schema names."""
    kinds: Mapping[str, Any] = function["parameters"]["properties"]
    return {name: True if kind.get("type") == "boolean" else number for name, kind in kinds.items()}


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content)
