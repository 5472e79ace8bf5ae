"""What a run measures: kinds of sessions, and how many turns of each a batch takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from bench.conversation import TOOL
from bench.filling import MANDATORY_SUMMARY_TURN
from bench.programs import LARGE_MODEL_ALIAS, MODEL_ALIAS

SERVICE: Final = "service"
BARE: Final = "bare"
REMEMBERING: Final = "remembering"
"""The bare handler with recall and summaries of its own."""
SUMMARIZING: Final = frozenset({SERVICE, REMEMBERING})
"""The targets whose summaries are rows of the service's table; those of other libraries are not."""

Kind: TypeAlias = Literal["default", "plain", "window", "streams", "loops"]

_PLAIN: Final[Mapping[str, object]] = {"recall": {"enabled": False}, "auto_summarize": False}
_PLAIN_RAW_TURNS: Final = 5
_PLAIN_TURNS: Final = 7
"""Between two summaries at the default settings: the raw window grows from 5 to 11 turns."""
DEFAULT_SESSIONS: Final = 8
_ROUNDS: Final = 10


@dataclass(frozen=True, slots=True)
class Case:
    """Sessions of one kind, with `length` turns when the run begins.

    `policy` is what they override of the defaults. With `raw_turns` their raw window has so many turns before every
    batch, and nothing is summarized; without, the service makes its own summaries, and a batch is whole cycles of them.
    With `rounds` they are new before every batch, with one open turn of so many rounds of tools, and the batch is its
    next ones. `options` are what the client asks for beside the content.
    """

    kind: Kind
    length: int
    policy: Mapping[str, object]
    turns: int
    sessions: int
    raw_turns: int | None = None
    model_alias: str = MODEL_ALIAS
    rounds: int | None = None
    options: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def name(self) -> str:
        """`default 300`: its length in turns, of a window its size in messages, of a loop its rounds."""
        return f"{self.kind} {self.size:,}"

    @property
    def summarizes(self) -> bool:
        """Whether the service makes summaries in a batch."""
        return self.raw_turns is None and self.rounds is None

    @property
    def size(self) -> int:
        """What tells cases of a kind apart."""
        if self.rounds is not None:
            return self.rounds
        return 2 * self.raw_turns if self.kind == "window" and self.raw_turns is not None else self.length


def default_case(length: int) -> Case:
    """All as it is when nothing is set: recall, and a summary every eight turns."""
    return Case("default", length, {}, MANDATORY_SUMMARY_TURN, DEFAULT_SESSIONS)


def plain_case(length: int) -> Case:
    """Without recall and summaries, in the window that the default has between two summaries."""
    return Case("plain", length, _PLAIN, _PLAIN_TURNS, 16, _PLAIN_RAW_TURNS)


def window_case(messages: int) -> Case:
    """A raw window of so many messages, all of them sent."""
    raw_turns = messages // 2
    return Case("window", raw_turns + 40, _PLAIN, 2, DEFAULT_SESSIONS, raw_turns, LARGE_MODEL_ALIAS)


def stream_case(length: int) -> Case:
    """The default, with the answer as a stream."""
    return replace(default_case(length), kind="streams", sessions=4, options={"stream": True})


def loop_case(rounds: int) -> Case:
    """The default in one long turn, of which all is sent."""
    return Case("loops", 0, {}, _ROUNDS, 2, model_alias=LARGE_MODEL_ALIAS, rounds=rounds, options={"tools": [TOOL]})


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures: batches of cases, with `once` what is measured once, with `memory` the resident size too."""

    cases: tuple[Case, ...]
    concurrencies: tuple[int, ...]
    rounds: int
    provider_latency_ms: float = 0.0
    once: bool = False
    memory: bool = False

    def of_kind(self, kind: Kind) -> list[Case]:
        """Its cases of a kind, in the order of the plan."""
        return [case for case in self.cases if case.kind == kind]

    def concurrencies_of(self, case: Case) -> tuple[int, ...]:
        """All but the default and the plain turn are measured one at a time."""
        return self.concurrencies if case.kind in ("default", "plain") else self.concurrencies[:1]
