"""Recall, pure: which words find a message, what comes back, and what it may never do to a prompt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.evicted import Evicted
from app.domain.types import SummaryBody, Turn
from app.engine.policy.policy import ContextPolicy, Recall
from app.engine.recall.ranking import candidates, rarity, wanted_share, with_more_evicted
from app.engine.recall.terms import MOST_TERMS_OF_A_QUERY, query_terms, terms_of, weighed_terms
from app.engine.window.plan import Ready, assemble, plan
from app.engine.window.recalled import RECALL_NOTE
from app.engine.window.snapshot import Snapshot
from tests.engine.histories import History, chat, estimate, snapshot_of

POLICY = ContextPolicy()


def found_in(turns: tuple[Turn, ...], asked: Turn) -> Evicted:
    """What a search among these turns finds for the turn's message."""
    return with_more_evicted(Evicted(query_terms(str(asked.messages[0].content))), turns)


def recalling(old_turns: int, input_budget: int, assistant_tokens: int = 40) -> Snapshot:
    """A session with a summary, two raw turns, and a search that found something in every older turn."""
    history = History()
    old = chat(history, old_turns, assistant_tokens=assistant_tokens)
    summary = replace(history.summary(SummaryBody("Earlier.")), to_message_seq=old[-1].messages[-1].seq)
    raw = chat(history, 2)
    current = history.turn(user_tokens=30)
    snapshot = snapshot_of(raw, current, input_budget=input_budget, summary=summary)
    return replace(snapshot, evicted=found_in(old, current))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("painted", "painting"),
        ("cities", "city"),
        ("Researching", "research"),
        ("Ottilie's", "Ottilie"),
        ("café", "CAFE"),
        ("東京タワー", "東京"),
        ("книгами", "книгам"),
        ("mia_li_3668", "3668"),
    ],
)
def test_words_of_one_stem_find_each_other_in_any_script(one: str, other: str) -> None:
    assert set(terms_of(one)) & set(terms_of(other))


def test_words_that_tell_nothing_find_nothing() -> None:
    assert terms_of("What did you do with them when they were there?") == []


@given(st.text(max_size=400))
def test_any_text_has_terms_that_are_the_same_every_time_and_no_longer_than_a_bound(text: str) -> None:
    terms = terms_of(text)
    assert terms == terms_of(text)
    assert all(0 < len(term) <= 32 for term in terms)
    assert set(weighed_terms(text)) == set(terms)
    assert all(weight > 0 for weight in weighed_terms(text).values())
    assert len(query_terms(text)) <= MOST_TERMS_OF_A_QUERY


def test_a_term_that_nearly_all_messages_have_tells_nothing_apart() -> None:
    assert rarity(9, 10) == 0
    assert rarity(1, 10) > rarity(5, 10) > 0


def test_a_question_gets_the_whole_block_and_a_long_tale_little_of_it() -> None:
    tale = " ".join(f"word{number}" for number in range(40)) + "."
    assert wanted_share("Where does Ottilie keep her bees?") == 1
    assert wanted_share("Tell me the invoice number.") == 1
    assert wanted_share("I forgot. Where does Ottilie keep her bees?") == 1
    assert wanted_share(tale) < 0.01


def test_what_is_asked_at_the_end_of_a_long_tale_gets_less_than_asked_alone_but_never_nothing() -> None:
    tale = " ".join(f"word{number}" for number in range(40)) + "."
    shares = [wanted_share(f"{tale[:end]} Where are the bees?") for end in (0, 30, 60, len(tale))]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1
    assert 0.1 < shares[-1] < 0.2


@given(st.integers(1, 30), st.integers(700, 6000), st.integers(5, 400))
def test_recall_never_reaches_the_summary_trigger_and_stays_within_its_share(
    old_turns: int, input_budget: int, assistant_tokens: int
) -> None:
    snapshot = recalling(old_turns, input_budget, assistant_tokens)
    without = plan(snapshot, replace(POLICY, recall=Recall(enabled=False)), estimate)
    decided = plan(snapshot, POLICY, estimate)
    assert type(decided) is type(without)
    if isinstance(decided, Ready) and isinstance(without, Ready):
        accounts = decided.accounts
        block = decided.prompt.regions()["recall"]
        assert block <= POLICY.recall.max_share * input_budget
        if accounts.recalled:
            assert accounts.tokens_after_prune < 0.7 * input_budget
        assert accounts.wire_before - sum(action.tokens_removed for action in accounts.actions) == (
            decided.prompt.wire_tokens
        )
        assert accounts.tokens_before == accounts.tokens_after_summary == accounts.tokens_after_prune
        assert decided.window.log.without_stages() == without.window.log.without_stages()


@given(st.integers(1, 30), st.integers(900, 6000))
def test_what_comes_back_is_verbatim_in_time_order_and_just_before_the_users_message(
    old_turns: int, input_budget: int
) -> None:
    snapshot = recalling(old_turns, input_budget)
    decided = plan(snapshot, POLICY, estimate)
    assert isinstance(decided, Ready)
    items = decided.prompt.items
    block = [at for at, item in enumerate(items) if item.region == "recall"]
    if not block:
        assert not decided.accounts.recalled
        return
    assert block == list(range(block[0], len(items) - 1))
    assert items[-1].region == "user"
    assert items[block[0]].as_sent() == {"role": "user", "content": RECALL_NOTE}
    recalled = [items[at].message for at in block[1:]]
    seqs = [message.seq for message in recalled if message]
    assert seqs == sorted(set(seqs))
    stored = {message.id: message for turn in (snapshot.evicted or Evicted(())).turns for message in turn.messages}
    assert all(message and stored[message.id] == message for message in recalled)
    assert [row.message_id for row in decided.accounts.recalled] == [message.id for message in recalled if message]
    assert assemble(decided) == assemble(decided)


def test_a_tool_group_comes_back_whole_or_not_at_all() -> None:
    history = History()
    old = tuple(history.turn(("tool_group", 60, 3), ("assistant", 20, 1)) for _ in range(6))
    broken = tuple(replace(turn, messages=turn.messages[:3]) for turn in old)
    current = history.turn(user_tokens=30)
    for turns, has_groups in ((old, True), (broken, False)):
        kinds = {candidate.unit.kind for candidate in candidates(found_in(turns, current))}
        assert ("tool_group" in kinds) is has_groups
    snapshot = snapshot_of((), current, input_budget=3000, summary=history.summary(SummaryBody("Earlier.")))
    decided = plan(replace(snapshot, evicted=found_in(old, current)), POLICY, estimate)
    assert isinstance(decided, Ready)
    assert assemble(decided)  # which refuses a call without its results


def test_what_the_prompt_says_already_does_not_come_back() -> None:
    history = History()
    old = chat(history, 6)
    current = history.turn(user_tokens=30)
    same = tuple(
        replace(turn, messages=(replace(turn.messages[0], content=current.messages[0].content),)) for turn in old
    )
    snapshot = snapshot_of((), current, input_budget=3000, summary=history.summary(SummaryBody("Earlier.")))
    decided = plan(replace(snapshot, evicted=found_in((*same, *chat(history, 3)), current)), POLICY, estimate)
    assert isinstance(decided, Ready)
    texts = [str(message["content"]) for message in decided.prompt.messages()]
    assert texts.count(str(current.messages[0].content)) == 1
