"""The search route over a real socket: what it takes, what it answers, whose it is."""

from __future__ import annotations

import httpx
import pytest

from tests.api.conftest import assert_problem, new_session


def test_a_search_answers_messages_that_have_the_words(client: httpx.Client) -> None:
    session = new_session(client)
    turn = client.post(f"/v1/sessions/{session}/turns", json={"content": "The crane's invoice is 4711."}).json()["turn"]
    answer = client.get(f"/v1/sessions/{session}/search", params={"q": "invoice of the crane", "limit": 1}).json()
    assert (answer["searched_messages"], answer["unsearched_messages"], answer["next_cursor"]) == (2, 0, None)
    (hit,) = answer["items"]
    assert (hit["turn_id"], hit["turn_seq"]) == (turn["id"], 1)
    of_message = {"session_id", "message_id", "turn_id", "turn_seq", "seq", "role", "name", "said_at"}
    assert hit.keys() == {*of_message, "score", "matched", "related", "similarity", "excerpt", "complete"}
    assert (hit["matched"], hit["related"], hit["similarity"]) == (["crane", "invoice"], [], None)
    assert "invoice" in hit["excerpt"]


def test_a_search_without_words_or_with_too_many_is_refused_and_says_where(client: httpx.Client) -> None:
    path = f"/v1/sessions/{new_session(client)}/search"
    for query in ("", "?q=", "?q=" + "a" * 1001, "?q=a&limit=0", "?q=a&limit=51", "?limit=3"):
        problem = assert_problem(client.get(path + query), 422, "invalid_request")
        assert problem["errors"][0]["where"] in {"query.q", "query.limit"}
    assert client.get(path + "?q=%00%F0%9F%92%A9%20%ff").json()["items"] == []
    assert_problem(client.get(f"/v1/sessions/{'0' * 8}-0000-7000-8000-{'0' * 12}/search?q=a"), 404, "session_not_found")


def test_messages_of_all_sessions_are_found_by_all_the_words_newest_session_first_and_page_by_page(
    client: httpx.Client,
) -> None:
    made: list[str] = []
    for number in range(3):
        sid = new_session(client)
        for content in (f'The "harbour" gate {number}', "Nothing of it", f"HARBOUR, and again the Gate {number}"):
            client.post(f"/v1/sessions/{sid}/turns", json={"content": content}).raise_for_status()
        made.insert(0, sid)
    whole = client.get("/v1/search", params={"q": "gate harbour", "limit": 50}).json()
    # The offline model repeats what it was asked: of four messages with the words the newest three are shown.
    turns = dict.fromkeys((hit["session_id"], hit["turn_seq"]) for hit in whole["items"])
    assert [*turns] == [(sid, seq) for sid in made for seq in (3, 1)]
    assert [hit["role"] for hit in whole["items"]] == ["assistant", "user", "assistant"] * 3
    assert client.get("/v1/search", params={"q": "\0"}).json()["items"] == []
    assert whole["next_cursor"] is None
    assert client.get("/v1/search", params={"q": "harbour xylophone"}).json() == {"items": [], "next_cursor": None}

    for limit in (1, 2, 4):
        paged: list[str] = []
        query: dict[str, str | int] = {"q": "gate harbour", "limit": limit}
        while True:
            page = client.get("/v1/search", params=query).json()
            assert len(page["items"]) <= limit
            paged += [hit["message_id"] for hit in page["items"]]
            if page["next_cursor"] is None:
                break
            query["cursor"] = page["next_cursor"]
        assert paged == [hit["message_id"] for hit in whole["items"]], limit


@pytest.mark.parametrize("words", [r"C:\logs", r"c:\logs\pump.txt", '"leak"', '"leak":', r"\d+", 'Jo"e:', 'jo"e: find'])
def test_messages_of_all_sessions_are_found_by_words_with_quotes_and_backslashes(
    client: httpx.Client, words: str
) -> None:
    text = r'find \d+ as "leak": in C:\logs\pump.txt'
    posted: list[str] = []
    for body in ({"content": text, "name": 'Jo"e'}, {"content": [{"type": "text", "text": f'Jo"e: {text}'}]}):
        turn = client.post(f"/v1/sessions/{new_session(client)}/turns", json=body).json()["turn"]
        posted.insert(0, turn["id"])
    hits = client.get("/v1/search", params={"q": words}).json()["items"]
    assert [hit["turn_id"] for hit in hits if hit["role"] == "user"] == posted


@pytest.mark.parametrize(
    ("words", "is_found"), [("gauge", True), ("image_url", True), ("aGauge", False), ("base64", False), ("type", False)]
)
def test_messages_of_all_sessions_are_found_by_what_their_excerpts_show_and_not_by_the_data_of_an_image(
    client: httpx.Client, words: str, is_found: bool
) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGaugeZZ"}}
    body = {"content": [{"type": "text", "text": "The gauge"}, image]}
    client.post(f"/v1/sessions/{new_session(client)}/turns", json=body).raise_for_status()
    hits = client.get("/v1/search", params={"q": words}).json()["items"]
    assert ("user" in [hit["role"] for hit in hits]) is is_found


@pytest.mark.parametrize("words", ['the "best" C:\\trip', '"BEST"', "c:\\Trip", "trip\\2"])
@pytest.mark.parametrize("field", ["metadata", "room_goal"])
def test_a_session_is_found_by_a_title_and_a_goal_with_quotes_and_backslashes(
    client: httpx.Client, field: str, words: str
) -> None:
    text = 'To the "best" C:\\trip\\2'
    made = client.post("/v1/sessions", json={field: {"title": text} if field == "metadata" else text}).json()
    new_session(client)
    found = client.get("/v1/sessions", params={"q": words}).json()["items"]
    assert [session["id"] for session in found] == [made["id"]]


def test_the_message_of_a_turn_that_was_refused_is_found_neither_in_its_session_nor_over_all(
    client: httpx.Client,
) -> None:
    path = f"/v1/sessions/{new_session(client)}"
    sent = [client.post(f"{path}/turns", json={"content": "The harbour crane"}).json()["turn"]["id"]]
    for _ in range(4):  # more than are shown of a session
        refused = client.post(f"{path}/turns", json={"content": "crane " * 100_000})
        assert_problem(refused, 422, "context_budget_exceeded")
    for search in (f"{path}/search", "/v1/search"):
        hits = client.get(search, params={"q": "crane"}).json()["items"]
        assert [hit["turn_id"] for hit in hits if hit["role"] == "user"] == sent, search
        assert {hit["turn_id"] for hit in hits} == {*sent}, search
