"""Recall, pure: which words find a message, what comes back, and what it may never do to a prompt."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import log
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.recalled import Recalled
from app.domain.types import SummaryBody, Turn, TurnStatus
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.policy.policy import ContextPolicy, Recall
from app.engine.recall.bm25 import Query, posting_count, rarities, search
from app.engine.recall.index import EMPTY, Index, Packed, index_bytes, packed_text
from app.engine.recall.ranking import (
    MOST_RECALLED_TOKENS,
    Evicted,
    candidates,
    choose,
    most_recalled_tokens,
    seqs_of,
    wanted_share,
)
from app.engine.recall.terms import MOST_TERMS_OF_A_QUERY, query_terms, terms_of
from app.engine.window.columns import Columns
from app.engine.window.past import past_of_columns
from app.engine.window.plan import Ready, assemble, plan
from app.engine.window.recalled import RECALL_NOTE
from app.engine.window.snapshot import Snapshot
from tests.engine.histories import History, UnitShape, chat, estimate, snapshot_of
from tests.engine.readings import items_of

POLICY = ContextPolicy()


def test_texts_that_were_read_for_their_terms_leave_no_trace_in_memory() -> None:
    """A month of tool outputs is gigabytes: hex dumps without a blank, and messages of megabytes."""
    dumps = [f"{number:02x}" * 30_000 for number in range(20)]
    recall = Recall(max_share=1.0)
    packed_text("the first text fills what is filled once")
    most_recalled_tokens("What is filled once?", recall, 8_000)
    tracemalloc.start()
    try:
        for dump in dumps:
            packed_text(f"{dump} says line {dump[:3000]}")
            most_recalled_tokens(f"What is {dump * 10}?", recall, 8_000)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 400_000


def found_in(turns: tuple[Turn, ...], asked: Turn) -> Evicted:
    """What a search among these turns finds for the turn's message."""
    text = str(asked.messages[0].content)
    messages = [message for turn in turns for message in turn.messages]
    index = EMPTY.extended(Packed.of(messages), messages[-1].seq)
    found = candidates(index, Query(text, index.through_seq), 10_000, 0.05)
    return Evicted(found, turns)


def test_a_tool_group_is_found_whole_by_the_words_of_any_of_its_results() -> None:
    history = History()
    turns = [history.turn(("tool_group", 20, 12), ("assistant", 20, 1)) for _ in range(3)]
    _, *group, _ = turns[1].messages
    for result in group[1:]:
        messages = [
            replace(each, content="crane 4711" if each is result else "nothing of it")
            for turn in turns
            for each in turn.messages
        ]
        index = EMPTY.extended(Packed.of(messages), messages[-1].seq)
        found = candidates(index, Query("crane 4711", index.through_seq), 10_000, 0.0)
        assert [each.seqs for each in found if result.seq in each.seqs] == [tuple(each.seq for each in group)]


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
        ("seeing", "see"),
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


def test_common_words_find_nothing() -> None:
    assert terms_of("What did you do with them when they were there?") == []


@given(st.text(max_size=400))
def test_any_text_has_terms_that_are_the_same_every_time_and_no_longer_than_a_bound(text: str) -> None:
    terms = terms_of(text)
    assert terms == terms_of(text)
    assert all(0 < len(term) <= 32 for term in terms)
    assert packed_text(text) == packed_text(text)
    assert len(query_terms(text)) <= MOST_TERMS_OF_A_QUERY


def test_a_term_that_nearly_all_messages_have_distinguishes_nothing() -> None:
    nearly_all, one, half = rarities(np.array([9, 1, 5]), 10)
    assert nearly_all == 0
    assert one > half > 0


