"""The list of sessions: found by words, live, and one's own."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
from playwright.async_api import Browser, Page, Route, expect
from uuid_utils.compat import uuid7

from app.db.database import Database
from app.domain.types import TenantId
from app.services.keys import create_key
from tests.api.conftest import PATIENCE_S, new_session, serving, settings_for
from tests.web.conftest import open_page
from torture.databases import execute

_IN_SIGHT = """(is) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => !is });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


async def test_sessions_are_listed_with_their_window_cost_and_state_and_found_by_words(
    page: Page, api: httpx.Client
) -> None:
    sid = new_session(api, room_goal="Plan the harvest festival")
    api.post(f"/v1/sessions/{sid}/turns", json={"content": "When do the stalls open?"}).raise_for_status()
    other = new_session(api)
    api.post(f"/v1/sessions/{other}/turns", json={"content": "Unrelated <b>markup</b> & signs"}).raise_for_status()
    await page.reload()
    row = page.get_by_role("row").filter(has_text="Plan the harvest festival")
    await expect(row).to_contain_text("idle")
    await expect(row).to_contain_text("of 13,312")
    await expect(page.get_by_role("row").filter(has_text="Unrelated <b>markup</b> & signs")).to_be_visible()
    await page.get_by_label("State").select_option("idle")
    await page.get_by_label("Sort by").select_option("fullest window")
    await expect(page.get_by_role("row")).to_have_count(3)
    await page.get_by_label("State").select_option("failed")
    await expect(page.get_by_text("None of the 2 sessions")).to_be_visible()
    await page.get_by_label("State").select_option("all")
    await page.get_by_role("searchbox", name="Search sessions").fill("HARVEST")
    await expect(page.get_by_role("row")).to_have_count(2)
    await row.get_by_role("link").click()
    await expect(page.get_by_role("heading", level=1)).to_be_focused()
    await page.go_back()
    for reload in (False, True):
        if reload:
            await page.reload()
        await expect(page.get_by_label("Sort by")).to_have_value("window")
        await expect(page.get_by_role("searchbox", name="Search sessions")).to_have_value("HARVEST")
        await expect(page.get_by_role("row")).to_have_count(2)


async def test_a_turn_that_someone_else_posts_shows_up_without_a_reload(page: Page, api: httpx.Client) -> None:
    await expect(page.get_by_text("live", exact=True)).to_be_visible()
    await expect(page.get_by_text("There is no session yet.")).to_be_visible()
    sid = new_session(api)
    api.post(f"/v1/sessions/{sid}/turns", json={"content": "Out of the blue"}).raise_for_status()
    await expect(page.get_by_role("link", name="Out of the blue")).to_be_visible()


async def test_older_sessions_stay_in_the_list_and_are_live_while_newer_ones_come(
    page: Page, api: httpx.Client
) -> None:
    made = [new_session(api, room_goal=f"Session {number}") for number in range(60)]
    await page.reload()
    await expect(page.get_by_role("row")).to_have_count(51)
    await page.get_by_role("button", name="Older sessions").click()
    await expect(page.get_by_role("row")).to_have_count(61)
    for _ in range(3):
        new_session(api)
    api.post(f"/v1/sessions/{made[0]}/turns", json={"content": "Out of the blue"}).raise_for_status()
    await expect(page.get_by_role("row").filter(has_text="Out of the blue")).to_contain_text("idle")
    await expect(page.get_by_role("row")).to_have_count(64)


async def test_a_double_click_for_more_found_messages_lists_each_once(page: Page, api: httpx.Client) -> None:
    for number in range(30):
        turn = [{"role": role, "content": f"The harbour, {role} {number}."} for role in ("user", "assistant")]
        api.post("/v1/sessions/import", json={"messages": turn}).raise_for_status()
    await page.get_by_role("searchbox", name="Search sessions").fill("harbour")
    hits = page.get_by_role("region", name="In messages").get_by_role("listitem")
    await expect(hits).to_have_count(20)
    more = page.get_by_role("region", name="In messages").get_by_role("button", name="Search older sessions")
    await more.dblclick()
    await expect(hits).not_to_have_count(20)
    await asyncio.sleep(1)  # in which the second page would be listed once more
    await expect(hits).to_have_count(40)
    await more.click()
    await expect(hits).to_have_count(60)


