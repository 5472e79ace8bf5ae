"""What the parts of the default turn cost the service, beside the bare handler and one that remembers as well.

    python -m bench.parts [--instructions] [ROUNDS]

CPU in milliseconds a turn: medians of rounds in which all take turns, a batch each. With `--instructions` the programs
run under valgrind's callgrind instead, some fifty times slower, and what is counted hardly changes with the load of the
machine: a batch of each after one of warm-up. What a process does by the clock is counted while it idles, and taken off
for the seconds that a batch took. Instructions are not time: those that wait for memory count as one, and the kernel's
as none.

A batch is 8 turns, a cycle of summaries, in each of 8 sessions of 300 turns, one turn at a time.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from bench import measuring, programs, targets
from bench.cases import BARE, REMEMBERING, SERVICE, Case, Plan, default_case
from bench.filling import PROTECTED_TURNS
from bench.servers import embedded_server
from bench.targets import Target
from bench.tokens import fill_tiktoken_cache

_LENGTH: Final = 300
_ROUNDS: Final = 8
_IDLE_S: Final = 5.0
_UNDER: Final = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=callgrind.%p")
_NO_RECALL: Final = {"recall": {"enabled": False}}
_NO_SUMMARIES: Final = {"auto_summarize": False}
_CASES: Final[Sequence[tuple[str, str, Mapping[str, object]]]] = (
    ("bare handler", BARE, {}),
    ("bare handler that remembers", REMEMBERING, {}),
    ("no recall, no summaries", SERVICE, {**_NO_RECALL, **_NO_SUMMARIES}),
    ("summaries alone", SERVICE, _NO_RECALL),
    ("recall alone", SERVICE, _NO_SUMMARIES),
    ("the default, both", SERVICE, {}),
)


def main() -> None:
    """Prints a line for each case."""
    counts_instructions = "--instructions" in sys.argv
    rounds = 1 if counts_instructions else int(next((each for each in sys.argv[1:] if each.isdigit()), _ROUNDS))
    with tempfile.TemporaryDirectory() as name, embedded_server(Path(name) / "postgres") as dsn:
        folder = Path(name)
        os.environ["PYTHONHASHSEED"] = "0"
        fill_tiktoken_cache(folder / "vocabularies")
        under = _UNDER if counts_instructions else ()
        site = targets.Site(dsn, programs.free_port(), folder, under=under)
        spent = asyncio.run(_measured(site, rounds))
    bare = median(spent["bare handler"])
    for name, rounds_of in spent.items():
        per_turn = median(rounds_of)
        shown = f"{per_turn / 1e6:7.2f} M instructions" if counts_instructions else f"{per_turn:6.2f} ms"
        spread = f"({min(rounds_of) / bare:.2f}-{max(rounds_of) / bare:.2f})"
        print(f"{name:28s} {shown} a turn, {per_turn / bare:.2f} {spread} of the bare handler")


async def _measured(site: targets.Site, rounds: int) -> Mapping[str, list[float]]:
    programs.write_models_file(site.models_file, site.provider_port)
    names = [BARE, REMEMBERING, SERVICE]
    await targets.make_databases(site, names)
    spent: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(programs.mock_provider(site.provider_port, 0.0, site.folder))
        started = {name: await stack.enter_async_context(targets.started(site, name)) for name in names}
        compared = [(name, started[of], _case_of(number, policy)) for number, (name, of, policy) in enumerate(_CASES)]
        for _, target, case in compared:
            await measuring.fill_targets([target], Plan((case,), (1,), rounds), site.conversation)
            if target.name == BARE:  # of as large a prompt as the default's, about
                target.raw_turns[case.name] = PROTECTED_TURNS + 4
            await measuring.take_batch(target, case, 1)
        for target in started.values() if site.under else ():
            _control("--instr=on", target.pid)
            await asyncio.sleep(_IDLE_S)
        for _ in range(rounds):
            for name, target, case in compared:
                used = await (_instructions(target, case, site.folder) if site.under else _cpu_ms(target, case))
                spent.setdefault(name, []).append(used)
                print(f"  {name}: {used:,.2f}", file=sys.stderr)
    return spent


def _case_of(number: int, policy: Mapping[str, object]) -> Case:
    """Its sessions, of a length that no others have; what makes no summaries has the default's window all the
    same."""
    raw_turns = PROTECTED_TURNS + 1 if "auto_summarize" in policy else None
    return replace(default_case(_LENGTH + number), policy=policy, raw_turns=raw_turns)


async def _cpu_ms(target: Target, case: Case) -> float:
    load, spent = await measuring.take_batch(target, case, 1)
    return spent.program_ms / len(load.answered)


async def _instructions(target: Target, case: Case, folder: Path) -> float:
    _control("--zero", target.pid)
    await asyncio.sleep(_IDLE_S)
    idle = _dumped(target.pid, folder) / _IDLE_S
    load, _ = await measuring.take_batch(target, case, 1)
    return (_dumped(target.pid, folder) - idle * load.wall_s) / len(load.answered)


def _dumped(pid: int, folder: Path) -> int:
    """Instructions since the last dump, or since all was set to zero."""
    _control("--dump", pid)
    newest = max(folder.glob(f"callgrind.{pid}.*"), key=lambda path: path.stat().st_mtime_ns)
    total = re.search(r"^(?:summary|totals): (\d+)", newest.read_text(encoding="utf-8"), re.MULTILINE)
    assert total is not None
    newest.unlink()
    return int(total[1])


def _control(command: str, pid: int) -> None:
    subprocess.run(["callgrind_control", command, str(pid)], check=True, capture_output=True)  # noqa: S607 wherever it is


if __name__ == "__main__":
    main()
