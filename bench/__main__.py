"""`python -m bench`: see `docs/performance.md`."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import Progress

from bench import measuring, once, programs, report, targets
from bench.cases import BARE, SERVICE, Case, Plan, default_case, loop_case, plain_case, stream_case, window_case
from bench.conversation import Conversation, read_recorded
from bench.figures import judge
from bench.load import NotTheTurnThatWasMeant
from bench.servers import OLDER_BINARIES, embedded_server, older_server
from bench.tokens import fill_tiktoken_cache

RESULTS = Path(__file__).parent / "results"
MAKERS = {
    "default": default_case,
    "plain": plain_case,
    "window": window_case,
    "streams": stream_case,
    "loops": loop_case,
}
KINDS = tuple(MAKERS)
LENGTHS = {
    "default": (300, 3_000, 10_000),
    "plain": (10, 1_000, 10_000),
    "window": (20, 300, 1_500, 5_000),
    "streams": (300,),
    "loops": (20, 100, 200),
}
QUICK_LENGTHS = {"default": (300, 3_000), "plain": (10,), "window": (20, 1_500), "streams": (300,), "loops": (20, 100)}
COLD_MESSAGES = 1_500
FORK_TURNS = 2_000
SIMULATED_TURNS = 3_000
MEMORY_TURNS, MEMORY_SESSIONS = 5_000, 300
COUNTED_LENGTH = 40


@dataclass(frozen=True, slots=True)
class Arguments:
    plan: Plan
    names: list[str]
    check: Path | None
    database_urls: list[str]
    recorded: Path | None


def main() -> None:
    """Parses, measures, prints; exits with 1 where a floor does not hold."""
    arguments = _arguments()
    sys.exit(uvloop.run(_run(arguments)))


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What a turn costs, against a bare handler.")
    parser.add_argument("--quick", action="store_true", help="about two minutes: for a look, not for a figure")
    parser.add_argument("--rounds", type=int, help="rounds of interleaved batches (default 7, quick 2)")
    parser.add_argument("--tables", type=_words, default=KINDS, help=f"which tables (default {','.join(KINDS)})")
    parser.add_argument("--lengths", type=_numbers, help="turns in the session, messages in the window, or rounds")
    parser.add_argument(
        "--concurrency", type=_numbers, default=(1, 16), help="turns in flight, each in its own session"
    )
    parser.add_argument(
        "--provider-latency-ms", type=float, default=0.0, help="how long the mock model takes to answer"
    )
    parser.add_argument("--only", choices=[SERVICE, BARE], help="measure one program alone")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="recorded conversations instead of drawn ones")
    parser.add_argument(
        "--database-url",
        action="append",
        help="a superuser's URL of a server of yours; may be given twice (default: the embedded one, thrown away, and"
        " PostgreSQL 15 where the system has it)",
    )
    parser.add_argument("--check", type=Path, metavar="FLOORS.toml", help="exit 1 when a figure is over its floor")
    given = parser.parse_args()
    plan = Plan(
        cases=_cases(given.tables, given.lengths, quick=given.quick),
        concurrencies=given.concurrency[-1:] if given.quick else given.concurrency,
        rounds=given.rounds or (2 if given.quick else 7),
        provider_latency_ms=given.provider_latency_ms,
        once=(whole := given.tables == KINDS and not given.lengths),
        memory=whole and not given.quick,
    )
    names = [given.only] if given.only else [SERVICE, BARE]
    return Arguments(plan, names, given.check, given.database_url or [], given.data)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _cases(tables: tuple[str, ...], lengths: tuple[int, ...] | None, *, quick: bool) -> tuple[Case, ...]:
    usual = QUICK_LENGTHS if quick else LENGTHS
    return tuple(MAKERS[kind](length) for kind in tables for length in lengths or usual[kind])


async def _run(arguments: Arguments) -> int:
    console = Console(width=140)
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        fill_tiktoken_cache(folder / "vocabularies")
        runs = [await _run_on(arguments, arguments.plan, url, folder, console) for url in arguments.database_urls]
        if not runs:
            with embedded_server(folder / "embedded") as url:
                runs.append(await _run_on(arguments, arguments.plan, url, folder, console))
            default = arguments.plan.of_kind("default")
            if default and OLDER_BINARIES.exists():
                plan = replace(arguments.plan, cases=tuple(default), once=False, memory=False)
                with older_server(folder / "older") as url:
                    runs.append(await _run_on(arguments, plan, url, folder, console))
    floors = tomllib.loads(arguments.check.read_text(encoding="utf-8")) if arguments.check else {}
    verdicts = judge(report.reached(runs), floors)
    report.print_report(console, runs, verdicts)
    console.print(f"[dim]{report.write_json(RESULTS, report.machine_facts(), runs)}[/]")
    if arguments.check and not verdicts:
        console.print("[red]FAILS[/] no figure that has a floor was measured")
        return 1
    return 0 if all(verdict.holds for verdict in verdicts) else 1


async def _run_on(arguments: Arguments, plan: Plan, server_url: str, folder: Path, console: Console) -> report.Run:
    provider_port = programs.free_port()
    conversation = read_recorded(arguments.recorded) if arguments.recorded else Conversation()
    site = targets.Site(server_url, provider_port, folder, conversation)
    programs.write_models_file(site.models_file, provider_port)
    await targets.make_databases(site, arguments.names)
    provider = programs.mock_provider(
        provider_port, plan.provider_latency_ms, folder, recorded=arguments.recorded and arguments.recorded.resolve()
    )
    try:
        async with provider:
            return await _measure(arguments, plan, site, console)
    except (NotTheTurnThatWasMeant, programs.ProgramFailed):
        _print_logs(folder, console)
        raise
    finally:
        await targets.drop_databases(site, arguments.names)


def _print_logs(folder: Path, console: Console) -> None:
    for log in sorted(folder.glob("*.log")):
        console.print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}", markup=False)


async def _measure(arguments: Arguments, plan: Plan, site: targets.Site, console: Console) -> report.Run:
    counted = [MAKERS[kind](COUNTED_LENGTH) for kind in ("default", "plain") if plan.of_kind(kind)]
    counts = {
        f"{name} {case.kind}": await measuring.count_statements(site, name, case)
        for case in counted
        for name in arguments.names
        if name == SERVICE or case.kind == "plain"
    }
    async with contextlib.AsyncExitStack() as stack:
        compared = [await stack.enter_async_context(targets.started(site, name)) for name in arguments.names]
        version = (await compared[0].admin.fetchval("SHOW server_version")).split()[0]
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(f"PostgreSQL {version}", total=None)
            await measuring.fill_targets(compared, plan, site.conversation)
            batches = await measuring.measure(compared, plan, lambda: progress.advance(task))
        run = report.Run(version, plan, batches, counts)
        service = next((target for target in compared if target.name == SERVICE), None)
        if service is not None and plan.of_kind("default"):
            run = replace(run, stored=await once.stored(service, plan.of_kind("default")[0]))
        if service is not None and plan.once:
            cold = await once.cold_turns(service, site, COLD_MESSAGES)
            run = replace(run, cold=cold, fork=await once.forks(service, site, FORK_TURNS))
            run = replace(run, simulated=await once.simulated(service, site, SIMULATED_TURNS))
    if plan.memory and SERVICE in arguments.names:
        run = replace(run, memory=await once.memory(site, MEMORY_TURNS, MEMORY_SESSIONS, plan.concurrencies[-1]))
    return run


if __name__ == "__main__":
    main()
