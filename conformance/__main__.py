"""Runs the unmodified clients against the service, and writes what they saw into `docs/clients.md`.

    python -m conformance [--short] [PART OF A NAME …]

With names only those clients run, and nothing is written; `--short` leaves out the long conversations. Exits 1 if a row
got worse, or if a client without the header costs more than 5 % more or less than with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from uuid_utils.compat import uuid7

from app.db.database import Database
from app.domain.types import TenantId
from app.services.keys import create_key
from bench import programs
from bench.servers import embedded_server
from conformance.cases import CASES, Case
from conformance.model import play
from conformance.table import Measure, Row, read_rows, regressions, written
from tests.providers.server import ScriptedServer, serving

PAGE: Final = programs.ROOT / "docs" / "clients.md"
ALIASES = ("main", "gpt-4o", "claude-sonnet-4-5")  # some clients take no names but those of the vendors' models
TURNS, LONG_TURNS = 12, 40
WINDOW_TOKENS = 8_192
MOST_DIFFERENCE = 0.05
_LONGEST_RUN_S = 600.0
_AT_ONCE = 2


class ClientFailed(Exception):
    """A client's program did not end well; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Site:
    """The service of a run, and its database."""

    address: str
    database: Database

    async def key(self, tenant: str) -> str:
        return (await create_key(self.database, uuid7, TenantId(tenant), "conformance"))[1]


async def run_client(site: Site, case: Case, key: str, turns: int, session: str | None) -> dict[str, Any]:
    """What the client's program saw."""
    folder = programs.ROOT / "conformance"
    if case.environment == "node":
        command = ["node", str(folder / "node" / f"{case.file}.mjs")]
    else:
        interpreter = programs.ROOT / "var" / case.environment / "bin" / "python"
        command = [str(interpreter), "-W", "ignore", str(folder / "python" / f"{case.file}.py")]
    command += [case.which, site.address, key, str(turns), *([session] if session else [])]
    process = await asyncio.create_subprocess_exec(
        *command, env=_environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_LONGEST_RUN_S):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise ClientFailed(f"{case.name}: {errors[-3000:].decode(errors='replace')}")
    for line in reversed(output.splitlines()):
        if line.startswith(b'{"version"'):  # some clients print as they go
            return json.loads(line)
    raise ClientFailed(f"{case.name} printed no result: {output[-1000:].decode(errors='replace')}")


def _environment() -> dict[str, str]:
    """Ours without proxies, keys of model vendors and settings of the service. Clients send no traces."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy")
        and not name.startswith(("OPENAI_", "ANTHROPIC_", "PLIMSOLL_", "PYTHONPATH"))
    }
    quiet = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false", "HAYSTACK_TELEMETRY_ENABLED": "False"}
    return kept | quiet | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OTEL_SDK_DISABLED": "true"}


async def try_client(site: Site, case: Case) -> Row:
    """The short conversation, and what it left in the service."""
    key = await site.key(case.tenant)
    seen = await run_client(site, case, key, TURNS, "conformance" if case.is_named else None)
    sessions = await _sessions(site.address, key)
    refused = seen["refused"]
    error = " ".join(str(refused[name]) for name in ("error", "status") if refused.get(name))
    # The turn that is too long is rejected: it neither completed nor was left open.
    left_open = sum(
        turn["status"] not in ("completed", "rejected") for session in sessions for turn in session["turns"]
    )
    return Row(
        client=case.name,
        version=seen["version"],
        turns=seen["answered"],
        called=seen["called"] if case.calls_tools else None,
        streamed=seen["streamed"],
        error=error or None,
        sessions=len(sessions),
        left_open=left_open,
    )


async def _sessions(address: str, key: str) -> list[dict[str, Any]]:
    """A key's sessions, each with its `turns` and what it used."""
    async with aiohttp.ClientSession(address, headers={"authorization": f"Bearer {key}"}) as http:

        async def read(path: str, **query: str) -> dict[str, Any]:
            async with http.get(path, params=query) as answer:
                answer.raise_for_status()
                return await answer.json()

        places = [f"/v1/sessions/{each['id']}" for each in (await read("/v1/sessions", limit="200"))["items"]]
        return [await read(at) | {"turns": (await read(f"{at}/turns", limit="200"))["items"]} for at in places]