def test_a_question_or_a_request_gets_the_whole_block_a_word_a_little_and_a_long_narrative_none_of_it() -> None:
    narrative = " ".join(f"word{number}" for number in range(40)) + "."
    assert wanted_share("Where does Ottilie keep her bees?") == 1
    assert wanted_share("Tell me the invoice number.") == 1
    assert wanted_share("Thanks for the invoice number.") == 0.125
    assert wanted_share("Ok, do it.") == wanted_share("Thanks!") == wanted_share("yes please") == 0
    assert 0.25 < wanted_share("I forgot. Where does Ottilie keep her bees?") < 0.5
    assert wanted_share(narrative) < 0.001
    assert most_recalled_tokens(narrative, Recall(), 100_000) == 0


def test_a_question_at_the_end_of_a_long_narrative_gets_less_than_alone_but_never_nothing() -> None:
    narrative = " ".join(f"word{number}" for number in range(40)) + "."
    shares = [wanted_share(f"{narrative[:end]} Where are the bees?") for end in (0, 30, 60, len(narrative))]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1
    assert 0.02 < shares[-1] < 0.05


@given(st.text(max_size=200), st.integers(0, 2_000_000))
def test_the_block_has_a_size_that_no_window_exceeds(text: str, input_budget: int) -> None:
    tokens = most_recalled_tokens(text, Recall(), input_budget)
    assert 0 <= tokens <= MOST_RECALLED_TOKENS
    assert 10 * tokens <= 7 * input_budget


def test_a_share_of_the_budget_is_taken_as_it_is_written() -> None:
    """The product of floats is 683.9999999999999."""
    assert most_recalled_tokens("When did we meet?", Recall(max_share=0.57), 1_200) == 684


@given(st.integers(1, 30), st.integers(700, 6000), st.integers(5, 400))
def test_recall_never_reaches_the_prune_threshold_and_stays_within_its_share(
    old_turns: int, input_budget: int, assistant_tokens: int
) -> None:
    snapshot = recalling(old_turns, input_budget, assistant_tokens)
    without = plan(replace(snapshot, policy=replace(POLICY, recall=Recall(enabled=False))), estimate)
    decided = plan(snapshot, estimate)
    assert type(decided) is type(without)
    if isinstance(decided, Ready) and isinstance(without, Ready):
        accounts = decided.accounts
        block = decided.prompt.regions()["recall"]
        assert block <= POLICY.recall.max_share * input_budget
        if accounts.recalled:
            assert decided.window.input_tokens < 0.9 * input_budget
        assert accounts.wire_before - sum(action.tokens_removed for action in accounts.actions) == (
            decided.prompt.wire_tokens
        )
        assert accounts.tokens_before == accounts.tokens_after_summary == decided.window.input_tokens
        assert decided.window.log.without_stages() == without.window.log.without_stages()


@given(st.integers(1, 30), st.integers(900, 6000))
def test_what_comes_back_is_verbatim_in_time_order_and_just_before_the_users_message(
    old_turns: int, input_budget: int
) -> None:
    snapshot = recalling(old_turns, input_budget)
    decided = plan(snapshot, estimate)
    assert isinstance(decided, Ready)
    items = items_of(decided.prompt)
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
    stored = {message.id: message for turn in snapshot.evicted.turns for message in turn.messages}
    assert all(message and stored[message.id] == message for message in recalled)
    assert [row.message_id for row in decided.accounts.recalled] == [message.id for message in recalled if message]
    assert assemble(decided) == assemble(decided)


def test_a_tool_group_comes_back_whole_or_not_at_all() -> None:
    history = History()
    old = tuple(history.turn(("tool_group", 60, 3), ("assistant", 20, 1)) for _ in range(6))
    broken = tuple(replace(turn, messages=turn.messages[:3]) for turn in old)
    current = history.turn(user_tokens=30)
    for turns, has_groups in ((old, True), (broken, False)):
        chosen = choose(found_in(turns, current), sent=(), fits=lambda tokens, messages, _days: tokens + messages > 0)
        kinds = {unit.kind for unit, _ in chosen}
        assert ("tool_group" in kinds) is has_groups
    snapshot = snapshot_of((), current, input_budget=3000, summary=history.summary(SummaryBody("Earlier.")))
    decided = plan(replace(snapshot, evicted=found_in(old, current)), estimate)
    assert isinstance(decided, Ready)
    assert assemble(decided)  # which refuses a call without its results


