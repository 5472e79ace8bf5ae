"""`python -m bench.peers PYTHON`: the default turn, and turns of other libraries, as ratios to the bare handler.

All get the same conversations and the same mock model, and keep what they keep in databases of one server. PYTHON is
the interpreter of the environment in which the libraries are installed (`make bench-peers`).
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import AsyncGenerator, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import asyncpg
import uvloop
from rich.console import Console
from rich.table import Table
from uuid_utils.compat import uuid7

from bench import filling, measuring, programs
from bench.cases import BARE, SERVICE, Case, Plan, default_case
from bench.conversation import INSTRUCTIONS, Conversation
from bench.figures import Batch, pairwise_ratios, select, spread
from bench.load import post_turn
from bench.servers import embedded_server
from bench.targets import Site, Target, make_databases, started
from bench.tokens import fill_tiktoken_cache

PEERS = {"langgraph": "LangGraph", "agents": "Agents SDK"}
LENGTHS = (20, 300, 2_000)
_FILLED_AT_ONCE = 500


def main() -> None:
    """Parses, measures, prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="Other libraries' turns beside ours.")
    parser.add_argument("python", type=Path, help="the interpreter of the peers' environment")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="turns in a session before the run")
    parser.add_argument("--concurrency", type=int, default=4)
    given = parser.parse_args()
    plan = Plan(tuple(default_case(length) for length in given.lengths), (given.concurrency,), given.rounds)
    console = Console(width=120)
    console.print(_table(uvloop.run(_run(str(given.python.absolute()), plan)), plan))


async def _run(python: str, plan: Plan) -> list[Batch]:
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        fill_tiktoken_cache(folder / "vocabularies")
        with embedded_server(folder / "embedded") as url:
            site = Site(url, programs.free_port(), folder)
            programs.write_models_file(site.models_file, site.provider_port)
            await make_databases(site, [SERVICE, BARE, *PEERS])
            async with contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(programs.mock_provider(site.provider_port, 0.0, folder))
                ours = [await stack.enter_async_context(started(site, name)) for name in (SERVICE, BARE)]
                peers = [await stack.enter_async_context(_started(site, name, python)) for name in PEERS]
                await measuring.fill_targets(ours, plan, site.conversation)
                for peer in peers:
                    await _fill(peer, plan.cases, site.conversation)
                return await measuring.measure([*ours, *peers], plan, lambda: None)


@contextlib.asynccontextmanager
async def _started(site: Site, name: str, python: str) -> AsyncGenerator[Target]:
    """A peer's handler, ready; its sessions come into being with their first message."""
    port = programs.free_port()
    environment = {
        "BENCH_PORT": str(port),
        "BENCH_MODEL_URL": f"http://127.0.0.1:{site.provider_port}/v1",
        "BENCH_INSTRUCTIONS": INSTRUCTIONS,
        "DATABASE_URL": site.database_url(name),
    }
    async with contextlib.AsyncExitStack() as stack:
        driver: Any = asyncpg  # its own types are incomplete
        connection = await driver.connect(site.database_url(name))
        stack.push_async_callback(connection.close)
        command = [python, "-m", "bench.peers.handler", name]
        pid = await stack.enter_async_context(programs.running(name, command, environment, site.folder))
        await programs.until_ready(name, port, site.folder)
        client = await stack.enter_async_context(
            aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=aiohttp.TCPConnector(limit=0))
        )
        texts = map(site.conversation.question, count(filling.DIFFERENT_TURNS))
        yield Target(name, pid, port, connection, client, uuid7(), texts)


async def _fill(peer: Target, cases: Sequence[Case], conversation: Conversation) -> None:
    """Gives the peer's sessions the past that all have, and lets each take the turn in which a library that summarizes
    catches up with it."""
    for case in cases:
        asked = [conversation.question(number) for number in range(case.length)]
        past = [
            {"role": role, "content": text}
            for question in asked
            for role, text in (("user", question), ("assistant", conversation.answer(question)))
        ]
        peer.sessions[case.name] = [uuid7() for _ in range(case.sessions)]
        for session_id in peer.sessions[case.name]:
            for at in range(0, len(past), _FILLED_AT_ONCE):
                body = {"messages": past[at : at + _FILLED_AT_ONCE]}
                async with peer.client.post(f"/v1/sessions/{session_id}/past", json=body) as response:
                    response.raise_for_status()
            await post_turn(peer.client, session_id, next(peer.texts))
    await peer.admin.execute("VACUUM (ANALYZE)")


def _table(batches: Sequence[Batch], plan: Plan) -> Table:
    table = Table(title="CPU of a turn, and as a ratio to the bare handler's")
    for heading in ("turns before", "", "service ms", "ratio", "Postgres ms", "ratio", "prompt tokens"):
        table.add_column(heading, justify="left" if not heading else "right")
    names = {SERVICE: "Plimsoll, default", BARE: "bare handler", **PEERS}
    for case in plan.cases:
        bare = select(batches, BARE, case.name, plan.concurrencies[0])
        for name, title in names.items():
            of_name = select(batches, name, case.name, plan.concurrencies[0])
            cells = [
                cell
                for figures, of_bare in (
                    ([each.cpu_ms for each in of_name], [each.cpu_ms for each in bare]),
                    ([each.postgres_cpu_ms or 0.0 for each in of_name], [each.postgres_cpu_ms or 1.0 for each in bare]),
                )
                for cell in (f"{median(figures):.2f}", _ratio(figures, of_bare))
            ]
            tokens = f"{median(each.prompt_tokens for each in of_name):,.0f}"
            table.add_row(f"{case.length:,}", title, *cells, tokens)
    return table


def _ratio(figures: Sequence[float], of_bare: Sequence[float]) -> str:
    ratios = spread(pairwise_ratios(figures, of_bare))
    return f"{ratios.median:.2f} ({ratios.lowest:.2f}-{ratios.highest:.2f})"


if __name__ == "__main__":
    main()
