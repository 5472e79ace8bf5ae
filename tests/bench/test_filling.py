"""What the bench puts into a session's rows is what the service sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from uuid import UUID

import asyncpg
import httpx
import pytest

from bench import filling
from bench.cases import plain_case
from bench.conversation import Conversation
from bench.tokens import fill_tiktoken_cache
from tests.api.conftest import PATIENCE_S, new_session, serving, settings_for


@pytest.mark.filterwarnings("ignore:open_binary is deprecated")  # by bpe_openai, when it is imported
async def test_a_moved_summary_shortens_the_window_of_a_session_that_the_service_has_cached(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")  # what the next line sets is gone after the test
    fill_tiktoken_cache(tmp_path)
    case, raw_turns = plain_case(20), 5
    connection = await cast(Any, asyncpg).connect(database_url)
    with serving(settings_for(database_url)) as address, httpx.Client(base_url=address, timeout=PATIENCE_S) as client:

        def messages_sent(session_id: str) -> int:
            answer = client.post(f"/v1/sessions/{session_id}/turns", json={"content": "And then?"})
            turn_id = answer.raise_for_status().json()["turn"]["id"]
            return len(client.get(f"/v1/sessions/{session_id}/turns/{turn_id}/prompt").json()["messages"])

        try:
            await filling.prepare(connection)
            pattern = new_session(client)
            messages_sent(pattern)
            texts = filling.texts_of(Conversation(), case.length)
            session_id = await filling.make_session(connection, UUID(pattern), policy=case.policy)
            await filling.fill(connection, UUID(pattern), [session_id], case.length, texts)
            for _ in range(2):
                await filling.slide(connection, [session_id], raw_turns)
                sent = [messages_sent(str(session_id)) for _ in range(case.turns)]
                summary_and_newest = 2
                expected = [2 * (raw_turns + number) + summary_and_newest for number in range(case.turns)]
                assert sent == expected
        finally:
            await connection.close()
