"""One worker at a time makes a summary of a session, and a dead one's place is taken."""

from __future__ import annotations

from uuid import UUID

from app.db.sessions import get_state
from app.db.summaries import AttemptNote, store_attempt, take_summary_lease
from app.domain.frozen import replace
from app.domain.stored import NewSummary
from app.domain.types import MessageId, SessionId, SummaryId, TurnId
from tests.services.service import Service, ref_of, service
from tests.services.test_claims import claimed_twice

ONE, TWO = UUID(int=1), UUID(int=2)


def _summary(session_id: SessionId, turn_id: TurnId) -> NewSummary:
    return NewSummary(
        id=SummaryId(ONE),
        from_message_id=MessageId(ONE),
        to_message_id=MessageId(ONE),
        previous_summary_id=None,
        summary_text="Short.",
        key_facts=(),
        open_questions=(),
        decisions=(),
        action_items=(),
        status="active",
        origin="model",
        model_alias="offline",
        call=None,
        call_reason=None,
        token_estimate=1,
        prompt_tokens=None,
        completion_tokens=None,
        created_by_turn_id=turn_id,
        created_at=None,
        session_id=session_id,
        to_message_seq=1,
        token_encoding="e",
    )


async def _takes(
    at: Service,
    session_id: SessionId,
    lease_id: UUID,
    *,
    lease_s: float = 30,
    previous_id: SummaryId | None = None,
    for_turn: bool = False,
) -> bool:
    taking = at.rt.database.run(take_summary_lease, session_id, lease_id, lease_s, previous_id, for_turn=for_turn)
    stands, limits = await taking
    assert stands is (previous_id is None), "there is no active summary"
    return limits is not None


async def _releases(at: Service, session_id: SessionId, lease_id: UUID) -> None:
    """As an attempt does that was given up."""
    session = await at.rt.database.run(get_state, ref_of(session_id))
    assert session is not None
    assert not await at.rt.database.run(store_attempt, session, None, AttemptNote(lease_id=lease_id), None)


async def test_a_lease_is_one_workers_until_that_one_releases_it_or_it_is_over(database_url: str) -> None:
    async with service(database_url) as at:
        session_id, other_id = [(await at.session()).id for _ in range(2)]
        assert await _takes(at, session_id, ONE)
        assert not await _takes(at, session_id, TWO)
        assert await _takes(at, other_id, TWO), "each session has its own"
        await _releases(at, session_id, TWO)
        assert not await _takes(at, session_id, TWO), "it was not TWO's to release"
        await _releases(at, session_id, ONE)
        assert await _takes(at, session_id, TWO, lease_s=-1)
        assert await _takes(at, session_id, ONE), "the lease of TWO is over"


async def test_a_turn_takes_the_lease_of_an_earlier_turn_over_and_no_other(database_url: str) -> None:
    """A session runs one turn at a time: whoever made a summary for an earlier one is dead."""
    async with service(database_url) as at:
        session_id, other_id = [(await at.session()).id for _ in range(2)]
        earlier, of_other = [(await at.turn(each, "Hi")).turn.id for each in (session_id, other_id)]
        assert await _takes(at, session_id, earlier, for_turn=True)
        assert not await _takes(at, session_id, TWO)
        assert await _takes(at, session_id, TWO, for_turn=True)
        assert not await _takes(at, session_id, ONE, for_turn=True), "TWO is no turn"
        assert await _takes(at, other_id, earlier, for_turn=True)
        assert not await _takes(at, other_id, of_other, for_turn=True), "that turn is none of this session"


async def test_the_lease_of_a_cancelled_turn_stays_with_its_worker_which_finishes_the_summary(
    database_url: str,
) -> None:
    async with service(database_url) as at:
        session_id = (await at.session()).id
        cancelled = (await at.turn(session_id, "Hi")).turn.id
        await at.rows("UPDATE turns SET status = 'cancelled' RETURNING id")
        assert await _takes(at, session_id, cancelled, for_turn=True)
        assert not await _takes(at, session_id, TWO, for_turn=True)


async def test_no_lease_is_taken_for_a_summary_that_would_fold_one_that_is_not_active(database_url: str) -> None:
    async with service(database_url) as at:
        session_id = (await at.session()).id
        assert not await _takes(at, session_id, ONE, previous_id=SummaryId(UUID(int=9)))
        assert await _takes(at, session_id, TWO)


async def test_the_limits_of_a_lease_are_the_sessions_and_its_tenants(database_url: str) -> None:
    async with service(database_url) as at:
        session_id = (await at.session(limits={"turns_total": 7})).id
        await at.rows("INSERT INTO limits (tenant_id, name, value) VALUES ('other', 'turns_total', 1) RETURNING name")
        taken = await at.rt.database.run(take_summary_lease, session_id, ONE, 30, None, for_turn=False)
        assert taken == (True, {"session": {"turns_total": 7}})


async def test_a_summary_is_stored_for_the_newest_claim_of_its_turn_only(database_url: str) -> None:
    async with service(database_url) as at:
        first, second = await claimed_twice(at)
        new = _summary(first.session_id, first.turn_id)
        assert not await at.rt.database.run(store_attempt, first.session, new, AttemptNote(), first)
        assert await at.rt.database.run(store_attempt, first.session, new, AttemptNote(), second)
        await at.rows("UPDATE session_summaries SET status = 'undone' RETURNING id")
        later = replace(new, id=SummaryId(TWO), previous_summary_id=SummaryId(ONE))
        assert not await at.rt.database.run(store_attempt, first.session, later, AttemptNote(), second), "ONE is undone"


async def test_a_cancelled_turn_leaves_its_summary_but_no_note_of_what_its_call_dropped(
    database_url: str,
) -> None:
    async with service(database_url) as at:
        _, claim = await claimed_twice(at)
        await at.rows("UPDATE turns SET status = 'cancelled' RETURNING id")
        new = _summary(claim.session_id, claim.turn_id)
        note = replace(new, origin="emergency")
        for each in (note, new):
            goes_on = await at.rt.database.run(store_attempt, claim.session, each, AttemptNote(), claim)
            assert not goes_on, "the turn has ended"
        assert await at.rows("SELECT origin FROM session_summaries") == [{"origin": "model"}]
