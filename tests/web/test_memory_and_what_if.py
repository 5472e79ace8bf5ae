"""The summary with its sources, the pins, and what another policy would have made of it all."""

from __future__ import annotations

import re

import httpx
from playwright.async_api import Browser, Page, expect

from tests.api.conftest import new_session
from tests.web.conftest import Shipped, open_page


async def test_a_summary_shows_the_messages_of_each_item_and_is_made_and_taken_back(
    page: Page, api: httpx.Client
) -> None:
    sid = new_session(api)
    for number in range(6):
        said = {"content": f"We decided: berth {number} closes at {number + 4} o'clock. " + "Tides matter. " * 30}
        api.post(f"/v1/sessions/{sid}/turns", json=said).raise_for_status()
    await page.goto(f"{page.url.split('#')[0]}#/sessions/{sid}/memory")
    await expect(page.get_by_text("All of it is raw.")).to_be_visible()
    await page.get_by_role("button", name="Summarize now").click()
    await expect(page.get_by_text("active", exact=True)).to_be_visible()
    await page.get_by_text(re.compile(r"^from \d message")).first.click()
    await expect(page.locator("blockquote").first).to_contain_text("berth")
    await page.get_by_role("button", name="Undo").click()
    await expect(page.get_by_text("All of it is raw.")).to_be_visible()


async def test_pins_are_made_changed_and_taken_away_with_their_relevance(page: Page, api: httpx.Client) -> None:
    sid = new_session(api)
    await page.goto(f"{page.url.split('#')[0]}#/sessions/{sid}/memory")
    await page.get_by_role("button", name="New pin").click()
    await page.get_by_label("Name").fill("rules/first")
    await page.get_by_label("Content").fill("No fireworks.")
    await page.get_by_label("State its relevance").check()
    await page.get_by_label("Relevance:").fill("0.9")
    await page.get_by_role("button", name="Pin it").click()
    await expect(page.get_by_text("relevance 0.90")).to_be_visible()
    assert api.get(f"/v1/sessions/{sid}/pins/rules/first").json()["relevance"] == 0.9
    await page.get_by_role("button", name="Unpin").click()
    await expect(page.get_by_text("Nothing is pinned.")).to_be_visible()


async def test_the_next_turn_and_the_whole_past_are_shown_under_another_policy_beside_what_happened(
    browser: Browser, shipped: Shipped
) -> None:
    async with open_page(browser, shipped.origin) as (page, _):
        await page.goto(f"{shipped.origin}/ui/#/sessions/{shipped.session_id}/what-if")
        await page.get_by_label("Message").fill("What did we decide about minor units?")
        await page.get_by_label("Overrides (JSON)").fill('{"max_context_tokens": 4096}')
        await page.get_by_role("button", name="Preview").click()
        row = page.get_by_role("row").filter(has_text="Input budget")
        await expect(row).to_contain_text("13,312")
        await expect(row).to_contain_text("2,253")
        await page.get_by_role("button", name="Simulate").click()
        await expect(page.get_by_role("img", name="Prompt tokens of every turn by policy")).to_be_visible()
        sent = page.get_by_role("row").filter(has_text="Prompt tokens sent")
        await expect(sent.get_by_role("cell")).to_have_count(3)
