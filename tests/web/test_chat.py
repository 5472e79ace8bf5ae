"""The chat of a session: turns that are read as they come into sight, and what is typed and not lost."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.api.chatting import chat_service
from tests.api.conftest import new_session
from tests.client.proxy import Fault, proxied
from tests.providers.wires import OPENAI, ModelReply
from tests.web.conftest import open_page
from tests.web.scene import TOOLS

NOT_READ = re.compile(r"^Turn \d+…$")
_POSTS = re.compile("/turns$|/tool-outputs$")


async def _fires(fault: Fault) -> None:
    async with asyncio.timeout(60):
        while not fault.fired:  # noqa: ASYNC110 - the proxy's thread notifies nobody
            await asyncio.sleep(0.01)


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
    last = page.get_by_role("link", name="Turn 800", exact=True)
    for _ in range(200):  # what is read on the way may be higher than the room that was left for it
        await frame.evaluate("frame => { frame.scrollTop = frame.scrollHeight }")
        if await last.is_visible():
            break
        await asyncio.sleep(0.05)
    await expect(last).to_be_visible()
    await expect(frame.get_by_text(NOT_READ)).to_have_count(0)


async def test_what_is_in_sight_of_a_chat_stays_there_when_the_window_gets_wider_or_narrower(
    page: Page, api: httpx.Client
) -> None:
    turns = [
        {"role": role, "content": f"{role} of turn {number}: " + "the harbour is closed at noon. " * 12}
        for number in range(1, 61)
        for role in ("user", "assistant")
    ]
    sid = api.post("/v1/sessions/import", json={"messages": turns}).raise_for_status().json()["id"]
    await page.set_viewport_size({"width": 390, "height": 700})
    await page.goto(_at(page, sid))
    for width in (1280, 390, 1000):
        await expect(page.get_by_role("link", name="Turn 60", exact=True)).to_be_in_viewport()
        await page.set_viewport_size({"width": width, "height": 700})
    await expect(page.get_by_role("link", name="Turn 60", exact=True)).to_be_in_viewport()
    await page.goto(f"{_at(page, sid)}/30")
    for width in (390, 1280):
        await expect(page.get_by_text("user of turn 30:")).to_be_in_viewport()
        await page.set_viewport_size({"width": width, "height": 700})
    await expect(page.get_by_text("user of turn 30:")).to_be_in_viewport()


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


async def test_a_message_and_tool_outputs_that_were_not_taken_are_still_there(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    sid = new_session(api)
    calls = [{"id": each, "function": {"name": "read_ledger", "arguments": "{}"}} for each in ("c1", "c2")]
    busy = '{"title": "Busy", "status": 503, "code": "process_busy", "detail": "Too much at this moment."}'

    async def refuse(route: Route) -> None:
        if route.request.method == "POST":
            await route.fulfill(status=503, content_type="application/problem+json", body=busy)
        else:
            await route.continue_()

    async with open_page(browser, origin) as (page, watch):
        watch.expected = ("status of 503",)
        await page.goto(f"{origin}/ui/#/sessions/{sid}/chat")
        message = page.get_by_label("Message", exact=True)
        await page.route(_POSTS, refuse)
        await message.fill("Typed with care")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_role("alert")).to_contain_text("Too much at this moment.")
        await expect(message).to_have_value("Typed with care")
        await page.unroute(_POSTS)
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator(".turn-foot")).to_have_count(1)
        await expect(message).to_have_value("")

        body = {"content": "Read", "tools": TOOLS, "recorded_reply": {"tool_calls": calls}}
        api.post(f"/v1/sessions/{sid}/turns", json=body).raise_for_status()
        outputs = page.locator(".tool-outputs").get_by_role("textbox")
        for number, text in enumerate(("The first", "The second")):
            await outputs.nth(number).fill(text)
        await page.route(_POSTS, refuse)
        await page.get_by_role("button", name="Send outputs").click()
        await expect(page.get_by_role("alert")).to_contain_text("Too much at this moment.")
        await expect(outputs.nth(1)).to_have_value("The second")
        await expect(message).to_have_value("")
        await page.unroute(_POSTS)
        await page.get_by_role("button", name="Send outputs").click()
        await expect(page.locator(".tool-outputs")).to_have_count(0)
    stored = api.get(f"/v1/sessions/{sid}/messages").json()["items"]
    assert [each["content"] for each in stored if each["role"] == "tool"] == ["The first", "The second"]


@pytest.mark.parametrize(
    ("after_bytes", "times"),
    [(0, 1), (0, 9), (600, 1)],
    ids=["and the browser posts again", "before an answer", "in its stream"],
)
async def test_a_message_is_stored_once_and_does_not_come_back_when_its_connection_breaks(
    browser: Browser, database_url: str, tmp_path: Path, after_bytes: int, times: int
) -> None:
    may_go_on = threading.Event()
    model = OPENAI.stream(ModelReply("One. Two."), after=may_go_on.is_set)
    with chat_service(database_url, tmp_path, model) as at, proxied(at.address) as proxy:
        sid = at.http.post("/v1/sessions", json={}).raise_for_status().json()["id"]
        async with open_page(browser, proxy.url) as (page, watch):
            watch.expected = ("ERR_", "status of 409")
            await page.goto(f"{proxy.url}/ui/#/sessions/{sid}/chat")
            message = page.get_by_label("Message", exact=True)
            fault = proxy.breaks(f"POST /v1/sessions/{sid}/turns ", after_bytes=after_bytes, times=times)
            await message.fill("Only once")
            await page.get_by_role("button", name="Send").click()
            await expect(page.get_by_role("link", name="Turn 1", exact=True)).to_be_visible()
            await _fires(fault)
            await expect(message).to_have_value("")
            await expect(page.get_by_role("alert")).to_have_count(0)
            may_go_on.set()
            await expect(page.locator("p.answer")).to_have_text("One. Two.")


async def test_a_message_of_which_the_page_cannot_find_out_is_one_turn_when_it_is_sent_again(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    sid = new_session(api)
    with proxied(origin) as proxy:
        async with open_page(browser, proxy.url) as (page, watch):
            watch.expected = ("ERR_",)
            await page.goto(f"{proxy.url}/ui/#/sessions/{sid}/chat")
            message = page.get_by_label("Message", exact=True)
            answer = proxy.breaks(f"POST /v1/sessions/{sid}/turns ", times=9)
            look = proxy.breaks(f"GET /v1/sessions/{sid}/turns?order=desc", times=9)
            await message.fill("Only once")
            await page.get_by_role("button", name="Send").click()
            await _fires(answer)
            await _fires(look)
            await expect(page.get_by_role("alert")).to_be_visible()
            await expect(message).to_have_value("Only once")
            answer.times = look.times = 0
            await page.get_by_role("button", name="Send").click()
            await expect(message).to_have_value("")
            await expect(page.locator(".turn-foot")).to_have_count(1)
    assert len(api.get(f"/v1/sessions/{sid}/turns").json()["items"]) == 1


async def test_a_turn_that_many_pins_leave_no_room_for_names_them_and_leads_to_them(
    page: Page, api: httpx.Client
) -> None:
    sid = new_session(api, policy={"max_context_tokens": 2048})
    for number in range(20):
        content = {"content": " ".join(str(number * 100 + each) for each in range(30))}
        api.put(f"/v1/sessions/{sid}/pins/dates-{number}", json=content).raise_for_status()
    assert api.post(f"/v1/sessions/{sid}/turns", json={"content": "And now?"}).status_code == 422
    await page.goto(f"{page.url.partition('#')[0]}#/sessions/{sid}/chat")
    notice = page.get_by_role("alert")
    await expect(notice.get_by_role("listitem").first).to_contain_text("Pins dates-")
    await notice.get_by_role("link", name="Shorten or remove pins").click()
    await expect(page.get_by_text("20 pins,")).to_be_visible()


async def test_an_answer_that_reached_its_limit_of_tokens_is_marked(
    browser: Browser, database_url: str, tmp_path: Path
) -> None:
    replies = ModelReply("One. Two.", stop=OPENAI.length), ModelReply("Three.")
    with chat_service(database_url, tmp_path, *map(OPENAI.whole, replies)) as at:
        sid = at.http.post("/v1/sessions", json={}).raise_for_status().json()["id"]
        for _ in replies:
            at.http.post(f"/v1/sessions/{sid}/turns", json={"content": "Count"}).raise_for_status()
        async with open_page(browser, at.address) as (page, _):
            await page.goto(f"{at.address}/ui/#/sessions/{sid}/chat")
            feet = page.locator(".turn-foot")
            await expect(feet.nth(0)).to_contain_text("cut off")
            await expect(feet.nth(1)).to_contain_text("out")
            await expect(feet.nth(1)).not_to_contain_text("cut off")
