"""The published designs, each a value of `ContextPolicy` (contract.md, sections 9 and 10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.domain.frozen import frozen
from app.engine.policy.policy import Allocation, ContextPolicy, Recall


@frozen
class Preset:
    """A published design. `policy` has its values, but the output cap is the deployment's."""

    description: str
    policy: ContextPolicy


_PUBLISHED = ContextPolicy(
    summary_trigger_ratio=None,
    mandatory_summary_turn=None,
    protected_share=None,
    summarize_ahead=False,
    recall=Recall(enabled=False),
    look_back="off",
)
"""Values common to the published designs. They have no recall and no look-back; a session can switch these on."""

_GUARDED = Preset(
    "Before the call: a summary at 70 % of the input budget or after 8 turns, then a prune at 90 %, then a refusal.",
    ContextPolicy(),
)
_POST_TURN = Preset(
    "After the answer, in the background: a summary at 80 % of the window by a separate model; the last 5 turns are "
    "not summarized.",
    replace(_PUBLISHED, preset="post_turn", usage_threshold=0.80, protected_turns=5, summarize_when="post_turn"),
)
_ROLLING = Preset(
    "Before the call, at 80 % of the window: older messages are added to the summary, and as many recent turns as fit "
    "are sent as they are.",
    replace(
        _PUBLISHED,
        preset="rolling",
        usage_threshold=0.80,
        protected_turns=None,
        protected_share=0.50,
        incremental=True,
    ),
)
_ALLOCATED = Preset(
    "Shares of the window for goal, pins, summary and output. A prompt that fits is not trimmed. Over the limit "
    "the lowest priority is trimmed first, down to its share, and content is shortened before it is dropped.",
    replace(_PUBLISHED, preset="allocated", prune_unit="turn", allocation=Allocation()),
)
_TURN_ATOMIC = Preset(
    "Whole turns only: summarized in the background and before the call; the oldest half is dropped when the provider "
    "rejects a prompt as too long.",
    replace(
        _PUBLISHED,
        preset="turn_atomic",
        usage_threshold=0.75,
        max_messages=20,
        prune_unit="turn",
        summarize_when="both",
        emergency_drop_ratio=0.5,
        unknown_window_outputs=4,
    ),
)
PRESETS: Mapping[str, Preset] = {
    preset.policy.preset: preset for preset in (_GUARDED, _POST_TURN, _ROLLING, _ALLOCATED, _TURN_ATOMIC)
}


def preset_policy(name: str, guarded: ContextPolicy) -> ContextPolicy:
    """The preset's values. `guarded` is the deployment's own policy, from which other presets take only the output cap.

    Raises `KeyError` for an unknown name.
    """
    if name == "guarded":
        return guarded
    return replace(PRESETS[name].policy, max_output_tokens=guarded.max_output_tokens)
