"""A list of OpenAI messages as a session: what becomes a turn, what is refused, and that it is all or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from app.db.messages import SLICE_MESSAGES
from app.domain.errors import InvalidRequest
from app.domain.types import TurnStatus
from app.services.sessions import change_session, list_sessions
from app.services.views.context import window_now
from app.services.views.turns import list_turns
from tests.services.service import NEWEST, OLDEST, TENANT, ref_of, service


def call(call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": '{"id": 1}'}}


AGENT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "assistant", "content": "How can I help?"},
    {"role": "user", "content": "Is order 1 paid?"},
    {"role": "user", "content": [{"type": "text", "text": "And 2?"}]},
    {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
    {"role": "tool", "tool_call_id": "b", "content": "no"},
    {"role": "tool", "tool_call_id": "a", "content": "yes"},
    {"role": "assistant", "content": "1 is, 2 is not."},
    {"role": "user", "content": "Thanks"},
]


async def test_a_list_becomes_turns_with_their_tool_groups_counted_and_numbered(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.imported({"instructions": "Speak English.", "messages": AGENT})
        assert session.instructions == "Speak English.\n\nBe brief."
        turns = (await list_turns(at.rt, ref_of(session.id), OLDEST)).items
        assert [(turn.seq, turn.status, turn.user_input, turn.assistant_output) for turn in turns] == [
            (1, TurnStatus.COMPLETED, "", "How can I help?"),
            (2, TurnStatus.COMPLETED, "Is order 1 paid?\nAnd 2?", "1 is, 2 is not."),
            (3, TurnStatus.CANCELLED, "Thanks", None),
        ]
        rows = await at.rows("SELECT seq, role, token_estimate, token_encoding FROM messages ORDER BY seq")
        assert [row["seq"] for row in rows] == list(range(1, 9))
        assert [row["role"] for row in rows] == [message["role"] for message in AGENT[1:]]
        assert all(row["token_estimate"] > 0 and row["token_encoding"] == "o200k_base" for row in rows)
        answered = (await at.turn(session.id, "Which one was not?")).turn
        assert answered.seq == 4
        assert "2 is not" in str(answered.assistant_output)
        assert (await window_now(at.rt, ref_of(session.id))).regions["history"] > 30


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([*AGENT[:6], AGENT[7]], "4"),
        ([*AGENT[:5], AGENT[8]], "4"),
        ([*AGENT[:3], AGENT[5]], "3"),
        ([*AGENT[:7], AGENT[6]], "7"),
        (AGENT[:5], "4"),
        ([AGENT[2], {"role": "assistant", "tool_calls": [call("a"), call("a")]}], "1"),
    ],
    ids=["a result is missing", "no result", "no call", "a second result", "open at the end", "one id twice"],
)
async def test_a_wrong_pairing_is_named_by_its_place_and_nothing_is_stored(
    database_url: str, messages: list[dict[str, Any]], place: str
) -> None:
    async with service(database_url) as at:
        with pytest.raises(InvalidRequest) as refused:
            await at.imported({"messages": messages})
        assert refused.value.where == ("body", "messages", place)
        with pytest.raises(InvalidRequest):
            await at.imported({"messages": AGENT[:1]})
        with pytest.raises(InvalidRequest):
            await at.imported({"model_alias": "unknown", "messages": AGENT})
        assert (await list_sessions(at.rt, TENANT, NEWEST)).items == []


async def test_a_model_of_another_encoding_has_every_message_of_a_long_window_counted_once(database_url: str) -> None:
    messages = 2 * SLICE_MESSAGES + 2
    listed = [{"role": ("user", "assistant")[at % 2], "content": f"Point {at}."} for at in range(messages)]
    async with service(database_url) as at:
        session = await at.imported({"messages": listed})
        await change_session(at.rt, ref_of(session.id), {"policy": {"estimator": "heuristic"}})
        for _ in range(2):
            await at.turn(session.id, "And now?")
        (stored,) = await at.rows(
            "SELECT count(*) AS messages, count(c.message_id) AS counted FROM messages m"
            " LEFT JOIN message_token_counts c ON c.session_id = m.session_id AND c.message_id = m.id"
            " WHERE m.seq <= CAST(:messages AS bigint)",
            messages=messages,
        )
        assert stored == {"messages": messages, "counted": messages}