def test_text_already_in_the_prompt_is_not_recalled() -> None:
    history = History()
    old = chat(history, 6)
    current = history.turn(user_tokens=30)
    same = tuple(
        replace(turn, messages=(replace(turn.messages[0], content=current.messages[0].content),)) for turn in old
    )
    snapshot = snapshot_of((), current, input_budget=3000, summary=history.summary(SummaryBody("Earlier.")))
    decided = plan(replace(snapshot, evicted=found_in((*same, *chat(history, 3)), current)), estimate)
    assert isinstance(decided, Ready)
    texts = [str(message["content"]) for message in decided.prompt.messages()]
    assert texts.count(str(current.messages[0].content)) == 1


@given(st.integers(0, 12), st.integers(5, 300), st.integers(1_200, 6_000))
def test_a_tool_loop_keeps_what_its_first_call_recalled_until_its_rounds_need_the_room(
    old_turns: int, result_tokens: int, input_budget: int
) -> None:
    """What is recalled precedes all rounds: a change of it would take them out of the provider's cache."""
    snapshot = recalling(2 + old_turns, input_budget)
    rounds: tuple[UnitShape, int, int] = ("tool_group", result_tokens, 1)
    made = History().turn(*[rounds] * 30, status=TurnStatus.RUNNING).messages[1:]
    asked = snapshot.current.messages[0]
    worked = [replace(each, seq=asked.seq + at, turn_id=asked.turn_id) for at, each in enumerate(made, start=1)]
    recalled: list[tuple[Recalled, ...]] = []
    for end in range(0, len(worked) + 1, 2):
        current = replace(snapshot.current, messages=(asked, *worked[:end]))
        drifting = replace(snapshot, current=current, calibration_ratio=1.001 + 0.029 * (end % 7) / 7)
        decided = plan(drifting, estimate, may_summarize=False)
        assert isinstance(decided, Ready)
        assert decided.window.input_tokens <= input_budget
        recalled.append(decided.accounts.recalled)
    assert recalled[0]
    assert recalled == [recalled[0] if each else () for each in recalled]
    ended = recalled.index(()) if () in recalled else len(recalled)
    assert not any(recalled[ended:])


def test_text_in_a_turn_that_is_kept_as_columns_is_not_recalled() -> None:
    history = History()
    old, raw = chat(history, 6), chat(history, 2)
    current = history.turn(user_tokens=30)
    text, *_ = texts = [f"{current.messages[0].content} {number}" for number in range(2)]
    said = [
        replace(turn, messages=(replace(turn.messages[0], content=content),))
        for turn, content in zip((old[0], old[1], raw[0]), (*texts, text), strict=True)
    ]
    columns = Columns(old[-1].messages[-1].seq)
    columns.extend(said[2:])
    summary = replace(history.summary(SummaryBody("Earlier.")), to_message_seq=columns.from_seq)
    snapshot = snapshot_of((), current, input_budget=3000, summary=summary)
    kept = past_of_columns(columns, 0, 1).extended(raw[1:])
    decided = plan(replace(snapshot, past=kept, evicted=found_in(tuple(said[:2]), current)), estimate)
    assert isinstance(decided, Ready)
    sent = [str(message["content"]) for message in decided.prompt.messages()]
    assert [sent.count(each) for each in texts] == [1, 1]


WORDS = st.sampled_from(["bees", "crane", "invoice", "lighthouse", "green", "weather", "part", "noted", "東京", "of"])
TEXTS = st.lists(st.builds(" ".join, st.lists(WORDS, max_size=12)), max_size=40)
QUERIES = st.builds(" ".join, st.lists(WORDS, min_size=1, max_size=6))