async def test_any_number_of_tabs_work_since_those_out_of_sight_keep_no_connection(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    """A browser has six connections to a host. It is headless, and takes every tab for one in sight."""
    async with open_page(browser, origin) as (first, _):
        tabs = [first, *[await first.context.new_page() for _ in range(7)]]
        for tab in tabs:
            await tab.goto(f"{origin}/ui")
            await expect(tab.get_by_role("status").get_by_text("live", exact=True)).to_be_visible()
            await tab.evaluate(_IN_SIGHT, False)
            await expect(tab.get_by_text("not live")).to_be_visible()
        new_session(api, room_goal="Made meanwhile")
        await expect(first.get_by_text("Made meanwhile")).to_have_count(0)
        await first.evaluate(_IN_SIGHT, True)
        await expect(first.get_by_text("Made meanwhile")).to_be_visible()


async def test_a_double_click_makes_one_session_and_a_late_one_is_listed_and_calls_nobody_back(
    page: Page, api: httpx.Client, database_url: str
) -> None:
    def count() -> int:
        return len(api.get("/v1/sessions").json()["items"])

    async def slowly(route: Route) -> None:
        await asyncio.sleep(1)
        await route.continue_()
        answered.set()

    answered = asyncio.Event()
    await page.get_by_role("button", name="New session").dblclick()
    await page.get_by_label("Message", exact=True).fill("Hello")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("link", name="Turn 1", exact=True)).to_be_visible()
    assert count() == 1
    for tab in ("Window", "Memory"):
        before = count()
        address = page.url
        await page.get_by_role("link", name=tab).click()
        await page.get_by_role("button", name="Fork here").dblclick()
        await expect(page).not_to_have_url(re.compile(re.escape(address.split("/")[-2])))
        assert count() == before + 1

    # No event comes of turns as old as these, and a fork's are as old as those it copies.
    await execute(database_url, "UPDATE turns SET created_at = created_at - interval '1 hour'")
    await page.get_by_role("link", name="Memory").click()
    await page.route("**/fork", slowly)
    async with page.expect_response("**/fork"):
        await page.get_by_role("button", name="Fork here").click()
        await page.get_by_role("link", name="Sessions").first.click()
        await answered.wait()
    await expect(page.get_by_role("row")).to_have_count(count() + 1)
    assert page.url.endswith("#/")


async def test_a_newcomer_is_led_to_the_recorded_session_and_through_its_guide(page: Page, api: httpx.Client) -> None:
    sid = new_session(api, metadata={"title": "Demo", "guide": "bakery"})
    api.post(f"/v1/sessions/{sid}/turns", json={"content": "Hello"}).raise_for_status()
    await page.get_by_role("link", name="Open the session “Demo”").click()
    await page.get_by_role("link", name="Ask for it yourself", exact=True).click()
    await expect(page.get_by_text("Ask “Who has the spare key of the shop?”")).to_be_visible()
    await page.get_by_role("link", name="Next: Undo a summary").click()
    await expect(page.get_by_role("heading", name="Summaries")).to_be_visible()
    await page.get_by_role("button", name="Hide the guide").click()
    await expect(page.get_by_role("navigation", name="Guide to this session")).to_have_count(0)


async def test_a_key_signs_in_to_its_tenant_and_is_kept_nowhere_but_in_memory(
    browser: Browser, database_url: str
) -> None:
    anna, bert = [await _key(database_url, tenant) for tenant in ("anna", "bert")]
    with serving(settings_for(database_url)) as origin:
        for key in (anna, bert):
            with httpx.Client(
                base_url=origin, headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=PATIENCE_S
            ) as client:
                new_session(client, room_goal="of Anna" if key == anna else "of Bert")
        async with open_page(browser, origin) as (page, watch):
            watch.expected = ("status of 401",)
            await page.goto(f"{origin}/ui/")
            await page.get_by_label("API key").fill("plk_wrong")
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("alert")).to_have_text("Unknown key.")
            await page.get_by_label("API key").fill(f"{anna}\u200b")
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("alert")).to_contain_text("perhaps an invisible one")
            await page.get_by_label("API key").fill(anna)
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("link", name="of Anna")).to_be_visible()
            await expect(page.get_by_text("of Bert")).to_have_count(0)
            assert anna not in page.url
            kept = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
            assert kept == '[{},{},""]'
            await page.reload()
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_who_is_signed_in_is_asked_for_a_key_once_the_own_one_is_refused_and_finds_what_was_typed(
    browser: Browser, database_url: str
) -> None:
    key = await _key(database_url, "anna")
    is_refused = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """On a bad line the body comes long after the head."""
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"title": "No key", "status": 401, "code": "unauthenticated", "detail": "The key is not known."}'
        writer.write(b"HTTP/1.1 401 X\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body))
        await asyncio.sleep(2)
        writer.write(body)
        writer.close()

    async def serve(request: Route) -> None:
        if not is_refused.is_set():
            await request.fallback()
        elif "order=desc" not in request.request.url:  # a look for what became of the message is never answered
            await request.continue_(url=f"http://127.0.0.1:{refusing.sockets[0].getsockname()[1]}/")

    refusing = await asyncio.start_server(refuse, "127.0.0.1", 0)
    with serving(settings_for(database_url)) as origin:
        with httpx.Client(
            base_url=origin, headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=PATIENCE_S
        ) as client:
            sid = new_session(client, room_goal="of Anna")
        async with open_page(browser, origin) as (page, watch):
            watch.expected = ("status of 401",)
            await page.goto(f"{origin}/ui/#/sessions/{sid}/chat")
            await expect(page.get_by_label("API key")).to_be_focused()
            await expect(page).to_have_title("Sign in – Plimsoll")
            await expect(page.get_by_role("alert")).to_have_count(0)
            await page.keyboard.type(key)
            await page.keyboard.press("Enter")
            await page.get_by_label("Message", exact=True).fill("Half a sent")
            await page.route("**/v1/**", serve)
            is_refused.set()
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("alert")).to_have_text("The key is not accepted any more.")
            await expect(page.get_by_label("API key")).to_be_focused()
            await expect(page).to_have_title("Sign in – Plimsoll")
            is_refused.clear()
            await page.keyboard.type(key)
            await page.keyboard.press("Enter")
            await expect(page.get_by_label("Message", exact=True)).to_have_value("Half a sent")
            await page.get_by_role("button", name="Sign out").click()
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            await expect(page.get_by_role("alert")).to_have_count(0)
    refusing.close()


