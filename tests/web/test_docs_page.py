"""The page at /docs in a real browser: rendered from what the service itself serves, under its policy."""

from __future__ import annotations

from playwright.async_api import Browser, expect

from tests.web.conftest import open_page


async def test_the_page_of_the_api_shows_its_routes_and_tries_one_and_asks_no_other_host(
    browser: Browser, origin: str
) -> None:
    async with open_page(browser, origin) as (page, watch):
        answer = await page.goto(f"{origin}/docs")
        assert answer is not None
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        route = page.locator("#operations-sessions-create_session")
        await expect(route).to_be_visible()
        await route.get_by_role("button").first.click()
        await route.get_by_role("button", name="Try it out").click()
        await route.get_by_role("textbox").fill('{"room_goal": "tried"}')
        await route.get_by_role("button", name="Execute").click()
        await expect(route.locator(".live-responses-table .response-col_status").last).to_contain_text("201")
        assert watch.faults == []
