"""`/v1/sessions/{sid}/pins` over a real socket."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from app.domain.types import MOST_PINS, MOST_PINS_BYTES
from tests.api.conftest import assert_problem, new_session


def test_a_pin_is_put_read_replaced_and_taken_away(client: httpx.Client) -> None:
    path = f"/v1/sessions/{new_session(client)}/pins/spec"
    pin = {"name": "spec", "content": "v1", "relevance": 0.5, "source": "docs/spec.md"}
    assert client.put(path, json={name: pin[name] for name in ("content", "relevance", "source")}).json() == pin
    assert client.get(path).json() == pin
    replaced = {"name": "spec", "content": "v2", "relevance": None, "source": None}
    assert client.put(path, json={"content": "v2"}).json() == replaced
    assert client.get(path).json() == replaced
    assert client.delete(path).status_code == 204
    assert_problem(client.get(path), 404, "pin_not_found")
    assert_problem(client.delete(path), 404, "pin_not_found")


def test_a_pins_name_may_be_a_path_or_any_printable_text(client: httpx.Client) -> None:
    path = f"/v1/sessions/{new_session(client)}/pins"
    for name in ("src/app/main.py", "a b", "naïve ☃", "100%", "?", "x" * 255, "..."):
        url = httpx.URL(client.base_url).copy_with(
            raw_path=(f"{path}/" + "".join(f"%{byte:02X}" for byte in name.encode())).encode()
        )
        assert client.put(url, json={"content": name}).json()["name"] == name
        assert client.get(url).json()["content"] == name
    assert len(client.get(path).json()["items"]) == 7


def test_the_list_pages_by_name_without_gap_or_repeat(client: httpx.Client) -> None:
    path = f"/v1/sessions/{new_session(client)}/pins"
    for number in range(7):
        client.put(f"{path}/pin-{number}", json={"content": "x"})
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = client.get(path, params={"limit": 3} | ({"cursor": cursor} if cursor else {})).json()
        seen += [pin["name"] for pin in page["items"]]
        cursor = page["next_cursor"]
    assert seen == [f"pin-{number}" for number in range(7)]


def test_a_list_with_figures_has_the_tokens_of_each_pin_and_whether_its_relevance_is_given(
    client: httpx.Client,
) -> None:
    session = f"/v1/sessions/{new_session(client, room_goal='Repair the pump')}"
    client.put(f"{session}/pins/given", json={"content": "Soup on Mondays.", "relevance": 0.25})
    client.put(f"{session}/pins/menu", json={"content": "Fish on Fridays."})
    client.put(f"{session}/pins/pump", json={"content": "Valve 12 feeds the cellar pump."})
    assert all("figures" not in pin for pin in client.get(f"{session}/pins").json()["items"])
    given, menu, pump = figures_of(client, session)
    assert (given["relevance"], given["relevance_from"]) == (0.25, "given")
    assert (menu["relevance"], menu["relevance_from"]) == (0, "computed")
    assert 0 < pump["relevance"] < 1
    turn = client.post(f"{session}/turns", json={"content": "What is there on Fridays?"}).json()
    assert turn["context"]["regions"]["pins"] == sum(pin["tokens"] for pin in (given, menu, pump))
    assert figures_of(client, session)[1]["relevance"] > 0


def figures_of(client: httpx.Client, session: str) -> list[dict[str, Any]]:
    return [pin["figures"] for pin in client.get(f"{session}/pins", params={"figures": "true"}).json()["items"]]


def test_a_pin_stands_in_the_next_prompt(client: httpx.Client) -> None:
    session = f"/v1/sessions/{new_session(client)}"
    client.put(f"{session}/pins/rule", json={"content": "Answer in rhymes."})
    answer = client.post(f"{session}/turns", json={"content": "Hello"}).json()
    assert answer["context"]["regions"]["pins"] > 0
    prompt = client.get(f"{session}/turns/{answer['turn']['id']}/prompt").json()
    assert "Answer in rhymes." in str(prompt["messages"])


def test_pins_over_their_share_are_trimmed_by_relevance_and_the_prompt_hashes_to_what_the_audit_says(
    client: httpx.Client,
) -> None:
    policy = {"preset": "allocated", "max_context_tokens": 4096}
    session = f"/v1/sessions/{new_session(client, policy=policy)}"
    for name, relevance in (("first", 0.1), ("second", 0.9), ("third", None)):
        body = {"content": f"The {name} thing to know of this plant. " * 200, "relevance": relevance}
        assert client.put(f"{session}/pins/{name}", json=body).status_code == 200
    answer = client.post(f"{session}/turns", json={"content": "Tell me of the third."}).json()
    turn = f"{session}/turns/{answer['turn']['id']}"
    audit, prompt = client.get(f"{turn}/audit").json(), client.get(f"{turn}/prompt").json()
    actions = audit["context_trim_log"]["actions"]
    assert actions[0]["target"] == "first"
    assert {action["kind"] for action in actions} <= {"pinned_trim", "pinned_drop"}
    # All that system text, message and answer leave: there is no goal, no summary and no history.
    assert audit["regions"]["pins"] <= 0.90 * (4096 - 1024)
    assert prompt["prompt_sha256"] == audit["prompt_sha256"] == answer["context"]["prompt_sha256"]
    assert "characters of this pin left out" in str(prompt["messages"])
    assert "second" in str(prompt["messages"])


def test_the_pins_of_a_session_have_a_most_in_bytes_and_in_number(client: httpx.Client) -> None:
    """More would be read by every turn; from 256 MB on Postgres refused to give them, and every turn ended as a 500."""
    path = f"/v1/sessions/{new_session(client)}/pins"
    part = "é" * (MOST_PINS_BYTES // 256)
    for number in range(128):
        assert client.put(f"{path}/{number}", json={"content": part}).status_code == 200
    problem = assert_problem(client.put(f"{path}/more", json={"content": "x"}), 422, "invalid_request")
    assert str(MOST_PINS_BYTES) in problem["detail"]
    assert client.put(f"{path}/0", json={"content": "as long as it was, or shorter"}).status_code == 200
    assert client.put(f"{path}/more", json={"content": "x"}).status_code == 200
    path = f"/v1/sessions/{new_session(client)}/pins"
    for number in range(MOST_PINS):
        assert client.put(f"{path}/{number}", json={"content": "x"}).status_code == 200
    assert_problem(client.put(f"{path}/more", json={"content": "x"}), 422, "invalid_request")
    assert client.put(f"{path}/0", json={"content": "replaced"}).status_code == 200


def test_pins_that_are_put_at_once_keep_to_the_most_too(client: httpx.Client, address: str) -> None:
    path = f"/v1/sessions/{new_session(client)}/pins"
    largest = "x" * (MOST_PINS_BYTES // 16 - 64)
    for number in range(15):
        assert client.put(f"{path}/{number}", json={"content": largest[: len(largest) // 2]}).status_code == 200
        assert client.put(f"{path}/{number} more", json={"content": largest[: len(largest) // 2]}).status_code == 200
    with httpx.Client(base_url=address, timeout=60, trust_env=False) as many, ThreadPoolExecutor(8) as pool:

        def put_one(number: int) -> int:
            return many.put(f"{path}/at once {number}", json={"content": largest[:900_000]}).status_code

        statuses = list(pool.map(put_one, range(8)))
    assert sorted(statuses) == [200] + [422] * 7
    stored = client.get(path, params={"limit": 100}).json()["items"]
    assert sum(len(pin["content"]) for pin in stored) <= MOST_PINS_BYTES
