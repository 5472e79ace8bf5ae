"""Hypothesis strategies: snapshots of legal histories, policies, and what a summarizer may be given or answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias, cast

from hypothesis import strategies as st

from app.domain.types import (
    ContentPart,
    MessageId,
    Pin,
    Summary,
    SummaryBody,
    SummaryItem,
    ToolDefinition,
    Turn,
    TurnStatus,
)
from app.engine.messages.turns import sendable_units
from app.engine.policy.budget import budget_for
from app.engine.policy.policy import PRESETS, Allocation, ClearToolResults, ContextPolicy, PriorityRegion
from app.engine.window.past import past_of
from app.engine.window.prompt import goal_text
from app.engine.window.snapshot import Snapshot
from tests.engine.histories import GUARDED, History, UnitShape, budget_of, input_tokens_before, said_by, text_of
from tests.engine.pictures import audio, file, image, image_at, png, wav

Unit: TypeAlias = tuple[UnitShape, int, int]

# Squares: mostly short texts, now and then one that is long enough to be shortened.
sizes = st.integers(0, 36).map(lambda root: root * root)
small_sizes = st.integers(1, 120)
any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=200)


@st.composite
def guarded_policies(draw: st.DrawFn, *, summarizes: bool = False) -> ContextPolicy:
    """Policies that prune message by message and count every turn the same; with `summarizes` they make summaries."""
    trigger = draw(st.sampled_from((0.7, 0.1, 0.4, 0.9, 1.0)))
    return ContextPolicy(
        summary_trigger_ratio=trigger,
        prune_trigger_ratio=max(trigger, draw(st.sampled_from((0.9, 0.5, 1.0)))),
        mandatory_summary_turn=draw(st.sampled_from((8, 1, 3))),
        protected_turns=draw(st.sampled_from((4, 0, 1, 2, 6))),
        prune_protected=draw(st.sampled_from((True, True, False))),
        prune_block_share=draw(st.sampled_from((0.1, 0.0))),
        auto_summarize=summarizes or draw(st.sampled_from((True, True, False))),
        summary_max_ratio=draw(st.sampled_from((0.15, 0.05, 0.4))),
        summary_role=draw(st.sampled_from(("system", "user"))),
    )


allocations = st.sampled_from(
    (
        Allocation(),
        Allocation(5, 20, 10, 5),
        Allocation(0, 0, 0, 50),
        Allocation(40, 10, 0, 20),
        Allocation(1, 2, 90, 7),
    )
)
_orders: st.SearchStrategy[tuple[PriorityRegion, ...]] = st.permutations(("pins", "summary", "history")).map(
    lambda rest: ("goal", *rest)
)
_fields: dict[str, st.SearchStrategy[object]] = {
    "summary_trigger_ratio": st.sampled_from((None, 0.1, 0.4, 0.7, 1.0)),
    "prune_trigger_ratio": st.sampled_from((0.5, 0.9, 1.0)),
    "mandatory_summary_turn": st.sampled_from((None, 1, 3, 8)),
    "usage_threshold": st.sampled_from((None, 0.3, 0.8)),
    "max_messages": st.sampled_from((None, 2, 20)),
    "protected_turns": st.sampled_from((None, 0, 1, 4)),
    "protected_share": st.sampled_from((None, 0.1, 0.5)),
    "prune_protected": st.booleans(),
    "prune_unit": st.sampled_from(("message", "turn")),
    "prune_order": st.sampled_from(("oldest", "value")),
    "prune_block_share": st.sampled_from((0.0, 0.2, 0.4)),
    "summarize_when": st.sampled_from(("preflight", "post_turn", "both", "never")),
    "auto_summarize": st.booleans(),
    "incremental": st.booleans(),
    "summary_max_ratio": st.sampled_from((0.05, 0.15, 0.4)),
    "summary_role": st.sampled_from(("system", "user")),
    "allocation": st.one_of(st.none(), allocations),
    "context_priority": _orders,
    "clear_tool_results": st.sampled_from((None, ClearToolResults(trigger_tokens=1, keep=1, clear_inputs=True))),
    "emergency_drop_ratio": st.sampled_from((None, 0.5)),
    "show_time": st.booleans(),
}


@st.composite
def policies(
    draw: st.DrawFn, *, summarizes: bool = False, presets: tuple[str, ...] = tuple(PRESETS), **always: object
) -> ContextPolicy:
    """Any policy that `resolve_policy` would let pass: a preset with some of its fields changed.

    With `summarizes` one that makes summaries; `always` are fields that are not drawn.
    """
    names = draw(st.lists(st.sampled_from(sorted(_fields)), max_size=4, unique=True))
    changes = {name: draw(_fields[name]) for name in names} | always
    policy = replace(PRESETS[draw(st.sampled_from(presets))].policy, **cast("dict[str, Any]", changes))
    if summarizes and not policy.summarizes:
        policy = replace(policy, auto_summarize=True, summarize_when="preflight")
    if policy.protected_turns is None and policy.protected_share is None:
        policy = replace(policy, protected_share=0.5)
    least_prune = max(policy.prune_trigger_ratio, policy.summary_trigger_ratio or 0)
    return replace(policy, prune_trigger_ratio=least_prune)


_groups: st.SearchStrategy[list[Unit]] = st.lists(
    st.tuples(st.just(cast(UnitShape, "tool_group")), sizes, st.integers(1, 3)), max_size=2
)
_broken_off: dict[TurnStatus, tuple[tuple[Unit, ...], ...]] = {
    TurnStatus.FAILED: ((), (("incomplete_group", 700, 2),), (("assistant", 60, 1),)),
    TurnStatus.CANCELLED: ((), (("incomplete_group", 40, 1),), (("assistant", 60, 1),)),
    TurnStatus.REJECTED: ((),),
}
_Ending: TypeAlias = tuple[TurnStatus, tuple[Unit, ...], bool]
_endings: tuple[_Ending, ...] = (
    # A completed turn is unresolved all the same when one of its steps did not succeed.
    *(
        (TurnStatus.COMPLETED, (("assistant", tokens, 1),), unresolved)
        for unresolved in (False, False, True)
        for tokens in (12, 60, 500)
    ),
    *((status, units, True) for status, endings in _broken_off.items() for units in endings),
)
# Mostly none; a picture whose size is known, one that is not, and a message with all there is.
_media: st.SearchStrategy[tuple[ContentPart, ...]] = st.sampled_from(
    ((), (), (), (), (image(png(1024, 768)),), (image_at("https://example.org/a.png"),), (audio(wav(1)), file("a.pdf")))
)
_call_sizes = st.sampled_from((0, 0, 0, 400))
"""Mostly none; a text that is long enough to be shortened."""
_TurnShape: TypeAlias = tuple[_Ending, list[Unit], int, tuple[ContentPart, ...], tuple[ContentPart, ...], int]
_turn_shapes: st.SearchStrategy[_TurnShape] = st.tuples(
    st.sampled_from(_endings), _groups, sizes, _media, _media, _call_sizes
)


def _past_turn(history: History, shape: _TurnShape) -> Turn:
    """A settled turn: completed with an answer, or broken off anywhere."""
    (status, ending, unresolved), groups, user_tokens, media, result_media, call_tokens = shape
    return history.turn(
        *groups,
        *ending,
        user_tokens=user_tokens,
        status=status,
        unresolved=unresolved,
        parts=user_tokens == 1,
        media=media,
        result_media=result_media,
        call_tokens=call_tokens,
    )


@st.composite
def running_turns(draw: st.DrawFn, history: History) -> Turn:
    """The running turn: the user's words and the tool rounds so far."""
    groups, user_tokens, media, result_media, call_tokens = draw(st.tuples(_groups, sizes, _media, _media, _call_sizes))
    return history.turn(
        *groups,
        user_tokens=user_tokens,
        status=TurnStatus.RUNNING,
        media=media,
        result_media=result_media,
        call_tokens=call_tokens,
    )


