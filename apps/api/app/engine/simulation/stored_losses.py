"""What the prompts that were really sent lost, by the trim logs that are stored with them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from app.domain.audit import TrimAction
from app.domain.types import JsonObject, Turn
from app.engine.messages.turns import sendable_units
from app.engine.window.prompt_refs import in_runs, needed_for
from app.engine.window.pruning import dropped_kind


class _Range(NamedTuple):
    first: int
    last: int
    targets: int


@dataclass(slots=True)
class StoredLosses:
    """How often each kind of action was taken, and on how many targets. Turns are passed to `feed` in time order. A
    range of dropped messages stands for those that its prompt was sent without. Of other ranges it is not stored which
    messages they changed: overlapping ones count as one, with the larger of their numbers of targets."""

    times: Counter[str] = field(default_factory=Counter[str])
    _targets: dict[str, set[object]] = field(default_factory=dict[str, set[object]])
    _ranges: dict[str, list[_Range]] = field(default_factory=dict[str, list[_Range]])
    _seqs: dict[str, int] = field(default_factory=dict[str, int])
    """The numbers of turns and messages by the names that they have in trim logs."""
    _present: dict[str, list[int]] = field(default_factory=lambda: {"assistant_dropped": [], "tool_group_dropped": []})
    """By kind of action, the messages that no prompt was sent without so far."""

    def feed(self, turn: Turn, trims: Iterable[tuple[Iterable[JsonObject], JsonObject | None]]) -> None:
        """Count the actions on each prompt of the turn; they come with the prompt's references."""
        self._seqs[f"turn:{turn.id}"] = turn.seq
        self._seqs |= {f"message:{message.id}": message.seq for message in turn.messages}
        for unit in sendable_units(turn):
            if unit.kind != "user":
                self._present[dropped_kind(unit.kind)].append(unit.messages[0].seq)
        for actions, refs in trims:
            logged = [TrimAction.of_row(action) for action in actions]
            # A summary's turns are counted when it is made.
            others = [action for action in logged if action.kind != "summary_folded"]
            ranged = refs and any(action.kind in self._present and action.seqs for action in others)
            sent = needed_for(refs).runs if refs and ranged else None
            for action in others:
                self._note(action, sent)

    def _note(self, action: TrimAction, sent: Sequence[tuple[int, int]] | None) -> None:
        """Count an action on a prompt with these messages; None if they are not known."""
        self.times[action.kind] += action.count
        targets = self._targets.setdefault(action.kind, set())
        if action.seqs is None:
            targets.add(self._seqs.get(action.target, action.target))
            return
        noun, first, last = action.seqs
        present = self._present.get(action.kind)
        if present is None or sent is None or noun != "messages":
            self._ranges.setdefault(action.kind, []).append(_Range(first, last, action.count))
            return
        at = first
        # From gap to gap, because a log may have thousands of ranges over thousands of messages.
        for sent_first, sent_last in (*sent, (last + 1, last)):
            gap = slice(bisect_left(present, at), bisect_left(present, min(sent_first, last + 1)))
            targets.update(present[gap])
            del present[gap]
            at = max(at, sent_last + 1)

    def targets_of(self, kind: str) -> int:
        clusters: list[_Range] = []
        for each in sorted(self._ranges.get(kind, ())):
            if clusters and each.first <= clusters[-1].last:
                was = clusters[-1]
                clusters[-1] = _Range(was.first, max(was.last, each.last), max(was.targets, each.targets))
            else:
                clusters.append(each)
        spans = [(cluster.first, cluster.last) for cluster in clusters]
        known = self._targets.get(kind, set())
        inside = [target for target in known if isinstance(target, int) and in_runs(spans, target)]
        return len(known) - len(inside) + sum(cluster.targets for cluster in clusters)
