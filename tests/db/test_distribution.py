"""The tables could be distributed by session: every key below `sessions` is led by `session_id`."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from app.db.tables import metadata

_OF_NO_SESSION = {"sessions", "api_keys", "calibrations", "learned_windows", "limits", "tenant_usage"}
_BELOW = [table for table in metadata.sorted_tables if "session_id" in table.columns]


def test_a_table_without_a_session_is_one_that_belongs_to_none() -> None:
    without = {table.name for table in metadata.sorted_tables} - {table.name for table in _BELOW}
    assert without <= _OF_NO_SESSION


@pytest.mark.parametrize("table", _BELOW, ids=lambda table: table.name)
def test_every_key_of_a_table_below_sessions_is_led_by_the_session(table: sa.Table) -> None:
    keys = [
        [column.name for column in constraint.columns]
        for constraint in table.constraints
        if isinstance(constraint, (sa.PrimaryKeyConstraint, sa.UniqueConstraint, sa.ForeignKeyConstraint))
    ]
    keys += [[column.name for column in index.columns] for index in table.indexes if index.unique]
    assert len(keys) >= 2
    assert all(columns[0] == "session_id" for columns in keys), keys
    for constraint in table.foreign_key_constraints:
        assert constraint.elements[0].column.name == (
            "id" if constraint.referred_table.name == "sessions" else "session_id"
        )
