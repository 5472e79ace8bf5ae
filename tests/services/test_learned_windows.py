"""What a provider states about its window: believed where it can be no echo, by tenant first, forgotten on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from uuid_utils.compat import uuid7

from app.domain.errors import ProviderError
from app.domain.types import TenantId, TurnId
from app.services.learned import forget, learn, list_windows, load_windows
from app.services.sessions import create_session
from tests.providers.server import Answer, Seen, serving
from tests.services.service import TENANT, Service, chat, service
from tests.services.test_model_faults import strict_window, unknown_window

OTHER, THIRD = TenantId("other"), TenantId("third")
POISON = "maximum context length is 1300 tokens"


async def state(at: Service, tenant_id: TenantId, window: int, alias: str = "main") -> None:
    """A statement of a turn of its own."""
    await learn(at.rt.database, at.rt.catalogue, tenant_id, TurnId(uuid7()), alias, window)


def limit(at: Service, tenant_id: TenantId, alias: str = "main") -> int:
    return at.rt.catalogue.model(alias, tenant_id).context_window


def tool(key: str, name: str = "note") -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def refusing_tools(words: Callable[[str], dict[str, Any]]) -> Callable[[Seen], Answer]:
    """A model that knows no tools and says so in `words` of the first property of the first."""

    def play(request: Seen) -> Answer:
        tools = request.json.get("tools")
        if not tools:
            return chat("Hi.")
        (key,) = tools[0]["function"]["parameters"]["properties"]
        return Answer({"error": words(key)}, 400)

    return play


ECHOES: list[tuple[str, Callable[[str], dict[str, Any]]]] = [
    ("quoted", lambda key: {"message": f"Invalid schema for function 'note': property '{key}' is not allowed."}),
    ("at the start", lambda key: {"message": f"{key}: unknown keyword"}),
    ("completed", lambda key: {"message": f"This model's {key}"}),
    ("with a code", lambda key: {"message": f"'{key}' is no name", "code": "context_length_exceeded"}),
    ("both", lambda key: {"message": f"This model's {key}", "code": "context_length_exceeded"}),
    ("an upstream's", lambda key: {"message": "Refused.", "metadata": {"raw": f"This model's {key}"}}),
    ("wrapped", lambda key: {"message": f"BadRequestError: This model's {key}"}),
]


@pytest.mark.parametrize("words", [words for _, words in ECHOES], ids=[name for name, _ in ECHOES])
async def test_an_echo_of_the_request_changes_nobodys_window(
    database_url: str, tmp_path: Path, words: Callable[[str], dict[str, Any]]
) -> None:
    async with (
        serving(refusing_tools(words)) as server,
        service(database_url, unknown_window(server), folder=tmp_path) as at,
    ):
        for _ in range(3):
            session = await at.session()
            with pytest.raises(ProviderError):
                await at.turn(session.id, "word " * 600, tools=(tool(POISON),))
        assert POISON.encode() in server.seen[0].body, "nothing was there to echo"
        assert await at.rows("SELECT * FROM learned_windows") == []
        assert [limit(at, each) for each in (TENANT, OTHER)] == [8192, 8192]
        assert (await at.turn((await at.session()).id, "Hi")).context["model_context_limit"] == 8192


async def test_a_window_is_a_tenants_after_two_turns_and_everybodys_after_two_tenants(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(chat("Hi.")) as server, service(database_url, unknown_window(server), folder=tmp_path) as at:
        await state(at, TENANT, 4096)
        assert [limit(at, each) for each in (TENANT, OTHER)] == [8192, 8192]
        await state(at, TENANT, 4096)
        assert [limit(at, each) for each in (TENANT, OTHER)] == [4096, 8192]
        for _ in range(10):
            await state(at, TENANT, 2048)
        assert [limit(at, each) for each in (TENANT, OTHER)] == [2048, 8192], "one tenant moved another's window"
        await state(at, OTHER, 2048)
        assert [limit(at, each) for each in (TENANT, OTHER, THIRD)] == [2048, 2048, 2048]
        await state(at, OTHER, 4096)
        assert [limit(at, each) for each in (TENANT, OTHER, THIRD)] == [2048, 8192, 8192]


async def test_one_turn_is_one_statement_however_often_it_is_refused(database_url: str, tmp_path: Path) -> None:
    async with serving(chat("Hi.")) as server, service(database_url, unknown_window(server), folder=tmp_path) as at:
        turn = TurnId(uuid7())
        for _ in range(3):
            await learn(at.rt.database, at.rt.catalogue, TENANT, turn, "main", 4096)
        (stated,) = await list_windows(at.rt.database)
        assert (stated.statements, limit(at, TENANT)) == (1, 8192)


async def test_expired_windows_no_longer_count_and_are_deleted_with_the_next_statement(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(chat("Hi.")) as server, service(database_url, unknown_window(server), folder=tmp_path) as at:
        for _ in range(2):
            await state(at, TENANT, 4096)
            await state(at, OTHER, 4096)
        await at.rows("UPDATE learned_windows SET expires_at = clock_timestamp() RETURNING 1")
        await load_windows(at.rt.database, at.rt.catalogue)
        assert [limit(at, each) for each in (TENANT, THIRD)] == [8192, 8192]
        await state(at, TENANT, 4096)
        rows = await at.rows("SELECT tenant_id, statements FROM learned_windows")
        assert rows == [{"tenant_id": TENANT, "statements": 1}]


async def test_other_processes_learn_it_and_of_its_end(database_url: str, tmp_path: Path) -> None:
    async with serving(chat("Hi.")) as server:
        models = unknown_window(server)
        async with (
            service(database_url, models, folder=tmp_path) as at,
            service(database_url, models, folder=tmp_path) as elsewhere,
        ):
            for _ in range(2):
                await state(at, TENANT, 4096)
            await load_windows(elsewhere.rt.database, elsewhere.rt.catalogue)
            assert limit(elsewhere, TENANT) == 4096
            session = await elsewhere.session()
            learned = (await elsewhere.turn(session.id, "Hi")).context
            assert (learned["model_context_limit"], learned["context_limit_source"]) == (4096, "learned")
            assert [await forget(at.rt.database, alias) for alias in ("nobody", "main")] == [0, 1]
            await load_windows(elsewhere.rt.database, elsewhere.rt.catalogue)
            assert limit(elsewhere, TENANT) == 8192
            await state(at, TENANT, 4096)
            assert limit(at, TENANT) == 8192, "it is learned anew from one statement"


async def test_refusals_of_two_turns_teach_a_tenant_its_window_and_no_other(database_url: str, tmp_path: Path) -> None:
    long = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 280
    async with (
        serving(strict_window(4096)) as server,
        service(database_url, unknown_window(server), folder=tmp_path) as at,
    ):
        for _ in range(2):
            assert limit(at, TENANT) == 8192
            with pytest.raises(ProviderError):
                await at.turn((await at.session()).id, long)
        assert [limit(at, each) for each in (TENANT, OTHER)] == [4096, 8192]
        theirs = await create_session(at.rt, OTHER, {})
        with pytest.raises(ProviderError):
            await at.turn(theirs.id, long, tenant_id=OTHER)
        assert limit(at, THIRD) == 4096


async def test_a_window_of_the_catalogue_is_kept_beyond_the_turn_that_was_refused(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(strict_window(4096)) as server,
        service(database_url, unknown_window(server) + "context_window = 8192\n", folder=tmp_path) as at,
    ):
        session = await at.session(policy={"summarize_when": "never"})
        limits = [
            (await at.turn(session.id, f"Point {number}. " + "The job compares rows. " * 90)).context[
                "model_context_limit"
            ]
            for number in range(1, 11)
        ]
        assert server.hits > len(limits), "the provider never refused anything"
        assert set(limits) == {4096, 8192}, "of its own turn the stated window is the limit"
        assert limit(at, TENANT) == 8192
        assert await at.rows("SELECT * FROM learned_windows") == []
