"""The closed sets of words: each of their members belongs to one of their parts."""

from __future__ import annotations

from typing import get_args

from app.api.schemas.archive import TurnRow
from app.domain.types import ANSWERED_STATUSES, FAILED_STATUSES, OPEN_STATUSES, TurnStatus


def test_a_turn_runs_or_has_a_reply_or_failed_or_was_rejected() -> None:
    parts = [TurnStatus.RUNNING, *ANSWERED_STATUSES, *FAILED_STATUSES, TurnStatus.REJECTED]
    assert sorted(parts) == sorted(TurnStatus)


def test_an_export_has_every_status_of_a_turn_that_has_ended() -> None:
    assert set(get_args(TurnRow.model_fields["status"].annotation)) == set(TurnStatus) - set(OPEN_STATUSES)
