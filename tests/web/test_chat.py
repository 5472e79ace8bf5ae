"""The chat of a session: turns that are read as they come into sight, and what is typed and not lost."""

from __future__ import annotations

import asyncio
import re

import httpx
from playwright.async_api import Page, Route, expect

from tests.api.conftest import new_session

NOT_READ = re.compile(r"^Turn \d+…$")


def _at(page: Page, sid: str) -> str:
    return f"{page.url.split('#')[0]}#/sessions/{sid}/chat"


async def test_turns_that_were_scrolled_out_of_sight_are_read_again(page: Page, api: httpx.Client) -> None:
    turns = [
        {"role": role, "content": f"Berth {number} of {role}."}
        for number in range(1, 801)
        for role in ("user", "assistant")
    ]
    sid = api.post("/v1/sessions/import", json={"messages": turns}).raise_for_status().json()["id"]
    await page.goto(_at(page, sid))
    await expect(page.get_by_role("link", name="Turn 800", exact=True)).to_be_visible()
    frame = page.get_by_role("region", name="Turns")
    for turn in range(760, 0, -40):
        await frame.evaluate("(frame, share) => { frame.scrollTop = frame.scrollHeight * share }", turn / 800)
        await expect(frame.get_by_text(NOT_READ)).to_have_count(0)
    await frame.evaluate("frame => { frame.scrollTop = frame.scrollHeight }")
    await expect(page.get_by_role("link", name="Turn 800", exact=True)).to_be_visible()
    await expect(frame.get_by_text(NOT_READ)).to_have_count(0)


async def test_a_busy_sessions_turns_are_shown_over_a_slow_network(page: Page, api: httpx.Client) -> None:
    async def slowly(route: Route) -> None:
        await asyncio.sleep(1)
        await route.continue_()

    sid = new_session(api)
    await page.route("**/turns?*", slowly)
    await page.goto(_at(page, sid))
    await expect(page.get_by_text("Send a message below.")).to_be_visible()
    shown = page.get_by_text("Message 3", exact=True)
    for number in range(1, 36):
        await asyncio.to_thread(api.post, f"/v1/sessions/{sid}/turns", json={"content": f"Message {number}"})
        await asyncio.sleep(0.25)
        if await shown.count():
            break
    else:
        raise AssertionError("a turn is not shown as long as others follow it")
