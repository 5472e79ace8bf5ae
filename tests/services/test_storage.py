"""What remembering prompts costs: references, so that a session's storage grows with its turns and not their square."""

from __future__ import annotations

from app.domain.types import SessionId
from app.services.views.turns import get_prompt, list_turns
from tests.services.service import OLDEST, Service, ref_of, service

WORDS = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 3


async def _prompt_bytes(at: Service, session_id: SessionId) -> int:
    """Bytes of all that is stored only so that prompts can be rebuilt."""
    (row,) = await at.rows(
        """
        SELECT (SELECT coalesce(sum(length(CAST(prompt_refs AS text)) + length(prompt_sha256)), 0)
                FROM turn_context_audit WHERE session_id = CAST(:sid AS uuid))
             + (SELECT coalesce(sum(length(content) + length(sha256)), 0)
                FROM prompt_blocks WHERE session_id = CAST(:sid AS uuid)) AS bytes
        """,
        sid=session_id,
    )
    return int(row["bytes"])


async def _wire_bytes(at: Service, session_id: SessionId) -> int:
    (row,) = await at.rows(
        "SELECT sum(estimated_wire_tokens) * 4 AS bytes FROM turn_context_audit WHERE session_id = CAST(:sid AS uuid)",
        sid=session_id,
    )
    return int(row["bytes"])


async def test_prompt_storage_of_a_thousand_turns_is_linear(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.session(instructions="Be brief. " * 100, policy={"max_context_tokens": 8000})
        measured: dict[int, int] = {}
        for number in range(1, 1001):
            await at.turn(session.id, f"Point {number}. {WORDS}")
            if number in (100, 200, 1000):
                measured[number] = await _prompt_bytes(at, session.id)
        first, last = measured[200] - measured[100], (measured[1000] - measured[200]) / 8
        assert last < 1.1 * first, measured
        assert measured[1000] < 0.1 * await _wire_bytes(at, session.id), measured
        turns = (await list_turns(at.rt, ref_of(session.id), OLDEST)).items
        for turn in turns[::40]:
            await get_prompt(at.rt, ref_of(session.id), turn.id, None)
