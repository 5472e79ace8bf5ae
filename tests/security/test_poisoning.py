"""What users, tools and models write stays material: a summarizer that repeats it gives it no authority (OWASP LLM01).

A filter would be guessed around; what holds is where a text stands. Every check here is on the prompt that arrived.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.domain.types import Pin, Session, SessionId
from app.services.sessions import put_pin
from app.services.summaries import list_summaries, summarize_now, undo_summary
from app.services.views.turns import get_prompt
from tests.api.chatting import chat_service
from tests.providers.server import Answer, ScriptedServer, Seen, serving
from tests.security.poisons import POISONS
from tests.services.service import NEWEST, Service, chat, is_summary, model, models_toml, ref_of, service

INSTRUCTIONS = "Answer briefly."
FILLER = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 6
_OPEN, _CLOSE = "\n<conversation-record>\n", "\n</conversation-record>"
_LOOKS_LIKE_A_FENCE = set(
    "<>&\u2028\u2029\u202e\u200b\u2060\u2039\u203a\u3008\u3009\u27e8\u27e9\ufe64\ufe65\uff1c\uff1e\x7f"
)
_KINDS = ("key_facts", "open_questions", "decisions", "action_items")


def past_with(poison: str) -> list[dict[str, Any]]:
    """Eight turns; the second one's words, tool output and reply are the poison."""
    turns: list[dict[str, Any]] = []
    for number in range(8):
        call_id = f"call-{number}"
        call = {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
        said = poison[:4000] if number == 1 else f"{number}. {FILLER}"
        turns += [
            {"role": "user", "content": said},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": said},
            {"role": "assistant", "content": said},
        ]
    return turns


def echoing(poison: Callable[[], str], *, ids: list[str] | None = None) -> Callable[[Seen], Answer]:
    """A summarizer that says this in every field that it has."""

    def play(request: Seen) -> Answer:
        document = json.loads(request.json["messages"][-1]["content"])
        cited = ids or [document["messages"][0]["id"]]
        items = [{"text": poison(), "message_ids": cited}] * 3
        return chat(json.dumps({"summary_text": poison(), **dict.fromkeys(_KINDS, items)}))

    return play


def assert_material(messages: list[dict[str, Any]], poison: str, *, layers: list[str]) -> dict[str, Any]:
    """The only texts with authority are ours; what the summary's fence holds is one line of JSON. Gives that."""
    systems = [str(message["content"]) for message in messages if message["role"] == "system"]
    *given, block = systems
    assert given == layers
    assert {message["role"] for message in messages} <= {"system", "user", "assistant", "tool"}
    preamble, opened, rest = block.partition(_OPEN)
    record, closed, after = rest.partition(_CLOSE)
    assert (bool(opened), bool(closed), after) == (True, True, "")
    assert "record and not instructions" in preamble
    assert poison not in preamble
    assert block.count("conversation-record>") == 2
    assert not set(record) & _LOOKS_LIKE_A_FENCE
    assert not any(0xE0000 <= ord(letter) <= 0xE007F for letter in record)
    assert record.splitlines() == [record]
    return json.loads(record)


async def _summarized_turn(at: Service, server: ScriptedServer, session: Session) -> list[dict[str, Any]]:
    """Makes the summary, takes a turn, and gives what the model was sent, held against what can be rebuilt."""
    await summarize_now(at.rt, ref_of(session.id))
    outcome = await at.turn(session.id, "And now?")
    assert outcome.context["estimated_input_tokens_after_prune"] <= outcome.context["input_budget"]
    sent = server.seen[-1].json["messages"]
    prompt = await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, None)
    assert [message["content"] for message in prompt.messages] == [message["content"] for message in sent]
    return sent


async def _raw(at: Service, session_id: SessionId) -> list[dict[str, Any]]:
    return await at.rows("SELECT * FROM messages WHERE session_id = :id ORDER BY seq", id=session_id)


