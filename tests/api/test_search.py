"""The search route over a real socket: what it takes, what it answers, whose it is."""

from __future__ import annotations

import httpx

from tests.api.conftest import assert_problem, new_session


def test_a_search_answers_messages_that_have_the_words(client: httpx.Client) -> None:
    session = new_session(client)
    turn = client.post(f"/v1/sessions/{session}/turns", json={"content": "The crane's invoice is 4711."}).json()["turn"]
    answer = client.get(f"/v1/sessions/{session}/search", params={"q": "invoice of the crane", "limit": 1}).json()
    assert (answer["searched_messages"], answer["unsearched_messages"], answer["next_cursor"]) == (2, 0, None)
    (hit,) = answer["items"]
    assert (hit["turn_id"], hit["turn_seq"]) == (turn["id"], 1)
    assert hit.keys() == {"message_id", "turn_id", "turn_seq", "seq", "role", "score", "excerpt", "complete"}
    assert "invoice" in hit["excerpt"]


def test_a_search_without_words_or_with_too_many_is_refused_and_says_where(client: httpx.Client) -> None:
    path = f"/v1/sessions/{new_session(client)}/search"
    for query in ("", "?q=", "?q=" + "a" * 1001, "?q=a&limit=0", "?q=a&limit=51", "?limit=3"):
        problem = assert_problem(client.get(path + query), 422, "invalid_request")
        assert problem["errors"][0]["where"] in {"query.q", "query.limit"}
    assert client.get(path + "?q=%00%F0%9F%92%A9%20%ff").json()["items"] == []
    assert_problem(client.get(f"/v1/sessions/{'0' * 8}-0000-7000-8000-{'0' * 12}/search?q=a"), 404, "session_not_found")
