"""What a session was over time: its timeline, the layout of its prompts, its messages, and the list it stands in."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Any

import httpx

from tests.api.conftest import assert_problem, new_session

_TURNS = 12
_TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


def busy_session(client: httpx.Client) -> str:
    """Twelve turns with a pin and a goal: long enough for a summary, whose words are then asked for again."""
    sid = new_session(client, room_goal="Plan a harbour festival", instructions="Be brief.")
    client.put(f"/v1/sessions/{sid}/pins/rules", json={"content": "No fireworks.", "relevance": 0.9})
    for number in range(_TURNS - 1):
        say(client, sid, f"Stall {number} sells smoked mackerel and opens at {number} o'clock.")
    say(client, sid, "When does stall 2 open, the one with the mackerel?", tools=_TOOLS)
    return sid


def say(client: httpx.Client, sid: str, content: str, **more: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/sessions/{sid}/turns", json={"content": content, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


def read(client: httpx.Client, path: str, **query: Any) -> Any:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_every_message_of_a_prompt_has_its_region_and_the_tokens_of_a_region_sum_to_the_audits(
    client: httpx.Client,
) -> None:
    sid = busy_session(client)
    seen: Counter[str] = Counter()
    for turn in read(client, f"/v1/sessions/{sid}/turns", limit=200)["items"]:
        prompt = read(client, f"/v1/sessions/{sid}/turns/{turn['id']}/prompt")
        audit = read(client, f"/v1/sessions/{sid}/turns/{turn['id']}/audit")
        assert len(prompt["layout"]) == len(prompt["messages"])
        tokens: Counter[str] = Counter()
        for row in prompt["layout"]:
            tokens[row["region"]] += row["tokens"]
        counted = {region: count for region, count in audit["regions"].items() if region not in {"tools", "framing"}}
        assert {region: tokens[region] for region in counted} == counted
        seen.update(region for region, count in tokens.items() if count)
    assert set(seen) == {"system", "goal", "pins", "summary", "history", "recall", "user"}


def test_a_preview_lays_its_prompt_out_as_the_turn_then_does(client: httpx.Client) -> None:
    sid = busy_session(client)
    body = {"content": "And stall 3?"}
    previewed = client.post(f"/v1/sessions/{sid}/context/preview", json=body).json()
    turn = say(client, sid, body["content"])["turn"]
    sent = read(client, f"/v1/sessions/{sid}/turns/{turn['id']}/prompt")
    figures = ("region", "tokens", "shortened")
    assert [[row[name] for name in figures] for row in previewed["layout"]] == [
        [row[name] for name in figures] for row in sent["layout"]
    ]


def test_the_timeline_shows_each_turns_window_its_thresholds_and_what_changed_it(client: httpx.Client) -> None:
    sid = busy_session(client)
    page = read(client, f"/v1/sessions/{sid}/timeline", limit=500)
    turns = page["items"]
    assert [turn["seq"] for turn in turns] == list(range(_TURNS, 0, -1))
    assert page["next_cursor"] is None
    for turn in turns:
        audit = read(client, f"/v1/sessions/{sid}/turns/{turn['turn_id']}/audit")
        window = turn["window"]
        shared = window.keys() & audit.keys()
        assert {name: window[name] for name in shared} == {name: audit[name] for name in shared}
        assert window["summary_trigger_tokens"] == ceil(0.7 * window["input_budget"])
        assert window["prune_trigger_tokens"] == ceil(0.9 * window["input_budget"])
    (summarized,) = (turn for turn in turns if any(event["kind"] == "summary" for event in turn["events"]))
    (event,) = (event for event in summarized["events"] if event["kind"] == "summary")
    (summary,) = read(client, f"/v1/sessions/{sid}/summaries")["items"]
    assert (event["summary_id"], event["origin"], event["status"]) == (summary["id"], summary["origin"], "active")
    assert (summarized["seq"], event["count"]) == (9, 4)
    (recall,) = turns[0]["events"]
    assert recall["kind"] == "recall"
    assert recall["tokens"] > 0


def test_a_turn_over_the_budget_and_a_summary_between_turns_stand_in_the_timeline(client: httpx.Client) -> None:
    sid = new_session(client)
    for number in range(6):
        say(client, sid, f"Turn {number}: " + "tides and moorings " * 40)
    made = client.post(f"/v1/sessions/{sid}/summaries")
    assert made.status_code == 201
    over = client.post(f"/v1/sessions/{sid}/turns", json={"content": "word " * 20_000})
    assert_problem(over, 422, "context_budget_exceeded")
    newest, before = read(client, f"/v1/sessions/{sid}/timeline", limit=2)["items"]
    assert (newest["status"], [event["kind"] for event in newest["events"]]) == ("rejected", ["prune", "overflow"])
    assert newest["window"]["estimated_input_tokens_after_prune"] > newest["window"]["input_budget"]
    assert [event["kind"] for event in before["events"]] == ["later_summary"]
    assert before["events"][0]["summary_id"] == made.json()["id"]


def test_the_timeline_is_paged_to_its_beginning(client: httpx.Client) -> None:
    sid = busy_session(client)
    seen: list[int] = []
    cursor = None
    while True:
        page = read(client, f"/v1/sessions/{sid}/timeline", limit=5, **({"cursor": cursor} if cursor else {}))
        seen += [turn["seq"] for turn in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == list(range(_TURNS, 0, -1))


def test_messages_are_read_as_they_were_sent_all_or_those_of_given_ids(client: httpx.Client) -> None:
    sid, other = new_session(client), new_session(client)
    for content in ("First", "Second"):
        say(client, sid, content)
    foreign = say(client, other, "Elsewhere")["turn"]["id"]
    page = read(client, f"/v1/sessions/{sid}/messages", limit=3)
    rest = read(client, f"/v1/sessions/{sid}/messages", cursor=page["next_cursor"])
    listed = [*page["items"], *rest["items"]]
    assert [(row["role"], row["turn_seq"]) for row in listed] == [
        ("user", 1),
        ("assistant", 1),
        ("user", 2),
        ("assistant", 2),
    ]
    assert (listed[0]["content"], rest["next_cursor"]) == ("First", None)
    foreign_message = read(client, f"/v1/sessions/{other}/messages")["items"][0]["id"]
    ids = ",".join([listed[2]["id"], listed[0]["id"], foreign_message, foreign])
    assert read(client, f"/v1/sessions/{sid}/messages", ids=ids) == {
        "items": [listed[0], listed[2]],
        "next_cursor": None,
    }
    assert_problem(client.get(f"/v1/sessions/{sid}/messages", params={"ids": "nobody"}), 422, "invalid_request")


def test_sessions_are_found_by_words_of_theirs_and_every_page_goes_on_where_the_last_ended(
    client: httpx.Client,
) -> None:
    found = {new_session(client, room_goal=f"Mend the NETS {number}") for number in range(3)}
    by_label = new_session(client, metadata={"boat": "Nets & Sons"})
    by_words = new_session(client)
    say(client, by_words, "Where do the nets hang?")
    new_session(client, room_goal="100% _other_ work")
    seen: list[str] = []
    cursor = None
    while True:
        page = read(client, "/v1/sessions", q="nets", limit=2, **({"cursor": cursor} if cursor else {}))
        seen += [session["id"] for session in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert (len(seen), set(seen)) == (5, found | {by_label, by_words})
    assert [session["id"] for session in read(client, "/v1/sessions", q=by_label[:30])["items"]] == [by_label]
    assert len(read(client, "/v1/sessions", q="0% _o")["items"]) == 1
    assert read(client, "/v1/sessions", q="a%b")["items"] == []
    assert_problem(client.get("/v1/sessions?q=a%00b"), 422, "invalid_request")


def test_figures_of_a_session_are_its_newest_window_its_use_and_its_state(client: httpx.Client) -> None:
    empty, sid = new_session(client), new_session(client)
    first = say(client, sid, "Hello there")
    second = say(client, sid, "And again")
    listed = {session["id"]: session for session in read(client, "/v1/sessions", figures=True)["items"]}
    figures = listed[sid]["figures"]
    assert figures == read(client, f"/v1/sessions/{sid}")["figures"]
    assert (figures["turns"], figures["state"], figures["first_input"]) == (2, "completed", "Hello there")
    assert figures["last_turn_id"] == figures["window"]["turn_id"] == second["turn"]["id"]
    assert figures["window"]["estimated_input_tokens"] == second["context"]["estimated_input_tokens_after_prune"]
    assert figures["prompt_tokens"] == first["turn"]["prompt_tokens"] + second["turn"]["prompt_tokens"]
    assert (listed[empty]["figures"]["state"], listed[empty]["figures"]["window"]) == (None, None)
    assert "figures" not in read(client, "/v1/sessions")["items"][0]


def test_an_overview_has_the_timelines_turns_in_at_most_so_many_runs_each_with_its_largest(
    client: httpx.Client,
) -> None:
    sid = busy_session(client)
    turns = {turn["seq"]: turn for turn in read(client, f"/v1/sessions/{sid}/timeline")["items"]}
    single = read(client, f"/v1/sessions/{sid}/timeline/overview")["items"]
    assert [(run["first_seq"], run["last_seq"]) for run in single] == [(seq, seq) for seq in range(1, _TURNS + 1)]
    assert [run["peak"] for run in single] == [turns[seq] for seq in range(1, _TURNS + 1)]
    for run in single:
        of_turn = Counter(event["kind"] for event in run["peak"]["events"])
        assert {kind: count for kind, count in run["events"].items() if count} == of_turn
    assert single[-1]["events"]["recall"] == 1

    coarse = read(client, f"/v1/sessions/{sid}/timeline/overview", points=3, from_seq=2, through_seq=11)["items"]
    assert [(run["first_seq"], run["last_seq"]) for run in coarse] == [(2, 5), (6, 9), (10, 11)]
    for run in coarse:
        of_run = [each for each in single if run["first_seq"] <= each["first_seq"] <= run["last_seq"]]
        size = "estimated_input_tokens_after_prune"
        assert run["peak"]["window"][size] == max(each["peak"]["window"][size] for each in of_run)
        for kind, count in run["events"].items():
            assert count == sum(each["events"][kind] for each in of_run), kind
    assert read(client, f"/v1/sessions/{sid}/timeline/overview", from_seq=99)["items"] == []
    assert read(client, f"/v1/sessions/{new_session(client)}/timeline/overview")["items"] == []
