"""A past that is kept as columns is the past that was read: decided, sent, hashed and stored of it is the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.domain.types import ReasoningRule, Summary, SummaryBody, SummaryId, Turn, TurnStatus
from app.engine.messages.turns import with_reasoning
from app.engine.policy.policy import ContextPolicy
from app.engine.summary.fold import Fold
from app.engine.summary.summarizer_prompt import summary_of
from app.engine.window.columns import Columns
from app.engine.window.layout import layout_of
from app.engine.window.past import Past, past_of, past_of_columns
from app.engine.window.plan import Decision, Ready, Refused, SummaryDue, assemble, plan, with_summary
from app.engine.window.prompt import OPENING
from app.engine.window.snapshot import Snapshot, in_ranges
from app.engine.window.triggers import fold_after_turn
from tests.engine.histories import History, chat, estimate, snapshot_of
from tests.engine.prompt_hash import prompt_sha256
from tests.engine.readings import sent_turns
from tests.engine.strategies import policies, snapshots

_NO_SUMMARY = ContextPolicy(auto_summarize=False)
_rules = st.sampled_from((None, ReasoningRule("text", "tool_turns"), ReasoningRule("blocks", "tool_turns")))


def _settled(snapshot: Snapshot, kept_turns: int, rule: ReasoningRule | None) -> tuple[list[Turn], list[Turn]]:
    """The first turns as they may be kept, all of them settled, and those after them, as a model wants them back."""
    turns = [with_reasoning(turn, rule) for turn in sent_turns(snapshot.past.turns)]
    cut = min(kept_turns, max(0, len(turns) - 1))
    return [replace(turn, unresolved=False) for turn in turns[:cut]], turns[cut:]


def _pasts(snapshot: Snapshot, kept_turns: int, before: int, rule: ReasoningRule | None) -> tuple[Past, Past]:
    """The past as it was read, and with its first turns kept, in columns that begin some turns before."""
    settled, newest = _settled(snapshot, kept_turns, rule)
    before = min(before, len(settled))
    columns = Columns(0)
    columns.extend(settled[: len(settled) // 2])
    columns.extend(settled)  # those that are there already are not added
    read = past_of([*settled[before:], *newest])
    return read, past_of_columns(columns, before, len(settled)).extended(newest)


@given(snapshots(policies()), st.integers(0, 12), st.integers(0, 3), _rules)
def test_a_cached_past_gives_the_same_decision_and_prompt_as_one_read_from_the_database(
    snapshot: Snapshot, kept_turns: int, before: int, rule: ReasoningRule | None
) -> None:
    read, kept = _pasts(snapshot, kept_turns, before, rule)
    one, other = replace(snapshot, past=read), replace(snapshot, past=kept)
    decided, again = plan(one, estimate), plan(other, estimate)
    _same(decided, again)
    if isinstance(decided, SummaryDue) and isinstance(again, SummaryDue):
        summary = _summary(decided.fold)
        after = (with_summary(due.snapshot, due.fold, summary, estimate) for due in (decided, again))
        for pair in (after, (one, other)):
            _same(*(plan(each, estimate, may_summarize=False) for each in pair))


@given(snapshots(policies(summarizes=True)), st.integers(0, 12), st.integers(0, 3))
def test_a_cached_past_gives_the_same_fold_after_a_turn_as_one_read_from_the_database(
    snapshot: Snapshot, kept_turns: int, before: int
) -> None:
    empty = replace(snapshot.current, messages=())
    folds = [
        fold_after_turn(replace(snapshot, past=past, current=empty), estimate)
        for past in _pasts(snapshot, kept_turns, before, None)
    ]
    _same_fold(*folds)


def _same(decided: Decision, again: Decision) -> None:
    assert type(decided) is type(again)
    if isinstance(decided, SummaryDue):
        assert isinstance(again, SummaryDue)
        _same_fold(decided.fold, again.fold)
        return
    assert isinstance(again, Ready | Refused)
    assert again.accounts == decided.accounts
    assert in_ranges(again.accounts.actions) == in_ranges(decided.accounts.actions)
    assert (again.prompt.wire_tokens, again.prompt.regions()) == (decided.prompt.wire_tokens, decided.prompt.regions())
    assert layout_of(again.prompt) == layout_of(decided.prompt)
    if isinstance(decided, Refused):
        assert isinstance(again, Refused)
        assert again.overflow.stored() == decided.overflow.stored()
        return
    assert isinstance(again, Ready)
    assembled, sent = assemble(decided), assemble(again)
    assert b"".join(sent.messages.pieces) == b"".join(assembled.messages.pieces)
    assert (sent.refs, sent.blocks, sent.tools) == (assembled.refs, assembled.blocks, assembled.tools)
    assert sent.sha256 == assembled.sha256 == prompt_sha256(list(sent.messages), sent.tools)
    assert assemble(again).sha256 == sent.sha256, "taken up where it was left"


def _same_fold(one: Fold | None, other: Fold | None) -> None:
    if one is None or other is None:
        assert one is other
        return
    stripped = (_without_unsent_reasoning(fold) for fold in (one, other))
    assert next(stripped) == next(stripped)


def _without_unsent_reasoning(fold: Fold) -> Fold:
    def plain(turn: Turn) -> Turn:
        messages = [
            replace(message, reasoning=None, reasoning_blocks=(), reasoning_tokens=0) for message in turn.messages
        ]
        return replace(turn, messages=tuple(messages))

    return replace(fold, turns=tuple(map(plain, fold.turns)), protected=tuple(map(plain, fold.protected)))


def _summary(fold: Fold) -> Summary:
    return summary_of(SummaryId(fold.turns[0].id), fold, SummaryBody("What was there before."), "fallback")


@given(snapshots(), st.integers(0, 12), st.integers(0, 12))
def test_a_past_gives_the_same_values_from_columns_as_from_turns(snapshot: Snapshot, kept_turns: int, seq: int) -> None:
    read, kept = _pasts(snapshot, kept_turns, 0, None)
    assert (kept.turn_count, kept.messages[-1], kept.tokens[-1]) == (
        len(read.turns),
        read.messages[-1],
        read.tokens[-1],
    )
    assert [piece.items for piece in kept.pieces] == [piece.items for piece in read.pieces]
    assert [piece[:12] for piece in kept.pieces] == [piece[:12] for piece in read.pieces]
    assert [kept.pieces[at][:12] for at in range(len(kept.pieces))] == [piece[:12] for piece in read.pieces]
    assert kept.completed_after(seq) == read.completed_after(seq)
    columns = [column for column in vars(kept.columns).values() if hasattr(column, "extend")]
    assert kept.columns.size_bytes == sum(memoryview(column).nbytes for column in columns)
    for at in range(kept.turn_count):
        assert kept.seq_from(at) == read.seq_from(at)
        assert kept.place_of_turn(read.turns[at].seq) == at
        assert kept.wire_tokens(at) == read.wire_tokens(at)
    ids = frozenset(message.id for turn in read.turns[::2] for message in turn.messages)
    assert kept.pieces_citing(ids) == read.pieces_citing(ids)


class _ExtendedMeanwhile(Columns):
    """As if another thread appended a turn to the columns while a long prompt is assembled."""

    later: Turn

    def _stretches(self, first: int, end: int) -> Iterator[range]:
        for stretch in super()._stretches(first, end):
            yield stretch
            self.extend((self.later,))


def test_columns_may_be_appended_to_while_a_prompt_is_assembled_from_them() -> None:
    history = History()
    *turns, later = chat(history, 4)
    plain, columns = Columns(0), _ExtendedMeanwhile(0)
    columns.later = later
    for each in (plain, columns):
        each.extend(turns)
    end = columns.first_pieces[columns.turns]
    assert columns.json_of_run(0, end) == plain.json_of_run(0, end)
    assert columns.turn(3) == later


def test_a_turn_hashes_what_is_new_and_a_run_of_any_length_is_one_reference() -> None:
    history = History()
    turns = chat(history, 40)
    columns = Columns(0)
    columns.extend(turns)
    for end in (20, 30, 40):
        current = replace(history.turn(status=TurnStatus.RUNNING), seq=100 + end)
        snapshot = snapshot_of(turns[:end], current, input_budget=1_000_000, policy=_NO_SUMMARY)
        kept = replace(snapshot, past=past_of_columns(columns, 0, end))
        decided, again = plan(snapshot, estimate), plan(kept, estimate)
        _same(decided, again)
        assert isinstance(again, Ready)
        assert len(again.prompt.parts) <= 3


def _columns_of(turns: Iterable[Turn]) -> Columns:
    columns = Columns(0)
    columns.extend(turns)
    return columns


@given(
    st.lists(st.tuples(st.sampled_from((OPENING, b"[one", b"[two")), st.integers(0, 5), st.integers(1, 6)), max_size=6)
)
def test_the_hash_of_a_run_is_the_same_whatever_was_hashed_before(runs: list[tuple[bytes, int, int]]) -> None:
    turns = chat(History(), 6)
    columns = _columns_of(turns)
    for before, first, length in runs:
        run = before, 2 * first, 2 * min(6, first + length), (b"]",)
        assert columns.sha256_of_run(*run) == _columns_of(turns).sha256_of_run(*run)


def test_only_short_prefixes_of_a_message_run_are_cached_with_the_past() -> None:
    """It was kept whatever its length, and in no size that the cache of pasts counts."""
    history = History()
    turns = chat(history, 6)
    sizes: list[int] = []
    for text in ("Be brief.", "Be brief. " * 100_000):
        columns = Columns(0)
        columns.extend(turns)
        layers = (("system:session", text),)
        snapshot = snapshot_of(turns, history.turn(), input_budget=1_000_000, policy=_NO_SUMMARY, layers=layers)
        decided = plan(snapshot, estimate)
        again = plan(replace(snapshot, past=past_of_columns(columns, 0, 6)), estimate)
        _same(decided, again)
        hashed = columns._hashed  # pyright: ignore[reportPrivateUsage] - what no other size has
        sizes.append(len(hashed[0]) if hashed else 0)
    assert 0 < sizes[0] < 1000
    assert sizes[1] == 0
