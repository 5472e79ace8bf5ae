"""`python -m torture`: see `docs/reliability.md`."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic

from rich.console import Console

from torture.citus import clusters
from torture.contention import contentions
from torture.crash import crashes
from torture.drain import drains
from torture.failover import failovers
from torture.hostile_answers import hostile_answers
from torture.keys import keys
from torture.limits import limits
from torture.neighbours import neighbours
from torture.outage import outages
from torture.pooler import poolers
from torture.postmaster import postmasters
from torture.provider_faults import provider_faults
from torture.race import races
from torture.results import Result, print_results, write_results
from torture.site import Site, site
from torture.stalls import stalls
from torture.vanishing import vanishing
from torture.zombies import zombies

RESULTS = Path(__file__).parent / "results"
_MOST_FILES = 16_384
_PAGE_WIDTH = 150

PROMISES: dict[str, Callable[[Site], Awaitable[Result]]] = {
    "crash": crashes,
    "zombie": zombies,
    "race": races,
    "contention": contentions,
    "keys": keys,
    "provider": provider_faults,
    "hostile": hostile_answers,
    "vanish": vanishing,
    "drain": drains,
    "outage": outages,
    "postmaster": postmasters,
    "failover": failovers,
    "pooler": poolers,
    "citus": clusters,
    "limit": limits,
    "neighbour": neighbours,
    "stall": stalls,
}


def main() -> None:
    arguments = _arguments()
    _allow_many_files()
    sys.exit(asyncio.run(_run(arguments.only or list(PROMISES), kills=arguments.kills, keep=arguments.keep_logs)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m torture", description="Crashes, races and faults against real processes, on loopback."
    )
    parser.add_argument("--only", action="append", choices=list(PROMISES), help="try one promise (may be repeated)")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="of `crash`, at each of its points (20)")
    parser.add_argument("--keep-logs", action="store_true", help="leave the folder with the processes' logs")
    return parser.parse_args()


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _run(names: list[str], *, kills: int, keep: bool) -> int:
    console = Console(width=None if sys.stdout.isatty() else _PAGE_WIDTH)
    folder = Path(tempfile.mkdtemp(prefix="plimsoll-torture-"))
    results: list[Result] = []
    started, busy_before = monotonic(), os.getloadavg()[0]
    try:
        async with site(folder, kills) as at:
            for name in names:
                console.print(f"[dim]{name} …[/]")
                results.append(await _try(name, at))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    print_results(console, results)
    facts = {
        "took": f"{monotonic() - started:.0f} s",
        "processors": f"{os.cpu_count()}, with a load of {busy_before:.1f} before the run",
        "Python": platform.python_version(),
        "system": platform.platform(),
    }
    for name, value in facts.items():
        console.print(f"[dim]{name}: {value}[/]")
    for path in (*write_results(RESULTS, facts, results), *([folder] if keep else [])):
        console.print(f"[dim]{path}[/]", soft_wrap=True)
    return 0 if results and all(result.holds for result in results) else 1


async def _try(name: str, at: Site) -> Result:
    started = monotonic()
    try:
        result = await PROMISES[name](at)
    except Exception as error:  # what is left of the run is tried all the same
        traceback.print_exc()
        result = Result(name, "it can be tried", failures=[f"it broke off: {type(error).__name__}: {error}"])
    result.conclude()
    result.seconds = monotonic() - started
    await at.nursery.clear()
    return result


if __name__ == "__main__":
    main()
