"""Columns that are read of aggregates are those that are made of the session's messages, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from app.db.messages import UNCOUNTED, window_turns
from app.db.settled import settled_through
from app.domain.types import ReasoningRule, SessionId, Turn
from app.engine.messages.turns import with_reasoning
from app.engine.window.columns import Columns
from app.services.turn.gather import settled_columns
from tests.services.service import Service, service

_TEXTS = ("Good.", "Ünïcode \u2028 🙂", 'a "quote" \\ / \b\f\n\r\t\x01\x1f\x7f', "<b>&</b>")
_LONG_TEXT = "long words " * 2_000
_LAST_SEQ = 2**62
_RULE = ReasoningRule("text", "tool_turns")


@pytest.mark.parametrize(
    ("turns", "more_than_text", "slice_messages"),
    [(40, 0.3, 2), (60, 0.05, 1_000), (60, 0.05, 11), (60, 0.0, 7), (60, 0.0, 1_000)],
)
async def test_columns_of_aggregates_are_those_of_messages(
    database_url: str, turns: int, more_than_text: float, slice_messages: int
) -> None:
    random = Random(turns + more_than_text)  # noqa: S311 - no secret
    async with service(database_url) as at:
        session_id = (await at.imported({"messages": _messages(random, turns, more_than_text)})).id
        await _disturb(at, session_id, random)
        window = await _turns(at, session_id)
        for first in (0, random.randrange(1, len(window) // 2)):
            after_seq = window[first - 1].messages[-1].seq if first else 0
            made = Columns(after_seq)
            settled = [turn for turn in window[:-1] if turn.messages[0].seq > after_seq]
            made.extend(with_reasoning(turn, _RULE) for turn in _counted(settled))
            assert made.turns > 0
            assert _state(await _columns(at, session_id, after_seq, slice_messages)) == _state(made)


async def test_nothing_is_settled_before_a_first_turn_has_ended(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.session()
        async with at.rt.database.autocommit() as tx:
            assert await settled_through(tx, session.id, 1) == 0
        assert (await _columns(at, session.id, 0, 100)).turns == 0


def _messages(random: Random, turns: int, more_than_text: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number in range(turns):
        found.append({"role": "user", "content": f"{number} {random.choice(_TEXTS)}"})
        answer = random.choice(_TEXTS)
        match random.randrange(4) if random.random() < more_than_text else None:
            case 0:
                call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
                found.append({"role": "assistant", "content": None, "tool_calls": [call]})
                found.append({"role": "tool", "tool_call_id": f"c{number}", "content": random.choice(_TEXTS)})
            case 1:
                found.append({"role": "user", "content": [{"type": "text", "text": "of parts"}]})
            case 2:
                answer = _LONG_TEXT
            case 3:
                continue  # without an answer
            case _:
                pass
        found.append({"role": "assistant", "content": answer})
    return [*found, {"role": "user", "content": "The last one."}, {"role": "assistant", "content": "Is never kept."}]


async def _disturb(at: Service, session_id: SessionId, random: Random) -> None:
    """Has some messages taken back, with reasoning, or counted in another encoding late in the session; and some turns
    refused."""
    rows = await at.rows("SELECT seq FROM messages WHERE session_id = :id ORDER BY seq", id=session_id)
    seqs = [row["seq"] for row in rows]
    for change, where in (
        ("messages SET withdrawn = true", f"seq IN ({', '.join(map(str, random.sample(seqs, 3)))})"),
        ("messages SET reasoning = 'Hm.', reasoning_tokens = 2", "role = 'assistant' AND seq % 7 = 0"),
        ("turns SET status = 'rejected'", f"seq = {random.randrange(len(seqs) // 2)}"),
        ("turns SET status = 'failed'", f"seq = {random.randrange(len(seqs) // 2)}"),
        ("messages SET token_encoding = 'another'", f"seq = {seqs[-random.randrange(4, 40)]}"),
    ):
        await at.rows(f"UPDATE {change} WHERE session_id = :id AND {where} RETURNING id", id=session_id)


def unlimited(size_bytes: int) -> None:
    pass


async def _turns(at: Service, session_id: SessionId) -> Sequence[Turn]:
    async with at.rt.database.autocommit() as tx:
        encoding = at.rt.catalogue.model(at.rt.catalogue.default).encoding
        return await window_turns(
            tx, session_id, 0, await _last_seq(at, session_id), encoding, step_failed=False, take_bytes=unlimited
        )


async def _columns(at: Service, session_id: SessionId, after_seq: int, slice_messages: int) -> Columns:
    encoding = at.rt.catalogue.model(at.rt.catalogue.default).encoding
    async with at.rt.database.autocommit() as tx:
        through_seq = await settled_through(tx, session_id, _LAST_SEQ)
        return await settled_columns(
            tx,
            session_id,
            after_seq,
            through_seq,
            encoding,
            lambda turn: with_reasoning(turn, _RULE),
            unlimited,
            slice_messages,
        )


async def _last_seq(at: Service, session_id: SessionId) -> int:
    (row,) = await at.rows("SELECT max(seq) AS seq FROM messages WHERE session_id = :id", id=session_id)
    return row["seq"]


def _counted(turns: Sequence[Turn]) -> list[Turn]:
    """Those before the first that has a message without a count."""
    uncounted = [at for at, turn in enumerate(turns) if any(each.tokens == UNCOUNTED for each in turn.messages)]
    return list(turns[: uncounted[0]] if uncounted else turns)


def _state(columns: Columns) -> dict[str, object]:
    return {name: value for name, value in vars(columns).items() if name != "_hashed"}
