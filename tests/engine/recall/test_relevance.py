"""How relevant pins are where nobody said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import process_time

import numpy as np
import pytest

from app.domain.types import Pin, TurnStatus
from app.engine.recall.relevance import question_of, relevances
from app.engine.recall.vectors import Meaning, Vectors, packed_query, packed_vectors
from tests.engine.histories import History

_PUMPS = Pin("pumps", "Valve 12 feeds the cellar pump. The pump was repaired twice this winter.")
_INVOICES = Pin("invoices", "Invoice 2024-118 is over 4,310 euro and is due in May.")
_MENU = Pin("menu", "Soup on Mondays, fish on Fridays.")


def _values(pins: Sequence[Pin], query: str, meaning: Meaning | None = None) -> tuple[float, ...]:
    return tuple(relevance.value for relevance in relevances(pins, query, meaning))


def test_a_given_relevance_stands() -> None:
    pins = (Pin("a", "pump", 0.0), Pin("b", "nothing of it", 1.0))
    assert _values(pins, "pump") == (0.0, 1.0)


def test_the_pin_that_has_the_questions_words_is_the_more_relevant() -> None:
    pump, invoice, menu = _values((_PUMPS, _INVOICES, _MENU), "Which pump was repaired?")
    assert 0 < pump < 1
    assert pump > invoice
    assert pump > menu
    assert menu == 0


def test_a_pins_name_counts_as_its_words_do() -> None:
    pins = (Pin("menu", "Soup on Mondays."), Pin("list", "Soup on Mondays."))
    menu, other = _values(pins, "the menu")
    assert menu > other == 0


def test_pins_are_compared_with_the_goal_and_with_what_the_user_says_and_not_with_what_a_tool_answers() -> None:
    history = History()
    turn = history.turn(("tool_group", 10, 1), status=TurnStatus.RUNNING)
    said = {"user": "Which pump?", "assistant": "the menu", "tool": "the menu"}
    turn = replace(turn, messages=tuple(replace(each, content=said[each.role]) for each in turn.messages))
    assert question_of("Pay invoices.", turn) == "Pay invoices.\nWhich pump?"


def test_a_rare_word_counts_for_more_than_one_that_all_pins_have() -> None:
    pins = tuple(Pin(name, f"report {name}") for name in ("alpha", "beta", "gamma"))
    alpha, beta, _ = _values(pins, "report alpha")
    assert alpha > beta > 0


def test_a_given_relevance_and_a_computed_one_are_on_the_same_scale() -> None:
    pins = (Pin("a", "pump"), Pin("b", "soup", 0.99), Pin("c", "fish", 0.01))
    assert _values(pins, "pump pump pump")[0] < 0.99
    assert _values(pins, "pump pump pump")[0] > 0.01


@pytest.mark.parametrize("query", ["", "…", "nothing that any has", "\ud83d"])
def test_pins_that_have_none_of_the_words_are_not_relevant(query: str) -> None:
    assert _values((_PUMPS, _INVOICES), query) == (0.0, 0.0)


def test_scripts_without_spaces_are_matched_by_their_characters() -> None:
    pins = (Pin("a", "倉庫は七時に開きます"), Pin("b", "魚は金曜日"))
    warehouse, fish = _values(pins, "倉庫はいつ開きますか")
    assert warehouse > fish


def test_the_same_pins_and_words_give_the_same_figures() -> None:
    assert _values((_PUMPS, _INVOICES), "pump 2024") == _values((_PUMPS, _INVOICES), "pump 2024")


def test_pins_of_megabytes_cost_no_more_than_a_moment() -> None:
    pins = tuple(Pin(f"p{at}", f"{at} pump valve cellar winter " * 150_000) for at in range(4))
    started = process_time()
    assert len(_values(pins, "Which pump?")) == 4
    assert process_time() - started < 1  # second, on a machine that others use; about 30 ms of it is the scoring


def test_a_pin_in_other_words_than_the_questions_is_relevant_by_related_ones_and_says_why() -> None:
    pets, menu = relevances((Pin("pets", "The puppy sleeps in the hall."), _MENU), "Where does the dog sleep?")
    assert pets.value > menu.value
    assert "pet~dog" in pets.matched


def test_of_pins_without_a_word_of_the_question_the_one_that_means_the_same_is_the_more_relevant() -> None:
    pins, question = (_PUMPS, _INVOICES, _MENU), "What do we owe?"
    unit = np.eye(8)
    vectors = Vectors.none_of("m", 8).extended(np.arange(3), b"".join(packed_vectors(unit[:3])))
    query = packed_query(unit[1])
    assert query is not None
    meaning = Meaning(query, vectors)
    pump, invoice, menu = relevances(pins, question, meaning)
    assert 0 < invoice.value < 1
    assert (pump.value, menu.value) == (0, 0)
    assert invoice.matched == ("≈1.0",)
    by_words = _values(pins, "Which pump was repaired?")
    assert _values(pins, "Which pump was repaired?", meaning)[0] == by_words[0] > invoice.value, "words count for more"
    assert _values((replace(_INVOICES, relevance=0.1), _MENU), question, meaning)[0] == 0.1
