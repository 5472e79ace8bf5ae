"""A real Chromium on a real service. What the page logs as an error, and every breach of its policy, fails the test."""

from __future__ import annotations

import os
import shutil
from asyncio import to_thread
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Error, Page, Request, async_playwright, expect

from app.api.routes.inspector import FOLDER
from tests.api.conftest import PATIENCE_S, serving, settings_for
from tests.conftest import servers_of
from tests.web.scene import fill

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-gpu-rasterization",  # which Debian's launcher enables: without a GPU it takes a quarter of the CPU
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
REPORT_BREACHES = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy breached: ${event.violatedDirective} by ${event.blockedURI} ${event.sample}`));
"""


# How many times slower the browser computes: what a test assumes of a fast page fails at 6, as on a slow machine.
SLOWDOWN = float(os.environ.get("PLIMSOLL_BROWSER_SLOWDOWN", "1"))
# A bound for a machine that does much else meanwhile, as the start of a simulation's process; nothing is timed by it.
expect.set_options(timeout=120_000)


@dataclass
class Watch:
    """What a page did that it should not. `expected` holds what a test is about: an answer's status in the console."""

    origin: str
    faults: list[str] = field(default_factory=list[str])
    expected: tuple[str, ...] = ()

    def console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not any(each in message.text for each in self.expected):
            self.faults.append(f"console {message.type}: {message.text}")

    def uncaught(self, error: Error) -> None:
        self.faults.append(f"uncaught: {error}")

    def request(self, request: Request) -> None:
        if not request.url.startswith((self.origin, "data:", "blob:")):
            self.faults.append(f"sent to another host: {request.url}")


@pytest_asyncio.fixture(scope="session")
async def browser() -> AsyncGenerator[Browser]:
    """One browser for the run."""
    if CHROMIUM is None:
        reason = "NO CHROMIUM ON THIS MACHINE: the inspector was not driven (Debian: apt-get install chromium)"
        if os.environ.get("PLIMSOLL_BROWSER_TESTS") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=SWITCHES)
        yield browser
        await browser.close()


@asynccontextmanager
async def open_page(
    browser: Browser, origin: str, *, width: int = 1280, height: int = 900, dark: bool = False
) -> AsyncGenerator[tuple[Page, Watch]]:
    """A new page that is watched; at the end nothing may have been noticed."""
    assert (FOLDER / "index.html").is_file(), "the inspector is not built: make web"
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    await context.add_init_script(REPORT_BREACHES)
    page = await context.new_page()
    page.set_default_timeout(120_000)
    if SLOWDOWN > 1:
        throttle = cast(Any, await context.new_cdp_session(page))
        await throttle.send("Emulation.setCPUThrottlingRate", {"rate": SLOWDOWN})
    watch = Watch(origin)
    page.on("console", watch.console)
    page.on("pageerror", watch.uncaught)
    page.on("request", watch.request)
    try:
        yield page, watch
        assert watch.faults == []
    finally:
        await context.close()


@pytest.fixture
def origin(database_url: str) -> Iterator[str]:
    """A service over a fresh database, without keys."""
    with serving(settings_for(database_url)) as url:
        yield url


@pytest.fixture
def api(origin: str) -> Iterator[httpx.Client]:
    """The same service, without a browser."""
    with httpx.Client(base_url=origin, timeout=PATIENCE_S, trust_env=False) as client:
        yield client


@pytest_asyncio.fixture
async def page(browser: Browser, origin: str) -> AsyncIterator[Page]:
    """A page at the inspector."""
    async with open_page(browser, origin) as (page, _):
        await page.goto(f"{origin}/ui")
        yield page


@dataclass(frozen=True)
class Shipped:
    """A service that has the beginning of the shipped conversation: a summary, recalls, and a refused last turn."""

    origin: str
    session_id: str
    api: httpx.Client

    def turn_id(self, seq: int) -> str:
        items = self.api.get(f"/v1/sessions/{self.session_id}/timeline").raise_for_status().json()["items"]
        return next(turn["turn_id"] for turn in items if turn["seq"] == seq)


@pytest_asyncio.fixture(scope="session")
async def shipped(postgres_server: str, template_database: str) -> AsyncGenerator[Shipped]:
    """Shared by tests that change nothing of it."""
    async with servers_of(postgres_server).lend(template_database) as database_url:
        with (
            serving(settings_for(database_url)) as origin,
            httpx.Client(base_url=origin, timeout=PATIENCE_S, trust_env=False) as client,
        ):
            session_id = await to_thread(fill, origin, turns=12)
            pin = {"content": "Minor units as bigint everywhere.", "relevance": 0.8, "source": "decisions.md"}
            client.put(f"/v1/sessions/{session_id}/pins/D1", json=pin).raise_for_status()
            yield Shipped(origin, session_id, client)
