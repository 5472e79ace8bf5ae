"""Items of a conversation beside other requests to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from app.db.database import Database, Transaction
from app.domain.errors import DatabaseUnavailable, InvalidRequest, NotFound, ProviderError, TurnInProgress
from app.domain.responses import item_id
from app.domain.types import JsonObject, SessionId, SessionRef, TurnId, TurnStatus
from app.services.openai.conversations import add_items, create_conversation, get_item, page_of_items, withdraw_item
from app.services.sessions import delete_session
from app.services.turn.take import prepare_regeneration, retry_turn
from app.services.turn.types import TurnOptions, TurnRequest
from app.services.views.search import look_back, search_messages, search_session
from app.services.views.turns import get_audit, get_expanded_audit, get_turn, list_turns
from tests.pooling import behind_pooler
from tests.providers.server import Answer, serving
from tests.services.service import OLDEST, TENANT, Service, model, models_toml, ref_of, service
from tests.services.test_same_ids import everything_read

CALL: JsonObject = {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": "{}"}
POINT = "Point " * 150
OUTPUT: JsonObject = {"type": "function_call_output", "call_id": "c1", "output": "42"}


class _Interrupted(Database):
    """A database in which `meanwhile` happens just before its second single statement."""

    def __init__(self, dsn: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(dsn, pool_size=2, transaction_pooler=behind_pooler())
        self._meanwhile = [meanwhile, None]

    @property
    def fired(self) -> bool:
        return not self._meanwhile

    @asynccontextmanager
    async def autocommit(self) -> AsyncGenerator[Transaction]:
        meanwhile = self._meanwhile.pop() if self._meanwhile else None
        if meanwhile is not None:
            await meanwhile()
        async with super().autocommit() as tx:
            yield tx


class _Overtaken(Database):
    """A database in which `meanwhile` happens just before its transaction."""

    def __init__(self, dsn: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(dsn, pool_size=2, transaction_pooler=behind_pooler())
        self._meanwhile, self.fired = meanwhile, 0

    @asynccontextmanager
    async def begin(self, *, snapshot: bool = False, locking: UUID | None = None) -> AsyncGenerator[Transaction]:
        self.fired += 1
        await self._meanwhile()
        async with super().begin(snapshot=snapshot, locking=locking) as tx:
            yield tx


async def _added(at: Service, database_url: str, session: SessionRef, *items: JsonObject) -> list[JsonObject]:
    """The answer for these items, if another request adds an item after they are stored and before they are read."""
    fired: list[object] = []

    async def meanwhile() -> None:
        fired.append(await add_items(at.rt, session, [_said("From another request")]))

    database = _Interrupted(database_url, meanwhile)
    added = await add_items(replace(at.rt, database=database), session, items)
    await database.aclose()
    assert fired
    return added


def _said(text: str) -> JsonObject:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("before", "items", "types"),
    [
        ([], [_said("One"), CALL], ["message", "function_call"]),
        ([CALL], [OUTPUT], ["function_call_output"]),
        ([CALL], [OUTPUT, _said("Two")], ["function_call_output", "message"]),
        ([], [{"role": "developer", "content": "Be brief."}], []),
    ],
    ids=["messages", "output", "output and message", "directions"],
)
async def test_the_answer_has_the_items_of_the_request_and_none_that_another_one_added(
    database_url: str, before: list[JsonObject], items: list[JsonObject], types: list[str]
) -> None:
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        await add_items(at.rt, session, before)
        added = await _added(at, database_url, session, *items)
        assert [item["type"] for item in added] == types


async def test_items_of_a_conversation_that_is_deleted_before_they_are_read_are_not_found(database_url: str) -> None:
    """The answer was an empty list of items."""
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        database = _Interrupted(database_url, lambda: delete_session(at.rt, session))
        with pytest.raises(NotFound):
            await add_items(replace(at.rt, database=database), session, [_said("One")])
        await database.aclose()
        assert database.fired


async def test_an_item_is_removed_once(database_url: str) -> None:
    """A second request that has read it before it was removed finds none, as one after that."""
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        (item,) = await add_items(at.rt, session, [_said("One")])
        database = _Overtaken(database_url, lambda: withdraw_item(at.rt, session, item["id"]))
        with pytest.raises(NotFound, match="item"):
            await withdraw_item(replace(at.rt, database=database), session, item["id"])
        await database.aclose()
        assert database.fired


class _Lost(Database):
    """A database that is lost when a transaction of several statements ends."""

    lost = 0

    @asynccontextmanager
    async def begin(self, *, snapshot: bool = False, locking: UUID | None = None) -> AsyncGenerator[Transaction]:
        async with super().begin(snapshot=snapshot, locking=locking) as tx:
            yield tx
            self.lost += 1
            raise DatabaseUnavailable("The database is lost.")


async def test_a_conversation_whose_items_are_not_stored_is_not_there_at_all(database_url: str) -> None:
    async with service(database_url) as at:
        database = _Lost(database_url, pool_size=2, transaction_pooler=behind_pooler())
        with pytest.raises(DatabaseUnavailable):
            await create_conversation(replace(at.rt, database=database), TENANT, {}, [_said("One"), CALL])
        await database.aclose()
        assert database.lost
        assert await at.rows("SELECT id FROM sessions") == []
        made = await create_conversation(at.rt, TENANT, {"topic": "ledgers"}, [_said("One"), CALL])
        assert [row["role"] for row in await at.rows("SELECT role FROM messages ORDER BY seq")] == ["user", "assistant"]
        assert made.metadata == {"topic": "ledgers"}


async def test_the_actions_of_an_audit_have_its_tokens_also_after_one_of_the_items_was_deleted(
    database_url: str, tmp_path: Path
) -> None:
    """The turns of a folded range were counted again without what was deleted since, and with sums of their own."""
    policy = {"mandatory_summary_turn": 3, "protected_turns": 1, "summarize_ahead": False}
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session(policy=policy)
        turns = [(await at.turn(session.id, f"{number}. {POINT}")).turn for number in range(4)]
        audit = await get_audit(at.rt, ref_of(session.id), turns[-1].id, None)
        folded = audit.context_trim_log["actions"][0]
        assert (folded["target"], folded["count"]) == ("turns:1-2", 2)
        whole = await _actions_of_turn(at, session.id, turns[-1].id)
        assert [row["target"] for row in whole[:2]] == [f"turn:{turn.id}" for turn in turns[:2]]
        (first, *_), _ = await page_of_items(at.rt, ref_of(session.id), OLDEST)
        await withdraw_item(at.rt, ref_of(session.id), first["id"])
        after = await _actions_of_turn(at, session.id, turns[-1].id)
        assert sum(row["tokens_removed_est"] for row in after) == sum(row["tokens_removed_est"] for row in whole)
        assert after[0] == folded


async def _actions_of_turn(at: Service, session_id: SessionId, turn_id: TurnId) -> list[JsonObject]:
    return (await get_expanded_audit(at.rt, ref_of(session_id), turn_id, None)).context_trim_log["actions"]


async def test_what_was_taken_back_is_only_in_exports_forks_and_prompts_that_were_sent_with_it(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = ref_of((await at.session()).id)
        words = ["One.", "Two.", "The word is xylophone.", "Four.", "Five.", "Is it xylophone?"]
        turns = [(await at.turn(session.id, each)).turn for each in words]
        items, _ = await page_of_items(at.rt, session, OLDEST)
        for item in items:
            if "xylophone" in str(item):
                await withdraw_item(at.rt, session, item["id"])
                with pytest.raises(NotFound):
                    await get_item(at.rt, session, item["id"])
        read = await everything_read(at.rt, session)
        prompts = {f"turn {turn.seq}" for turn in turns[2:]}
        assert {name for name, answer in read.items() if "xylophone" in answer} == {"export", "forked"} | prompts
        assert not (await search_session(at.rt, session, "xylophone", 9)).items
        assert not (await search_messages(at.rt, TENANT, "xylophone", 9, None)).items
        assert "xylophone" not in (await look_back(at.rt, session, query="xylophone", handle=None, page=None)).content
        with pytest.raises(InvalidRequest, match="no user message"):
            await prepare_regeneration(at.rt, session, turns[-1].id, TurnRequest(None, "again"))


async def test_a_failed_turn_whose_message_is_removed_just_before_it_runs_again_does_not(
    database_url: str, tmp_path: Path
) -> None:
    refusal = Answer({"error": {"message": "no"}}, status=400)
    async with serving(refusal) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = ref_of((await at.session()).id)
        with pytest.raises(ProviderError):
            await at.turn(session.id, "Hi")
        (turn,) = (await list_turns(at.rt, session, OLDEST)).items
        await withdraw_item(at.rt, session, item_id("msg", session.id, 1))
        with pytest.raises(TurnInProgress, match="removed"):
            await retry_turn(at.rt, session, turn.id, TurnOptions(), "main")
        assert (await get_turn(at.rt, session, turn.id)).status is TurnStatus.FAILED
