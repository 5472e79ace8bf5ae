"""Summaries with their sources, pins, other pasts, and what another policy would have made of it all."""

from __future__ import annotations

import re

import httpx
from playwright.async_api import Browser, Locator, Page, expect

from tests.api.conftest import new_session
from tests.web.accessibility import faults
from tests.web.conftest import Shipped, open_page

_MARKUP = '<img src="/nowhere" onerror="throw new Error(1)">'


def post_turns(api: httpx.Client, sid: str, first: int, last: int) -> None:
    """Turns that a summary makes smaller."""
    for number in range(first, last + 1):
        content = f"We decided: berth {number} closes at {number + 4} o'clock. {_MARKUP} " + "Tides matter. " * 30
        api.post(f"/v1/sessions/{sid}/turns", json={"content": content}).raise_for_status()


async def test_a_summary_is_made_shows_the_messages_of_its_items_and_says_what_comes_back_when_it_is_undone(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    sid = new_session(api, policy={"protected_turns": 2})
    post_turns(api, sid, 1, 4)
    async with open_page(browser, origin) as (page, watch):
        await page.goto(f"{origin}/ui/#/sessions/{sid}/memory")
        await expect(page.get_by_text("There is none yet.")).to_be_visible()
        await page.get_by_role("button", name="Summarize now").click()
        status = page.get_by_role("region", name="Summaries").get_by_role("status")
        await expect(status).to_contain_text("Summarized: turns 1–2, in ")
        await expect(status).to_contain_text("Turns in full: 4 before, 2 now.")

        watch.expected = ("status of 409",)
        await page.get_by_role("button", name="Summarize now").click()
        await expect(status).to_contain_text("nothing that a summary would make smaller")
        await expect(page.get_by_role("alert")).to_have_count(0)

        source = page.get_by_text(re.compile(r"^from \d message")).first
        await source.focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("blockquote").first).to_contain_text(f"o'clock. {_MARKUP}")
        await expect(page.get_by_role("link", name="Turn 1").first).to_have_attribute("href", re.compile("/window/"))

        post_turns(api, sid, 5, 6)
        await page.get_by_role("button", name="Summarize now").click()
        await expect(status).to_contain_text("Summarized: turns 1–4")
        newest, older = page.get_by_role("article").nth(0), page.get_by_role("article").nth(1)
        await expect(newest).to_have_accessible_name("Summary of turns 1–4, active")
        await expect(newest).to_contain_text("made by offline")
        await expect(older).to_have_accessible_name("Summary of turns 1–2, superseded")

        await newest.get_by_role("button", name="Undo").click()
        dialog = page.get_by_role("dialog", name="Undo this summary?")
        await expect(dialog).to_contain_text(
            "The summary of turns 1–2 is active again; in full in the window: turns 3–4."
        )
        assert await faults(page) == []
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        await expect(newest.get_by_role("button", name="Undo")).to_be_focused()
        await page.keyboard.press("Enter")
        await dialog.get_by_role("button", name="Undo").click()
        await expect(status).to_contain_text("Undone. The summary of turns 1–2 is active again")
        await expect(status).to_contain_text("Turns in full: 2 before, 4 now.")
        await expect(newest).to_have_accessible_name("Summary of turns 1–4, undone")
        await expect(older).to_have_accessible_name("Summary of turns 1–2, active")


