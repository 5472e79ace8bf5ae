"""The built-in responder: honest about what it is, useful to a newcomer, deterministic, within its room."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import ProviderRefused
from app.domain.types import CompletionRequest, RecordedReply, SummaryBody, SummaryItem, ToolCall
from app.engine.summary.block import render_summary
from app.providers.offline import LABEL, OfflineProvider


def words(text: str) -> int:
    return len(text.split())


def quarters(text: str) -> int:
    return -(-len(text) // 4)


async def ask(*messages: tuple[str, str], **fields: Any) -> str:
    request = CompletionRequest(
        messages=[{"role": role, "content": text} for role, text in messages], max_output_tokens=200, **fields
    )
    answer = await OfflineProvider(words).complete(request)
    assert answer.text is not None
    return answer.text


async def test_a_reply_says_that_it_is_no_language_model_and_quotes_the_message_that_fits_best() -> None:
    text = await ask(
        ("system", "Be brief."),
        ("user", "The database is called ledger and runs in Oslo."),
        ("assistant", "Noted."),
        ("user", "I like green tea."),
        ("assistant", "Fine."),
        ("user", "Where does the ledger database run?"),
    )
    assert text.startswith(LABEL)
    assert "runs in Oslo" in text
    assert "green tea" not in text


async def test_a_reply_quotes_what_the_summary_of_the_prompt_records() -> None:
    body = SummaryBody("A trip was planned.", key_facts=(SummaryItem("The hotel is in Lisbon.", ()),))
    text = await ask(("system", render_summary(body)), ("user", "Which hotel is it?"))
    assert "the summary records: “The hotel is in Lisbon.”" in text


@pytest.mark.parametrize("value", ["5", "null", "{}", '"text"', "[null]"])
async def test_a_message_that_ends_like_a_summary_and_is_none_is_answered(value: str) -> None:
    text = f'{{"key_facts": {value}, "summary": {value}}}</conversation-record>'
    assert (await ask(("user", text), ("user", "Which hotel is it?"))).startswith(LABEL)


async def test_a_recorded_reply_is_given_as_it_is() -> None:
    recorded = RecordedReply("As it was said.", (ToolCall("t", "f", "{}"),))
    request = CompletionRequest(
        messages=[{"role": "user", "content": "x"}], max_output_tokens=1, recorded_reply=recorded
    )
    answer = await OfflineProvider(words).complete(request)
    assert (answer.text, answer.tool_calls, answer.finish_reason) == (
        "As it was said.",
        recorded.tool_calls,
        "tool_calls",
    )


async def test_an_answer_is_streamed_a_few_words_at_a_time_and_others_run_in_between() -> None:
    deltas: list[str] = []
    ticks: list[int] = []

    async def tick() -> None:
        while True:
            ticks.append(len(deltas))
            await asyncio.sleep(0)

    recorded_text = "  One two three four five\n\n six seven eight nine. "
    request = CompletionRequest(
        messages=[{"role": "user", "content": "x"}], max_output_tokens=1, recorded_reply=RecordedReply(recorded_text)
    )
    ticking = asyncio.ensure_future(tick())
    answer = await OfflineProvider(words).complete(request, lambda delta: deltas.append(delta.text))
    ticking.cancel()
    assert "".join(deltas) == answer.text == recorded_text
    assert deltas == ["  One two three four ", "five\n\n six seven eight ", "nine. "]
    assert {1, 2}.issubset(ticks)
    assert await OfflineProvider(words).count_tokens(request) is None


@given(recorded_text=st.text(max_size=200))
async def test_whatever_is_streamed_is_the_answer(recorded_text: str) -> None:
    deltas: list[str] = []
    recorded = RecordedReply(recorded_text)
    request = CompletionRequest(
        messages=[{"role": "user", "content": "x"}], max_output_tokens=1, recorded_reply=recorded
    )
    await OfflineProvider(words).complete(request, lambda delta: deltas.append(delta.text))
    assert "".join(deltas) == recorded_text
    assert "" not in deltas


def document(**fields: Any) -> dict[str, Any]:
    return {"previous_summary": None, "messages": [], "context_messages": [], "max_tokens": 400, **fields}


async def summarize(content: dict[str, Any], most_tokens: int = 1000) -> dict[str, Any]:
    request = CompletionRequest(
        messages=[{"role": "user", "content": json.dumps(content)}], max_output_tokens=most_tokens, purpose="summary"
    )
    answer = await OfflineProvider(quarters).complete(request)
    assert answer.text is not None
    return json.loads(answer.text)


async def test_a_previous_summary_is_carried_over_and_what_is_new_is_added() -> None:
    before = {
        "summary_text": "The move to Postgres was discussed.",
        "key_facts": [{"text": "The budget is 12000 USD.", "message_ids": ["p1"]}],
        "open_questions": [],
        "decisions": [{"text": "We decided to move in March.", "message_ids": ["p2"]}],
        "action_items": [],
    }
    new = [{"id": "m9", "role": "user", "text": "Let's use logical replication. The host is db-7.example.org."}]
    summary = await summarize(document(previous_summary=before, messages=new))
    assert summary["key_facts"][0] == {"text": "…", "message_ids": ["p1"]}
    assert summary["decisions"] == [
        {"text": "…", "message_ids": ["p2"]},
        {"text": "Let's use logical replication.", "message_ids": ["m9"]},
    ]
    assert "move to Postgres" in summary["summary_text"]
    assert "db-7.example.org" in json.dumps(summary)


async def test_a_question_that_the_context_answers_is_not_open() -> None:
    questions = [{"id": "m1", "role": "user", "text": "Which port does the service listen on?"}]
    answered = [{"id": "m2", "role": "assistant", "text": "It listens on port 8000."}]
    assert (await summarize(document(messages=questions)))["open_questions"] != []
    assert (await summarize(document(messages=questions, context_messages=answered)))["open_questions"] == []


@given(
    texts=st.lists(st.text(max_size=300), max_size=12),
    carried=st.lists(st.text(min_size=1, max_size=200), max_size=12),
    most_tokens=st.integers(60, 400),
)
async def test_a_summary_fits_the_tokens_it_was_given(texts: list[str], carried: list[str], most_tokens: int) -> None:
    kinds = ("key_facts", "open_questions", "decisions", "action_items")
    items = [{"text": text, "message_ids": ["m1"]} for text in carried]
    before = {"summary_text": " ".join(carried), **dict.fromkeys(kinds, items)}
    messages = [{"id": f"m{n}", "role": "user", "text": text} for n, text in enumerate(texts)]
    summary = await summarize(document(previous_summary=before, messages=messages, max_tokens=most_tokens))
    assert quarters(json.dumps(summary, ensure_ascii=False, separators=(",", ":"))) <= most_tokens


@pytest.mark.parametrize("content", ["", "hello", "[]", '{"messages": 7}'])
async def test_a_summary_of_something_else_is_refused(content: str) -> None:
    request = CompletionRequest(messages=[{"role": "user", "content": content}], max_output_tokens=9, purpose="summary")
    with pytest.raises(ProviderRefused):
        await OfflineProvider(words).complete(request)
