"""The retry loop's arithmetic, without a network."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import ProviderDown
from app.providers.transport import AttemptError, RetryPolicy, retry_after_s

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FAILED = AttemptError(ProviderDown("down"))


@given(attempt=st.integers(1, 60), cap_s=st.floats(0.5, 60))
def test_a_wait_is_drawn_below_the_exponential_and_never_above_the_cap(attempt: int, cap_s: float) -> None:
    policy = RetryPolicy(max_attempts=100, cap_s=cap_s)
    wait_s = policy.wait_s(FAILED, attempt)
    assert wait_s is not None
    assert 0 <= wait_s <= min(cap_s, 0.5 * 2 ** (attempt - 1))


def test_waits_differ_from_call_to_call() -> None:
    assert len({RetryPolicy().wait_s(FAILED, 2) for _ in range(20)}) > 10


def test_the_third_attempt_is_the_last() -> None:
    policy = RetryPolicy(jitter=lambda ceiling_s: ceiling_s)
    assert [policy.wait_s(FAILED, attempt) for attempt in (1, 2, 3)] == [0.5, 1.0, None]


def test_retry_after_is_never_undercut_and_above_its_bound_ends_the_call() -> None:
    policy = RetryPolicy(jitter=lambda ceiling_s: ceiling_s)
    waits = [
        policy.wait_s(AttemptError(ProviderDown("down", retry_after_s=requested_s)), 1)
        for requested_s in (0.0, 20.0, 20.1)
    ]
    assert waits == [0.5, 20.0, None]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        (" 1.5 ", 1.5),
        ("45.8s", 45.8),
        ("250ms", 0.25),
        ("5m", None),
        ("6m0s", None),
        ("-4", 0.0),
        ("nan", None),
        ("inf", float("inf")),
        ("soon", None),
        ("", None),
        ("Fri, 02 Jan 2026 03:04:10 GMT", 5.0),
        ("Fri, 02 Jan 2026 03:00:00 GMT", 0.0),
        ("Fri, 99 Jan 2026 03:00:00 GMT", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, NOW) == seconds
