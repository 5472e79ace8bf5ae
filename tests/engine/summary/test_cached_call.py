"""Citing by quotation, and which call of a summarizer costs less."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.prices import Prices, call_cost
from app.domain.types import MessageId, SummaryBody, SummaryItem, TurnStatus, Usage
from app.engine.messages.turns import wire_tokens_of
from app.engine.summary.cached_call import (
    MOST_QUOTATIONS,
    Quotations,
    behind_the_prompt,
    cheaper_call,
    quoted_ids,
    quoted_items,
)
from app.engine.summary.fold import Fold, source_text
from tests.engine.histories import History

_HISTORY = History()
_TURNS = [_HISTORY.turn(("tool_group", 90, 2), ("assistant", 60, 1), user_tokens=40) for _ in range(4)]
_ITEM = SummaryItem("The lamp is red on Sundays.", (_TURNS[0].messages[0].id,))
_PREVIOUS = _HISTORY.summary(SummaryBody("Before.", key_facts=(_ITEM,)))
_FOLD = Fold("threshold", tuple(_TURNS[:3]), tuple(_TURNS[3:]), _PREVIOUS, 30, wire_tokens_of(_TURNS[:3]) + 30, 200)
_DAYS = ("Monday", "Tuesday", "Wednesday")
_TEXTS = {message.id: source_text(message) for message in (*_FOLD.sources, *_FOLD.context)}


@given(st.data())
def test_words_of_a_message_cite_a_message_that_has_them_whatever_is_between_and_around_them(
    data: st.DataObject,
) -> None:
    words = data.draw(st.sampled_from(sorted(_TEXTS.values()))).split()
    first = data.draw(st.integers(0, len(words) - 4))
    quoted = " ".join(words[first : first + 4])
    if len(quoted) >= 12:
        (cited,) = quoted_ids(_FOLD)[f'"{quoted.upper()} '.replace(" ", "\n  ")]
        assert quoted in " ".join(_TEXTS[cited].split())


def test_an_item_of_the_summary_before_is_quoted_for_the_messages_that_it_cites() -> None:
    assert quoted_ids(_FOLD)["the lamp is red"] == _ITEM.message_ids


def test_items_of_the_summary_before_that_begin_alike_are_each_found_in_their_order() -> None:
    items = [
        SummaryItem(f"The lamp is red on {day}.", (message.id,))
        for day, message in zip(_DAYS, _FOLD.sources[:3], strict=True)
    ]
    fold = replace(_FOLD, previous=_HISTORY.summary(SummaryBody("Before.", key_facts=tuple(items))))
    quoted = quoted_items(fold)
    assert [quoted["The lamp is red on"] for _ in items] == items
    assert quoted["The lamp is red on"] == items[0], "where all were found, the first one again"
    assert quoted["“The lamp is red on Tuesday…”"] == items[1]
    with pytest.raises(KeyError):
        quoted[source_text(_TURNS[0].messages[0])[:40]]


def test_an_item_that_is_the_beginning_of_another_does_not_take_its_place() -> None:
    texts = (
        "They told us that the lamp is red on Sundays.",
        "The lamp is red on Sundays.",
        "The lamp is red on Sundays. It was green.",
    )
    reported, whole, longer = (
        SummaryItem(text, (message.id,)) for text, message in zip(texts, _FOLD.sources[:3], strict=True)
    )
    fold = replace(_FOLD, previous=_HISTORY.summary(SummaryBody("Before.", key_facts=(reported, whole, longer))))
    for quotations in (
        ("The lamp is red on Sundays.", "The lamp is red on Sundays."),
        ("the lamp is red on sundays.", "The lamp is red on"),
        ("The lamp is red on", "The lamp is red on"),
    ):
        quoted = quoted_items(fold)
        assert [quoted[quotation] for quotation in quotations] == [whole, longer]
        assert quoted["the lamp is red"] == reported, "the only one that was not found before"


@pytest.mark.parametrize(
    "quotation", ["", "  ", "the", "words of nobody at all", "m1", "p1", "\0\0\0\0\0\0\0\0\0", "…"]
)
def test_a_quotation_that_is_in_no_message_or_too_common_cites_nothing(quotation: str) -> None:
    with pytest.raises(KeyError):
        quoted_ids(_FOLD)[quotation]


@pytest.mark.parametrize("text", ["…", "”", "“…”", "no", "Yes."])
def test_a_whole_text_is_found_however_short_it_is(text: str) -> None:
    quotations = Quotations([("a longer one, no…", 1), (text, 2)])
    assert quotations[text] == quotations[f" {text.upper()}\n"] == 2


@pytest.mark.parametrize(("extend", "begins"), [(True, "Extend the record: "), (False, "Carry over what still ")])
def test_an_incremental_summary_extends_the_record_and_another_carries_over_what_matters(
    extend: bool, begins: str
) -> None:
    (instruction,) = behind_the_prompt(_FOLD, extend=extend, focus="")
    assert f"\n{begins}" in str(instruction["content"])


def test_an_answer_is_looked_up_so_often_and_no_more() -> None:
    quotations = quoted_ids(_FOLD)
    for _ in range(MOST_QUOTATIONS):
        assert quotations["lamp is red on"]
    with pytest.raises(KeyError):
        quotations["lamp is red on"]


_usd = st.none() | st.sampled_from((0.0, 0.02, 0.25, 1.0, 15.0))
_prices = st.builds(Prices, _usd, _usd, _usd)
_tokens = st.integers(0, 200_000)


@given(_prices, _prices, _tokens, _tokens, st.floats(0, 1), st.integers(0, 4000))
def test_the_call_that_is_chosen_never_costs_more_than_the_other(
    own: Prices, separate: Prices, separate_tokens: int, repeated_tokens: int, share: float, answer_tokens: int
) -> None:
    cached_tokens = int(share * repeated_tokens)
    before_answer = Usage(repeated_tokens, 0, cached_tokens)
    choice = cheaper_call(answer_tokens, separate_tokens, separate, before_answer, own)
    separate_usd = call_cost(Usage(separate_tokens, answer_tokens), separate)
    repeated_usd = call_cost(Usage(repeated_tokens, answer_tokens * 5 // 4, cached_tokens), own)
    if own.cached_input_usd is None or separate_usd is None or repeated_usd is None:
        assert (choice.call, choice.reason) == ("separate", "no_price")
    else:
        assert (choice.call, choice.reason) == ("cached" if repeated_usd < separate_usd else "separate", "cost")


def test_the_newest_turn_that_stays_and_is_sent_is_not_shown_and_not_counted() -> None:
    rejected = replace(_TURNS[3], status=TurnStatus.REJECTED)
    stays = Fold("threshold", tuple(_TURNS[:2]), tuple(_TURNS[2:]), None, 0, 0, 200)
    before_it = replace(stays, protected=(_TURNS[2], rejected))
    assert (stays.unseen, before_it.unseen) == (_TURNS[3], _TURNS[2])
    assert replace(stays, protected=()).unseen is None
    (instruction,) = behind_the_prompt(stays, extend=False, focus="")
    assert f"its newest {len(_TURNS[2].messages)} messages" in str(instruction["content"])


def test_words_of_the_turns_that_stay_cite_nothing_where_there_is_no_room_for_what_they_would_keep() -> None:
    of_context = {message.id for message in _FOLD.context}

    def cited(quotations: Quotations[tuple[MessageId, ...]]) -> set[MessageId]:
        return {message_id for text in _TEXTS.values() for message_id in quotations[text]}

    assert cited(quoted_ids(_FOLD)) & of_context
    assert not cited(quoted_ids(replace(_FOLD, cites_context=False))) & of_context
