"""Items that a list names by their ids: those of all the tenant's sessions are read in one statement."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from app.domain.errors import InvalidRequest
from app.domain.responses import item_id
from app.domain.types import TenantId
from app.services.openai.conversations import MOST_REFERENCES, referenced
from tests.providers.server import serving
from tests.services.service import TENANT, chat, models_toml, service


async def test_items_of_many_sessions_are_found_and_those_of_another_tenant_are_not(
    database_url: str, tmp_path: Path
) -> None:
    """Each session was a statement of its own: 5,000 of them took 5 s."""
    async with serving(chat("Noted.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        ids: dict[str, str] = {}
        for number in range(3):
            session = await at.session()
            for of_session in range(2):
                done = await at.turn(session.id, f"This is {number}.{of_session}")
                assert done.turn.seq == of_session + 1
                ids[item_id("msg", session.id, 2 * of_session + 1)] = f"This is {number}.{of_session}"
        unknown = [item_id("msg", UUID(int=1), 1), "msg_1"]
        found = await referenced(at.rt, TENANT, [*ids, *unknown])
        assert {name: message.content for name, message in found.items()} == ids
        assert await referenced(at.rt, TenantId("another"), [*ids]) == {}
        assert await referenced(at.rt, TENANT, []) == {}


async def test_a_list_has_so_many_references_and_no_more(database_url: str, tmp_path: Path) -> None:
    """Reading 20,000 ids took 40 ms of the event loop."""
    async with serving(chat("Noted.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        ids = [item_id("msg", session.id, seq) for seq in range(MOST_REFERENCES)]
        assert await referenced(at.rt, TENANT, ids) == {}
        with pytest.raises(InvalidRequest, match="at most 4096"):
            await referenced(at.rt, TENANT, [*ids, "one more"])
