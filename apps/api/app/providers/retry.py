"""The only retry loop: the attempts of all adapters, within one deadline for the whole call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from app.domain.errors import ProviderError, ProviderTimeout

T = TypeVar("T")


class AttemptError(Exception):
    """One attempt failed, and another may succeed. `error` is raised if no attempt is left.

    `retry_after_s` is the delay that the provider requested, or None. `at_once` marks a refusal after which the adapter
    changed the request, so that no delay is needed.
    """

    def __init__(self, error: ProviderError, *, retry_after_s: float | None = None, at_once: bool = False) -> None:
        super().__init__(error.detail)
        self.error = error
        self.retry_after_s = retry_after_s
        self.at_once = at_once


def _jitter(ceiling_s: float) -> float:
    return random.uniform(0.0, ceiling_s)  # noqa: S311 - spreads retries, keeps no secret


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Full jitter, exponential: before attempt n+1 a wait of up to `min(cap_s, base_s * 2**(n-1))` seconds.

    A provider's Retry-After is waited for in full, but one above `longest_retry_after_s` ends the call at once.
    `jitter` draws from 0 to its argument, `sleep` waits; both are arguments so that a test can decide them.
    """

    max_attempts: int = 3
    base_s: float = 0.5
    cap_s: float = 8.0
    longest_retry_after_s: float = 20.0
    jitter: Callable[[float], float] = _jitter
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def wait_s(self, failure: AttemptError, attempt: int) -> float | None:
        """Seconds to wait after failed attempt number `attempt` (from 1), or None when it was the last."""
        if attempt >= self.max_attempts:
            return None
        if failure.at_once:
            return 0.0
        backoff_s = self.jitter(min(self.cap_s, self.base_s * 2 ** (attempt - 1)))
        if failure.retry_after_s is None:
            return backoff_s
        if failure.retry_after_s > self.longest_retry_after_s:
            return None
        return max(failure.retry_after_s, backoff_s)


async def call_with_retries(
    attempt: Callable[[int], Awaitable[T]], *, timeout_s: float, policy: RetryPolicy, label: str
) -> T:
    """Runs `attempt(number)` until it answers, at most `policy.max_attempts` times, within `timeout_s` seconds in all.

    An attempt that raises `AttemptError` may be tried again, any other error ends the call. A delay that would exceed
    the deadline is not started. Raises the last `ProviderError` with `attempts` set, or `ProviderTimeout`.
    """
    number = 0
    deadline = asyncio.get_running_loop().time() + timeout_s
    scope = asyncio.timeout_at(deadline)
    try:
        async with scope:
            while True:
                number += 1
                try:
                    return await attempt(number)
                except AttemptError as failure:
                    wait_s = policy.wait_s(failure, number)
                    if wait_s is None or asyncio.get_running_loop().time() + wait_s >= deadline:
                        raise failure.error from None
                if wait_s > 0:
                    await policy.sleep(wait_s)
    except ProviderError as error:
        error.attempts = number
        raise
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise ProviderTimeout(
            f"The model {label!r} did not answer within {timeout_s:g} s, the deadline of the whole call.",
            attempts=number,
        ) from error


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """Seconds from a Retry-After header (RFC 9110: seconds, or an HTTP date), never negative; None when unreadable."""
    if value is None:
        return None
    value = value.strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            instant = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=UTC)
        seconds = (instant - now).total_seconds()
    # NaN compares false with everything and would otherwise end up as a wait.
    return max(0.0, seconds) if seconds == seconds else None  # noqa: PLR0124
