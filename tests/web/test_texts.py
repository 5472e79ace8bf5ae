"""Texts as people and models write them: without an end, in another script, in lines, and into the address."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import asyncpg
import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from tests.api.chatting import chat_service
from tests.api.conftest import new_session
from tests.providers.server import Stream
from tests.providers.wires import OPENAI, ModelReply
from tests.web.conftest import open_page

_FIRST_LETTER_TO_THE_RIGHT = """(element) => {
  const letter = document.createRange();
  letter.setStart(element.firstChild, 0);
  letter.setEnd(element.firstChild, 1);
  return element.getBoundingClientRect().right - letter.getBoundingClientRect().right;
}"""
LINES = "The first line.\nThe second line."
ANSWER = "The answer's first line.\nIts second line."


async def test_a_long_answer_is_shown_in_part_and_whole_in_pieces(page: Page, api: httpx.Client) -> None:
    """Chromium lays out a paragraph of many fonts in a time that grows with the square of its length."""
    answer = "of the harbour 🚢 " * 6_000
    sid = new_session(api)
    body = {"content": "Tell me everything", "recorded_reply": {"content": answer}}
    api.post(f"/v1/sessions/{sid}/turns", json=body).raise_for_status()
    await page.goto(f"{page.url.split('#')[0]}#/sessions/{sid}/chat")
    shown = page.locator("p.answer")
    await expect(shown).to_contain_text("of the harbour")
    assert len(await shown.text_content() or "") < 21_000
    await page.get_by_role("button", name="Show all 108,000 characters").click()
    await expect(page.locator(".answer .piece").nth(9)).to_be_attached()
    assert await shown.text_content() == answer
    assert max(map(len, await page.locator(".answer .piece").all_text_contents())) <= 10_000


async def test_a_word_without_an_end_stays_inside_the_page(page: Page, api: httpx.Client) -> None:
    sid = new_session(api)
    api.post(f"/v1/sessions/{sid}/turns", json={"content": "w" * 5_000}).raise_for_status()
    for width in (1280, 390):
        await page.set_viewport_size({"width": width, "height": 900})
        for part in ("window", "chat", "memory", "what-if"):
            await page.goto(f"{page.url.split('#')[0]}#/sessions/{sid}/{part}")
            if part == "memory":
                await expect(page.get_by_role("button", name="Fork here")).to_be_enabled()
            await expect(page.locator("main")).not_to_contain_text("Reading")
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, part


async def test_a_text_of_a_right_to_left_script_begins_at_the_right(page: Page, api: httpx.Client) -> None:
    text = "مرحبا بالعالم!"
    sid = new_session(api, metadata={"title": text})
    api.post(f"/v1/sessions/{sid}/turns", json={"content": text}).raise_for_status()
    api.put(f"/v1/sessions/{sid}/pins/one", json={"content": text}).raise_for_status()
    for part, places in (
        ("memory", ("h1", ".pin-text", ".of-turn")),
        ("window", (".snippet",)),
        ("chat", (".talk p",)),
    ):
        await page.goto(f"{page.url.split('#')[0]}#/sessions/{sid}/{part}")
        for place in places:
            own = page.locator(place, has_text=text).first
            await expect(own).to_be_visible()
            assert await own.evaluate(_FIRST_LETTER_TO_THE_RIGHT) < 20, place


async def test_a_running_answer_has_its_lines_and_its_turn_can_be_cancelled_also_after_a_reload_and_keeps_them(
    browser: Browser, database_url: str, tmp_path: Path
) -> None:
    may_go_on = threading.Event()
    delivered = b"".join((*OPENAI.begin(), *OPENAI.fragments(ModelReply(ANSWER))))
    model = Stream((delivered, *OPENAI.end(ModelReply())), after=may_go_on.is_set)
    with chat_service(database_url, tmp_path, model) as at:
        sid = at.http.post("/v1/sessions", json={}).raise_for_status().json()["id"]
        async with open_page(browser, at.address) as (page, _):
            await page.goto(f"{at.address}/ui/#/sessions/{sid}/chat")
            await page.get_by_label("Message", exact=True).fill(LINES)
            await page.get_by_role("button", name="Send").click()
            running = page.locator("[aria-busy] p")
            await expect(running.first).to_have_css("white-space", "pre-wrap")
            await expect(running.last).to_have_css("white-space", "pre-wrap")
            await expect(running.last).to_have_text(ANSWER)
            await page.reload()
            await page.get_by_role("button", name="Cancel the turn").click()
            await expect(page.locator(".turn-foot")).to_contain_text("cancelled")
            await expect(page.locator(".answer")).to_have_text(ANSWER)
            await expect(page.get_by_role("button", name="Cancel the turn")).to_have_count(0)
            # Its message is part of the conversation: it must not come back to be sent a second time.
            await page.get_by_label("Message", exact=True).fill("Once more.")
            await page.get_by_role("button", name="Send").click()
            await expect(running.first).to_be_visible()
            await page.get_by_role("button", name="Cancel the turn").click()
            await expect(page.locator(".turn-foot").nth(1)).to_contain_text("cancelled")
            await expect(page.get_by_role("alert")).to_have_count(0)
            await expect(page.get_by_label("Message", exact=True)).to_have_value("")
        may_go_on.set()


async def test_a_turn_that_is_not_claimed_yet_cannot_be_cancelled_in_place_of_the_one_before_it(
    page: Page, api: httpx.Client, database_url: str
) -> None:
    sid = new_session(api)
    api.post(f"/v1/sessions/{sid}/turns", json={"content": "The first message."}).raise_for_status()
    await page.goto(f"{page.url.split('#')[0]}#/sessions/{sid}/chat")
    connection = await cast(Any, asyncpg).connect(database_url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT FROM sessions WHERE id = $1 FOR UPDATE", UUID(sid))
            await page.get_by_label("Message", exact=True).fill("The second message.")
            await page.get_by_role("button", name="Send").click()
            await expect(page.locator("[aria-busy]")).to_contain_text("The second message.")
            await expect(page.get_by_role("button", name="Cancel the turn")).to_have_count(0)
    finally:
        await connection.close()
    await expect(page.locator(".turn-foot")).to_have_count(2)


@pytest.mark.parametrize("address", ["..", "%2e%2e", "?q=x", "%"])
async def test_an_address_that_is_no_id_leads_to_the_sessions(page: Page, address: str) -> None:
    await page.goto(f"{page.url.split('#')[0]}#/sessions/{address}")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sessions")
