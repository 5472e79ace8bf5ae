"""Outputs of tools in a list of messages, before a message of the user that ends the turn which waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.chatting import TOOLS, chat_service, say
from tests.api.conftest import new_session
from tests.api.test_known_conversations import user


@pytest.mark.parametrize("answered", [("a",), ("a", "other"), ("other",)], ids=["too few", "another", "only another"])
@pytest.mark.parametrize("resends", [True, False], ids=["with the past", "without it"])
def test_outputs_before_a_users_message_must_answer_exactly_the_calls_that_wait(
    database_url: str, tmp_path: Path, answered: tuple[str, ...], *, resends: bool
) -> None:
    with chat_service(database_url, tmp_path, say(None, "a", "b"), say("Done.")) as at:
        headers = {"X-Session-Id": new_session(at.http)}
        first = {"model": "main", "messages": [user("Look")], "tools": TOOLS}
        calling = at.http.post("/v1/chat/completions", json=first, headers=headers).json()["choices"][0]["message"]
        past = [user("Look"), calling] if resends else []

        def post_with_outputs(*call_ids: str) -> int:
            outputs = [{"role": "tool", "tool_call_id": call_id, "content": "Paid."} for call_id in call_ids]
            body = first | {"messages": [*past, *outputs, user("And now?")]}
            return at.http.post("/v1/chat/completions", json=body, headers=headers).status_code

        assert post_with_outputs(*answered) == 400
        assert [turn["status"] for turn in at.turns(headers["X-Session-Id"])] == ["awaiting_tools"]
        assert len(at.model.seen) == 1
        assert post_with_outputs("a", "b") == 200
        assert [turn["status"] for turn in at.turns(headers["X-Session-Id"])] == ["completed", "completed"]