@st.composite
def summaries(draw: st.DrawFn, history: History, turns: tuple[Turn, ...]) -> Summary:
    """A summary whose items cite messages before the window, and some in it."""
    in_window = [message.id for turn in turns for unit in sendable_units(turn) for message in unit.messages]
    before = [MessageId(history.new_id()) for _ in range(3)]
    ids = st.lists(st.sampled_from((*before, *in_window)), min_size=1, max_size=2, unique=True).map(tuple)
    items = st.lists(st.builds(SummaryItem, st.integers(1, 40).map(text_of), ids), max_size=2).map(tuple)
    body = draw(
        st.builds(
            SummaryBody,
            st.integers(1, 200).map(text_of),
            key_facts=items,
            open_questions=items,
            decisions=items,
            action_items=items,
        )
    )
    return history.summary(body)


_tools: tuple[ToolDefinition, ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": f"tool_{at}",
            "description": text_of(size, at),
            "parameters": {"type": "object", "properties": {"id": {"type": "number", "maximum": 1.5}}},
        },
    }
    for at, size in enumerate((20, 200, 1500))
)


_guarded = st.just(GUARDED)
_pins = st.tuples(st.one_of(small_sizes, sizes), st.sampled_from((None, None, 0.0, 0.5, 1.0)))


@st.composite
def snapshots(draw: st.DrawFn, policy: st.SearchStrategy[ContextPolicy] = _guarded, *, long: bool = False) -> Snapshot:
    """A legal snapshot; its budget is any window's, or one that the history just fits or just exceeds.

    With `long` it has turns enough, in a window tight enough, that a summary is mostly due.
    """
    history = History()
    turns = tuple(
        _past_turn(history, shape) for shape in draw(st.lists(_turn_shapes, min_size=7 if long else 0, max_size=12))
    )
    names = st.sampled_from((None, None, "Anna", "Ben"))
    turns = tuple(said_by(draw(names), turn) for turn in turns)
    current = said_by(draw(names), draw(running_turns(history)))
    summary = draw(st.one_of(st.none(), summaries(history, turns)))
    layers = tuple(
        (f"system:{at}", text_of(size, at)) for at, size in enumerate(draw(st.lists(small_sizes, max_size=4)))
    )
    pins = tuple(
        Pin(f"pin-{at}", text_of(size, at), relevance, source="a file" if size % 2 else None)
        for at, (size, relevance) in enumerate(draw(st.lists(_pins, max_size=4)))
    )
    snapshot = Snapshot(
        policy=draw(policy),
        budget=budget_of(0),
        layers=layers,
        goal=draw(st.sampled_from((None, goal_text("Empty the depot by May.", "research")))),
        pins=pins,
        summary=summary,
        past=past_of(turns),
        current=current,
        tools=draw(st.sampled_from(((), _tools[:1], _tools))),
        completed_since_summary=draw(st.integers(0, sum(turn.status is TurnStatus.COMPLETED for turn in turns))),
        calibration_ratio=draw(st.one_of(st.just(1.0), st.floats(0.5, 3.0))),
    )
    counted = input_tokens_before(snapshot)
    share = draw(st.floats(0.7, 1.2) if long else st.one_of(st.none(), st.floats(0.05, 1.6)))
    if share is None:
        limit = draw(st.one_of(st.integers(1, 1400), st.integers(1281, 8192), st.integers(4096, 200_000)))
        budget = budget_for(limit, "test", draw(st.sampled_from((2048, 256))))
    else:
        budget = budget_of(int(counted * share))
    return replace(snapshot, budget=budget)


def bodies(texts: st.SearchStrategy[str] = any_text) -> st.SearchStrategy[SummaryBody]:
    """Summary bodies of any text."""
    items = st.lists(st.builds(SummaryItem, texts, st.just((MessageId(History().new_id()),))), max_size=5).map(tuple)
    return st.builds(SummaryBody, texts, key_facts=items, open_questions=items, decisions=items, action_items=items)
