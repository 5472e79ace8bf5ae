"""The table of clients is read back as it was written, and a row that is worse is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conformance.__main__ import PAGE
from conformance.cases import CASES
from conformance.table import Measure, Row, read_rows, regressions, written

FULL = Row("A client", "1.2.3", 12, 12, True, "BadRequestError 400", 1, 0)
PLAIN = Row("Another, without tools", "4", 12, None, None, None, 14, 2)
EMPTY = "# Clients\n\n<!-- made by `make clients` -->\n\n<!-- end -->\n\nMore.\n"


def test_a_page_holds_the_rows_that_were_written() -> None:
    page = written(EMPTY, [FULL, PLAIN], [Measure(FULL.client, (87, 87), (2000, 1990))])
    assert read_rows(page) == [FULL, PLAIN]
    assert read_rows(written(page, [PLAIN], [])) == [PLAIN]
    assert "87 model calls without the header and 87 with it" in page
    assert page.endswith("More.\n")


@pytest.mark.parametrize(
    "change",
    [{"turns": 11}, {"called": 3}, {"streamed": False}, {"error": None}, {"sessions": 2}, {"left_open": 1}],
    ids=lambda change: next(iter(change)),
)
def test_a_row_that_does_less_is_worse(change: dict[str, Any]) -> None:
    assert len(regressions([FULL, PLAIN], [replace(FULL, **change), PLAIN])) == 1


def test_a_row_that_is_gone_is_worse_and_a_newer_version_is_not() -> None:
    assert regressions([FULL], [PLAIN]) == ["A client is no longer in the table"]
    assert regressions([FULL], [replace(FULL, version="2.0.0", error="APIError 400")]) == []


def test_the_page_has_a_row_for_every_client() -> None:
    assert [row.client for row in read_rows(PAGE.read_text(encoding="utf-8"))] == [case.name for case in CASES]
