"""How far our token estimate is from what a provider counts, learned by tenant, alias and encoding.

The wire estimate is multiplied by the ratio before it counts against the budget (contract.md, decision 2). The ratio
errs on the high side: too high an estimate wastes a little of the window, too low an estimate makes the turn fail.

- **Weighted by tokens.** The mean is all tokens reported over all tokens estimated. A report has half its weight after
  32,768 further tokens, so a change of the provider's tokenizer is followed within a few large prompts.
- **Small prompts are ignored** (`LEAST_COUNTED_TOKENS`).
- **Reports of less than half our estimate are ignored.** No tokenizer is that much better: such servers leave out
  cached tokens, or count only the last message.
- **One call has little effect.** Its ratio is capped at 3, and it changes the mean by at most a tenth, and by less if
  the prompt is smaller than 2,048 tokens.
- **The spread is added**, up to a twentieth. The mean alone would underestimate every second prompt.
- **Below 1 only after 16,384 tokens.** Allowing larger prompts requires certainty, requiring smaller ones does not.

Each tenant has its own ratio. It starts from `shared_ratio`, which is computed from all tenants of an alias. Each of
them moves that by at most 1 % in either direction, whatever it sends, so a tenant hardly changes another's estimates.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log, sqrt
from statistics import median

from app.domain.audit import LEAST_COUNTED_TOKENS
from app.domain.frozen import frozen

LOWEST_RATIO = 0.5
HIGHEST_RATIO = 3.0
SUPPORTED_TOKENS = 16_384
"""Estimated tokens of a tenant from which its ratio may fall below 1 and counts in the shared ratio."""
_HALF_LIFE_TOKENS = 32_768
_PRIOR_TOKENS = 2048
"""Weight of the starting ratio. It decays like that of old reports."""
_FULL_STEP = 0.1
_FULL_STEP_TOKENS = 2048
_SPREAD_QUANTILE = 1.28
"""The 0.9 quantile of a normal distribution, in standard deviations from the mean."""
_MOST_SPREAD = 0.05
_SAY = 0.0099
"""Most that one tenant moves the logarithm of the shared ratio in either direction. Twice it is just under 2 %."""


@frozen
class Calibration:
    """Decayed sums over a tenant's calls: tokens we estimated, tokens the provider counted and, weighted by tokens, the
    squared difference of each call's ratio from the mean before it. `observed_tokens` is estimated and does not decay.
    """

    estimated_tokens: float = 0.0
    actual_tokens: float = 0.0
    squared_errors: float = 0.0
    observed_tokens: int = 0


def observe(calibration: Calibration, *, estimated: int, actual: int) -> Calibration:
    """The calibration after one more call: `estimated` is our wire estimate without calibration, `actual` the prompt
    tokens of the provider, cached ones included. The call is ignored if its prompt was too small, or if `actual` is too
    low to be a count of the whole prompt."""
    if estimated < LEAST_COUNTED_TOKENS or actual < LOWEST_RATIO * estimated:
        return calibration
    before = _mean(calibration, 1.0)
    ratio = _bounded(actual / estimated)
    kept = 0.5 ** (estimated / _HALF_LIFE_TOKENS)
    tokens, observed_tokens = calibration.estimated_tokens * kept + estimated, calibration.observed_tokens + estimated
    weight = _prior_weight(observed_tokens)
    mean = (calibration.actual_tokens * kept + estimated * ratio + weight) / (tokens + weight)
    step = 1 + _FULL_STEP * min(1.0, estimated / _FULL_STEP_TOKENS)
    after = min(before * step, max(before / step, mean))
    return Calibration(
        estimated_tokens=tokens,
        actual_tokens=after * (tokens + weight) - weight,  # so that the mean is `after`
        squared_errors=calibration.squared_errors * kept + estimated * (ratio - before) ** 2,
        observed_tokens=observed_tokens,
    )


def guard_ratio(calibration: Calibration, shared: float = 1.0) -> float:
    """The factor for the wire estimate, 0.5 to 3. It starts at `shared`, which counts less as the tenant sends more."""
    mean = _mean(calibration, shared)
    if calibration.estimated_tokens > 0:
        deviation = sqrt(calibration.squared_errors / calibration.estimated_tokens)
        mean *= 1 + min(_MOST_SPREAD, _SPREAD_QUANTILE * deviation / mean)
    least = LOWEST_RATIO if calibration.observed_tokens >= SUPPORTED_TOKENS else min(1.0, shared)
    return _bounded(max(least, mean))


def shared_ratio(calibrations: Iterable[Calibration]) -> float:
    """The ratio shared by tenants: its logarithm x minimizes x²/2 plus 0.0099 times the sum of the distances of x to
    the logarithms of the tenants' ratios.

    So it is 1 without tenants, and a tenant that joins, leaves or changes moves it by less than 2 %. Twenty-seven
    tenants at 1.3 make it 1.3; three make it 1.03. Tenants with less than `SUPPORTED_TOKENS` are not counted.
    """
    logs = [log(_mean(each, 1.0)) for each in calibrations if each.observed_tokens >= SUPPORTED_TOKENS]
    # The minimum is the median of these logarithms and of what x would be with k tenants below it and the rest above.
    count = len(logs)
    return _bounded(exp(median([*logs, *(_SAY * (count - 2 * below) for below in range(count + 1))])))


def _mean(calibration: Calibration, start: float) -> float:
    weight = _prior_weight(calibration.observed_tokens)
    total = calibration.estimated_tokens + weight
    return (calibration.actual_tokens + weight * start) / total if total > 0 else start


def _prior_weight(observed_tokens: int) -> float:
    return _PRIOR_TOKENS * 0.5 ** (observed_tokens / _HALF_LIFE_TOKENS)


def _bounded(ratio: float) -> float:
    return min(HIGHEST_RATIO, max(LOWEST_RATIO, ratio))
