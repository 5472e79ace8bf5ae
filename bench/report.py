"""What a run says: tables for people, a JSON file for later, verdicts for a check."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import psutil
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.cases import BARE, SERVICE, Case, Kind, Plan
from bench.figures import Batch, Spread, Verdict, pairwise_ratios, percentile, select, spread
from bench.measuring import Spent, StatementCount
from bench.mock_provider import PIECES
from bench.once import Cold, Fork, Memory, Simulated, Stored

VERSIONS_OF = ("fastapi", "uvicorn", "pydantic", "sqlalchemy", "asyncpg", "httpx", "aiohttp", "orjson", "tiktoken")
TITLES: Mapping[Kind, str] = {
    "default": "The default: natural conversations, recall, a summary every 8 turns, by turns in the session",
    "plain": "A plain turn, without recall and summaries, by turns in the session",
    "window": "Large windows, by raw messages, all of them sent",
    "streams": f"The default with streamed answers of {PIECES} pieces, by turns in the session",
    "loops": "A round of a turn with tools, by rounds before it, all of them sent",
}


@dataclass(frozen=True, slots=True)
class Run:
    """All that was measured on one server; `postgres` is its version. What was not measured is empty or None."""

    postgres: str
    plan: Plan
    batches: Sequence[Batch]
    counts: Mapping[str, StatementCount] = field(default_factory=dict[str, StatementCount])
    cold: Cold | None = None
    fork: Fork | None = None
    simulated: Simulated | None = None
    stored: Stored | None = None
    memory: Memory | None = None


def machine_facts() -> dict[str, Any]:
    """What a figure depends on; nothing that names the machine."""
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "memory_mb": round(psutil.virtual_memory().total / 1024 / 1024),
        "load_average_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in VERSIONS_OF},
    }


def ratios(batches: Sequence[Batch], plan: Plan) -> dict[str, Spread]:
    """Every ratio of the run by name. A target or case that was not measured leaves its ratios out."""
    found: dict[str, Spread] = {}
    for case in plan.cases:
        smallest = plan.of_kind(case.kind)[0]
        for concurrency in plan.concurrencies_of(case):
            ours, bare = (select(batches, target, case.name, concurrency) for target in (SERVICE, BARE))
            cell = f"{case.name}, concurrency {concurrency}"
            if ours and bare:
                found[f"cpu service/bare, {cell}"] = _ratio(_cpu(ours), _cpu(bare))
                if ours[0].postgres_cpu_ms is not None:
                    found[f"postgres cpu service/bare, {cell}"] = _ratio(_postgres_cpu(ours), _postgres_cpu(bare))
            if case is not smallest:
                for target, cells in ((SERVICE, ours), (BARE, bare)):
                    least = select(batches, target, smallest.name, concurrency)
                    if cells and least:
                        name = f"cpu {target} {cell}, against {smallest.size:,}"
                        found[name] = _ratio(_cpu(cells), _cpu(least))
    return found


def reached(runs: Sequence[Run]) -> dict[str, float]:
    """The figures that floors are set for: the worst cell's median of each kind, on the worst of the servers."""
    figures: dict[str, float] = {}
    for run in runs:
        for name, value in _reached_on(run):
            figures[name] = max(value, figures.get(name, value))
    return figures


def _reached_on(run: Run) -> Iterator[tuple[str, float]]:
    for name, value in ratios(run.batches, run.plan).items():
        for case in run.plan.cases:
            label = f"window_{case.size}" if case.kind == "window" else case.kind
            if name.startswith(f"cpu service/bare, {case.name},"):
                yield f"{label}_cpu_over_bare", value.median
            elif name.startswith(f"postgres cpu service/bare, {case.name},"):
                yield f"{label}_postgres_cpu_over_bare", value.median
            elif name.startswith(f"cpu service {case.name},"):
                yield f"{label}_cpu_over_smallest", value.median
    if count := run.counts.get(f"{SERVICE} plain"):
        yield "plain_statements", count.statements
        yield "plain_transactions", count.transactions
    if run.cold:
        yield "cold_turn_ms_more", run.cold.first_ms - run.cold.next_ms
    if run.fork:
        yield "fork_s", run.fork.wall_s
    if run.simulated:
        yield "simulation_s", run.simulated.wall_s
    if run.stored:
        yield "index_and_audit_bytes", run.stored.audit + run.stored.terms
    if run.memory:
        yield "resident_mb", run.memory.resident_mb


