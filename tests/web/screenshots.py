"""`make screenshots`: the pictures of the inspector in docs/images, of the shipped conversation on a real service."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
from playwright.async_api import Page, async_playwright

from app.db import embedded
from app.db.migrate import upgrade
from migrations.drift import with_database
from tests.api.conftest import serving, settings_for
from tests.docs.pages import ROOT
from tests.web.conftest import CHROMIUM, SWITCHES
from tests.web.scene import fill, neighbours
from torture.databases import execute

IMAGES = ROOT / "docs" / "images"
CHOSEN_TURN = 41
"""Its window was relieved by a summary and by a prune."""


def main() -> None:
    with own_site() as (origin, _, chromium):
        neighbours(origin)
        session_id = fill(origin)
        asyncio.run(_take(origin, session_id, chromium))


@contextmanager
def own_site() -> Generator[tuple[str, str, str]]:
    """A service over a database of its own: its address and its database's, and the machine's Chromium."""
    if CHROMIUM is None:
        sys.exit("There is no Chromium on this machine (Debian: apt-get install chromium).")
    with tempfile.TemporaryDirectory() as folder:
        server = embedded.start(Path(folder) / "server")
        try:
            name = f"inspector_{uuid4().hex[:12]}"
            asyncio.run(execute(server.dsn, f"CREATE DATABASE {name}"))
            database_url = with_database(server.dsn, name)
            asyncio.run(upgrade(database_url))
            with serving(settings_for(database_url)) as origin:
                yield origin, database_url, CHROMIUM
        finally:
            server.stop()


async def _take(origin: str, session_id: str, chromium: str) -> None:
    timeline = httpx.get(f"{origin}/v1/sessions/{session_id}/timeline", trust_env=False).json()["items"]
    turn_id = next(turn["turn_id"] for turn in timeline if turn["seq"] == CHOSEN_TURN)
    session = f"{origin}/ui/#/sessions/{session_id}"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, headless=True, args=SWITCHES)
        for dark in (False, True):
            context = await browser.new_context(
                viewport={"width": 1280, "height": 860}, color_scheme="dark" if dark else "light"
            )
            page = await context.new_page()
            suffix = "-dark" if dark else ""
            await _picture(page, f"{session}/window/{turn_id}", f"inspector-window{suffix}.png", height=1180)
            if not dark:
                await _picture(page, f"{origin}/ui/", "inspector-sessions.png", height=560)
                await _picture(page, f"{session}/memory", "inspector-memory.png", height=860)
                await page.goto(f"{session}/what-if")
                for preset in ("rolling", "turn_atomic"):
                    await page.get_by_role("checkbox", name=preset).check()
                await page.get_by_role("button", name="Simulate").click()
                await page.get_by_role("columnheader", name="turn_atomic").wait_for()
                await page.set_viewport_size({"width": 1280, "height": 2400})  # tabs stay at the top
                await page.locator("[aria-labelledby=whole-past]").screenshot(path=IMAGES / "inspector-what-if.png")
            await context.close()
        await browser.close()


async def _picture(page: Page, address: str, name: str, *, height: int) -> None:
    await page.set_viewport_size({"width": 1280, "height": height})
    await page.goto(address)
    await page.wait_for_timeout(1500)
    await page.screenshot(path=IMAGES / name)


if __name__ == "__main__":
    main()
