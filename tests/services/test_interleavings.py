"""Two requests with idempotency keys to one recognized conversation, in two workers: the second runs as a whole at each
point at which the first asks for a database connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.db.database import Database, Transaction
from app.domain.errors import RetryLater
from app.domain.frozen import replace
from app.services.openai.chat import ChatRequest
from app.services.turn.types import TurnOutcome
from tests.providers.server import serving
from tests.services.service import Service, chat, models_toml, service
from tests.services.test_open_session import YES, answered, listed

_NEXT, _BRANCH = ("Two", YES, "Three"), ("Other",)
_NEXT_WITH_PAST = (*_NEXT, "Said elsewhere.", "Four")
_PAIRS = [
    (words, keys)
    for words in (
        *((each, each) for each in (_NEXT, _NEXT_WITH_PAST, _BRANCH)),
        *((_NEXT, _BRANCH), (_BRANCH, _NEXT)),
    )
    for keys in (("this", "that"), ("this", "this"))
    if words[0] == words[1] or keys[0] != keys[1]
]


class _Interrupted:
    """A database whose request waits when it asks for a connection for the `chosen` time, until another has ended."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self._asked, self._chosen = 0, 0
        self._waits, self._goes_on = asyncio.Event(), asyncio.Event()
        for name in ("begin", "read_only", "autocommit"):
            monkeypatch.setattr(database, name, self._counted(getattr(database, name)))

    def _counted(
        self, lend: Callable[..., AbstractAsyncContextManager[Transaction]]
    ) -> Callable[..., AbstractAsyncContextManager[Transaction]]:
        @asynccontextmanager
        async def lent(*given: Any, **named: Any) -> AsyncGenerator[Transaction]:
            self._asked += 1
            if self._asked == self._chosen:
                self._waits.set()
                await self._goes_on.wait()
            async with lend(*given, **named) as transaction:
                yield transaction

        return lent

    async def at(
        self, chosen: int, first: Awaitable[TurnOutcome], second: Callable[[], Awaitable[TurnOutcome]]
    ) -> tuple[list[TurnOutcome | BaseException], bool]:
        """What came of both, and whether the first was interrupted: it may ask less often."""
        self._asked, self._chosen = 0, chosen
        self._waits.clear()
        self._goes_on.clear()
        running = asyncio.ensure_future(first)
        waiting = asyncio.ensure_future(self._waits.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        (of_second,) = await asyncio.gather(second(), return_exceptions=True)
        self._goes_on.set()
        (of_first,) = await asyncio.gather(running, return_exceptions=True)
        return [of_first, of_second], self._waits.is_set()


@pytest.mark.parametrize(("words", "keys"), _PAIRS)
async def test_a_key_has_one_turn_and_one_answer_wherever_another_request_comes_between(
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[tuple[str, ...], tuple[str, ...]],
    keys: tuple[str, str],
) -> None:
    async with (
        serving(chat(YES)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as one,
        service(database_url, models_toml(server), folder=tmp_path) as other,
    ):
        interrupted = _Interrupted(one.rt.database, monkeypatch)
        chosen, was_interrupted = 0, True
        while was_interrupted:
            chosen += 1
            begins = f"Conversation {chosen}"
            await answered(other, listed(begins))
            await answered(other, listed(begins, YES, "Two"))
            first, second = (
                replace(listed(begins, YES, *each), idempotency_key=f"{key} {chosen}")
                for each, key in zip(words, keys, strict=True)
            )
            hits = server.hits
            outcomes, was_interrupted = await interrupted.at(
                chosen, answered(one, first), lambda second=second: answered(other, second)
            )
            turns = {outcome.turn.id for outcome in outcomes if isinstance(outcome, TurnOutcome)}
            assert (len(turns), server.hits - hits) == (len({*keys} & _answered(keys, outcomes)),) * 2
            await _assert_each_is_repeated(other, zip((first, second), outcomes, strict=True))
            assert server.hits - hits == len({*keys}), "each key is answered in the end, by one call"
            for call in server.seen[hits:]:
                assert tuple(message["content"] for message in call.json["messages"][2:]) in words
        assert chosen > 3, "it was hardly ever interrupted"


def _answered(keys: tuple[str, str], outcomes: list[TurnOutcome | BaseException]) -> set[str]:
    """The keys of the requests that were answered; the others were asked to come again."""
    for outcome in outcomes:
        assert isinstance(outcome, TurnOutcome | RetryLater), outcome
    return {key for key, outcome in zip(keys, outcomes, strict=True) if isinstance(outcome, TurnOutcome)}


async def _assert_each_is_repeated(at: Service, sent: zip[tuple[ChatRequest, TurnOutcome | BaseException]]) -> None:
    for request, outcome in sent:
        again = await answered(at, request)
        if isinstance(outcome, TurnOutcome):
            assert again.turn == outcome.turn
        assert await at.rows(
            "SELECT count(*) AS n FROM turns WHERE idempotency_key = :key", key=request.idempotency_key
        ) == [{"n": 1}]
