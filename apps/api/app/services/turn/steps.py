"""The steps of a turn, as they are recorded while it runs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from app.domain.types import JsonObject
from app.services.runtime import Runtime
from app.services.turn.spans import of_step


@dataclass(slots=True)
class Step:
    """A step while it runs; `status` and `detail` are what it ends with."""

    detail: JsonObject = field(default_factory=dict[str, object])
    status: str = "success"


class Steps:
    """The steps of a turn's round, in order, with their instants; `after` steps of earlier rounds are stored."""

    def __init__(self, rt: Runtime, after: int = 0) -> None:
        self._rt = rt
        self._after = after
        self.rows: list[JsonObject] = []

    @contextmanager
    def step(self, kind: str) -> Generator[Step]:
        """Records the block as a step and as a span; one that raises is recorded as `failed`, with the error's type."""
        step = Step()
        started_at = self._rt.now()
        with self._rt.tracer.span(kind) as span:
            try:
                yield step
            except BaseException as error:
                step.status = "failed"
                step.detail |= {"error": type(error).__name__}
                raise
            finally:
                self.add(kind, started_at, step)
                if span.recording:
                    span.set(of_step(step.detail))

    def add(self, kind: str, started_at: datetime, step: Step) -> None:
        """Records a step that is over."""
        self.rows.append(
            {
                "id": self._rt.new_id(),
                "seq": self._after + len(self.rows) + 1,
                "kind": kind,
                "status": step.status,
                "detail": step.detail,
                "started_at": started_at,
                "finished_at": self._rt.now(),
            }
        )
