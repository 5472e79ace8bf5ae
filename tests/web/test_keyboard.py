"""The page by keyboard alone."""

from __future__ import annotations

import httpx
from playwright.async_api import Locator, Page, expect

from tests.api.conftest import new_session


async def test_the_keyboard_goes_on_where_it_was_when_its_button_is_gone(page: Page, api: httpx.Client) -> None:
    sid = new_session(api)
    for content in ("One", "Two", "Three"):
        api.post(f"/v1/sessions/{sid}/turns", json={"content": content}).raise_for_status()
    home = page.url.partition("#")[0]

    async def press(name: str, key: str = "Enter") -> None:
        await (
            page.get_by_role("button", name=name, exact=True).or_(page.get_by_role("link", name=name)).first.press(key)
        )

    await page.goto(f"{home}#/sessions/{sid}/window/1")
    for seq in (2, 3):
        await press(f"Turn {seq} →")
        await expect(page.get_by_role("heading", name=f"Turn {seq} completed")).to_be_focused()
    await press("Rename")
    await page.get_by_label("Title").press("Escape")
    await expect(page.get_by_role("button", name="Rename")).to_be_focused()
    await page.goto(f"{home}#/sessions/{sid}/chat")
    await press("Pin message")
    await expect(page.get_by_text("Pinned: it is in every prompt")).to_be_focused()
    await page.goto(f"{home}#/sessions/{sid}/memory")
    await press("New pin")
    await page.get_by_label("Name").fill("rule")
    await page.get_by_label("Content", exact=True).fill("Be brief.")
    await press("Pin it")
    await expect(page.get_by_role("button", name="New pin")).to_be_focused()
    await press("Unpin rule")
    await press("Unpin")
    await expect(page.get_by_role("button", name="Unpin rule")).to_have_count(0)
    await expect(page.get_by_role("button", name="New pin")).to_be_focused()


async def test_the_keyboard_goes_on_when_what_its_button_started_has_ended(page: Page, api: httpx.Client) -> None:
    sid = new_session(api)
    for number in range(1, 8):
        api.post(f"/v1/sessions/{sid}/turns", json={"content": f"Berth {number} is free."}).raise_for_status()
    home = page.url.partition("#")[0]

    def button(name: str) -> Locator:
        return page.get_by_role("button", name=name, exact=True)

    await page.goto(f"{home}#/sessions/{sid}/what-if")
    await page.get_by_label("Message", exact=True).fill("Which berth is free?")
    await button("Preview").press("Enter")
    await expect(page.get_by_text("Current settings", exact=True).first).to_be_visible()
    await expect(button("Preview")).to_be_focused()
    await page.goto(f"{home}#/sessions/{sid}/chat")
    await page.get_by_label("Message", exact=True).fill("Which berth is free?")
    await button("Send").press("Enter")
    await expect(page.get_by_role("link", name="Turn 8", exact=True)).to_be_visible()
    await expect(page.get_by_label("Message", exact=True)).to_be_focused()
    await page.goto(f"{home}#/sessions/{sid}/memory")
    await button("Summarize now").press("Enter")
    await expect(page.get_by_text("Summarized: ")).to_be_visible()
    await expect(button("Summarize now")).to_be_focused()
    await button("Edit").press("Enter")
    await expect(page.get_by_label("Text", exact=True)).to_be_focused()
    await button("Cancel").press("Enter")
    await expect(page.get_by_role("heading", name="active")).to_be_focused()
    await button("Edit").press("Enter")
    await page.get_by_label("Text", exact=True).fill("All berths are free.")
    await button("Save as a new version").press("Enter")
    await expect(page.get_by_text("edited by a person")).to_be_visible()
    await expect(page.locator("h3:focus")).to_be_visible()
    await button("Undo…").press("Enter")
    await button("Undo").press("Enter")
    await expect(page.get_by_role("heading", name="undone")).to_be_focused()
