"""A body for each operation that takes one, for the OpenAPI document; `tests/api/test_openapi.py` sends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.domain.types import JsonObject

_QUESTION: Final = {"role": "user", "content": "My name is Anna. What is in Bergen?"}
_CALL_OUTPUT: Final = {"tool_call_id": "call_1", "content": "12 degrees, rain"}

EXAMPLES: Final[Mapping[str, JsonObject]] = {
    "create_session": {"room_goal": "Plan a trip to Norway", "policy": {"preset": "guarded"}},
    "change_session": {"metadata": {"title": "Norway"}},
    "fork_session": {},
    "import_session": {"messages": [_QUESTION, {"role": "assistant", "content": "The fish market."}]},
    "post_turn": {"content": "My name is Anna. What is in Bergen?"},
    "post_tool_outputs": {"outputs": [_CALL_OUTPUT]},
    "regenerate_turn": {"max_output_tokens": 500},
    "preview_turn": {"content": "And in Oslo?"},
    "summarize_now": {"focus": "Dates and prices"},
    "edit_summary": {"summary_text": "Anna plans a trip to Bergen."},
    "put_pin": {"content": "The budget is 2,000 EUR.", "relevance": 0.9},
    "simulate": {"policies": [{"preset": "rolling"}]},
    "create_chat_completion": {"model": "offline", "messages": [_QUESTION]},
    "create_completion": {"model": "offline", "prompt": "What is in Bergen?"},
    "create_message": {"model": "offline", "max_tokens": 500, "messages": [_QUESTION]},
    "count_message_tokens": {"model": "offline", "messages": [_QUESTION]},
    "create_response": {"model": "offline", "input": "What is in Bergen?"},
    "compact_response": {
        "model": "offline",
        "input": [_QUESTION, {"role": "assistant", "content": "The fish market."}],
    },
    "create_conversation": {"items": [_QUESTION]},
    "change_conversation": {"metadata": {"title": "Norway"}},
    "create_conversation_items": {"items": [_QUESTION]},
}
