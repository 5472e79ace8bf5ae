"""How far our token estimate is from what a provider counts, learned by tenant, alias and encoding.

The ratio multiplies the wire estimate before that counts against the budget (contract.md, decision 2). It errs on the
high side: an estimate that is too high costs a little of the window, one that is too low costs the turn.

- **Weighed by tokens.** The mean is all tokens reported over all tokens estimated. Half the weight is gone after 32,768
  tokens, so a provider that changes its tokenizer is followed within a few large prompts.
- **Small prompts say nothing.** Under 256 tokens the provider's own template is most of what it reports.
- **Nor does a report of less than half our estimate.** No tokenizer is that much better: such servers leave out
  cached tokens, or count only the last message.
- **One turn moves little**: its ratio counts up to 3, and the mean moves by a tenth at most, by less where the
  prompt is smaller than 2,048 tokens.
- **The spread is added**, up to a twentieth: a mean alone would under-estimate every second prompt.
- **Below 1 only when it is well known**, after 16,384 tokens: what gives room away must be sure, what takes it quick.

A tenant's ratio is its own. What it starts from before it has sent much, `shared_ratio`, is what the tenants of an
alias agree on. Each of them moves that by at most 1 % in either direction, whatever it sends, so no tenant can change
what another's prompts count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import median

LOWEST_RATIO = 0.5
HIGHEST_RATIO = 3.0
LEAST_PROMPT_TOKENS = 256
SUPPORTED_TOKENS = 16_384
"""Observed of a tenant before its ratio may fall below 1, and before it has a say in the shared one."""
_HALF_LIFE_TOKENS = 32_768
_PRIOR_TOKENS = 2048
"""What the starting ratio weighs; it fades as everything older does."""
_FULL_STEP = 0.1
_FULL_STEP_TOKENS = 2048
_SPREAD_QUANTILE = 1.28
"""Standard deviations to the 0.9 quantile of a normal distribution."""
_MOST_SPREAD = 0.05
_SAY = 0.0099
"""The weight of one tenant in the shared ratio, as a logarithm: twice it is just under 2 %."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Decayed sums over a tenant's calls: tokens we estimated, tokens the provider counted, and the squares of how far
    each call's ratio was from the mean before it, times its tokens. `observed_tokens` is estimated and does not decay.
    """

    estimated_tokens: float = 0.0
    actual_tokens: float = 0.0
    squared_errors: float = 0.0
    observed_tokens: int = 0


def observe(calibration: Calibration, *, estimated: int, actual: int) -> Calibration:
    """With one call's figures: our raw wire estimate, uncalibrated, and the provider's prompt tokens, cached included.

    The same calibration when the prompt was too small to tell, or no count of the whole prompt was reported.
    """
    if estimated < LEAST_PROMPT_TOKENS or actual < LOWEST_RATIO * estimated:
        return calibration
    before = _mean(calibration, 1.0)
    ratio = _bounded(actual / estimated)
    kept = 0.5 ** (estimated / _HALF_LIFE_TOKENS)
    after = Calibration(
        calibration.estimated_tokens * kept + estimated,
        calibration.actual_tokens * kept + estimated * ratio,
        calibration.squared_errors * kept + estimated * (ratio - before) ** 2,
        calibration.observed_tokens + estimated,
    )
    step = 1 + _FULL_STEP * min(1.0, estimated / _FULL_STEP_TOKENS)
    return _with_mean(after, min(before * step, max(before / step, _mean(after, 1.0))))


def guard_ratio(calibration: Calibration, shared: float = 1.0) -> float:
    """What the wire estimate is to be multiplied with, within 0.5 and 3; `shared` until the tenant has sent enough."""
    mean = _mean(calibration, shared)
    if calibration.estimated_tokens > 0:
        deviation = sqrt(calibration.squared_errors / calibration.estimated_tokens)
        mean *= 1 + min(_MOST_SPREAD, _SPREAD_QUANTILE * deviation / mean)
    least = LOWEST_RATIO if calibration.observed_tokens >= SUPPORTED_TOKENS else min(1.0, shared)
    return _bounded(max(least, mean))


def shared_ratio(calibrations: Iterable[Calibration]) -> float:
    """What tenants agree on: the ratio whose logarithm x minimizes x²/2 plus 0.0099 times the sum of its distances to
    the logarithms of theirs.

    So it is 1 without any, and a tenant that joins, leaves or changes moves it by less than 2 %. Twenty-seven tenants
    at 1.3 make it 1.3; three make it 1.03. A tenant with less than `SUPPORTED_TOKENS` has no say.
    """
    logs = [log(_mean(each, 1.0)) for each in calibrations if each.observed_tokens >= SUPPORTED_TOKENS]
    # The minimum is the median of these logarithms and of what x would be with k tenants below it and the rest above.
    count = len(logs)
    return _bounded(exp(median([*logs, *(_SAY * (count - 2 * below) for below in range(count + 1))])))


def _mean(calibration: Calibration, start: float) -> float:
    weight = _prior_weight(calibration)
    total = calibration.estimated_tokens + weight
    return (calibration.actual_tokens + weight * start) / total if total > 0 else start


def _with_mean(calibration: Calibration, mean: float) -> Calibration:
    """The same, with what was counted set so that the mean over a start at 1 is `mean`."""
    weight = _prior_weight(calibration)
    actual = mean * (calibration.estimated_tokens + weight) - weight
    return replace(calibration, actual_tokens=actual)


def _prior_weight(calibration: Calibration) -> float:
    return _PRIOR_TOKENS * 0.5 ** (calibration.observed_tokens / _HALF_LIFE_TOKENS)


def _bounded(ratio: float) -> float:
    return min(HIGHEST_RATIO, max(LOWEST_RATIO, ratio))
