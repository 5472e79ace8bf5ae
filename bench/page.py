"""`python -m bench.page`: how fast the inspector opens and scrolls a session of 10,000 turns, in a real Chromium.

All turns but the last hundred are written into the tables; those are posted, so that the newest prompts are real ones.
An opening is timed in the page: from the navigation to the first frame that shows what is named. Frames are counted
while the page is scrolled a little in each of them, which is more than a person does.
"""

from __future__ import annotations

import asyncio
import platform
import tempfile
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID

import asyncpg
import httpx
from playwright.async_api import Browser, Page, async_playwright

from bench import filling
from bench.conversation import Conversation
from bench.tokens import fill_tiktoken_cache
from tests.web.conftest import SWITCHES
from tests.web.screenshots import own_site

TURNS = 10_000
POSTED = 100
OPENINGS = 10
SCROLLED_S = 5
LATE_MS = 25
_SHOWN = {
    "window": ".plot [role=option] .bar, .turn-detail .blocks > li",
    "chat": ".turns .answer, .window-panel .sums",
    "memory": ".summary-card .summary-text, #branch",
    "what-if": "#next-preset, #whole-past",
}
"""What each view shows once it is there, all of it: a selector for each part."""

_WATCH = """
selectors => {
  window.opened = new Promise((resolve) => {
    const look = () => selectors.every((each) => document.querySelector(each))
      ? requestAnimationFrame(() => resolve(performance.now()))
      : requestAnimationFrame(look);
    requestAnimationFrame(look);
  });
}
"""
_SCROLL = """
async ([selector, seconds]) => {
  const element = selector ? document.querySelector(selector) : document.scrollingElement;
  const frames = [];
  let way = -1;
  let before = await new Promise(requestAnimationFrame);
  const end = before + seconds * 1000;
  while (before < end) {
    element.scrollTop += way * 40;
    const room = element.scrollHeight - element.clientHeight;
    if (element.scrollTop <= 0) way = 1;
    else if (element.scrollTop >= room - 1) way = -1;
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - before);
    before = now;
  }
  return frames;
}
"""


def main() -> None:
    with own_site() as (origin, database_url, chromium), tempfile.TemporaryDirectory() as folder:
        fill_tiktoken_cache(Path(folder))
        session_id = asyncio.run(_fill(origin, database_url))
        asyncio.run(_measure(f"{origin}/ui/#/sessions/{session_id}", chromium))


async def _fill(origin: str, database_url: str) -> UUID:
    conversation = Conversation()
    async with httpx.AsyncClient(base_url=origin, timeout=60, trust_env=False) as client:

        async def post(session_id: object, number: int) -> None:
            body = {"content": conversation.question(number)}
            (await client.post(f"/v1/sessions/{session_id}/turns", json=body)).raise_for_status()

        pattern = UUID((await client.post("/v1/sessions", json={})).json()["id"])
        await post(pattern, 0)
        driver: Any = asyncpg  # its own types are incomplete
        connection = await driver.connect(database_url)
        try:
            await filling.prepare(connection)
            session_id = await filling.make_session(connection, pattern)
            written = TURNS - POSTED
            await filling.fill(connection, pattern, [session_id], written, filling.texts_of(conversation, written))
            await connection.execute("ANALYZE")
        finally:
            await connection.close()
        for number in range(TURNS - POSTED, TURNS):
            await post(session_id, number)
    return session_id


async def _measure(address: str, chromium: str) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, headless=True, args=SWITCHES)
        print(f"{TURNS:,} turns, Chromium {browser.version}, {platform.machine()}, 1,440 x 900")
        for view in _SHOWN:
            times = [await _opening(browser, address, view) for _ in range(OPENINGS)]
            spread = f"median of {OPENINGS}, {min(times):.0f} to {max(times):.0f}"
            print(f"{view}: opens in {median(times):.0f} ms ({spread})")
        for view, selector in (("window", ""), ("chat", ".talk-frame"), ("memory", "")):
            frames = await _scrolled(browser, address, view, selector)
            late = sum(frame > LATE_MS for frame in frames)
            rate = 1000 * len(frames) / sum(frames)
            print(f"{view}: scrolls at {rate:.1f} frames a second; {late} of {len(frames)} took over {LATE_MS} ms")
        await browser.close()


async def _page(browser: Browser) -> Page:
    return await (await browser.new_context(viewport={"width": 1440, "height": 900})).new_page()


async def _open(page: Page, address: str, view: str) -> float:
    selectors = [each.strip() for each in _SHOWN[view].split(",")]
    await page.add_init_script(f"({_WATCH})({selectors})")
    await page.goto(f"{address}/{view}")
    return float(await page.evaluate("window.opened"))


async def _opening(browser: Browser, address: str, view: str) -> float:
    """In ms. In a context of its own, so that nothing of the page is in a cache."""
    page = await _page(browser)
    try:
        return await _open(page, address, view)
    finally:
        await page.context.close()


async def _scrolled(browser: Browser, address: str, view: str, selector: str) -> list[float]:
    """The length of each frame, in ms."""
    page = await _page(browser)
    await _open(page, address, view)
    frames: list[float] = await page.evaluate(_SCROLL, [selector, SCROLLED_S])
    await page.context.close()
    return frames


if __name__ == "__main__":
    main()
