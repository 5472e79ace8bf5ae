"""The arithmetic of `python -m bench.summaries`, and that its mock's summaries are accepted ones. Nothing is timed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from uuid_utils.compat import uuid7

from app.domain.types import MessageId
from app.engine.summary.summarizer_prompt import accept_summary
from bench.conversation import SUMMARY_FACTS
from bench.mock_provider import summary_response
from bench.summaries import Made, Run
from plimsoll_demo.figures import PromptFigures, ReplayedRound, ReplayedSession, ReplayedTurn


def turn(number: int, *, ms: float, sent: int, full: int, tried: bool = False) -> ReplayedTurn:
    window = PromptFigures(8_192, 5_530, 1_638, 1_024, {"user": sent}, sent, sent, sent, sent)
    return ReplayedTurn(
        number,
        "completed",
        (
            ReplayedRound(
                1, "answered", 201, window=window, summary=tried, full_history_tokens=full, elapsed_s=ms / 1000
            ),
        ),
    )


def session(name: str, *turns: ReplayedTurn, summarizer_tokens: int) -> ReplayedSession:
    return ReplayedSession("conversation", name, turns, {}, {}, summarizer_tokens)


def test_a_summary_concerns_the_turns_from_where_it_fell_due_to_where_it_stood_and_only_its_own_sessions() -> None:
    turns = [turn(number, ms=float(number), sent=10, full=10) for number in range(1, 6)]
    run = Run(
        "post_turn",
        [session("a", *turns, summarizer_tokens=0), session("b", turns[0], turns[1], summarizer_tokens=0)],
        [
            Made("a", before_call=False, first_turn=2, last_turn=4),
            Made("b", before_call=True, first_turn=1, last_turn=1),
        ],
    )
    concerned, others = run.latencies_ms()
    assert concerned == pytest.approx([2.0, 3.0, 4.0, 1.0])
    assert others == pytest.approx([1.0, 5.0, 2.0])
    assert (run.made_before_calls, len(run.made)) == (1, 2)


def test_a_turn_that_tried_a_summary_in_vain_is_none_of_the_others() -> None:
    run = Run("rolling", [session("a", turn(1, ms=9.0, sent=10, full=10, tried=True), summarizer_tokens=0)], [])
    assert run.latencies_ms() == ([pytest.approx(9.0)], [])


def test_the_share_counts_the_summarizers_tokens_of_all_sessions_as_sent() -> None:
    sessions = [
        session("a", turn(1, ms=1, sent=100, full=100), turn(2, ms=1, sent=100, full=300), summarizer_tokens=50),
        session("b", turn(1, ms=1, sent=100, full=600), summarizer_tokens=150),
    ]
    run = Run("guarded", sessions, [])
    assert (run.totals.sent_tokens, run.totals.summarizer_tokens, run.totals.full_history_tokens) == (300, 200, 1_000)
    assert run.sent_share == pytest.approx(0.5)


def test_the_mock_summarizer_answers_within_the_contract_and_counts_its_requests() -> None:
    def answered(words: str) -> dict[str, Any]:
        request = orjson.dumps({"messages": [{"role": "user", "content": words}]})
        head, body = summary_response(request, 1).split(b"\r\n\r\n", 1)
        assert f"Content-Length: {len(body)}".encode() in head
        return orjson.loads(body)

    answer = answered("one two three")
    shown = MessageId(uuid7())
    body = accept_summary(answer["choices"][0]["message"]["content"], {"m1": (shown,)}, {})
    assert [fact.message_ids for fact in body.key_facts] == [(shown,)] * len(SUMMARY_FACTS)
    assert answer["usage"]["prompt_tokens"] == 3
    assert answered("one two three four")["usage"]["prompt_tokens"] == 4