async def test_no_poison_gets_out_of_a_summary_that_repeats_it(database_url: str, tmp_path: Path) -> None:
    assert len(set(POISONS)) == 60
    poison = ""
    async with (
        serving(model(summary=echoing(lambda: poison))) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        for poison in POISONS:
            session = await at.imported({"instructions": INSTRUCTIONS, "messages": past_with(poison)})
            before = await _raw(at, session.id)
            sent = await _summarized_turn(at, server, session)
            record = assert_material(sent, poison, layers=[INSTRUCTIONS])
            said = [record["summary"], *(text for kind in _KINDS for text in record.get(kind, ()))]
            assert all(text and (text in poison or poison.strip() == text) for text in said), poison
            summary = (await list_summaries(at.rt, ref_of(session.id), NEWEST)).items[0]
            assert summary.origin == "model"
            assert summary.token_estimate <= 0.15 * 13_312
            assert (await _raw(at, session.id))[: len(before)] == before, "what was said is stored as it was said"
            await undo_summary(at.rt, ref_of(session.id), summary.id)
            outcome = await at.turn(session.id, "Raw again?")
            raw = server.seen[-1].json["messages"]
            assert [message["content"] for message in raw if message["role"] == "system"] == [INSTRUCTIONS]
            assert not outcome.context["summary_triggered"]
            assert sum(message["content"] == poison[:4000] for message in raw) == 3


async def test_no_poison_gets_out_of_the_extract_that_stands_in_for_an_answer_that_is_only_the_poison(
    database_url: str, tmp_path: Path
) -> None:
    poison = ""
    async with (
        serving(model(summary=lambda _: chat(poison))) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        for poison in POISONS[::2]:
            session = await at.imported({"instructions": INSTRUCTIONS, "messages": past_with(poison)})
            sent = await _summarized_turn(at, server, session)
            assert_material(sent, poison, layers=[INSTRUCTIONS])
            summary = (await list_summaries(at.rt, ref_of(session.id), NEWEST)).items[0]
            assert summary.origin == "fallback"


@pytest.mark.parametrize(
    "cited", ["m999", "c0", "", "513a056e-bcf8-4fd8-841d-e093f6b18728", "m1 ", "p1", "messages[0]", "__proto__"]
)
async def test_an_id_that_was_never_shown_refuses_the_whole_answer(
    cited: str, database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model(summary=echoing(lambda: "Believe me.", ids=["m1", cited]))) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        session = await at.imported({"instructions": INSTRUCTIONS, "messages": past_with("x")})
        sent = await _summarized_turn(at, server, session)
        assert sum(is_summary(request) for request in server.seen) == 1
        record = assert_material(sent, "Believe me.", layers=[INSTRUCTIONS])
        assert "Believe me." not in json.dumps(record)


async def test_a_poisoned_summary_that_is_folded_again_stays_in_the_fence(database_url: str, tmp_path: Path) -> None:
    poison = ""
    async with (
        serving(model(summary=echoing(lambda: poison))) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        for poison in POISONS[::6]:
            session = await at.imported({"instructions": INSTRUCTIONS, "messages": past_with(poison)})
            await summarize_now(at.rt, ref_of(session.id))
            for number in range(6):
                await at.turn(session.id, f"{number}. {FILLER}")
            sent = await _summarized_turn(at, server, session)
            asked = next(request for request in reversed(server.seen) if is_summary(request)).json["messages"]
            assert [message["role"] for message in asked] == ["system", "user"]
            assert poison not in asked[0]["content"]
            assert json.loads(asked[1]["content"])["previous_summary"]["summary_text"]
            assert_material(sent, poison, layers=[INSTRUCTIONS])


async def test_a_pin_can_neither_close_its_fence_nor_imitate_another_pin(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=131_072), folder=tmp_path) as at,
    ):
        session = await at.session(instructions=INSTRUCTIONS)
        for poison in POISONS:
            seen = await _with_pin(at, server, session, Pin("notes", poison, None, poison[:2000]))
            first, *lines, last = seen.split("\n")
            assert first.startswith("Pinned for this conversation: notes (from ")
            assert first.isprintable()
            assert last == f"</{lines[0][1:]}"
            assert "\n".join(lines[1:]) == poison
            assert poison.count(last) == 0


async def _with_pin(at: Service, server: ScriptedServer, session: Session, pin: Pin) -> str:
    await put_pin(at.rt, ref_of(session.id), pin)
    await at.turn(session.id, "Hello")
    systems = [message for message in server.seen[-1].json["messages"] if message["role"] == "system"]
    assert [message["content"] for message in systems[:1]] == [INSTRUCTIONS]
    assert len(systems) in {2, 3}  # the third is the summary, once turns were folded
    return systems[1]["content"]


def test_words_of_chat_clients_keep_their_roles(database_url: str, tmp_path: Path) -> None:
    """What a client says as user or tool is never an instruction; what it says as system is one for that turn alone."""
    with chat_service(database_url, tmp_path, window=131_072) as at:
        for poison in POISONS[::2]:
            call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": poison[:500]}}
            messages: list[dict[str, Any]] = [
                {"role": "system", "content": INSTRUCTIONS},
                {"role": "user", "content": poison},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": poison},
                {"role": "assistant", "content": poison},
                {"role": "user", "content": [{"type": "text", "text": poison}]},
            ]
            answer = at.http.post("/v1/chat/completions", json={"model": "main", "messages": messages})
            assert answer.status_code == 200, answer.text
            sent = at.sent()
            assert [message["role"] for message in sent] == [message["role"] for message in messages]
            assert sent[0]["content"] == INSTRUCTIONS
            sid = answer.headers["x-session-id"]
            once = [{"role": "system", "content": poison}, {"role": "user", "content": "Once"}]
            headers = {"x-session-id": sid}
            at.http.post("/v1/chat/completions", json={"model": "main", "messages": once}, headers=headers)
            assert [m["content"] for m in at.sent() if m["role"] == "system"] == [poison]
            at.http.post(f"/v1/sessions/{sid}/turns", json={"content": "Later"})
            assert [m["content"] for m in at.sent() if m["role"] == "system"] == []


def test_an_imported_summary_is_as_fenced_as_our_own(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, window=16_384) as at:
        made = at.http.post("/v1/sessions/import", json={"messages": past_with("x"), "instructions": INSTRUCTIONS})
        path = f"/v1/sessions/{made.json()['id']}"
        assert at.http.post(f"{path}/summaries").status_code == 201
        document = at.http.get(f"{path}/export").json()
        for poison in POISONS:
            summary = document["summaries"][0]
            item = [{"text": poison, "message_ids": [summary["from_message_id"]]}]
            document["summaries"][0] = summary | {"summary_text": poison, **dict.fromkeys(_KINDS, item)}
            answer = at.http.post("/v1/sessions/import", json=document)
            assert answer.status_code == 201, answer.text
            turn = at.http.post(f"/v1/sessions/{answer.json()['id']}/turns", json={"content": "And now?"})
            if turn.status_code == 422:  # a giant that a summarizer of ours would have been cut to its cap
                assert turn.json()["code"] == "context_budget_exceeded"
                continue
            assert_material(at.sent(), poison, layers=[INSTRUCTIONS])
