"""`python -m bench.summaries`: what clients feel of summaries whose summarizer takes 200 ms, and what it saves."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from app.db import embedded
from bench import programs, targets
from bench.conversation import question
from bench.figures import percentile
from bench.report import SERVICE
from plimsoll_demo.client import Service
from plimsoll_demo.figures import ReplayedSession, ReplayedTurn, Totals, totals
from plimsoll_demo.full_history import FullHistory
from plimsoll_demo.recording import RecordedTurn
from plimsoll_demo.turn_replay import Playing, TurnPlay

SUMMARIZER_MS = 200.0
PAUSE_S = 0.05
"""Between an answer and the same client's next turn: four turns and more arrive while a summary is made."""
SESSIONS, TURNS = 4, 80
WINDOW_TOKENS = 8_192
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "guarded": {},
    # 3,277 tokens: 1,700 below the guard, which is more than the messages sent while a summary is made.
    "post_turn": {"usage_threshold": 0.40, "protected_turns": 5},
    "rolling": {},
}
BEHIND_ANSWERS = ("guarded", "post_turn")
"""Presets under which no turn of these clients waits for a summary."""
# The turns that a summary concerns. Before a call: the one that waited for it. In the background: from the turn behind
# which it was begun, the newest that had ended when the summarizer was asked, to the last that began before it was
# stored.
SUMMARIES_MADE = """
SELECT s.session_id::text, s.origin, maker.seq IS NOT NULL AS before_call,
       coalesce(maker.seq, (SELECT max(t.seq) FROM turns AS t WHERE t.session_id = s.session_id
                             AND t.completed_at <= s.created_at - make_interval(secs => $2))) AS first_turn,
       coalesce(maker.seq, (SELECT max(t.seq) FROM turns AS t
                             WHERE t.session_id = s.session_id AND t.created_at < s.created_at)) AS last_turn
  FROM session_summaries AS s
  LEFT JOIN turns AS maker ON maker.session_id = s.session_id AND maker.id = s.created_by_turn_id
 WHERE s.session_id = ANY($1::uuid[])
"""


class NotTheRunThatWasMeant(Exception):
    """A turn that did not complete, no summary at all, or one that the summarizer did not write."""


@dataclass(frozen=True, slots=True)
class Made:
    """A summary, and the turns (from 1) that it concerns."""

    session_id: str
    before_call: bool
    first_turn: int
    last_turn: int


@dataclass(frozen=True, slots=True)
class Run:
    """A preset's sessions, and the summaries that were made in them."""

    preset: str
    sessions: Sequence[ReplayedSession]
    made: Sequence[Made]

    @property
    def totals(self) -> Totals:
        return totals(self.preset, self.sessions)

    @property
    def made_before_calls(self) -> int:
        return sum(made.before_call for made in self.made)

    @property
    def sent_share(self) -> float:
        """Tokens to the model and to and from the summarizer, as a share of what resending everything sends."""
        return 1 - self.totals.saved_ratio

    def latencies_ms(self) -> tuple[list[float], list[float]]:
        """Of the turns that a summary concerns, and of the others."""
        concerned = {(made.session_id, seq) for made in self.made for seq in range(made.first_turn, made.last_turn + 1)}
        found: tuple[list[float], list[float]] = ([], [])
        for session in self.sessions:
            for turn in session.turns:
                plain = not turn.summary and (session.session_id, turn.number) not in concerned
                found[plain].append(sum(round_.elapsed_s for round_ in turn.rounds) * 1000)
        return found


def play(url: str, preset: str, turns: int) -> ReplayedSession:
    """A session of its own from its first turn to its last, with no summary on its way at the end."""
    with Service(url) as service:
        policy = {"preset": preset, "max_context_tokens": WINDOW_TOKENS, **POLICIES[preset]}
        session_id = service.create_session({"policy": policy})
        playing = Playing(service, session_id, (), False, False, FullHistory(), Counter(), Counter())
        played: list[ReplayedTurn] = []
        for number in range(1, turns + 1):
            played.append(TurnPlay(playing, number, RecordedTurn(question(number))).play())
            if played[-1].outcome != "completed":
                raise NotTheRunThatWasMeant(f"{preset}: {played[-1]}")
            time.sleep(PAUSE_S)
        time.sleep(2 * SUMMARIZER_MS / 1000)
        return ReplayedSession(preset, session_id, played, {}, {}, service.summarizer_tokens(session_id))


async def measure(target: targets.Target, preset: str) -> Run:
    """Plays the preset's sessions side by side, and reads which turns their summaries concern."""
    url = f"http://127.0.0.1:{target.port}"
    sessions = await asyncio.gather(*(asyncio.to_thread(play, url, preset, TURNS) for _ in range(SESSIONS)))
    session_ids = [session.session_id for session in sessions]
    rows = await target.admin.fetch(SUMMARIES_MADE, session_ids, SUMMARIZER_MS / 1000)
    if not rows or any(row["origin"] != "model" for row in rows):
        raise NotTheRunThatWasMeant(f"{preset}: summaries by {Counter(row['origin'] for row in rows)}")
    names = ("session_id", "before_call", "first_turn", "last_turn")
    return Run(preset, sessions, [Made(**{name: row[name] for name in names}) for row in rows])


def table_of(runs: Sequence[Run]) -> Table:
    table = Table(
        title=f"Turns of clients, ms; a summarizer of {SUMMARIZER_MS:.0f} ms", box=SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("preset")
    for header in (
        *("summaries before calls", "in the background", "turns with one", "p50", "p99", "other turns", "p50", "p99"),
        *("tokens sent", "summarizer", "full history", "share"),
    ):
        table.add_column(header, justify="right")
    for run in runs:
        sums, cells = run.totals, list[str]()
        for latencies in run.latencies_ms():
            cells += [f"{len(latencies)}", *(f"{percentile(latencies, share):.1f}" for share in (0.50, 0.99))]
        table.add_row(
            run.preset,
            f"{run.made_before_calls}",
            f"{len(run.made) - run.made_before_calls}",
            *cells,
            f"{sums.sent_tokens:,}",
            f"{sums.summarizer_tokens:,}",
            f"{sums.full_history_tokens:,}",
            f"{run.sent_share:.0%}",
        )
    return table


async def _run(server_url: str, folder: Path) -> int:
    site = targets.Site(server_url, programs.free_port(), folder)
    programs.write_models_file(site.models_file, site.provider_port)
    await targets.make_databases(site, [SERVICE])
    async with (
        programs.mock_provider(site.provider_port, 0.0, folder, SUMMARIZER_MS),
        targets.started(site, SERVICE) as target,
    ):
        await asyncio.to_thread(play, f"http://127.0.0.1:{target.port}", "guarded", 10)  # warm-up
        runs = [await measure(target, preset) for preset in POLICIES]
    console = Console(width=160)
    console.print(table_of(runs))
    waited = sum(run.totals.summaries for run in runs if run.preset in BEHIND_ANSWERS)
    console.print(f"{' and '.join(BEHIND_ANSWERS)}: {waited} turns made a summary of their own before their call")
    return 1 if waited else 0


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="plimsoll-summaries-", ignore_cleanup_errors=True) as folder:
        server = embedded.start(Path(folder))
        try:
            status = uvloop.run(_run(server.dsn, Path(folder)))
        finally:
            server.stop()
    sys.exit(status)


if __name__ == "__main__":
    main()
