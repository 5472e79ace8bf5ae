"""A summary that is being made when its turn is stopped: it is finished, stored once, and found by the next turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.db.sessions import session_exists
from app.domain.errors import TurnCancelled, TurnLost
from app.domain.types import SessionRef, TurnId
from app.engine.policy.policy import ContextPolicy
from app.services.background import end_lost_turns
from app.services.runtime import Runtime
from app.services.sessions import delete_session, erase_if
from app.services.summaries import list_summaries
from app.services.turn.take import cancel_turn
from app.services.turn.types import TurnEvent
from tests.providers.server import Answer, ScriptedServer, Seen, serving
from tests.services.service import NEWEST, Service, is_summary, model, models_toml, ref_of, service, sound_summary

BEFORE_CALLS = ContextPolicy(summarize_ahead=False)
LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 20


class Summarizing:
    """A session whose ninth turn waits for its summary, until `may_end` is set."""

    def __init__(self, at: Service, session: SessionRef, server: ScriptedServer, may_end: asyncio.Event) -> None:
        self.at, self.session, self.may_end = at, session, may_end
        self._server = server
        self.turn_id: TurnId | None = None
        self.posted = asyncio.create_task(at.turn(session.id, "Point 9.", listen=self._listen))

    def _listen(self, event: TurnEvent) -> None:
        self.turn_id = self.turn_id or TurnId(event.data["turn"]["id"])

    @property
    def asked(self) -> int:
        return sum(map(is_summary, self._server.seen))

    @property
    def answered(self) -> int:
        return len(self._server.seen) - self.asked

    async def cancelled(self, at: Service | None = None) -> None:
        assert self.turn_id is not None
        await cancel_turn((at or self.at).rt, self.session, self.turn_id)

    async def finished(self) -> list[str]:
        """The states of the session's summaries after the one that is being made."""
        self.may_end.set()
        await self.at.rt.chores.settle()
        return [summary.status for summary in (await list_summaries(self.at.rt, self.session, NEWEST)).items]


def _small(server: ScriptedServer) -> str:
    """A summarizer that the fold reaches in several chunks, each of them a call."""
    return (
        f'[models.small]\nprovider = "openai"\nmodel = "small"\nbase_url = "{server.base_url}"\ncontext_window = 6000\n'
    )


@asynccontextmanager
async def summarizing(url: str, folder: Path, **policy: Any) -> AsyncGenerator[Summarizing]:
    """Yields the ninth turn once the summarizer was called: for it, or with `summarize_ahead` behind the eighth."""
    asked, may_end = asyncio.Event(), asyncio.Event()

    def answer(request: Seen) -> Answer:
        asked.set()
        return Answer(sound_summary(request).body, after=may_end.is_set)

    async with (
        serving(model(summary=answer)) as server,
        service(
            url, models_toml(server, window=65_536, extra=_small(server)), folder=folder, policy=BEFORE_CALLS
        ) as at,
    ):
        session = await at.session(policy=policy)
        for number in range(8):
            await at.turn(session.id, f"Point {number}. {LONG * 6}")
        turn = Summarizing(at, ref_of(session.id), server, may_end)
        await asked.wait()
        yield turn


async def test_the_summary_of_a_cancelled_turn_is_finished_and_the_next_turn_pays_for_none(
    database_url: str, tmp_path: Path
) -> None:
    async with summarizing(database_url, tmp_path) as turn:
        await turn.cancelled()
        with pytest.raises(TurnCancelled):
            await turn.posted
        assert await turn.finished() == ["active"]
        following = await turn.at.turn(turn.session.id, "And now?")
        assert not following.context["summary_triggered"]
        assert following.context["regions"]["summary"]
        assert (turn.asked, turn.answered) == (1, 8 + 1)


async def test_turns_that_are_cancelled_one_after_the_other_pay_for_one_summary(
    database_url: str, tmp_path: Path
) -> None:
    async with summarizing(database_url, tmp_path) as turn:
        await turn.cancelled()
        with pytest.raises(TurnCancelled):
            await turn.posted
        for text in ("Point 10.", "Point 11."):
            meanwhile = await turn.at.turn(turn.session.id, text)
            assert not meanwhile.context["regions"]["summary"], "it is sent with all that was said"
        assert await turn.finished() == ["active"]
        assert turn.asked == 1


async def test_what_the_summary_of_a_cancelled_turn_used_is_counted_with_the_turn(
    database_url: str, tmp_path: Path
) -> None:
    async with summarizing(database_url, tmp_path) as turn:
        await turn.cancelled()
        await turn.finished()
        (used,) = await turn.at.rows(
            "SELECT turn_id, prompt_tokens, completion_tokens FROM usage_records WHERE purpose = 'summary'"
        )
        assert used == {"turn_id": turn.turn_id, "prompt_tokens": 100, "completion_tokens": 20}
        with pytest.raises(TurnCancelled):
            await turn.posted


async def test_a_turn_that_another_process_cancelled_leaves_its_summary_and_calls_no_model(
    database_url: str, tmp_path: Path
) -> None:
    async with summarizing(database_url, tmp_path) as turn, service(database_url, folder=tmp_path) as other:
        await turn.cancelled(other)
        turn.may_end.set()
        with pytest.raises(TurnCancelled):
            await turn.posted
        assert await turn.finished() == ["active"]
        assert (turn.asked, turn.answered) == (1, 8)


async def test_a_lost_turn_leaves_no_summary_and_calls_no_model(database_url: str, tmp_path: Path) -> None:
    async with summarizing(database_url, tmp_path) as turn:
        await turn.at.rows("UPDATE turns SET lease_expires_at = '-infinity' WHERE status = 'running' RETURNING id")
        assert await end_lost_turns(turn.at.rt.database) == 1
        turn.may_end.set()
        with pytest.raises(TurnLost):
            await turn.posted
        assert await turn.finished() == []
        assert (turn.asked, turn.answered) == (1, 8)


async def erase_at_once(rt: Runtime, session: SessionRef) -> None:
    """As with the last response of a session: its turn and its summary are cancelled together."""
    assert await erase_if(rt, rt.database, session, lambda tx: session_exists(tx, session))


@pytest.mark.parametrize("erase", [delete_session, erase_at_once])
@pytest.mark.parametrize("ahead", [False, True])
async def test_the_summary_of_a_deleted_session_is_stopped_and_not_called_for_again(
    database_url: str, tmp_path: Path, erase: Callable[[Runtime, SessionRef], Awaitable[None]], *, ahead: bool
) -> None:
    policy = {"summary_model": "small", "summary_max_ratio": 0.02, "summarize_ahead": ahead}
    async with summarizing(database_url, tmp_path, **policy) as turn:
        await erase(turn.at.rt, turn.session)
        turn.may_end.set()
        await asyncio.gather(turn.posted, return_exceptions=True)
        await turn.at.rt.chores.settle()
        assert turn.asked == 1