async def _key(database_url: str, tenant: str) -> str:
    database = Database(database_url, pool_size=1)
    try:
        return (await create_key(database, uuid7, TenantId(tenant), "web"))[1]
    finally:
        await database.aclose()


async def test_a_session_is_exported_deleted_and_imported_again(
    browser: Browser, origin: str, api: httpx.Client, tmp_path: Path
) -> None:
    sid = new_session(api, room_goal="Plan the harvest festival")
    api.post(f"/v1/sessions/{sid}/turns", json={"content": "When do the stalls open?"}).raise_for_status()
    exported = api.get(f"/v1/sessions/{sid}/export").json()
    async with open_page(browser, origin) as (page, watch):
        watch.expected = ("status of 422",)
        await page.goto(f"{origin}/ui/#/sessions/{sid}/memory")
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Export").click()
        file = tmp_path / (await download.value).suggested_filename
        await (await download.value).save_as(file)
        assert json.loads(file.read_text())["turns"] == exported["turns"]
        dialog = page.get_by_role("dialog")
        await page.get_by_role("button", name="Delete").click()
        await dialog.get_by_role("button", name="Cancel").click()
        assert api.get(f"/v1/sessions/{sid}").status_code == 200
        await page.get_by_role("button", name="Delete").click()
        await dialog.get_by_role("button", name="Delete").click()
        await expect(page.get_by_text("There is no session yet.")).to_be_visible()
        assert api.get(f"/v1/sessions/{sid}").status_code == 404
        await _import_file(page, b'{"turns": [')
        await expect(page.get_by_role("alert")).to_be_visible()
        await _import_file(page, file.read_bytes())
        await expect(page.get_by_role("heading", level=1)).to_contain_text("When do the stalls open?")
    (made,) = api.get("/v1/sessions").json()["items"]
    assert made["room_goal"] == "Plan the harvest festival"


async def test_a_list_of_messages_is_imported_and_what_is_none_is_refused_in_words(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    messages = [{"role": "user", "content": "Is the hall free?"}, {"role": "assistant", "content": "It is."}]
    async with open_page(browser, origin) as (page, watch):
        watch.expected = ("status of 422",)
        await page.goto(f"{origin}/ui/")
        for content, words in (
            (b'{"title": "Rye bread", "mapping": {}}', "neither an exported session nor does it have `messages`"),
            (b'[{"title": "Rye bread", "mapping": {}}]', "body.messages.0: Field 'role' required"),
            (json.dumps([*messages, {"role": "robot", "content": "x"}]).encode(), "body.messages.2: Must be one of"),
        ):
            await _import_file(page, content)
            await expect(page.get_by_role("alert")).to_contain_text(words)
        arrived = asyncio.Event()

        async def late(route: Route) -> None:
            await arrived.wait()
            await route.continue_()

        await page.route("**/v1/sessions/import", late)
        await _import_file(page, json.dumps(messages, indent=2).encode())
        await expect(page.get_by_role("button", name="Importing…")).to_be_disabled()
        arrived.set()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("Is the hall free?")
    (made,) = api.get("/v1/sessions").json()["items"]
    assert api.get(f"/v1/sessions/{made['id']}/turns").json()["items"][0]["assistant_output"] == "It is."


async def _import_file(page: Page, content: bytes) -> None:
    async with page.expect_file_chooser() as chooser:
        await page.get_by_role("button", name="Import").click()
    await (await chooser.value).set_files({"name": "a.json", "mimeType": "application/json", "buffer": content})
