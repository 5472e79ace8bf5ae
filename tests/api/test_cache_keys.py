"""The `prompt_cache_key` by which OpenAI finds a prompt's cache: prompts that begin alike have the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.api.chatting import Chat, chat_service, openai_at
from tests.api.test_auth import make_key
from tests.api.test_chat import user
from tests.api.test_known_conversations import post, talk

OF_MAIN = "prompt_cache_key = true"


def keys(at: Chat) -> list[str | None]:
    """The key of each request that the model got, in order."""
    return [seen.json.get("prompt_cache_key") for seen in at.model.seen]


def test_the_branches_of_a_session_have_its_key(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, of_main=OF_MAIN) as at:
        history: list[Any] = []
        session_id = talk(at, history, "One", "Two")[0]
        first_branch = talk(at, history[:2], "Otherwise", "And then")[-1]
        again = at.http.post(
            f"/v1/sessions/{first_branch}/turns/{at.turns(first_branch)[-1]['id']}/regenerate", json={}
        ).json()
        assert len({session_id, first_branch, again["turn"]["session_id"]}) == 3
        assert keys(at) == [session_id] * 5


def test_the_call_that_repeats_a_prompt_for_a_summary_has_its_key(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, of_main=OF_MAIN, window=131_072, summarize_ahead=False) as at:
        history: list[Any] = []
        (session_id,) = talk(at, history, "One", prompt_cache_key="my-chat")
        at.http.patch(f"/v1/sessions/{session_id}", json={"policy": {"summary_call": "cached"}}).raise_for_status()
        talk(at, history, *(f"Question {turn}" + " and so on" * 200 for turn in range(8)), prompt_cache_key="my-chat")
        (summarizer,) = [seen for seen in at.model.seen if "record it" in str(seen.json["messages"][-1]["content"])]
        assert keys(at)[0] is not None
        assert summarizer.json["prompt_cache_key"] == keys(at)[0]


def test_requests_of_one_conversation_without_a_session_have_the_clients_key_or_none(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, of_main=OF_MAIN) as at:
        respond: Any = at.client.responses.create
        messages = [user("One"), {"role": "assistant", "content": "Noted."}, user("Two")]
        respond(model="main", input=messages, store=False)
        respond(model="main", input=messages, extra_headers={"X-Session-New": "true"})
        assert keys(at) == [None, None]
        for text in ("Three", "Four"):
            messages.append(user(text))
            respond(model="main", input=messages, store=False, prompt_cache_key="my-chat")
            post(at, messages, extra_headers={"X-Session-New": "true"}, prompt_cache_key="my-chat")
        (own,) = set(keys(at)[2:])
        assert own is not None


def test_a_clients_key_is_that_of_its_tenant_alone(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, of_main=OF_MAIN, auth_required=True) as at:
        for tenant in ("harbour", "quay"):
            with openai_at(at.address, make_key(database_url, tenant)[1]) as client:
                post(at, [user("One")], client, prompt_cache_key="my-chat")
        first, second = keys(at)
        assert first is not None
        assert second is not None
        assert first != second
        assert "my-chat" not in first + second
