"""What a text states: whole sentences, and of lists, tables, JSON and code what can be read alone."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.statements import LONGEST_STATEMENT_CHARS, statements


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("The landlady is Mrs. Adeyemi, e.g. upstairs. Rent is 1,450.50 a month.",
         ["The landlady is Mrs. Adeyemi, e.g. upstairs.", "Rent is 1,450.50 a month."]),
        ('He said "we open at six." Then he left the shop.', ['He said "we open at six."', "Then he left the shop."]),
        ("Am 14. März wird geöffnet. Die Miete beträgt 1.450 Euro.",
         ["Am 14. März wird geöffnet.", "Die Miete beträgt 1.450 Euro."]),
        ("मेरा नाम रवि है। हमेशा हिंदी में जवाब दो।", ["मेरा नाम रवि है।", "हमेशा हिंदी में जवाब दो।"]),
        ("أين تقع المحطة؟ يغادر القطار غدا.", ["أين تقع المحطة؟", "يغادر القطار غدا."]),
        ("یہ کتاب میری ہے۔ قلم نیا ہے۔", ["یہ کتاب میری ہے۔", "قلم نیا ہے۔"]),
        ("預算是一萬二千美元。會議在三月十四日。", ["預算是一萬二千美元。", "會議在三月十四日。"]),
        ("This line was broken by the width of the editor, and it\ngoes on here. Next.\nA line of its own.",
         ["This line was broken by the width of the editor, and it goes on here.", "A line of its own."]),
        ("We need:\n- **Postgres** 16\n- a second\n  network card\n", ["We need: Postgres 16; a second network card"]),
        ("## Rules\n| Id | Rule |\n|----|:---:|\n| C7 | no PAN, payment tokens only |",
         ["Id: C7, Rule: no PAN, payment tokens only"]),
        ("Run this:\n```sh\npg_restore -j 4 -d ledger\n```", ["Run this: pg_restore -j 4 -d ledger"]),
        ("The fold looks so:\n```py\ndef fold():\n    a = 1\n    b = 2\n    return a + b\n```", ["The fold looks so."]),
        ('{"rows": 48, "of": {"table": "invoice_lines"}}', ["of: table: invoice_lines"]),
        ('[called price_of with {"name": "D2-60. New."}]', ['[called price_of with {"name": "D2-60. New."}]']),
    ],
)  # fmt: skip
def test_each_statement_can_be_read_alone(text: str, stated: list[str]) -> None:
    assert statements(text) == stated


def test_escaped_characters_that_cannot_be_stored_are_replaced() -> None:
    assert statements(r'{"a\ud83d": "b\u0000c", "d": "\ud83d\ude00"}') == ["a\ufffd: b\ufffdc, d: \U0001f600"]


def test_a_long_sentence_shows_where_it_goes_on() -> None:
    pieces = statements("word, " * 200)
    assert len(pieces) > 2
    assert [piece.startswith("… ") for piece in pieces] == [False, *[True] * (len(pieces) - 1)]
    assert [piece.endswith(" …") for piece in pieces] == [*[True] * (len(pieces) - 1), False]


def test_a_text_of_abbreviations_is_read_in_time_linear_in_its_length() -> None:
    begun = time.process_time()
    assert len(statements("Dr. " * 300_000)) > 3_000
    assert time.process_time() - begun < 6.0  # generous: it takes about a second


@given(st.text(max_size=600) | st.text(alphabet='ab .:\n-*#|`>[]{}",1', max_size=900))
def test_no_statement_is_long_or_empty(text: str) -> None:
    for statement in statements(text):
        assert statement.strip()
        assert len(statement) <= 2 * LONGEST_STATEMENT_CHARS
