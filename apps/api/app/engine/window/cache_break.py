"""Why a prompt does not continue the one before it. A provider's prompt cache applies only up to the first difference.

Two prompts are compared by their references (`prompt_refs.py`), so the time depends on runs and blocks, not messages.
A provider reads a prompt in the order tools, system text, pins, summary, history; the first difference is the cause.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import takewhile
from operator import attrgetter
from typing import Any, Final, TypeAlias

from app.domain.audit import CacheBreak
from app.domain.content import sha256_hex
from app.domain.frozen import frozen, replace
from app.domain.recalled import RECALLED
from app.domain.types import JsonObject
from app.engine.messages.tokens import Estimate
from app.engine.summary.fold import Fold
from app.engine.window.clearing import lay_out_cleared
from app.engine.window.prompt import Prompt
from app.engine.window.prompt_refs import refs_of
from app.engine.window.recalled import RECALL_NOTE
from app.engine.window.snapshot import Snapshot

_Ref: TypeAlias = list[Any]

_HEAD: Final[tuple[CacheBreak, ...]] = ("system", "goal", "pins", "summary")
"""The regions before the history, in order. Each of their references is one message."""
_WITH_REASONING: Final = frozenset({"mt", "mb"})
_RUNS: Final = frozenset({"m", "u", *_WITH_REASONING})
_FOR_ONE_TURN: Final = (None, "recall", "look_back", "reasoning")
_OF_RECALL: Final = (RECALLED, sha256_hex(RECALL_NOTE))
_LEAST_CACHED_TOKENS: Final = 1_024
"""Shortest prefix, in tokens, that OpenAI and most other providers cache. Anthropic's minimum depends on the model, and
it reports for each call what it has cached."""


@frozen
class Repeated:
    """The beginning that a session's next prompts share: without the running turn and what is sent for it only.
    `prompt` ends where a summarizer's part ends; `refs` are those of the whole beginning. `sent_tokens` are those of
    `prompt` without a turn that no earlier prompt contained completely."""

    prompt: Prompt
    refs: JsonObject
    sent_tokens: int

    @property
    def cached_tokens(self) -> int:
        """How many of its tokens a provider has in its cache if it was sent lately: none of a prompt that is short."""
        return self.sent_tokens if self.sent_tokens >= _LEAST_CACHED_TOKENS else 0

    def goes_on_from(self, before: JsonObject) -> bool:
        """Whether it continues the prompt of these references, ignoring what was in that for one turn only."""
        return cache_break(before, self.refs) in _FOR_ONE_TURN


def repeated(snapshot: Snapshot, fold: Fold, estimate: Estimate) -> Repeated:
    """The prompt that the summarizer's call for this fold may repeat. It ends before the newest turn, unless that is
    folded: no earlier prompt contained its reply, and the summary does not need it."""
    past, unseen = snapshot.past, fold.unseen
    window = lay_out_cleared(replace(snapshot, current=replace(snapshot.current, messages=())), estimate)
    refs = refs_of(window.prompt, (), past.others_between)
    if unseen is None:
        new_tokens = past.wire_tokens(past.turn_count - 1) if past.turn_count else 0
        return Repeated(window.prompt, refs, window.prompt.wire_tokens - new_tokens)
    shown = bisect_left(window.past, unseen.seq, key=attrgetter("turn_seq"))
    prompt = replace(window, past=window.past[:shown]).prompt
    return Repeated(prompt, refs, prompt.wire_tokens)


def cache_break(before: JsonObject, now: JsonObject) -> CacheBreak | None:
    """Why the prompt `before` is not the beginning of the prompt `now`; None if it is."""
    if before["tools"] != now["tools"]:
        return "tools"
    rest, others = before["items"][::-1], now["items"][::-1]
    heads, at = (_head(before), _head(now)), 0
    while rest:
        ref, other = rest.pop(), others.pop() if others else None
        if ref != other:
            if changed := [head[at] for head in heads if at < len(head)]:
                return next(region for region in _HEAD if region in changed)
            if other is None or not _share_beginning(ref, other, is_last=not rest):
                return _cause(ref, other)
            end = min(ref[2], other[2])
            rest += [[ref[0], end + 1, ref[2]]] if ref[2] > end else []
            others += [[other[0], end + 1, other[2]]] if other[2] > end else []
        at += 1
    return None


def _head(refs: JsonObject) -> list[str]:
    """The regions of the references before the history, one per reference."""
    head = takewhile(lambda run: run[0] in _HEAD, refs["regions"])
    return [region for region, messages in head for _ in range(messages)]


def _share_beginning(ref: _Ref, other: _Ref, *, is_last: bool) -> bool:
    """Whether two runs of stored messages begin with the same message, sent in the same form. The last message of a
    prompt is never an assistant's, so it has no reasoning, whatever the kind of its run."""
    if ref[0] not in _RUNS or other[0] not in _RUNS or ref[1] != other[1]:
        return False
    return ref[0] == other[0] or (is_last and ref[1] == ref[2])


def _cause(ref: _Ref, other: _Ref | None) -> CacheBreak:
    """Why this reference of the history is not repeated; `other`, or nothing, is in its place."""
    if ref[0] in _OF_RECALL or ref[1] in _OF_RECALL:
        return "recall"
    if ref[0] in ("w", "b"):
        return "look_back" if ref[0] == "w" else "days"
    of_runs = {ref[0], other[0]} if other else {ref[0]}
    return "reasoning" if of_runs <= _RUNS and of_runs & _WITH_REASONING and len(of_runs) > 1 else "prune"
