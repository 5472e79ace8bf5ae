"""Instructions a turn of the service and of the bare handler, by callgrind: figures that the load of the machine hardly
changes.

    python -m bench.instructions [default plain "recall alone" "summaries alone"]

Needs valgrind. A process runs some fifty times slower under it and is counted while the turns of a batch run: 8 turns,
a cycle of summaries, in each of 8 sessions of 300 turns, one at a time, after two batches of warm-up. What a process
does by the clock is counted while it idles, and taken off for the seconds that a batch took: it would run fifty times
as often a turn. Instructions are not time: those that wait for memory count as one, and the kernel's as none.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench import measuring, programs, targets
from bench.cases import BARE, SERVICE, Case, default_case
from bench.filling import PROTECTED_TURNS
from bench.servers import embedded_server
from bench.tokens import fill_tiktoken_cache

_LENGTH: Final = 300
_BATCHES: Final = 2
_IDLE_S: Final = 5.0
_UNDER: Final = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=callgrind.%p")
_NO_RECALL: Final = {"recall": {"enabled": False}}
_NO_SUMMARIES: Final = {"auto_summarize": False}
_POLICIES: Final[Mapping[str, Mapping[str, object]]] = {
    "default": {},
    "recall alone": _NO_SUMMARIES,
    "summaries alone": _NO_RECALL,
    "plain": {**_NO_RECALL, **_NO_SUMMARIES},
}


def main() -> None:
    """Prints a line for each of the named policies, and before them the bare handler's with the default's prompts."""
    names = sys.argv[1:] or list(_POLICIES)
    with tempfile.TemporaryDirectory() as folder, embedded_server(Path(folder) / "postgres") as dsn:
        asyncio.run(_measured(Path(folder), dsn, names))


def case_of(name: str) -> Case:
    """Sessions under the policy of this name; those that make no summaries have the default's window all the same."""
    policy = _POLICIES[name]
    raw_turns = PROTECTED_TURNS + 1 if "auto_summarize" in policy else None
    return replace(default_case(_LENGTH), policy=policy, raw_turns=raw_turns)


async def _measured(folder: Path, dsn: str, names: list[str]) -> None:
    os.environ["PYTHONHASHSEED"] = "0"
    fill_tiktoken_cache(folder / "vocabularies")
    provider_port = programs.free_port()
    site = targets.Site(dsn, provider_port, folder, under=_UNDER)
    programs.write_models_file(site.models_file, provider_port)
    await targets.make_databases(site, [SERVICE, BARE])
    async with (
        programs.mock_provider(provider_port, 0.0, folder),
        targets.started(site, SERVICE) as service,
        targets.started(site, BARE) as bare,
    ):
        for target in (service, bare):
            _control("--instr=on", target.pid)
        bare_instructions = 0.0
        for name in dict.fromkeys(["default", *names]):
            case = case_of(name)
            compared = [service] if bare_instructions else [service, bare]
            await measuring.fill_targets(compared, measuring.Plan((case,), (1,), 1), site.conversation)
            await measuring.warm_up(compared, case, 1)
            bare_instructions = bare_instructions or await _counted(bare, case, folder, BARE)
            found = await _counted(service, case, folder, name) if name in names else 0.0
            print(f"{name}: {found:,.0f} instructions a turn, {found / bare_instructions:.3f} of the bare handler")


async def _counted(target: targets.Target, case: Case, folder: Path, name: str) -> float:
    """Instructions a turn, the mean of the batches."""
    await measuring.take_batch(target, case, 1)
    found: list[float] = []
    for _ in range(_BATCHES):
        _control("--zero", target.pid)
        await asyncio.sleep(_IDLE_S)
        idle = _dumped(target.pid, folder) / _IDLE_S
        load, _ = await measuring.take_batch(target, case, 1)
        found.append((_dumped(target.pid, folder) - idle * load.wall_s) / len(load.answered))
    print(f"  {name}: {', '.join(f'{each:,.0f}' for each in found)}")
    return sum(found) / len(found)


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
