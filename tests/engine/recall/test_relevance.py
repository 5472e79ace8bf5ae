"""How relevant pins are where nobody said."""

from __future__ import annotations

from time import process_time

import pytest

from app.domain.types import Pin
from app.engine.recall.relevance import relevances

_PUMPS = Pin("pumps", "Valve 12 feeds the cellar pump. The pump was repaired twice this winter.")
_INVOICES = Pin("invoices", "Invoice 2024-118 is over 4,310 euro and is due in May.")
_MENU = Pin("menu", "Soup on Mondays, fish on Fridays.")


def test_a_given_relevance_stands() -> None:
    pins = (Pin("a", "pump", 0.0), Pin("b", "nothing of it", 1.0))
    assert relevances(pins, "pump") == (0.0, 1.0)


def test_the_pin_that_has_the_questions_words_is_the_more_relevant() -> None:
    pump, invoice, menu = relevances((_PUMPS, _INVOICES, _MENU), "Which pump was repaired?")
    assert 0 < pump < 1
    assert pump > invoice
    assert pump > menu
    assert menu == 0


def test_a_pins_name_counts_as_its_words_do() -> None:
    pins = (Pin("menu", "Soup on Mondays."), Pin("list", "Soup on Mondays."))
    menu, other = relevances(pins, "the menu")
    assert menu > other == 0


def test_a_rare_word_counts_for_more_than_one_that_all_pins_have() -> None:
    pins = tuple(Pin(name, f"report {name}") for name in ("alpha", "beta", "gamma"))
    alpha, beta, _ = relevances(pins, "report alpha")
    assert alpha > beta > 0


def test_a_given_relevance_and_a_computed_one_are_on_the_same_scale() -> None:
    pins = (Pin("a", "pump"), Pin("b", "soup", 0.99), Pin("c", "fish", 0.01))
    assert relevances(pins, "pump pump pump")[0] < 0.99
    assert relevances(pins, "pump pump pump")[0] > 0.01


@pytest.mark.parametrize("query", ["", "…", "nothing that any has", "\ud83d"])
def test_pins_that_have_none_of_the_words_are_not_relevant(query: str) -> None:
    assert relevances((_PUMPS, _INVOICES), query) == (0.0, 0.0)


def test_scripts_without_spaces_are_matched_by_their_characters() -> None:
    pins = (Pin("a", "倉庫は七時に開きます"), Pin("b", "魚は金曜日"))
    warehouse, fish = relevances(pins, "倉庫はいつ開きますか")
    assert warehouse > fish


def test_the_same_pins_and_words_give_the_same_figures() -> None:
    assert relevances((_PUMPS, _INVOICES), "pump 2024") == relevances((_PUMPS, _INVOICES), "pump 2024")


def test_pins_of_megabytes_cost_no_more_than_a_moment() -> None:
    pins = tuple(Pin(f"p{at}", f"{at} pump valve cellar winter " * 150_000) for at in range(4))
    started = process_time()
    assert len(relevances(pins, "Which pump?")) == 4
    assert process_time() - started < 1  # second, on a machine that others use; about 30 ms of it is the scoring
