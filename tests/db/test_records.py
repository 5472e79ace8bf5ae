"""Records of the domain hold all that their tables do: what one column more would leave out of answers and exports."""

from __future__ import annotations

from dataclasses import fields

import pytest
import sqlalchemy as sa

from app.db.tables import session_summaries, turn_context_audit
from app.domain.audit import Audit
from app.domain.stored import NewSummary


@pytest.mark.parametrize(
    ("record", "table"), [(Audit, turn_context_audit), (NewSummary, session_summaries)], ids=["audit", "summary"]
)
def test_a_record_has_the_columns_of_its_table(record: type, table: sa.Table) -> None:
    assert {each.name for each in fields(record)} == set(table.columns.keys())
