"""The hash of an exact prompt as the contract has it, made another way than the service makes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any


def prompt_sha256(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    """Of compact, key-sorted UTF-8 JSON of the neutral `{messages, tools}`, in hex."""
    prompt = {"messages": list(messages), "tools": list(tools)}
    return sha256(json.dumps(prompt, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
