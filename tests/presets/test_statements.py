"""Every statement about every preset, on the same recorded conversations.

The provider's refusal has its own tests (tests/services/test_turn_atomic.py,
tests/engine/window/test_overflow_reaction.py): the offline model refuses nothing.
"""

from __future__ import annotations

import pytest

from app.engine.policy.policy import PRESETS
from tests.presets.conftest import Recorded
from tests.presets.statements import STATEMENTS, Statement

CASES = [
    pytest.param(preset, scene, statement, id=f"{preset} {statement.says} ({scene})")
    for preset, statements in STATEMENTS.items()
    for scene in ("shipped", "tools", "pins", "raw")
    for statement in statements
    if scene in statement.scenes
]


@pytest.mark.parametrize(("preset", "scene", "statement"), CASES)
def test_on_a_recorded_conversation_the_preset(
    recorded: Recorded, preset: str, scene: str, statement: Statement
) -> None:
    statement.check(recorded(preset, scene))


def test_every_preset_has_statements_of_its_own() -> None:
    assert STATEMENTS.keys() == PRESETS.keys()