async def test_a_dialog_that_escape_closes_opens_again_at_once(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    """A key that follows so fast that the browser has not reported yet that the dialog closed."""
    sid = new_session(api, policy={"protected_turns": 2})
    post_turns(api, sid, 1, 4)
    api.post(f"/v1/sessions/{sid}/summaries", json={}).raise_for_status()
    async with open_page(browser, origin) as (page, _):
        await page.goto(f"{origin}/ui/#/sessions/{sid}/memory")
        undo = page.get_by_role("article").get_by_role("button", name="Undo")
        await undo.click()
        dialog = page.get_by_role("dialog", name="Undo this summary?")
        await expect(dialog).to_be_visible()
        await undo.evaluate(
            "button => document.querySelector('dialog').addEventListener('cancel', () => button.click(), {once: true})"
        )
        await page.keyboard.press("Escape")
        await dialog.get_by_role("button", name="Undo").click()
        await expect(page.get_by_role("article").first).to_have_accessible_name("Summary of turns 1–2, undone")


async def test_a_summary_is_edited_and_the_version_before_it_comes_back(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    sid = new_session(api, policy={"protected_turns": 2})
    post_turns(api, sid, 1, 4)
    api.post(f"/v1/sessions/{sid}/summaries", json={"focus": "berths"}).raise_for_status()
    async with open_page(browser, origin) as (page, _):
        await page.goto(f"{origin}/ui/#/sessions/{sid}/memory")
        newest = page.get_by_role("article").nth(0)
        await newest.get_by_role("button", name="Edit").click()
        save = newest.get_by_role("button", name="Save as a new version")
        await expect(save).to_be_disabled()
        await newest.get_by_role("textbox", name="Key facts, a new one").fill("The quay is closed in May.")
        assert await faults(page) == []
        await save.click()
        await expect(newest).to_contain_text("edited by a person")
        await expect(newest).to_contain_text("The quay is closed in May.")
        await newest.get_by_role("button", name="Undo").click()
        await page.get_by_role("dialog", name="Undo this summary?").get_by_role("button", name="Undo").click()
        await expect(newest).to_have_accessible_name("Summary of turns 1–2, undone")
        assert [each["status"] for each in api.get(f"/v1/sessions/{sid}/summaries").json()["items"]] == [
            "undone",
            "active",
        ]


async def test_pins_show_size_and_relevance_and_are_made_changed_and_taken_away(page: Page, api: httpx.Client) -> None:
    sid = new_session(api, room_goal="Festival in the harbour")
    await page.goto(f"{page.url.split('#')[0]}#/sessions/{sid}/memory")
    await page.get_by_role("button", name="New pin").click()
    await expect(page.get_by_label("Name")).to_be_focused()
    await page.get_by_label("Name").fill("rules/first")
    await page.get_by_label("Content").fill(f"No fireworks in the harbour. {_MARKUP}")
    await page.get_by_label("Source").fill("rules.md")
    await page.get_by_role("button", name="Pin it").click()
    pin = page.get_by_role("listitem").filter(has_text="rules/first")
    await expect(pin).to_contain_text(re.compile(r"\d+ tokens"))
    await expect(pin).to_contain_text(
        re.compile(r"Relevance (low|medium|high) \(0\.[1-9]\d\) as a search for .*: harbour")
    )
    await expect(pin).to_contain_text(_MARKUP)

    await page.get_by_role("button", name="Change rules/first").click()
    await page.get_by_label("Set its relevance").check()
    await page.get_by_label("Relevance:").fill("0.9")
    await page.get_by_role("button", name="Pin it").click()
    await expect(pin).to_contain_text("Relevance high (0.90) as you set it")
    stored = api.get(f"/v1/sessions/{sid}/pins/rules/first").json()
    assert (stored["relevance"], stored["source"]) == (0.9, "rules.md")

    await page.get_by_role("button", name="Unpin rules/first").click()
    await page.get_by_role("dialog").get_by_role("button", name="Unpin").click()
    await expect(page.get_by_text("There are no pins.")).to_be_visible()


async def test_each_message_of_a_tool_loop_has_a_pin_of_its_own(page: Page, api: httpx.Client) -> None:
    loop: list[dict[str, object]] = [{"role": "user", "content": "Which berths are free?"}]
    for number in (1, 2):
        call = {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": "berth", "arguments": f'{{"n": {number}}}'},
        }
        loop.append({"role": "assistant", "content": None, "tool_calls": [call]})
        loop.append({"role": "tool", "tool_call_id": f"c{number}", "content": f"Berth {number} is free."})
    messages = [*loop, {"role": "assistant", "content": "Both."}]
    sid = api.post("/v1/sessions/import", json={"messages": messages}).raise_for_status().json()["id"]
    api.post(f"/v1/sessions/{sid}/turns", json={"content": "Thanks."}).raise_for_status()
    await page.goto(f"{page.url.partition('#')[0]}#/sessions/{sid}/window/2")
    for number in (1, 2):
        block = page.locator(".blocks > li", has_text=f"Berth {number} is free.")
        await block.locator("summary").click()
        await block.get_by_role("button", name="Pin this message").click()
        await expect(block.get_by_text("Pinned: ")).to_be_visible()
    pins = api.get(f"/v1/sessions/{sid}/pins").json()["items"]
    assert sorted(pin["content"] for pin in pins) == ["Berth 1 is free.", "Berth 2 is free."]


async def test_a_new_pin_replaces_none_of_its_name(page: Page, api: httpx.Client) -> None:
    sid = new_session(api)
    pin = f"/v1/sessions/{sid}/pins/rules"
    api.put(pin, json={"content": "Amounts in cents."}).raise_for_status()
    await page.goto(f"{page.url.split('#')[0]}#/sessions/{sid}/memory")
    await expect(page.get_by_role("heading", name="rules")).to_be_visible()
    await page.get_by_role("button", name="New pin").click()
    await page.get_by_label("Name").fill("rules")
    await page.get_by_label("Content", exact=True).fill("Be brief.")
    await page.get_by_role("button", name="Pin it").click()
    await expect(page.get_by_role("alert")).to_contain_text("There is a pin “rules” already")
    assert api.get(pin).json()["content"] == "Amounts in cents."
    await page.get_by_label("Name").fill("style")
    await page.get_by_role("button", name="Pin it").click()
    await expect(page.get_by_role("heading", name="style")).to_be_visible()
    await page.get_by_role("button", name="Change rules").click()
    await page.get_by_label("Content", exact=True).fill("Amounts in euros.")
    await page.get_by_role("button", name="Pin it").click()
    await expect(page.get_by_text("Amounts in euros.")).to_be_visible()


async def test_a_pin_whose_name_a_browser_takes_for_a_folder_is_reported_and_nothing_else_is_touched(
    page: Page, api: httpx.Client
) -> None:
    sid = new_session(api)
    url = api.base_url.copy_with(raw_path=f"/v1/sessions/{sid}/pins/%2E%2E".encode())
    api.put(url, json={"content": "One level up is the session itself."}).raise_for_status()
    await page.goto(f"{page.url.split('#')[0]}#/sessions/{sid}/memory")
    await page.get_by_role("button", name="Unpin ..").click()
    await page.get_by_role("dialog").get_by_role("button", name="Unpin").click()
    await expect(page.get_by_role("alert")).to_contain_text("cannot address a pin of this name")
    assert api.get(f"/v1/sessions/{sid}").status_code == 200


async def test_another_past_is_a_fork_through_a_chosen_turn_or_the_last_turn_again(
    page: Page, api: httpx.Client
) -> None:
    sid = new_session(api)
    post_turns(api, sid, 1, 3)
    memory = f"{page.url.split('#')[0]}#/sessions/{sid}/memory"
    await page.goto(memory)
    await page.get_by_label("Fork through turn").fill("2")
    await page.get_by_role("button", name="Fork here").click()
    await expect(page).not_to_have_url(re.compile(sid))
    await expect(page.get_by_text("2 turns", exact=True)).to_be_visible()

    await page.goto(memory)
    await page.get_by_label("Run turn 3 again with the message").fill("Berth 3 stays open.")
    await page.get_by_role("button", name="Run it again").click()
    await expect(page).not_to_have_url(re.compile(sid))
    await expect(page.get_by_role("heading", name="Turn 3")).to_be_visible()
    made = page.url.split("/sessions/")[1].split("/")[0]
    assert [turn["user_input"] for turn in api.get(f"/v1/sessions/{made}/turns").json()["items"]][2] == (
        "Berth 3 stays open."
    )
    assert len(api.get(f"/v1/sessions/{sid}/turns").json()["items"]) == 3


async def test_a_turn_that_is_run_again_and_does_not_fit_is_reported_with_its_figures(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    sid = new_session(api, policy={"max_context_tokens": 2048})
    api.post(f"/v1/sessions/{sid}/turns", json={"content": "Hello"}).raise_for_status()
    async with open_page(browser, origin) as (page, watch):
        watch.expected = ("status of 422",)
        await page.goto(f"{origin}/ui/#/sessions/{sid}/memory")
        await page.get_by_label("Run turn 1 again with the message").fill("tide " * 2000)
        await page.get_by_role("button", name="Run it again").click()
        status = page.get_by_role("region", name="Branch").get_by_role("status").filter(has_text="Over the budget by")
        await expect(status).to_contain_text("the input budget is 615")
        await expect(status).to_contain_text(re.compile(r"shorten by [\d,]+ tokens"))
        await expect(status.get_by_role("link", name="The new session")).to_be_visible()
        await expect(page.get_by_role("alert")).to_have_count(0)


async def test_the_next_turn_under_other_fields_stands_beside_what_the_sessions_own_would_do(
    browser: Browser, shipped: Shipped
) -> None:
    async with open_page(browser, shipped.origin, width=390, dark=True) as (page, watch):
        await page.goto(f"{shipped.origin}/ui/#/sessions/{shipped.session_id}/what-if")
        form = page.get_by_role("region", name="The next turn")
        await form.get_by_role("textbox", name="Message").fill("What did we decide about minor units?")
        await form.get_by_label("Policy", exact=True).select_option("rolling")
        await expect(form.get_by_text("older messages are added to the summary")).to_be_visible()
        await form.get_by_text("Fields").click()
        share = form.get_by_label("prune_trigger_ratio", exact=True)
        await share.fill("1.5")
        assert not await share.evaluate("(input) => input.checkValidity()")
        await share.fill("")
        await form.get_by_label("max_context_tokens", exact=True).fill("4096")
        await form.get_by_label("goal_pct", exact=True).fill("5")
        await form.get_by_label("focus", exact=True).fill("prices and dates")
        await expect(form.get_by_text("(3 changes)")).to_be_visible()
        assert await faults(page) == []
        await form.get_by_role("button", name="Preview").click()
        own, other = [
            form.get_by_role("region", name=name, exact=True) for name in ("Current settings", "With your changes")
        ]
        await expect(own).to_contain_text("of 13,312 tokens")
        await expect(other).to_contain_text(re.compile(r"of [23],\d{3} tokens"))
        await expect(other).to_contain_text("A summary is made first")
        await expect(form.get_by_role("row").filter(has_text="Whole request")).to_be_visible()
        await expect(form.get_by_role("region", name="Left out: With your changes")).to_contain_text("Summarized")
        assert await faults(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390

        # Impossible together: the service's own sentence, at the form.
        watch.expected = ("status of 422",)
        await form.get_by_label("protected_turns", exact=True).fill("")
        await form.get_by_label("protected_turns: none").check()
        await form.get_by_label("protected_share: none").check()
        await form.get_by_role("button", name="Preview").click()
        await expect(form.get_by_role("alert")).to_contain_text("no turn could ever be summarized")


async def test_a_next_turn_that_would_be_refused_shows_by_how_much_and_what_to_shorten(
    browser: Browser, shipped: Shipped
) -> None:
    async with open_page(browser, shipped.origin) as (page, _):
        await page.goto(f"{shipped.origin}/ui/#/sessions/{shipped.session_id}/what-if")
        await page.get_by_role("textbox", name="Message").fill("tide " * 20_000)
        await page.get_by_role("button", name="Preview").click()
        own = page.get_by_role("region", name="Current settings", exact=True)
        await expect(own).to_contain_text("Over the budget by")
        await expect(own).to_contain_text("the input budget is 13,312")
        await expect(own.get_by_role("list", name="Largest items")).to_contain_text("User's message · shorten by")
        await expect(page.get_by_role("region", name="With your changes")).to_have_count(0)
        await expect(page.get_by_role("alert")).to_have_count(0)


async def test_the_whole_past_stands_under_chosen_policies_beside_what_happened(
    browser: Browser, shipped: Shipped
) -> None:
    async with open_page(browser, shipped.origin) as (page, _):
        await page.goto(f"{shipped.origin}/ui/#/sessions/{shipped.session_id}/what-if")
        form = page.get_by_role("region", name="The whole session")
        await form.get_by_role("button", name="Simulate").click()
        presets = ["guarded", "post_turn", "rolling", "allocated", "turn_atomic"]
        await expect(form.get_by_role("columnheader", name=presets[-1])).to_be_visible()
        assert await heads(form) == ["what happened", "full history", *presets]
        # No cell is blank, and what the full history has of everything stands there too.
        words = form.get_by_role("row").filter(has_text="User's words in full").get_by_role("cell")
        await expect(words.nth(0)).to_have_text("not measured")
        await expect(words.nth(1)).to_have_text("100 %")
        assert "–" not in await form.get_by_role("table").inner_text()
        await form.get_by_role("checkbox", name="rolling").check()
        await form.get_by_text("Your own policy", exact=True).click()
        await form.get_by_text("Fields").click()
        await form.get_by_label("mandatory_summary_turn", exact=True).fill("3")
        await form.get_by_role("button", name="Simulate").click()
        await expect(form.get_by_role("columnheader", name="your own")).to_be_visible()
        assert await heads(form) == ["what happened", "full history", "rolling", "your own"]
        sent = form.get_by_role("row").filter(has_text="Prompt tokens sent")
        figures = [int(text.replace(",", "")) for text in await sent.get_by_role("cell").all_inner_texts()]
        assert figures[1] > figures[0] > 0
        made = form.get_by_role("row").filter(has_text="Summaries").get_by_role("cell")
        assert int(await made.nth(3).inner_text()) > int(await made.nth(0).inner_text())
        await expect(form.get_by_role("img", name=re.compile("Prompt tokens of 13 turns"))).to_be_visible()
        assert await faults(page) == []


async def test_a_turn_of_too_many_rounds_for_a_simulation_is_no_session_without_turns(
    page: Page, api: httpx.Client
) -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": "Read them all."}]
    for number in range(500):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
        messages.append({"role": "assistant", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": "It is empty."})
    messages.append({"role": "assistant", "content": "All are empty."})
    for sid, sentence in (
        (
            api.post("/v1/sessions/import", json={"messages": messages}).raise_for_status().json()["id"],
            "too many tool rounds",
        ),
        (new_session(api), "no turn to simulate yet"),
    ):
        await page.goto(f"{page.url.partition('#')[0]}#/sessions/{sid}/what-if")
        form = page.get_by_role("region", name="The whole session")
        await form.get_by_role("button", name="Simulate").click()
        await expect(form.get_by_text(sentence)).to_be_visible()


async def heads(form: Locator) -> list[str]:
    await expect(form.get_by_role("columnheader").first).to_be_visible()
    return await form.get_by_role("columnheader").all_inner_texts()