def print_report(console: Console, runs: Sequence[Run], verdicts: Sequence[Verdict]) -> None:
    """Tables of all runs, the default's first, then the floors."""
    for kind in TITLES:
        for run in runs:
            if cases := run.plan.of_kind(kind):
                console.print(_cell_table(run, cases, f"{TITLES[kind]}; PostgreSQL {run.postgres}"))
    for run in runs:
        for line in _lines(run):
            console.print(line, highlight=False)
    for run in runs:
        table = Table("ratio", title=f"Ratios, pairwise by round; PostgreSQL {run.postgres}", box=SIMPLE_HEAD)
        for header in ("median", "min", "max"):
            table.add_column(header, justify="right")
        for name, value in ratios(run.batches, run.plan).items():
            table.add_row(name, f"{value.median:.3f}", f"{value.lowest:.3f}", f"{value.highest:.3f}")
        console.print(table)
    for verdict in verdicts:
        mark = "[green]holds[/]" if verdict.holds else "[red]FAILS[/]"
        aimed = "aim met" if verdict.value <= verdict.aim else "aim missed"
        console.print(
            f"{mark} {verdict.name}: {verdict.value:.3f} (floor {verdict.floor:g}, aim {verdict.aim:g}: {aimed})"
        )


def write_json(folder: Path, facts: Mapping[str, Any], runs: Sequence[Run]) -> Path:
    """Writes everything that was measured, batch by batch, and answers the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    finished_at = datetime.now(UTC)
    content = {
        "finished_at": finished_at,
        "machine": facts,
        "reached": reached(runs),
        "runs": [
            asdict(run) | {"ratios": {name: asdict(value) for name, value in ratios(run.batches, run.plan).items()}}
            for run in runs
        ],
    }
    path = folder / f"{finished_at:%Y%m%dT%H%M%SZ}.json"
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    return path


def _cell_table(run: Run, cases: Sequence[Case], title: str) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for header in ("conc.", "size", "program", "CPU ms", "min–max", "Postgres", "ratios", "prompt", "recalled", "p50"):
        table.add_column(header, justify="right")
    found = ratios(run.batches, run.plan)
    for case in cases:
        for concurrency in run.plan.concurrencies_of(case):
            for target in (SERVICE, BARE):
                cell = select(run.batches, target, case.name, concurrency)
                if not cell:
                    continue
                cpu_ms = spread(_cpu(cell))
                pair = [
                    f"{found[name].median:.2f}"
                    for what in ("cpu", "postgres cpu")
                    if (name := f"{what} service/bare, {case.name}, concurrency {concurrency}") in found
                ]
                table.add_row(
                    str(concurrency),
                    f"{case.size:,}",
                    target,
                    f"{cpu_ms.median:.2f}",
                    f"{cpu_ms.lowest:.2f}–{cpu_ms.highest:.2f}",
                    f"{median(_postgres_cpu(cell)):.2f}" if cell[0].postgres_cpu_ms is not None else "–",
                    " / ".join(pair) if target == SERVICE else "",
                    f"{median(batch.prompt_tokens for batch in cell):,.0f}",
                    f"{median(batch.recalled for batch in cell):.1f}",
                    f"{percentile([latency for batch in cell for latency in batch.latencies_ms], 0.50):.1f}",
                )
        table.add_section()
    return table


def _lines(run: Run) -> Iterator[str]:
    for name, count in run.counts.items():
        yield (
            f"{name} turn: {count.statements:g} statements in {count.transactions:g} transactions"
            f" and {count.round_trips:g} round trips"
        )
    if cold := run.cold:
        yield (
            f"the first turn of a session of {cold.messages:,} raw messages in a process: {cold.first_ms:.1f} ms,"
            f" the next: {cold.next_ms:.1f} ms of the service's CPU"
        )
    if fork := run.fork:
        yield (
            f"a fork of {fork.turns:,} turns: {fork.wall_s:.2f} s, {_both(fork.spent)};"
            f" the next turn in it {_both(fork.next_in_fork)}, in its source {_both(fork.next_in_source)}"
        )
    if simulated := run.simulated:
        yield f"a simulation of {simulated.turns:,} turns under every preset: {simulated.wall_s:.1f} s"
    if stored := run.stored:
        yield f"stored for a default turn: audit {stored.audit:.0f} bytes, packed terms {stored.terms:.0f}"
    if memory := run.memory:
        yield (f"resident after {memory.turns:,} turns over {memory.sessions} sessions: {memory.resident_mb:.0f} MB")


def _both(spent: Spent) -> str:
    of_server = "–" if spent.postgres_ms is None else f"{spent.postgres_ms:.1f}"
    return f"{spent.program_ms:.1f} + {of_server} ms of CPU"


def _ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    return spread(pairwise_ratios(numerators, denominators))


def _cpu(cell: Sequence[Batch]) -> list[float]:
    return [batch.cpu_ms for batch in cell]


def _postgres_cpu(cell: Sequence[Batch]) -> list[float]:
    return [batch.postgres_cpu_ms or 0.0 for batch in cell]
