"""`python -m bench`: see `docs/performance.md`."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import tomllib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress

from app.db import embedded
from bench import measuring, programs, report, targets
from bench.figures import judge
from bench.load import NotAPlainTurn
from bench.measuring import Plan
from bench.tokens import fill_tiktoken_cache

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Arguments:
    plan: Plan
    names: list[str]
    check: Path | None
    database_url: str | None


def main() -> None:
    arguments = _arguments()
    sys.exit(uvloop.run(_run(arguments)))


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="What a plain turn costs, against a bare handler."
    )
    parser.add_argument("--quick", action="store_true", help="half a minute: for a look, not for a figure")
    parser.add_argument("--rounds", type=int, help="rounds of interleaved batches (default 11, quick 2)")
    parser.add_argument(
        "--lengths", type=_numbers, help="session lengths in turns (default 10,1000,10000, quick 10,1000)"
    )
    parser.add_argument(
        "--concurrency", type=_numbers, default=(1, 16), help="turns in flight, each in its own session"
    )
    parser.add_argument(
        "--provider-latency-ms", type=float, default=0.0, help="how long the mock model takes to answer"
    )
    parser.add_argument("--only", choices=[report.SERVICE, report.BARE], help="measure one program alone")
    parser.add_argument(
        "--database-url", help="a PostgreSQL >= 18 superuser's URL (default: an embedded one, thrown away)"
    )
    parser.add_argument("--check", type=Path, metavar="FLOORS.toml", help="exit 1 when a figure is over its floor")
    given = parser.parse_args()
    rounds = given.rounds or (2 if given.quick else 11)
    lengths = given.lengths or ((10, 1_000) if given.quick else (10, 1_000, 10_000))
    return Arguments(
        plan=Plan(lengths, given.concurrency, rounds, given.provider_latency_ms),
        names=[given.only] if given.only else [report.SERVICE, report.BARE],
        check=given.check,
        database_url=given.database_url,
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


@contextlib.contextmanager
def _server(database_url: str | None, folder: Path) -> Generator[str]:
    """The URL of the Postgres to use: the given one, or an embedded one that ends with the run."""
    if database_url:
        yield database_url
        return
    server = embedded.start(folder)
    try:
        yield server.dsn
    finally:
        server.stop()


async def _run(arguments: Arguments) -> int:
    plan, console = arguments.plan, Console()
    with (
        tempfile.TemporaryDirectory(prefix="plimsoll-bench-", ignore_cleanup_errors=True) as scratch,
        _server(arguments.database_url, Path(scratch)) as server_url,
    ):
        folder = Path(scratch)
        fill_tiktoken_cache(folder / "vocabularies")
        provider_port = programs.free_port()
        site = targets.Site(server_url, provider_port, folder)
        programs.write_models_file(site.models_file, provider_port)
        await targets.make_databases(site, arguments.names)
        try:
            async with programs.mock_provider(provider_port, plan.provider_latency_ms, folder):
                return await _measure(arguments, site, console)
        except (NotAPlainTurn, programs.ProgramFailed):
            _print_logs(folder, console)
            raise
        finally:
            await targets.drop_databases(site, arguments.names)


def _print_logs(folder: Path, console: Console) -> None:
    for log in sorted(folder.glob("*.log")):
        console.print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}", markup=False)


async def _measure(arguments: Arguments, site: targets.Site, console: Console) -> int:
    plan = arguments.plan
    counts = {name: await measuring.count_statements(site, name) for name in arguments.names}
    async with contextlib.AsyncExitStack() as stack:
        compared = [await stack.enter_async_context(targets.started(site, name)) for name in arguments.names]
        with Progress(console=console, transient=True) as progress:
            filling = progress.add_task("filling sessions", total=None)
            await measuring.fill_targets(compared, plan)
            progress.remove_task(filling)
            cells = len(compared) * len(plan.lengths) * len(plan.concurrencies)
            task = progress.add_task("measuring", total=cells * (plan.rounds + 1))
            batches = await measuring.measure(compared, plan, lambda: progress.advance(task))
        facts = report.machine_facts(await compared[0].admin.fetchval("SHOW server_version"))
    floors = tomllib.loads(arguments.check.read_text(encoding="utf-8")) if arguments.check else {}
    verdicts = judge(report.reached(report.ratios(batches, plan), counts), floors)
    report.print_report(console, plan, batches, counts, verdicts)
    console.print(f"[dim]{report.write_json(RESULTS, facts, plan, batches, counts)}[/]")
    if arguments.check and not verdicts:
        console.print("[red]FAILS[/] no figure that has a floor was measured")
        return 1
    return 0 if all(verdict.holds for verdict in verdicts) else 1


if __name__ == "__main__":
    main()
