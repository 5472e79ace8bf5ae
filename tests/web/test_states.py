"""What the page has for words and for the keyboard while it reads, and where it cannot."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import httpx
import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.api.conftest import new_session
from tests.web.conftest import open_page

_POSTS = "**/v1/sessions/*/turns"
# The first stream of events is one whose connection was lost unnoticed: after its beginning nothing more comes.
_FALLS_SILENT = r"""
const own = fetch;
let isFirst = true;
window.fetch = (address, ...rest) => {
  if (!isFirst || !String(address).endsWith("/v1/events")) return own(address, ...rest);
  isFirst = false;
  const ready = new TextEncoder().encode('event: stream.ready\ndata: {"open": []}\n\n');
  const body = new ReadableStream({ start: (to) => to.enqueue(ready) });
  return Promise.resolve(new Response(body, { headers: { "content-type": "text/event-stream" } }));
};
"""


@pytest.mark.parametrize(
    ("status", "kind", "body", "words"),
    [
        (502, "application/json", '{"message": "Bad gateway"}', "The service answered 502."),
        (502, "application/json", '[{"detail": "x"}]', "The service answered 502."),
        (422, "application/json", '{"detail": [{"msg": "x"}]}', "The service answered 422."),
        (502, "text/html", "<h1>Bad gateway</h1>", "The service answered 502."),
        (200, "text/html", "<h1>Log in</h1>", "The answer cannot be read"),
        (200, "application/json", '{"items": [', "The answer cannot be read"),
    ],
)
async def test_an_answer_that_is_not_the_services_is_reported_in_words(
    browser: Browser, origin: str, status: int, kind: str, body: str, words: str
) -> None:
    async def answer(route: Route) -> None:
        await route.fulfill(status=status, content_type=kind, body=body)

    async with open_page(browser, origin) as (page, watch):
        watch.expected = ("status of",)
        await page.route("**/v1/sessions?*", answer)
        await page.goto(f"{origin}/ui/")
        await expect(page.get_by_role("alert")).to_contain_text(words)
        await page.unroute("**/v1/sessions?*")
        await page.route("**/v1/models", answer)
        await page.reload()
        await expect(page.get_by_role("alert")).to_contain_text(words)


async def test_a_stream_that_breaks_off_before_its_turn_is_known_is_reported_in_words(
    page: Page, api: httpx.Client
) -> None:
    sid = new_session(api)
    await page.goto(f"{page.url.partition('#')[0]}#/sessions/{sid}/chat")
    part = "event: turn.created\ndata: {"
    await page.route(
        _POSTS,
        lambda it: (
            it.fulfill(content_type="text/event-stream", body=f"{part}\n\n")
            if it.request.method == "POST"
            else it.continue_()
        ),
    )
    await page.get_by_label("Message", exact=True).fill("Hello")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("alert")).to_contain_text("The connection was lost before the answer was complete.")
    await expect(page.get_by_label("Message", exact=True)).to_have_value("Hello")


async def test_a_stream_that_fell_silent_is_opened_again(page: Page, api: httpx.Client) -> None:
    await page.clock.install()
    await page.add_init_script(_FALLS_SILENT)
    await page.reload()
    await expect(page.locator(".live.on")).to_be_visible()
    sid = new_session(api)
    api.post(f"/v1/sessions/{sid}/turns", json={"content": "Said meanwhile"}).raise_for_status()
    await page.clock.fast_forward(60_001)
    await expect(page.get_by_role("link", name="Said meanwhile")).to_be_visible()


async def test_what_could_not_be_read_without_a_network_is_read_once_it_is_back(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    """The stream stays open meanwhile, and silent."""
    sid = new_session(api)
    api.post(f"/v1/sessions/{sid}/turns", json={"content": "Where is the harbour?"}).raise_for_status()
    api.put(f"/v1/sessions/{sid}/pins/town", json={"content": "Bergen"}).raise_for_status()
    async with open_page(browser, origin) as (page, watch):
        watch.expected = ("ERR_INTERNET_DISCONNECTED",)
        await page.goto(f"{origin}/ui/#/sessions/{sid}/window")
        await expect(page.locator(".live.on")).to_be_visible()
        words = page.get_by_label("Search this session")
        await words.fill("harbour")
        hit = page.locator(".found").get_by_role("link", name="Turn 1, user")
        await expect(hit).to_be_visible()
        await page.context.set_offline(True)
        await expect(page.get_by_text("not live")).to_be_visible()
        await words.fill("where")
        await expect(page.locator(".found").get_by_role("alert")).to_be_visible()
        await expect(hit).to_have_count(0)  # it was found by other words
        await page.get_by_role("link", name="Memory").click()
        await expect(page.get_by_role("alert")).not_to_have_count(0)
        await page.context.set_offline(False)
        await expect(page.locator(".live.on")).to_be_visible()
        await expect(page.get_by_text("Bergen")).to_be_visible()
        await expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize(
    ("part", "tab", "words"),
    [
        ("/summaries*", "memory", "Reading the summaries…"),
        ("/pins*", "memory", "Reading the pins…"),
        ("/timeline/overview*", "memory", "Reading the newest turn…"),
        ("/context", "chat", "Reading the window…"),
    ],
)
async def test_a_part_that_is_being_read_says_so(
    page: Page, api: httpx.Client, part: str, tab: str, words: str
) -> None:
    async def later(route: Route) -> None:
        await may_come.wait()
        await route.continue_()

    may_come = asyncio.Event()
    sid = new_session(api)
    api.post(f"/v1/sessions/{sid}/turns", json={"content": "Hello"}).raise_for_status()
    await page.route(f"**/v1/sessions/*{part}", later)
    await page.goto(f"{page.url.partition('#')[0]}#/sessions/{sid}/{tab}")
    await expect(page.get_by_text(words)).to_be_visible()
    may_come.set()
    await expect(page.get_by_text(words)).to_have_count(0)


async def test_a_new_page_begins_at_its_heading_also_where_there_is_no_such_session(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    sid = new_session(api, room_goal="Plan the harvest festival")
    async with open_page(browser, origin) as (page, watch):
        watch.expected = ("status of 404",)
        await page.goto(f"{origin}/ui/")
        await page.get_by_role("link", name="Plan the harvest festival").press("Enter")
        await expect(page.get_by_role("heading", name="Plan the harvest festival")).to_be_focused()
        await page.locator(".crumbs").get_by_role("link", name="Sessions").press("Enter")
        await expect(page.get_by_role("heading", name="Sessions")).to_be_focused()
        await page.evaluate("(address) => { location.hash = address }", f"#/sessions/{uuid4()}")
        await expect(page.get_by_role("heading", name="Session", exact=True)).to_be_focused()
        await expect(page.get_by_role("alert")).to_contain_text("There is no such session.")
    assert api.get(f"/v1/sessions/{sid}").is_success


async def test_a_message_that_could_not_be_pinned_can_be_pinned_again(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    sid = new_session(api)
    api.post(f"/v1/sessions/{sid}/turns", json={"content": "Hello"}).raise_for_status()
    async with open_page(browser, origin) as (page, watch):
        watch.expected = ("status of 502",)
        await page.goto(f"{origin}/ui/#/sessions/{sid}/chat")
        await page.route("**/pins/*", lambda it: it.fulfill(status=502))
        await page.get_by_role("button", name="Pin message").click()
        await expect(page.get_by_role("alert")).to_have_text("The service answered 502.")
        await page.unroute("**/pins/*")
        await page.get_by_role("button", name="Pin message").click()
        await expect(page.get_by_text("Pinned: it is in every prompt")).to_be_visible()
        await expect(page.get_by_role("alert")).to_have_count(0)


async def test_a_search_that_went_on_at_the_second_try_reports_no_fault_any_more(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    for number in range(30):
        turn = [{"role": role, "content": f"The harbour, {role} {number}."} for role in ("user", "assistant")]
        api.post("/v1/sessions/import", json={"messages": turn}).raise_for_status()
    async with open_page(browser, origin) as (page, watch):
        watch.expected = ("status of 502",)
        await page.goto(f"{origin}/ui/")
        await page.get_by_role("searchbox", name="Search sessions").fill("harbour")
        found = page.get_by_role("region", name="In messages")
        await expect(found.get_by_role("listitem")).to_have_count(20)
        await page.route("**/v1/search?*", lambda it: it.fulfill(status=502))
        await found.get_by_role("button", name="Search older sessions").click()
        await expect(found.get_by_role("alert")).to_have_text("The service answered 502.")
        await page.unroute("**/v1/search?*")
        await found.get_by_role("button", name="Search older sessions").click()
        await expect(found.get_by_role("listitem")).to_have_count(40)
        await expect(found.get_by_role("alert")).to_have_count(0)


async def test_an_excerpt_cuts_no_character_in_half(page: Page, api: httpx.Client) -> None:
    ships = "🚢" * 201
    texts = (f"The harbour {ships}", f"The harbours {ships}", f"{ships} harbour {ships}")
    turns = [{"role": role, "content": text} for text in texts for role in ("user", "assistant")]
    sid = api.post("/v1/sessions/import", json={"messages": turns}).raise_for_status().json()["id"]
    await page.goto(f"{page.url.partition('#')[0]}#/sessions/{sid}/window")
    await page.get_by_role("searchbox").fill("harbour")
    found = page.locator(".found")
    await expect(found.get_by_role("listitem")).to_have_count(6)
    assert await found.evaluate("(found) => found.textContent.isWellFormed()")
