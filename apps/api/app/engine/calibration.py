"""The guard on our token estimate: what providers reported, over what we had estimated, lately.

One `Calibration` is kept for each alias and encoding. Its guard multiplies the wire estimate before that is charged to
the budget (contract, decision 2), and errs on the high side: an estimate that is too high costs a little of the window,
one that is too low costs the turn.

Why it is made as it is:

- **A quantile, not the mean.** Half of all prompts would be under-estimated by a mean. At the 0.9 quantile it is one in
  ten, and most of those within the reserve.
- **Recent ones weigh more** (0.85 a step, and 32 at most are kept): a provider that changes its tokenizer, or a session
  that turns from English to Chinese, is followed upwards within two turns and downwards within fifteen.
- **Never one alone.** The guard is at most the second largest ratio: a single report that is off, because a proxy
  added a prompt of its own or retried into one usage, moves nothing.
- **At least three observations**, then at least 1. Below 1 only with sixteen: what gives room away must be well known,
  while what takes it must be quick. The bounds are 0.5 and 3: beyond them it is not the tokenizer that is wrong.
- **No prompts under 50 tokens**: the provider's own template is most of what it reports there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

LOWEST_RATIO = 0.5
HIGHEST_RATIO = 3.0
LEAST_PROMPT_TOKENS = 50
_KEPT = 32
_DECAY = 0.85
_QUANTILE = 0.9
_FEWEST = 3
_FEWEST_BELOW_ONE = 16


@dataclass(frozen=True, slots=True)
class Calibration:
    """The last ratios of reported to estimated prompt tokens, oldest first, each within the bounds; JSON as a list."""

    ratios: tuple[float, ...] = ()


def observe(calibration: Calibration, *, estimated: int, actual: int) -> Calibration:
    """With one call's figures: our raw wire estimate, uncalibrated, and the provider's prompt tokens, cached included.

    The same calibration when the prompt was too small to tell, or nothing was reported.
    """
    if estimated < LEAST_PROMPT_TOKENS or actual <= 0:
        return calibration
    ratio = round(min(HIGHEST_RATIO, max(LOWEST_RATIO, actual / estimated)), 4)
    return Calibration((*calibration.ratios, ratio)[-_KEPT:])


def guard_ratio(calibration: Calibration) -> float:
    """What the wire estimate is to be multiplied with: 1.0 until enough is known, within 0.5 and 3."""
    ratios = calibration.ratios[-_KEPT:]
    if len(ratios) < _FEWEST:
        return 1.0
    guard = min(_recent_quantile(ratios), sorted(ratios)[-2])
    least = LOWEST_RATIO if len(ratios) >= _FEWEST_BELOW_ONE else 1.0
    return min(HIGHEST_RATIO, max(least, guard))


def _recent_quantile(ratios: tuple[float, ...]) -> float:
    """The smallest ratio that nine tenths of the weight are not above; the newest weighs most."""
    weighed = sorted((ratio, _DECAY ** (len(ratios) - 1 - at)) for at, ratio in enumerate(ratios))
    summed = list(accumulate(weight for _, weight in weighed))
    return next(ratio for (ratio, _), below in zip(weighed, summed, strict=True) if below >= _QUANTILE * summed[-1])
