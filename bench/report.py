"""What a run says: a table for people, a JSON file for later, verdicts for a check."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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

from bench.figures import Batch, Spread, Verdict, pairwise_ratios, percentile, select, spread
from bench.measuring import Plan, StatementCount

VERSIONS_OF = ("fastapi", "uvicorn", "pydantic", "sqlalchemy", "asyncpg", "httpx", "aiohttp", "orjson", "tiktoken")
SERVICE, BARE = "service", "bare"


def machine_facts(postgres_version: str) -> dict[str, Any]:
    """What a figure depends on; nothing that names the machine."""
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "memory_mb": round(psutil.virtual_memory().total / 1024 / 1024),
        "load_average_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "postgres": postgres_version,
        "packages": {name: version(name) for name in VERSIONS_OF},
    }


def ratios(batches: Sequence[Batch], plan: Plan) -> dict[str, Spread]:
    """Every ratio of the run by name. A target or length that was not measured leaves its ratios out."""
    found: dict[str, Spread] = {}
    for concurrency in plan.concurrencies:
        for length in plan.lengths:
            ours, bare = (select(batches, target, length, concurrency) for target in (SERVICE, BARE))
            if ours and bare:
                cell = f"at length {length}, concurrency {concurrency}"
                found[f"cpu service/bare {cell}"] = _ratio(_cpu(ours), _cpu(bare))
                if ours[0].postgres_cpu_ms is not None:
                    found[f"postgres cpu service/bare {cell}"] = _ratio(_postgres_cpu(ours), _postgres_cpu(bare))
        for target in (SERVICE, BARE):
            shortest, longest = (
                select(batches, target, length, concurrency) for length in (min(plan.lengths), max(plan.lengths))
            )
            if shortest and len(plan.lengths) > 1:
                name = f"cpu {target} length {max(plan.lengths)}/{min(plan.lengths)}, concurrency {concurrency}"
                found[name] = _ratio(_cpu(longest), _cpu(shortest))
    return found


def reached(found: Mapping[str, Spread], counts: Mapping[str, StatementCount]) -> dict[str, float]:
    """The figures that floors are set for: the worst cell's median of each kind."""
    figures: dict[str, float] = {}
    for name, prefix in (
        ("cpu_service_over_bare", "cpu service/bare "),
        ("postgres_cpu_service_over_bare", "postgres cpu service/bare "),
        ("cpu_longest_over_shortest", "cpu service length "),
    ):
        medians = [value.median for key, value in found.items() if key.startswith(prefix)]
        if medians:
            figures[name] = max(medians)
    if SERVICE in counts:
        figures["statements_per_turn"] = counts[SERVICE].statements
        figures["transactions_per_turn"] = counts[SERVICE].transactions
    return figures


def print_report(
    console: Console,
    plan: Plan,
    batches: Sequence[Batch],
    counts: Mapping[str, StatementCount],
    verdicts: Sequence[Verdict],
) -> None:
    console.print(_cell_table(batches, plan))
    for name, count in counts.items():
        console.print(
            f"{name}: {count.statements} statements in {count.transactions} transactions"
            f" and {count.round_trips} round trips a turn"
        )
    found = ratios(batches, plan)
    if found:
        table = Table("ratio", title="Ratios, pairwise by round", box=SIMPLE_HEAD, pad_edge=False)
        for header in ("median", "min", "max"):
            table.add_column(header, justify="right")
        for name, value in found.items():
            table.add_row(name, f"{value.median:.3f}", f"{value.lowest:.3f}", f"{value.highest:.3f}")
        console.print(table)
    for verdict in verdicts:
        mark = "[green]holds[/]" if verdict.holds else "[red]FAILS[/]"
        aimed = "aim met" if verdict.value <= verdict.aim else "aim missed"
        console.print(
            f"{mark} {verdict.name}: {verdict.value:.3f} (floor {verdict.floor:g}, aim {verdict.aim:g}: {aimed})"
        )


def write_json(
    folder: Path,
    facts: Mapping[str, Any],
    plan: Plan,
    batches: Sequence[Batch],
    counts: Mapping[str, StatementCount],
) -> Path:
    """Writes everything that was measured, batch by batch, and answers the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    finished_at = datetime.now(UTC)
    found = ratios(batches, plan)
    content = {
        "finished_at": finished_at,
        "machine": facts,
        "plan": asdict(plan),
        "reached": reached(found, counts),
        "ratios": {name: asdict(value) for name, value in found.items()},
        "statements": {name: asdict(count) for name, count in counts.items()},
        "batches": [asdict(batch) for batch in batches],
    }
    path = folder / f"{finished_at:%Y%m%dT%H%M%SZ}.json"
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    return path


def _cell_table(batches: Sequence[Batch], plan: Plan) -> Table:
    table = Table(title="A plain turn: CPU and latency in ms, medians of the rounds", box=SIMPLE_HEAD, pad_edge=False)
    for header in ("conc.", "length", "program", "CPU", "min–max", "Postgres", "turns/s", "p50", "p99"):
        table.add_column(header, justify="right")
    targets = list(dict.fromkeys(batch.target for batch in batches))
    for concurrency in plan.concurrencies:
        for length in plan.lengths:
            for target in targets:
                cell = select(batches, target, length, concurrency)
                cpu_ms = spread(_cpu(cell))
                latencies = [latency for batch in cell for latency in batch.latencies_ms]
                table.add_row(
                    str(concurrency),
                    f"{length:,}",
                    target,
                    f"{cpu_ms.median:.2f}",
                    f"{cpu_ms.lowest:.2f}–{cpu_ms.highest:.2f}",
                    f"{median(_postgres_cpu(cell)):.2f}" if cell[0].postgres_cpu_ms is not None else "–",
                    f"{median(batch.turns / batch.wall_s for batch in cell):.0f}",
                    f"{percentile(latencies, 0.50):.1f}",
                    f"{percentile(latencies, 0.99):.1f}",
                )
        table.add_section()
    return table


def _ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    return spread(pairwise_ratios(numerators, denominators))


def _cpu(cell: Sequence[Batch]) -> list[float]:
    return [batch.cpu_ms for batch in cell]


def _postgres_cpu(cell: Sequence[Batch]) -> list[float]:
    return [batch.postgres_cpu_ms or 0.0 for batch in cell]