async def measure(site: Site, case: Case) -> Measure:
    """The long conversation without the header, and with it."""
    figures: list[tuple[int, int]] = []
    for session in (None, "measured"):
        key = await site.key(f"{case.tenant}-{session}")
        seen = await run_client(site, case, key, LONG_TURNS, session)
        if seen["answered"] != LONG_TURNS:
            raise ClientFailed(f"{case.name}: {seen}")
        used = [usage for each in await _sessions(site.address, key) for usage in each["usage"]]
        figures.append((sum(each["calls"] for each in used), sum(each["prompt_tokens"] for each in used)))
    (calls, tokens), (calls_named, tokens_named) = figures
    return Measure(case.name, (calls, calls_named), (tokens, tokens_named))


async def run(site: Site, cases: Sequence[Case], *, is_short: bool) -> tuple[list[Row], list[Measure], list[str]]:
    """Rows and measures in the order of the cases, and what failed."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def run_one(case: Case) -> tuple[Row, Measure | None] | str:
        async with turn:
            try:
                row = await try_client(site, case)
                measured = await measure(site, case) if case.resends and not is_short else None
            except ClientFailed as error:
                sys.stderr.write(f"{error}\n")
                return str(error)
        figures = f" | {measured.calls} {measured.tokens}" if measured else ""
        sys.stderr.write(f"{' | '.join(row.cells)}{figures}\n")
        return row, measured

    done = await asyncio.gather(*map(run_one, cases))
    results = [result for result in done if not isinstance(result, str)]
    measures = [measured for _, measured in results if measured is not None]
    return [row for row, _ in results], measures, [result for result in done if isinstance(result, str)]


def _entry(alias: str, server: ScriptedServer) -> str:
    return (
        f'[models."{alias}"]\nprovider = "openai"\nmodel = "scripted"\nbase_url = "{server.base_url}"\n'
        f'context_window = {WINDOW_TOKENS}\nencoding = "o200k_base"\n'
    )


async def main(arguments: Sequence[str]) -> int:
    names = [argument for argument in arguments if argument != "--short"]
    cases = [case for case in CASES if not names or any(name.lower() in case.name.lower() for name in names)]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with embedded_server(folder / "postgres") as database_url:
            async with serving(play) as server:
                models_file = folder / "models.toml"
                models_file.write_text('default = "main"\n' + "".join(_entry(alias, server) for alias in ALIASES))
                programs.migrate(database_url, models_file)
                port = programs.free_port()
                # What is summarized ahead goes by how fast the next turn comes, and figures are to be compared.
                environment = programs.service_environment(database_url, models_file) | {
                    "PLIMSOLL_PORT": str(port),
                    "PLIMSOLL_SUMMARIZE_AHEAD": "false",
                }
                async with programs.running("service", [*programs.PLIMSOLL, "serve"], environment, folder):
                    await programs.until_ready("service", port, folder)
                    database = Database(database_url, pool_size=2)
                    site = Site(f"http://127.0.0.1:{port}", database)
                    rows, measures, failed = await run(site, cases, is_short="--short" in arguments)
                    await database.aclose()
    return conclude(rows, measures, failed, is_whole=not arguments)


def conclude(rows: Sequence[Row], measures: Sequence[Measure], failed: Sequence[str], *, is_whole: bool) -> int:
    """Writes the page after a whole run in which nothing got worse; says what did."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    faults = [*failed, *(regressions(read_rows(page), rows) if is_whole else ())]
    faults += [
        f"{each.client} differs by {each.difference:.1%} from itself with the header"
        for each in measures
        if each.difference > MOST_DIFFERENCE
    ]
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    if is_whole and not faults:
        PAGE.write_text(written(page, rows, measures), encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
