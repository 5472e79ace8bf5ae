"""An extract is verbatim, cited, within its room, in time order, balanced, and the same every time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.extractive import READING, SourceText, gather, kept_reading
from app.domain.types import SummaryBody, SummaryItem

CONVERSATION = [
    SourceText("m1", "user", "Hi! I'm moving our billing service to Postgres 16. The budget is 12000 USD to March."),
    SourceText("m2", "assistant", "Sounds good. What is the size of the database?"),
    SourceText("m3", "user", "About 480 GB. Never lock invoice_lines for more than 2 seconds."),
    SourceText("m4", "assistant", "Understood. I will prepare a runbook by Friday."),
    SourceText("m5", "user", "Okay, let's use logical replication. We decided to cut over on a Sunday night."),
    SourceText("m6", "tool", '{"rows": 48000000, "table": "invoice_lines"}'),
    SourceText("m7", "assistant", "Agreed."),
    SourceText("m8", "user", "Who owns the DNS change?"),
]


def item(text: str, *handles: Any) -> SummaryItem:
    return SummaryItem(text, handles)


def items_of(made: SummaryBody) -> Iterator[SummaryItem]:
    for kind in (made.key_facts, made.open_questions, made.decisions, made.action_items):
        yield from kind


def chars_of(made: SummaryBody) -> int:
    return len(made.summary_text) + sum(len(item.text) for item in items_of(made))


def test_a_conversation_is_sorted_into_facts_decisions_questions_and_actions() -> None:
    made = gather(CONVERSATION).within(600)
    assert [(item.text, item.message_ids) for item in made.decisions] == [
        ("Okay, let's use logical replication.", ("m5",)),
        ("We decided to cut over on a Sunday night.", ("m5",)),
    ]
    assert made.open_questions == (item("Who owns the DNS change?", "m8"),)
    assert item("I will prepare a runbook by Friday.", "m4") in made.action_items
    kept = made.summary_text + " ".join(item.text for item in made.key_facts)
    for fact in ("12000 USD", "480 GB", "Never lock invoice_lines"):
        assert fact in kept
    assert made.summary_text


def test_items_with_words_of_the_focus_are_kept_first() -> None:
    names = ("oak", "pine", "steel", "glass", "copper")
    sources = [SourceText(name, "user", f"The {name} cabinet stands in room 4{at}.") for at, name in enumerate(names)]

    def kept(focus: str) -> str:
        made = gather(sources, focus=focus).within(120)
        return made.summary_text + " ".join(item.text for item in items_of(made))

    assert "oak" in kept("")
    assert "copper" not in kept("")
    assert "copper" in kept("the copper")
    assert kept("the on of") == kept("")


def test_a_cache_of_readings_keeps_no_long_texts() -> None:
    reading = kept_reading(texts=64, sentences=8)
    text = "The depot opens at seven. We keep valve 12 shut. " * 2_000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        read = [len(reading.statements(f"{number}. {text}")) for number in range(3)]
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
        assert read == [len(READING.statements(f"{number}. {text}")) for number in range(3)]
    finally:
        tracemalloc.stop()


def test_numbers_and_constraints_outlive_small_talk_in_a_small_room() -> None:
    sources = [
        SourceText("m1", "user", "That is really nice to hear from you today, thank you so much."),
        SourceText("m2", "user", "The API key rotates every 90 days, never skip it."),
        SourceText("m3", "assistant", "It is always a great pleasure to be of help to you."),
    ]
    made = gather(sources).within(80)
    assert "90 days" in made.summary_text + " ".join(item.text for item in made.key_facts)


@pytest.mark.parametrize(
    ("reply", "is_open"),
    [
        (None, True),
        ("It is port 8000.", False),
        ("I'm not sure, let me check that.", True),
        ("I don’t know yet.", True),
        (" ", True),
    ],
)
def test_a_question_is_open_until_it_is_answered(reply: str | None, is_open: bool) -> None:
    sources = [SourceText("m1", "user", "Which port does the service listen on?")]
    context = [SourceText("m2", "assistant", reply)] if reply else []
    assert bool(gather(sources, context=context).within(200).open_questions) == is_open


@pytest.mark.parametrize(
    ("role", "first", "second"),
    [
        (
            "user",
            "The deadline of the billing project is March 14.",
            "The deadline of the billing project is March 14. ",
        ),
        ("user", "Always answer in French.", "Always answer in French."),
        ("user", "The depot in Harbour Street opens at seven.", "The depot in Harbour Street opens at eight."),
        ("user", "Please remind me to call Anna about the invoice.", "Remind me to call Anna about the invoice."),
        (
            "user",
            "The depot of pier 4 in Harbour Street opens at 7:15 for all who bring their own cars and boats.",
            "The depot of pier 4 in Harbour Street opens at 7:15.",
        ),
        *[
            (
                role,
                "On Monday the ferry leaves pier 4 at 10:15 with all cars.",
                "On Tuesday the ferry leaves pier 4 at 11:45 with all cars.",
            )
            for role in ("user", "assistant")
        ],
    ],
)
def test_a_near_duplicate_adds_its_source_and_no_text(role: str, first: str, second: str) -> None:
    made = gather([SourceText("m1", role, first), SourceText("m2", role, second)]).within(400)
    assert [*items_of(made)] == [item(first, "m1", "m2")]


_WANTS = "I want to move our billing service to another database."
_PAINTED = "The depot of pier 4 in Harbour Street was painted at 7:15 by Anna Berg and Bo Lund."


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("assistant", "I want to paint the gates of all the harbours of this coast."),
        ("user", "Do we want to paint the gates of all the harbours of this coast?"),
        ("user", "And we want to paint the gates of all the harbours of this coast."),
        ("user", "Always open the gate when I want to move the boat."),
        ("user", "The gates of all the harbours of this coast are painted."),
    ],
)
def test_a_summary_begins_with_what_the_user_wants(role: str, text: str) -> None:
    assert gather([SourceText("m1", "user", _WANTS), SourceText("m2", role, text)]).within(800).summary_text == _WANTS


def test_without_a_goal_a_summary_begins_with_a_plain_fact_or_with_the_summary_before_it() -> None:
    plain, before = "Our crew has been sailing along this coast since the spring.", "An older record of the crew."
    sources = [SourceText("m1", "user", _PAINTED), SourceText("m2", "user", plain)]
    assert gather(sources).within(400).summary_text == plain
    assert gather(sources, previous=SummaryBody(before)).within(400).summary_text == before


@pytest.mark.parametrize(
    ("text", "by_an_assistant"),
    [
        ("Let's use logical replication for the billing service.", False),
        ("We decided to use logical replication for the billing service.", True),
    ],
)
def test_what_an_assistant_proposes_is_no_decision(text: str, by_an_assistant: bool) -> None:
    for role, decides in (("user", True), ("assistant", by_an_assistant)):
        made = gather([SourceText("m1", role, text), SourceText("m2", "user", _PAINTED)]).within(400)
        assert bool(made.decisions) == decides


@pytest.mark.parametrize("role", ["assistant", "tool"])
def test_only_a_users_question_is_an_open_one(role: str) -> None:
    asked = "Which port does the billing service listen on?"
    assert not gather([SourceText("m1", "user", _PAINTED), SourceText("m2", role, asked)]).within(400).open_questions
    sources = [SourceText("m1", "user", asked), SourceText("m2", "tool", "It is port 8000.")]
    assert gather(sources).within(400).open_questions == (item(asked, "m1"),)


def test_what_a_tool_demands_is_no_demand_of_the_users() -> None:
    opens = "The harbour opens pier 4 at 10:15."
    made = gather([SourceText("m1", "user", opens), SourceText("m2", "tool", "Make sure the hatch is shut.")]).within(
        400
    )
    assert [*items_of(made)] == [item(opens, "m1")]


def test_an_item_without_a_word_is_carried_over() -> None:
    previous = SummaryBody("We bill on our own.", open_questions=(item("?!", "m1"),))
    assert gather([SourceText("m9", "user", "Go on.")], previous=previous).within(400).open_questions == (
        item("?!", "m1"),
    )


def test_no_kind_takes_all_the_room() -> None:
    decisions = [SourceText(f"d{n}", "user", f"We decided to use component {n} for part {n * 7}.") for n in range(60)]
    facts = [SourceText(f"f{n}", "user", f"Server s{n} has address 10.0.0.{n} in rack {n + 300}.") for n in range(60)]
    made = gather([*decisions, *facts]).within(1500)
    by_kind = [sum(len(item.text) for item in kind) for kind in (made.decisions, made.key_facts)]
    assert all(200 < chars < 1200 for chars in by_kind)
    assert len(made.summary_text) > 200


def test_time_order_is_kept() -> None:
    made = gather(CONVERSATION).within(500)
    order = [source.id for source in CONVERSATION]
    for kind in (made.key_facts, made.open_questions, made.decisions, made.action_items):
        places = [order.index(item.message_ids[0]) for item in kind]
        assert places == sorted(places)


def test_other_scripts_are_cut_into_sentences_too() -> None:
    sources = [SourceText("m1", "user", "預算是一萬二千美元。會議在三月十四日。誰負責部署？")]
    made = gather(sources).within(100)
    assert made.open_questions == (item("誰負責部署？", "m1"),)
    assert "三月十四日" in made.summary_text + "".join(item.text for item in made.key_facts)


def in_words_of(source: SourceText, text: str) -> bool:
    """Whether all words stand in the source, in their order; marks that join the parts of a list are no words."""
    words, at = re.findall(r"\w+", text), 0
    for word in words:
        at = source.text.find(word, at) + len(word)
        if at < len(word):
            return False
    return True


@settings(max_examples=200)
@given(
    sources=st.lists(
        st.builds(
            SourceText,
            id=st.sampled_from(["m1", "m2", "m3"]),
            role=st.sampled_from(["user", "assistant", "tool"]),
            text=st.text(max_size=500) | st.text(alphabet="abc ?.!\n'`_/A1", max_size=900),
        ),
        max_size=8,
    ),
    max_chars=st.integers(0, 900),
)
def test_every_extract_is_in_the_words_of_what_it_cites_deterministic_and_within_its_room(
    sources: list[SourceText], max_chars: int
) -> None:
    made = gather(sources).within(max_chars)
    assert made == gather(sources).within(max_chars)
    assert chars_of(made) <= max_chars
    for item in items_of(made):
        assert item.message_ids
        assert any(in_words_of(source, item.text) for source in sources if source.id == item.message_ids[0])
    for line in made.summary_text.split("\n"):
        assert any(in_words_of(source, line) for source in sources) or not sources


@pytest.mark.parametrize(
    ("demand", "value"),
    [
        ("Never deploy the ledger on a Friday.", "The restore command is `pg_restore -j 4 -d ledger`."),
        ("Answer in French from now on.", "Deploy it with `make ship ENV=staging`."),
        ("Mila is allergic to peanuts.", "The database is at postgres://ro@db-2.example:6432/ledger"),
    ],
)
def test_demands_and_exact_values_are_kept_through_folds_of_other_content(demand: str, value: str) -> None:
    made = gather([SourceText("m1", "user", f"{demand} {value}")]).within(600)
    for fold in range(8):
        news = [
            SourceText(f"n{fold}-{at}", "assistant", f"The weather over harbour {fold}{at} is grey and rather calm.")
            for at in range(30)
        ]
        made = gather(news, previous=made).within(600)
        assert {item.text: item.message_ids for item in items_of(made) if item.text in {demand, value}} == {
            demand: ("m1",),
            value: ("m1",),
        }
    assert any("harbour 7" in item.text for item in items_of(made))


@pytest.mark.parametrize(
    ("news", "is_open"),
    [("The runbook for the cut-over is done.", False), ("The runbook for the cut-over needs a review.", True)],
)
def test_a_task_stays_until_it_is_reported_as_finished(news: str, is_open: bool) -> None:
    task = item("I will prepare the runbook for the cut-over by Friday.", "m1")
    previous = SummaryBody("We move to Postgres 16.", action_items=(task,))
    made = gather([SourceText("m9", "assistant", news)], previous=previous).within(900)
    assert (task in made.action_items) == is_open


def test_a_newer_statement_of_the_same_takes_the_place_of_the_older_and_keeps_its_source() -> None:
    previous = SummaryBody(
        "We bill on our own.",
        key_facts=(item("The deadline of the billing project is March 14, 2027.", "m1"),),
    )
    newer = "The deadline of the billing project is April 14, 2027."
    made = gather([SourceText("m9", "user", newer)], previous=previous).within(900)
    assert [each for each in items_of(made) if "deadline" in each.text] == [item(newer, "m9", "m1")]


@pytest.mark.parametrize(
    "text",
    ["a" * 400_000, "a " * 200_000, "a," * 200_000, "`" * 400_000, "/a" * 200_000, "ab cd. " * 57_000, '."' * 200_000]
    + [
        "- a\n b\n" * 57_000,
        "a" * 60 + "\nb" * 200_000,
        "|a" * 100_000 + "\n|-|-|\n" + "|a|b|\n" * 40_000,
        "*a*" * 130_000,
    ]
    + ["# " + "a" * 100 + "\n- " + "b" * 300 + "\n" * 2] * 2
    + ["[" * 400_000, '{"a":' * 10_000 + "1" + "}" * 10_000, "```\n" + "a\n" * 200_000],
)
def test_hostile_text_costs_no_more_than_other_text(text: str) -> None:
    begun = time.process_time()
    gather([SourceText("m1", "user", text)]).within(6000)
    assert time.process_time() - begun < 5.0  # generous: it takes below half a second


EXTRACTS_OF_THE_SHIPPED_CONVERSATION = """
from app.domain.extractive import SourceText, gather
from plimsoll_demo.demo import shipped_conversation
texts = [text for turn in shipped_conversation().turns for text in (turn.prompt, turn.reply or "")]
sources = [SourceText(str(at), "user", text) for at, text in enumerate(texts)]
for first in range(0, len(sources), 4):
    made = gather(sources[first:first + 16])
    for max_chars in (500, 1000, 2000, 4000):
        print(made.within(max_chars))
"""


def test_every_process_makes_the_same_extracts() -> None:
    made = {
        subprocess.run(
            [sys.executable, "-c", EXTRACTS_OF_THE_SHIPPED_CONVERSATION],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in range(1, 7)
    }
    (only,) = made
    assert only


def test_a_task_in_the_words_of_a_decision_does_not_give_it_its_sources() -> None:
    """What a decision cites stays in the window, and what a task cites need not."""
    agreed = "We decided to cut over on a Sunday night."
    own, again = item(agreed, "m1"), item(agreed, "m9")
    sources = [SourceText("m5", "user", "The depot in Harbour Street opens at seven.")]
    for before, cited in (
        (SummaryBody("It is about Postgres.", decisions=(own,), action_items=(again,)), ("m1",)),
        (SummaryBody("It is about Postgres.", decisions=(own, again)), ("m1", "m9")),
    ):
        made = gather(sources, previous=before).within(600)
        assert made.decisions == (item(agreed, *cited),)
        assert not made.action_items