def indexed(texts: Sequence[str], *cuts: int) -> Index:
    """The texts as messages 1, 3, 5 and so on, each of 10 tokens, put into an index in pieces that end at the cuts."""
    index = EMPTY
    for start, end in pairwise((0, *cuts, len(texts))):
        seqs = np.arange(start, end) * 2 + 1
        packed = b"".join(packed_text(text, kind=at % 2) for at, text in enumerate(texts[start:end], start))
        index = index.extended(Packed(seqs, np.full(len(seqs), 10), packed), 2 * end)
    return index


@given(TEXTS, QUERIES, st.integers(0, 80), st.data())
def test_an_index_that_was_extended_finds_what_one_that_was_built_at_once_finds(
    texts: list[str], asked: str, through_seq: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(texts)))))
    found = [
        candidates(index, Query(asked, through_seq), 100, 0.05)
        for index in (indexed(texts), indexed(texts, *cuts), indexed(texts, *range(0, len(texts), 2)))
    ]
    assert found[0] == found[1] == found[2]
    assert all(candidate.seqs[-1] <= through_seq for candidate in found[0])


@given(TEXTS)
def test_the_size_of_an_index_is_known_from_its_packed_terms(texts: list[str]) -> None:
    packed = b"".join(map(packed_text, texts))
    assert indexed(texts).size_bytes == index_bytes(len(texts), len(packed))


@given(TEXTS, TEXTS, QUERIES)
def test_an_index_that_goes_further_than_needed_finds_the_same(texts: list[str], later: list[str], asked: str) -> None:
    short, long = (
        candidates(index, Query(asked, 2 * len(texts)), 100, 0.05)
        for index in (indexed(texts), indexed([*texts, *later], len(texts)))
    )
    assert short == long


@given(TEXTS, st.randoms(use_true_random=False))
def test_packed_terms_are_taken_apart_in_any_order(texts: list[str], draw: Random) -> None:
    """Each message's own columns and terms, whatever stands before and after it."""
    order = list(range(len(texts)))
    draw.shuffle(order)
    index, shuffled = indexed(texts), indexed([texts[at] for at in order])
    for mine, column in ((index.norms, shuffled.norms), (index.texts, shuffled.texts)):
        assert mine[order].tolist() == column.tolist()
    for asked in ("bees", "東京 crane"):
        hits, others = (search(one, Query(asked, 2 * len(texts)), most_seen_share=1.0) for one in (index, shuffled))
        found = dict(zip(hits.positions.tolist(), hits.scores.tolist(), strict=True))
        assert found == {order[at]: score for at, score in zip(others.positions, others.scores.tolist(), strict=True)}


def test_a_long_index_keeps_its_keys_when_it_is_extended_and_finds_the_same() -> None:
    texts = [" ".join(f"word{at % (11 * each + 7)}" for each in range(24)) for at in range(4000)]
    at_once, shorter, grown = indexed(texts), indexed(texts[:3900]), indexed(texts, 3900, 3920, 3990)
    assert len(shorter.keys) > 65_536
    assert (len(shorter.new_keys), len(grown.keys)) == (0, len(shorter.keys)), "none of the old ones is copied"
    assert (len(at_once.new_keys), len(at_once.keys)) == (0, len(grown.keys) + len(grown.new_keys))
    assert grown.size_bytes == at_once.size_bytes
    for asked in ("Which word9 word3?", "word260 word97 word5"):
        for through_seq in (8000, 7900, 7830, 7000):
            query = Query(asked, through_seq)
            assert posting_count(at_once, query) == posting_count(grown, query)
            assert candidates(at_once, query, 300, 0.05) == candidates(grown, query, 300, 0.05)
            hits, others = search(at_once, query), search(grown, query)
            assert hits.scores.tolist() == others.scores.tolist()
            assert hits.postings.tolist() == others.postings.tolist()
    copied = indexed(texts, 3700, 3710, 3720)
    assert (len(copied.keys), len(copied.new_keys)) == (len(at_once.keys), 0), "many new ones are no few"


