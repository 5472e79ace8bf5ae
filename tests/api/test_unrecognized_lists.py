"""Clients whose lists are those of no session, such as one that rewrites its history or its system prompt: what each
of their requests pays for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.api.chatting import Chat, chat_service
from tests.api.test_chat import user

TURNS = 12
WORDS = " and so on" * 200


def talk(at: Chat, turns: int = TURNS, **options: Any) -> list[Any]:
    """A client that sends all messages with each request, each time with another system prompt. Its messages."""
    create: Any = at.client.chat.completions.create
    messages: list[Any] = []
    for turn in range(turns):
        messages.append(user(f"Question {turn}{WORDS}"))
        system = {"role": "system", "content": f"Memory: {turn} questions were asked."}
        reply = create(model="main", messages=[system, *messages], **options)
        messages.append({"role": "assistant", "content": reply.choices[0].message.content})
    return messages


@pytest.mark.parametrize("window", [6_144, 131_072], ids=["a full window", "a large one"])
def test_a_session_of_one_request_pays_for_no_summary(database_url: str, tmp_path: Path, window: int) -> None:
    with chat_service(database_url, tmp_path, window=window) as at:
        talk(at)
        assert at.model.hits == TURNS, "a summarizer was called"
        sent = [message["content"] for message in at.sent()]
        assert f"Question {TURNS - 1}{WORDS}" in sent
        assert (f"Question 0{WORDS}" in sent) == (window == 131_072)


def test_a_list_of_items_without_a_session_pays_for_no_summary_either(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, window=131_072) as at:
        messages = [*talk(at, 10), user("And then?")]
        create: Any = at.client.responses.create
        create(model="main", input=messages, extra_headers={"X-Session-New": "true"})
        assert at.model.hits == 10 + 1


def test_once_its_list_is_recognized_the_session_is_summarized_as_any_other(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, window=131_072, summarize_ahead=False) as at:
        create: Any = at.client.chat.completions.create
        messages = talk(at, 9)
        for expected in (10, 12):
            messages.append(user("And then?"))
            reply = create(model="main", messages=messages)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
            assert at.model.hits == expected


def test_a_client_that_names_its_session_gets_the_summary_with_its_first_list(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, window=131_072, summarize_ahead=False) as at:
        messages = [*talk(at, 9), user("And then?")]
        create: Any = at.client.chat.completions.create
        create(model="main", messages=messages, extra_headers={"X-Session-Id": "my-chat"})
        assert at.model.hits == 9 + 2
