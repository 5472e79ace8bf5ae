"""One Hypothesis profile for the engine: moderate by default, `PLIMSOLL_HYPOTHESIS_EXAMPLES` asks for more."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "engine",
    max_examples=int(os.environ.get("PLIMSOLL_HYPOTHESIS_EXAMPLES", "60")),
    deadline=None,  # the machines that run this are shared
    # A snapshot is a whole conversation: drawing one is most of an example's work.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
settings.load_profile("engine")
