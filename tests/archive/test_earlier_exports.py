"""An export of any version can be imported: what rows have had since is not required of them."""

from __future__ import annotations

import json
from typing import Any

from app.api.routes.sessions import spooled
from app.archive.document import SECTIONS
from app.domain.types import Pin, RecordedReply, ToolCall
from app.services.archive.transfer import export_session
from app.services.sessions import put_pin
from tests.services.service import ref_of, service

_FIRST_COLUMNS = {
    "session": "id model_alias mode agent_role room_goal instructions policy metadata summary_count_after_seq"
    " created_at updated_at",
    "pins": "name content relevance source created_at updated_at",
    "blocks": "sha256 content",
    "turns": "id seq status user_input assistant_output error model_alias finish_reason prompt_tokens completion_tokens"
    " cost_usd request created_at completed_at",
    "messages": "id turn_id seq role content tool_calls tool_call_id reasoning token_estimate token_encoding"
    " created_at",
    "steps": "id turn_id seq kind status detail started_at finished_at",
    "summaries": "id from_message_id to_message_id previous_summary_id summary_text key_facts open_questions decisions"
    " action_items status origin model_alias token_estimate token_encoding prompt_tokens completion_tokens"
    " created_by_turn_id created_at",
    "audits": "id turn_id round attempt model_alias model_context_limit context_limit_source output_reserve"
    " overhead_reserve input_budget estimator calibration_ratio estimated_input_tokens_before"
    " estimated_input_tokens_after_summary estimated_input_tokens_after_prune estimated_wire_tokens"
    " actual_prompt_tokens summary_triggered prune_triggered overflow_rejected regions context_trim_log prompt_refs"
    " prompt_sha256 created_at",
}
"""What each part of a document had when the first one was exported (2026-11-22)."""


async def test_an_export_with_the_columns_of_the_first_one_is_imported_and_goes_on(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.session()
        await put_pin(at.rt, ref_of(session.id), Pin("notes.md", "Order 7 is paid."))
        call = RecordedReply(None, (ToolCall("a", "look_up", "{}"),))
        turn = (await at.turn(session.id, "What of order 7?", recorded_reply=call)).turn
        await at.outputs(session.id, turn.id, {turn.tool_calls[0].id: "It is paid."})
        for number in range(9):
            await at.turn(session.id, f"And of order {number}?")
        with await spooled(export_session(at.rt, ref_of(session.id))) as file:
            document: dict[str, Any] = json.load(file)
        assert all(document[section] for section in SECTIONS)
        document["session"] = _of_then("session", document["session"])
        document |= {section: [_of_then(section, row) for row in document[section]] for section in SECTIONS}
        imported = await at.imported(document)
        await at.turn(imported.id, "And of order 10?")


def _of_then(section: str, row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _FIRST_COLUMNS[section].split()}