def test_an_index_of_many_messages_is_the_same_however_it_grew() -> None:
    texts = [f"word{at} word{at % 7} word{at % 90} bees{at % 400}" for at in range(3000)]
    at_once, grown = indexed(texts), indexed(texts, *range(1200, 3000, 1200))
    assert at_once.keys.tolist() == grown.keys.tolist()
    for asked in ("Which bees17 word3?", "word89 and word2999"):
        hits, others = search(at_once, Query(asked, 6000)), search(grown, Query(asked, 6000))
        assert hits.positions.tolist() == others.positions.tolist()
        assert hits.scores.tolist() == others.scores.tolist()


@given(st.lists(st.text(max_size=80), min_size=1, max_size=12), st.text(max_size=80))
def test_scores_are_those_of_bm25_over_all_messages(texts: list[str], asked: str) -> None:
    """Against the formula, written out over the texts themselves."""
    hits = search(indexed(texts), Query(asked, 2 * len(texts)), most_seen_share=1.0)
    assert posting_count(indexed(texts), Query(asked, 2 * len(texts))) == len(hits.postings)
    counted = [Counter(terms_of(text)) for text in texts]
    seen_in = Counter(term for counts in counted for term in counts)
    expected: dict[int, tuple[float, float]] = {}
    for at, counts in enumerate(counted):
        norm = 1.2 * (0.6 + 0.4 * counts.total() / 16)
        rare = {
            term: log(1 + (len(texts) - seen_in[term] + 0.5) / (seen_in[term] + 0.5))
            for term in query_terms(asked)
            if counts[term]
        }
        score = sum(rare[term] * min(31, counts[term]) * 2.2 / (min(31, counts[term]) + norm) for term in rare)
        if rare:
            expected[at] = score, sum(rare.values())
    best = max((coverage for _, coverage in expected.values()), default=1.0)
    assert dict(zip(hits.positions.tolist(), hits.scores.tolist(), strict=True)) == {
        at: pytest.approx(score * (coverage / best) ** 0.6) for at, (score, coverage) in expected.items()
    }


@given(TEXTS, st.sampled_from(["bees", "東京"]), st.integers(1, 3))
def test_a_search_for_a_few_gives_the_first_of_a_search_for_all(texts: list[str], asked: str, most_hits: int) -> None:
    few, every = (
        search(indexed(texts), Query(asked, 2 * len(texts)), most_hits=most, most_seen_share=1.0)
        for most in (most_hits, len(texts) + 1)
    )
    assert few.positions.tolist() == every.positions[:most_hits].tolist()
    assert few.scores.tolist() == every.scores[:most_hits].tolist()


def test_candidates_fit_the_token_budget_and_have_no_duplicates() -> None:
    texts = ["The crane has invoice 4711.", "The crane has invoice 4711.", "Which crane has which invoice?"]
    index = indexed(texts)
    found = candidates(index, Query("Which crane has which invoice?", 6), 100, 0.0)
    assert seqs_of(found) == [3, 5], "the newer of two equal ones"
    assert not candidates(index, Query("Which crane has which invoice?", 6), 13, 0.0)


@given(TEXTS, QUERIES, st.integers(0, 200))
def test_candidates_fit_the_token_budget_together_and_list_their_matched_words(
    texts: list[str], asked: str, room_tokens: int
) -> None:
    index = indexed(texts)
    found = candidates(index, Query(asked, 2 * len(texts)), room_tokens, 0.05)
    tokens = index.tokens[np.isin(index.seqs, seqs_of(found))]
    assert tokens.sum() + MESSAGE_FRAMING_TOKENS * len(tokens) <= room_tokens
    for candidate in found:
        text = texts[candidate.seqs[0] // 2]
        assert {term for word in candidate.matched[0] for term in terms_of(word)} == (
            set(query_terms(asked)) & set(terms_of(text))
        )
