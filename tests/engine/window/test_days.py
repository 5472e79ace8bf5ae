"""Lines that say on which days the messages of a prompt were said (`show_time`), and who said them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from app.domain.types import Message, SummaryBody, Turn, TurnStatus
from app.engine.policy.policy import ContextPolicy, Recall
from app.engine.recall.index import EMPTY, Packed
from app.engine.recall.ranking import evicted_among
from app.engine.window.plan import Ready, assemble, plan
from app.engine.window.recalled import RECALL_NOTE
from app.engine.window.snapshot import Snapshot
from tests.engine.histories import GUARDED, History, budget_of, estimate, said_by, snapshot_of
from tests.engine.readings import rebuild

SHOWN = ContextPolicy(show_time=True, summarize_when="never")
BEGAN = datetime(2023, 5, 8, 22, 0, tzinfo=UTC)


def _said(turn: Turn, days: float) -> Turn:
    said_at = BEGAN + timedelta(days=days)
    return replace(turn, messages=tuple(replace(message, said_at=said_at) for message in turn.messages))


def _turns(history: History, *days: float) -> tuple[Turn, ...]:
    return tuple(_said(history.turn(("assistant", 20, 1)), day) for day in days)


def _sent(snapshot: Snapshot, policy: ContextPolicy = SHOWN) -> list[str]:
    decided = plan(replace(snapshot, policy=policy), estimate, may_summarize=False)
    assert isinstance(decided, Ready)
    assembled = assemble(decided)
    assert decided.prompt.wire_tokens == decided.window.wire_tokens
    blocks = assembled.blocks
    seqs = {message.seq: message for message in _messages(snapshot)}
    assert rebuild(assembled.refs, blocks, seqs)[0] == list(assembled.messages)
    return [str(message["content"]) for message in assembled.messages]


def _messages(snapshot: Snapshot) -> list[Message]:
    turns = (*snapshot.evicted.turns, *snapshot.past.turns, snapshot.current)
    return [message for turn in turns for message in turn.messages]


def _lines(texts: list[str]) -> list[str]:
    return [text for text in texts if text.startswith("[") and text.endswith("2023]")]


def test_a_line_stands_before_the_first_turn_and_each_that_begins_on_another_day() -> None:
    history = History()
    turns = _turns(history, 0, 0.01, 0.5, 0.6, 9)
    current = _said(history.turn(status=TurnStatus.RUNNING), 9.1)
    texts = _sent(snapshot_of(turns, current, input_budget=4000))
    assert _lines(texts) == ["[8 May 2023]", "[9 May 2023]", "[17 May 2023]", "[18 May 2023]"]
    assert texts[1] == "[8 May 2023]"
    assert texts[-2] == "[18 May 2023]"
    assert not _lines(_sent(snapshot_of(turns, current, input_budget=4000), replace(SHOWN, show_time=False)))


def test_lines_stay_where_they_are_when_the_conversation_goes_on() -> None:
    history = History()
    turns = _turns(history, 0, 1, 1.01, 2, 2.01, 5)
    before: list[str] = []
    for end in range(1, len(turns)):
        running = replace(turns[end], status=TurnStatus.RUNNING, messages=turns[end].messages[:1])
        texts = _sent(snapshot_of(turns[:end], running, input_budget=4000))
        assert texts[: len(before)] == before
        before = texts


def test_lines_never_take_a_prompt_over_what_fires_a_prune() -> None:
    history = History()
    turns = _turns(history, *range(40))
    current = _said(history.turn(status=TurnStatus.RUNNING), 40)
    plain_policy = replace(SHOWN, show_time=False)
    plain = plan(snapshot_of(turns, current, input_budget=1500, policy=plain_policy), estimate, may_summarize=False)
    for budget in range(plain.window.input_tokens + 20, plain.window.input_tokens + 400, 30):
        decided = plan(snapshot_of(turns, current, input_budget=budget, policy=SHOWN), estimate, may_summarize=False)
        again = plan(snapshot_of(turns, current, input_budget=budget, policy=plain_policy), estimate)
        assert isinstance(again, Ready)
        assert decided.accounts.actions == again.accounts.actions
        assert not decided.window.beside or decided.window.input_tokens < 0.9 * budget


def recalling_snapshot(
    names: tuple[str | None, ...] = (None,), days: tuple[float, ...] = (0, 0.01, 3, 3.01, 7)
) -> Snapshot:
    history = History()
    old = tuple(said_by(names[at % len(names)], turn) for at, turn in enumerate(_turns(history, *days)))
    summary = replace(history.summary(SummaryBody("Earlier.")), to_message_seq=old[-1].messages[-1].seq)
    raw = _turns(history, 9)
    asked = history.turn(user_tokens=30, status=TurnStatus.RUNNING)
    said = replace(asked.messages[0], content="Which valve and which pump and which invoice?")
    current = _said(replace(asked, messages=(said,)), 9.01)
    messages = [message for turn in old for message in turn.messages]
    turn_of = {message.seq: turn for turn in old for message in turn.messages}
    index = EMPTY.extended(Packed.of(messages), messages[-1].seq)
    evicted = evicted_among(index, turn_of.__getitem__, current.messages[0], Recall(), 4000)
    return replace(snapshot_of(raw, current, input_budget=4000, summary=summary), evicted=evicted)


@pytest.mark.parametrize("policy", [SHOWN, GUARDED], ids=["days everywhere", "days in the block"])
def test_recalled_messages_are_in_time_order_below_one_line_for_each_day(policy: ContextPolicy) -> None:
    texts = _sent(recalling_snapshot(), policy)
    block = texts[texts.index(RECALL_NOTE) :]
    lines = _lines(block)
    assert lines == sorted(set(lines), key=lambda line: int(line[1:].split()[0]))
    assert lines[-1] == "[17 May 2023]", "the running turn is below its own line"
    assert len(lines) > 2
    assert block[-2] == lines[-1]
    assert bool(_lines(texts[: -len(block)])) == policy.show_time


def test_a_small_block_has_no_lines_that_would_displace_messages() -> None:
    texts = _sent(recalling_snapshot(), replace(GUARDED, recall=Recall(max_share=0.25)))
    assert RECALL_NOTE in texts
    assert not _lines(texts)


def test_messages_of_many_days_that_do_not_all_fit_are_chosen_with_one_count_for_each_line() -> None:
    """Each message that was tried counted the lines of all days before it again."""
    snapshot = recalling_snapshot(days=tuple(-at for at in range(60, 0, -1)))
    counted: list[str] = []

    def counting(text: str) -> int:
        counted.append(text)
        return estimate(text)

    snapshot = replace(snapshot, policy=GUARDED, budget=budget_of(2400))
    decided = plan(snapshot, counting, may_summarize=False)
    days = {message.said_at for turn in snapshot.evicted.turns for message in turn.messages}
    recalled = len(decided.window.log.recalled)
    assert 10 < recalled < sum(len(turn.messages) for turn in snapshot.evicted.turns)
    assert len([text for text in counted if text.endswith("2023]")]) <= len(days) + 1


def test_names_are_sent_with_their_messages_and_cost_what_they_cost() -> None:
    snapshot = recalling_snapshot(("Anna", "Ben"))
    decided = plan(replace(snapshot, policy=SHOWN), estimate, may_summarize=False)
    assert isinstance(decided, Ready)
    sent = [message.get("name") for message in assemble(decided).messages]
    assert {"Anna", "Ben"} <= set(sent)
    assert _sent(snapshot)
