"""One session: what filled its window, what was sent and what was not, and what would have been."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import get_args

import httpx
import pytest
from playwright.async_api import Browser, Page, Route, expect

from app.domain.audit import TrimKind
from app.domain.types import ToolCall
from app.engine.recall.terms import terms_of
from tests.api.chatting import chat_service
from tests.api.conftest import PATIENCE_S, new_session, serving, settings_for
from tests.docs.pages import ROOT
from tests.providers.server import Answer, Seen, Stream
from tests.providers.wires import OPENAI, ModelReply
from tests.web.accessibility import faults
from tests.web.conftest import Shipped, open_page

_SINGLE_BLOCK = ".blocks li:not(:has(.blocks))"
_PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
PAGES = ("", "/window", "/chat", "/memory", "/what-if")


def test_every_kind_of_action_has_words() -> None:
    words = re.search(r"const WHAT: .*?\{(.*?)\n\}", (ROOT / "apps/web/src/window/rules.ts").read_text(), re.DOTALL)
    assert words
    assert set(re.findall(r"(\w+): \"", words[1])) == set(get_args(TrimKind))


async def test_there_is_nothing_to_click_below_the_head_before_that_has_its_height(
    page: Page, api: httpx.Client
) -> None:
    """It grows when the session has been read, and a click that had begun on a button would end beside it."""
    sid, arrives = new_session(api), asyncio.Event()

    async def late(route: Route) -> None:
        await arrives.wait()
        await route.continue_()

    await page.route(f"**/v1/sessions/{sid}", late)
    await page.goto(f"{page.url.split('#')[0]}#/sessions/{sid}/memory")
    await expect(page.get_by_role("heading", name="Reading the session…")).to_be_visible()
    assert await page.get_by_role("navigation", name="Views of this session").count() == 0
    arrives.set()
    await expect(page.get_by_role("button", name="New pin")).to_be_visible()
    await expect(page.get_by_role("button", name="Rename")).to_be_visible()


async def test_the_window_is_plotted_with_thresholds_and_marks_and_shown_in_a_table(
    browser: Browser, shipped: Shipped
) -> None:
    async with open_page(browser, shipped.origin) as (page, _):
        await page.goto(f"{shipped.origin}/ui/#/sessions/{shipped.session_id}/window")
        turns = page.get_by_role("option", name=re.compile("^Turn "))
        await expect(turns).to_have_count(13)
        for line in ("budget 13,312", "prune 11,981", "summary 9,319"):
            await expect(page.get_by_text(line, exact=True)).to_be_visible()
        await expect(turns.nth(8)).to_have_attribute("aria-label", re.compile("Turn 9, completed.*summarized"))
        await expect(turns.nth(12)).to_have_attribute("aria-label", re.compile("refused.*refused: over"))
        await page.get_by_text("The same as a table").click()
        row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="9", exact=True))
        audit = shipped.api.get(f"/v1/sessions/{shipped.session_id}/turns/{shipped.turn_id(9)}/audit").json()
        await expect(row).to_contain_text(f"{audit['estimated_input_tokens_after_prune']:,}")


async def test_a_turn_chosen_by_keyboard_shows_its_exact_prompt_and_what_was_left_out_by_which_rule(
    browser: Browser, shipped: Shipped
) -> None:
    path = f"/v1/sessions/{shipped.session_id}/turns/{shipped.turn_id(9)}"
    prompt = shipped.api.get(f"{path}/prompt").json()
    async with open_page(browser, shipped.origin) as (page, _):
        await page.goto(f"{shipped.origin}/ui/#/sessions/{shipped.session_id}/window")
        await page.get_by_role("option", name=re.compile("^Turn 13,")).focus()
        for seq in range(12, 8, -1):
            await page.keyboard.press("ArrowLeft")
            await expect(page.get_by_role("option", name=re.compile(f"^Turn {seq},"))).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Turn 9 completed")).to_be_visible()
        assert page.url.endswith("/window/9")
        await expect(page.locator(_SINGLE_BLOCK)).to_have_count(len(prompt["messages"]))
        texts = await page.locator(".blocks pre").all_text_contents()
        assert texts == [message["content"] for message in prompt["messages"]]
        sizes = await page.locator(f"{_SINGLE_BLOCK} .size .number").all_text_contents()
        assert [int(re.sub(r"\D", "", size)) for size in sizes] == [row["tokens"] for row in prompt["layout"]]
        await expect(page.get_by_text(prompt["prompt_sha256"])).to_be_visible()
        left_out = page.get_by_role("region", name="Left out")
        await expect(left_out).to_contain_text("Summarized")
        await expect(left_out).to_contain_text("Summary trigger by the number of completed turns")
        await expect(left_out.get_by_role("link", name="Turns 1–4")).to_be_visible()


async def test_turns_of_which_only_some_messages_were_recalled_are_listed_as_summarized(
    page: Page, api: httpx.Client
) -> None:
    session_id = new_session(api, policy={"summarize_ahead": False})
    for day in range(1, 10):
        api.post(f"/v1/sessions/{session_id}/turns", json={"content": f"On day {day} we visit a museum."})
    asked = {"content": "What is on day 1?", "policy": {"look_back": "off"}}
    answer = api.post(f"/v1/sessions/{session_id}/turns", json=asked).json()
    assert answer["context"]["context_trim_log"]["recalled"]
    await page.goto(f"{page.url.partition('#')[0]}#/sessions/{session_id}/window/10")
    summarized = page.locator(".rule", has=page.get_by_role("heading", name="Summarized by an earlier turn"))
    await expect(summarized.get_by_role("link", name="Turns 1–4")).to_be_visible()


async def test_a_single_summarized_turn_is_named_and_not_taken_for_one_of_an_earlier_summary(
    page: Page, api: httpx.Client
) -> None:
    policy = {"mandatory_summary_turn": 1, "protected_turns": 1, "summarize_ahead": False, "recall": {"enabled": False}}
    session_id = new_session(api, policy=policy)
    body = {"content": "The harbour is closed. " * 60}
    answers = [api.post(f"/v1/sessions/{session_id}/turns", json=body).json() for _ in range(4)]
    folded = answers[-1]["context"]["context_trim_log"]["actions"][0]
    assert folded["target"] == f"turn:{answers[1]['turn']['id']}"
    await page.goto(f"{page.url.partition('#')[0]}#/sessions/{session_id}/window/4")
    left_out = page.get_by_role("region", name="Left out")
    await expect(left_out.get_by_role("link", name=re.compile("Turn"))).to_have_text(["Turn 2", "Turn 1"])


async def test_an_image_in_a_prompt_is_shown(page: Page, api: httpx.Client) -> None:
    session_id = new_session(api)
    image = {"type": "image_url", "image_url": {"url": _PIXEL}}
    elsewhere = {"type": "image_url", "image_url": {"url": "https://example.org/never-loaded.png"}}
    api.post(f"/v1/sessions/{session_id}/turns", json={"content": [image, elsewhere]}).raise_for_status()
    await page.goto(f"{page.url.partition('#')[0]}#/sessions/{session_id}/window/1")
    await page.locator(".block.user summary").click()
    shown = page.get_by_role("img", name="Image of the message")
    await expect(shown).to_have_count(1)
    await expect(shown).to_have_js_property("naturalWidth", 1)


async def test_two_turns_prompts_stand_as_a_diff(browser: Browser, shipped: Shipped) -> None:
    async with open_page(browser, shipped.origin) as (page, _):
        await page.goto(f"{shipped.origin}/ui/#/sessions/{shipped.session_id}/window/{shipped.turn_id(8)}")
        await page.get_by_role("button", name="Compare with the previous turn").click()
        await expect(page.get_by_role("heading", name="From turn 7 to turn 8")).to_be_visible()
        # The message of turn 7 stands in the history now, word for word.
        await expect(page.get_by_text("0 messages left, 2 came, 0 rewritten.")).to_be_visible()
        await expect(page.locator(".diff .came")).not_to_have_count(0)
        await page.get_by_label("Compare with turn").fill("5")
        await page.get_by_label("Compare with turn").press("Enter")
        await expect(page.get_by_role("heading", name="From turn 5 to turn 8")).to_be_visible()


async def test_a_refused_turn_says_that_nothing_was_sent(browser: Browser, shipped: Shipped) -> None:
    async with open_page(browser, shipped.origin) as (page, _):
        await page.goto(f"{shipped.origin}/ui/#/sessions/{shipped.session_id}/window/13")
        await expect(page.get_by_text("Nothing was sent to the model.")).to_be_visible()
        await expect(page.locator(".what-happened")).to_contain_text("refused: over the input budget")


async def test_a_newcomer_chats_and_sees_the_window_move_tools_included(page: Page) -> None:
    await page.get_by_role("button", name="New session").click()
    await page.get_by_role("link", name="Window").click()
    await expect(page.get_by_role("heading", name="This session has no messages yet")).to_be_visible()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await page.get_by_role("link", name="Send a message").click()
    await page.get_by_label("Message", exact=True).fill("<img src=x onerror=alert(1)> What do you keep?")
    await page.get_by_label("Message", exact=True).press("Enter")
    await expect(page.locator(".answer").first).to_contain_text("offline responder")
    await expect(page.locator(".user-text p").first).to_have_text("<img src=x onerror=alert(1)> What do you keep?")
    await expect(page.get_by_role("region", name="The window now")).to_contain_text("History")
    await page.get_by_text("Model, policy, tools").click()
    await page.get_by_role("button", name="Use an example").click()
    await page.get_by_label("Have the offline responder call the first tool").check()
    await page.get_by_label("Message", exact=True).fill("And the weather?")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_label("Output of get_weather({})")).to_be_visible()
    await page.get_by_role("link", name="Window").click()
    await page.get_by_text("The same as a table").click()
    await expect(page.get_by_role("row").filter(has_text="waits for tools")).to_be_visible()
    await expect(page.get_by_role("option", name="Turn 2, waits for tools")).to_be_visible()
    await page.get_by_role("link", name="Chat", exact=True).click()
    await page.get_by_label("Output of get_weather({})").fill("Rain, 12 degrees")
    await page.get_by_role("link", name="What if").click()
    await page.get_by_label("Message", exact=True).fill("And tomorrow?")
    await page.get_by_role("link", name="Chat", exact=True).click()
    await expect(page.get_by_label("Output of get_weather({})")).to_have_value("Rain, 12 degrees")
    await page.get_by_role("link", name="What if").click()
    await expect(page.get_by_label("Message", exact=True)).to_have_value("And tomorrow?")
    await page.get_by_role("link", name="Chat", exact=True).click()
    await page.get_by_role("button", name="Send outputs").click()
    await expect(page.locator(".answer")).to_have_count(2)
    await page.get_by_role("link", name="Window").click()
    await expect(page.get_by_role("option", name=re.compile("^Turn [12],"))).to_have_count(2)
    await page.get_by_label("Call").select_option("1")
    await expect(page.locator(".block.tools")).to_contain_text("get_weather")
    await expect(page.locator(".block.tools").get_by_text("1 definition", exact=True)).to_be_visible()


async def test_a_message_that_does_not_fit_is_reported_with_how_much(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    sid = new_session(api, policy={"max_context_tokens": 2048})
    async with open_page(browser, origin) as (page, watch):
        watch.expected = ("status of 422",)
        await page.goto(f"{origin}/ui/#/sessions/{sid}/chat")
        await page.get_by_label("Message", exact=True).fill("word " * 2000)
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_role("alert")).to_contain_text("the input budget is 615")
        await expect(page.get_by_text("after everything that may", exact=False)).to_have_count(1)
        await expect(page.get_by_label("Message", exact=True)).to_have_value("word " * 2000)
        await page.get_by_role("button", name="Shorten the message").click()
        await expect(page.get_by_label("Message", exact=True)).to_be_focused()
        await expect(page.get_by_text("Or use a model with a larger window.")).to_be_visible()
        await expect(page.get_by_role("button", name="Start a new session with it")).to_have_count(0)


async def test_a_message_that_a_new_session_has_room_for_is_taken_to_one(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    sid = new_session(api, policy={"max_context_tokens": 2048})
    api.put(f"/v1/sessions/{sid}/pins/dates", json={"content": "word " * 2000}).raise_for_status()
    async with open_page(browser, origin) as (page, watch):
        watch.expected = ("status of 422",)
        await page.goto(f"{origin}/ui/#/sessions/{sid}/chat")
        await page.get_by_label("Message", exact=True).fill("And now?")
        await page.get_by_role("button", name="Send").click()
        await page.get_by_role("button", name="Start a new session with it").click()
        await expect(page).not_to_have_url(re.compile(sid))
        await expect(page.get_by_label("Message", exact=True)).to_have_value("And now?")


async def test_why_a_turn_failed_is_said_once_and_stays_when_the_page_is_opened_anew(
    browser: Browser, database_url: str, tmp_path: Path
) -> None:
    models = tmp_path / "models.toml"
    models.write_text(
        'default = "main"\n[models.main]\nprovider = "openai"\nmodel = "m"\n'
        'base_url = "http://127.0.0.1:1/v1"\ntimeout_s = 0.2\n'
    )
    why = re.compile("The provider of 'main'|The model 'main'")
    with (
        serving(settings_for(database_url, models_file=models)) as origin,
        httpx.Client(base_url=origin, timeout=PATIENCE_S) as api,
    ):
        sid = new_session(api)
        async with open_page(browser, origin) as (page, watch):
            watch.expected = ("status of 50",)
            await page.goto(f"{origin}/ui/#/sessions/{sid}/chat")
            await page.get_by_label("Message", exact=True).fill("Hello?")
            await page.get_by_role("button", name="Send").click()
            await expect(page.get_by_role("alert")).to_have_count(1)
            await expect(page.locator(".turn-foot").get_by_text("failed", exact=True)).to_have_count(1)
            await expect(page.get_by_text(why)).to_have_count(1)
            await page.reload()
            await expect(page.get_by_text(why)).to_have_count(1)
            await page.get_by_role("link", name="Turn 1", exact=True).click()
            await expect(page.get_by_role("heading", name="Turn 1 failed")).to_be_visible()
            await expect(page.get_by_text(why)).to_have_count(1)


@pytest.mark.parametrize(
    ("part", "address", "never_said"),
    [
        ("/turns/*/prompt*", "/window/9", "Nothing was sent to the model."),
        ("/turns/*/audit*", "/window/9", "was imported"),
        ("/messages*", "/window/9", "has all earlier turns in full"),
        ("/context", "/chat", "It is empty so far."),
        ("/summaries*", "/memory", "There is none yet."),
        ("/pins*", "/memory", "There are no pins."),
    ],
)
async def test_a_part_that_cannot_be_read_says_why_claims_nothing_and_is_tried_again(
    browser: Browser, shipped: Shipped, part: str, address: str, never_said: str
) -> None:
    async with open_page(browser, shipped.origin) as (page, watch):
        watch.expected = ("status of 503", "ERR_FAILED")
        # When the events begin, the page reads again by itself, and there may be nothing left to try again.
        await page.route("**/v1/events", lambda it: it.abort())
        problem = '{"title": "Away", "status": 503, "code": "database_unavailable", "detail": "The database is away."}'
        route = f"**/v1/sessions/*{part}"
        await page.route(route, lambda it: it.fulfill(status=503, content_type="application/json", body=problem))
        await page.goto(f"{shipped.origin}/ui/#/sessions/{shipped.session_id}{address}")
        why = page.get_by_role("alert").filter(has_text="The database is away.")
        await expect(why).to_have_count(1)
        await expect(page.get_by_text(never_said)).to_have_count(0)
        await page.unroute(route)
        await why.get_by_role("button", name="Try again").click()
        await expect(why).to_have_count(0)


async def test_recalled_messages_stand_together_and_show_the_words_they_came_back_for(
    browser: Browser, shipped: Shipped
) -> None:
    items = shipped.api.get(f"/v1/sessions/{shipped.session_id}/timeline").json()["items"]
    recalled = [turn for turn in items if any(event["kind"] == "recall" for event in turn["events"])]
    async with open_page(browser, shipped.origin) as (page, _):
        await page.goto(f"{shipped.origin}/ui/#/sessions/{shipped.session_id}/window/{recalled[-1]['seq']}")
        group = page.locator(".block.recall:has(.blocks)")
        await expect(group).to_contain_text(re.compile(r"[1-9]\d* older message"))
        found = page.get_by_role("region", name="Recalled", exact=True)
        await found.locator("details").first.evaluate("details => { details.open = true }")
        await expect(found.locator("strong").first).to_be_visible()
        query_terms = terms_of(await found.locator("strong").first.inner_text())
        marked = terms_of(await found.locator("mark").first.inner_text())
        assert len(marked) == 1, "a word of the message, perhaps with another ending than the user's"
        assert marked[0] in query_terms
        await found.get_by_role("link").first.hover()
        await expect(page.locator(".blocks .partner")).not_to_have_count(0)


async def test_a_session_is_named_searched_and_shown_in_parts(page: Page, api: httpx.Client) -> None:
    sid = new_session(api)
    for number in range(1, 66):
        api.post(f"/v1/sessions/{sid}/turns", json={"content": f"Berth {number} closes at noon."}).raise_for_status()
    home = page.url.split("#")[0]
    await page.goto(f"{home}#/sessions/{sid}/window")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Berth 1 closes at noon.")
    await expect(page.locator(".crumbs code")).to_have_text(sid)
    await page.get_by_role("button", name="Rename").click()
    await page.get_by_label("Title").fill("The berths")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("The berths")
    await expect(page).to_have_title("The berths – Plimsoll")
    assert api.get(f"/v1/sessions/{sid}").json()["metadata"] == {"title": "The berths"}

    await page.get_by_label("to", exact=True).fill("20")
    await page.get_by_label("to", exact=True).press("Enter")
    await expect(page.get_by_role("option", name=re.compile("^Turn "))).to_have_count(20)
    strip = page.locator(".brush")
    await strip.drag_to(strip, source_position={"x": 600, "y": 10}, target_position={"x": 700, "y": 10})
    await expect(page.get_by_role("option", name=re.compile("^Turn "))).not_to_have_count(20)
    await page.get_by_role("searchbox").fill("berth 41")
    await page.get_by_role("link", name="Turn 41, user").click()
    await expect(page.get_by_role("heading", name="Turn 41 completed")).to_be_visible()
    await expect(page.get_by_role("option", name=re.compile("^Turn 41,"))).to_have_attribute("aria-selected", "true")

    # Only what is in sight of a chat is in the page; a turn's number leads to it.
    await page.get_by_role("link", name="Chat").click()
    await expect(page.get_by_role("link", name="Turn 65", exact=True)).to_be_in_viewport()
    assert await page.locator(".turns > li").count() < 40
    await page.get_by_role("searchbox").fill("3")
    await page.get_by_role("link", name="Go to turn 3").click()
    await expect(page.get_by_role("link", name="Turn 3", exact=True)).to_be_in_viewport()
    await page.locator(".aimed").get_by_role("button", name="Pin message").click()
    await expect(page.locator(".aimed")).to_contain_text("Pinned")
    assert api.get(f"/v1/sessions/{sid}/pins/turn-3-user").json()["content"] == "Berth 3 closes at noon."
    await expect(page.get_by_role("complementary", name="Window")).to_contain_text("Pins")

    await page.goto(f"{home}#/")
    await page.get_by_role("searchbox", name="Search sessions").fill("berth 41 noon")
    await page.get_by_role("link", name="turn 41").first.click()
    await expect(page.get_by_role("heading", name="Turn 41 completed")).to_be_visible()


async def test_a_fork_from_a_turn_has_the_past_through_it(page: Page, api: httpx.Client) -> None:
    sid = new_session(api)
    for content in ("One", "Two"):
        api.post(f"/v1/sessions/{sid}/turns", json={"content": content}).raise_for_status()
    await page.goto(f"{page.url.split('#')[0]}#/sessions/{sid}/window")
    await page.get_by_role("option", name=re.compile("^Turn 1,")).click()
    await page.get_by_role("button", name="Fork here").click()
    await expect(page.locator(".user-text p")).to_have_text(["One"])
    await expect(page.get_by_role("link", name="forked from")).to_be_visible()
    assert sid not in page.url


async def test_a_prompt_shows_who_spoke_on_which_day_and_what_the_model_looked_back_at(
    browser: Browser, database_url: str, tmp_path: Path
) -> None:
    def model(seen: Seen) -> Answer | Stream:
        if seen.json["messages"][-1]["role"] == "tool":
            return OPENAI.whole(ModelReply("Berth 3."))
        return OPENAI.whole(ModelReply("", calls=(ToolCall("b", "look_back", '{"handle": "m1"}'),)))

    past = [
        {"role": "user", "name": "Anna", "said_at": "2026-03-02T10:00:00Z", "content": "Berth 3 is mine."},
        {"role": "assistant", "said_at": "2026-03-02T10:00:05Z", "content": "Noted."},
        {"role": "user", "name": "Bert", "said_at": "2026-03-04T10:00:00Z", "content": "Berth 4 is mine."},
        {"role": "assistant", "said_at": "2026-03-04T10:00:05Z", "content": "Noted too."},
    ]
    with chat_service(database_url, tmp_path, model) as at:
        body = {"messages": past, "policy": {"look_back": "on"}}
        sid = at.http.post("/v1/sessions/import", json=body).raise_for_status().json()["id"]
        at.http.post(f"/v1/sessions/{sid}/turns", json={"content": "Which is Anna's?"}).raise_for_status()
        origin = str(at.http.base_url).rstrip("/")
        async with open_page(browser, origin, width=1440) as (page, _):
            await page.goto(f"{origin}/ui/#/sessions/{sid}/window/3")
            blocks = page.locator(".blocks > li")
            await expect(blocks.nth(0)).to_contain_text("Anna (user) · turn 1 · 2 Mar 2026")
            await expect(blocks.nth(1)).not_to_contain_text("Mar 2026")
            await expect(blocks.nth(2)).to_contain_text("Bert (user) · turn 2 · 4 Mar 2026")
            await expect(page.locator(".blocks > li", has_text="look-back")).to_have_count(2)
            looked_back = page.get_by_role("region", name="Look-backs")
            await expect(looked_back).to_contain_text("read older messages back: 2 messages with calls and results")
            await page.get_by_role("searchbox").fill("berth")
            await expect(page.get_by_role("link", name="Turn 1, Anna (user)")).to_be_visible()
            await page.get_by_role("link", name="Compare turn 3 with turn 2").first.click()
            await expect(page.get_by_text("Nothing was sent to a model for turn 2")).to_be_visible()
            await page.get_by_role("link", name="Chat", exact=True).click()
            await expect(page.locator(".user-name")).to_have_text(["Anna", "Bert"])
            await expect(page.locator("[data-row='1'] .day-line")).to_have_text("4 Mar 2026")


async def test_a_refusal_is_explained_when_the_chat_is_opened_anew_and_its_message_can_be_changed(
    browser: Browser, shipped: Shipped
) -> None:
    async with open_page(browser, shipped.origin, width=390) as (page, _):
        await page.goto(f"{shipped.origin}/ui/#/sessions/{shipped.session_id}/chat")
        await expect(page.get_by_role("alert")).to_contain_text("Over the budget by")
        await page.get_by_role("button", name=re.compile(r"Shorten the message by [\d,]+ tokens")).click()
        message = page.get_by_label("Message", exact=True)
        await expect(message).to_be_focused()
        await expect(message).to_have_value(re.compile("^Here is the whole export"))


async def test_a_search_goes_by_what_is_in_its_field_and_a_key_leads_to_it(page: Page, api: httpx.Client) -> None:
    sid = new_session(api)
    for number in (1, 2, 3):
        api.post(f"/v1/sessions/{sid}/turns", json={"content": f"Crane {number} rests."}).raise_for_status()
    await page.goto(f"{page.url.split('#')[0]}#/sessions/{sid}/window")
    await expect(page.get_by_role("heading", name="Turn 3 completed")).to_be_visible()
    await page.keyboard.press("Control+k")
    await page.keyboard.type("2")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Turn 2 completed")).to_be_visible()
    await page.get_by_role("link", name="← Turn 1").click()
    await expect(page.get_by_role("heading", name="Turn 1 completed")).to_be_visible()


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("dark", [False, True])
async def test_every_page_holds_to_wcag_and_fits_its_width_light_and_dark(
    browser: Browser, shipped: Shipped, width: int, dark: bool, tmp_path: Path
) -> None:
    folder = Path(os.environ.get("PLIMSOLL_SCREENSHOTS", tmp_path))  # pictures of every page, to be looked at
    async with open_page(browser, shipped.origin, width=width, dark=dark) as (page, _):
        for part in PAGES:
            path = f"sessions/{shipped.session_id}{part}" if part else ""
            await page.goto(f"{shipped.origin}/ui/#/{path}")
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
            await expect(page.locator("main")).not_to_contain_text("Reading")
            assert await faults(page) == [], part
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, part
            name = f"{part.strip('/') or 'sessions'}-{width}{'-dark' if dark else ''}.png"
            await page.screenshot(path=folder / name, full_page=True)


async def test_a_goal_that_is_one_long_word_or_very_long_leaves_the_page_as_wide_and_the_tabs_near(
    browser: Browser, origin: str, api: httpx.Client
) -> None:
    async with open_page(browser, origin, width=390, height=800) as (page, _):
        for goal in ("https://example.org/" + "a" * 600, "Answer in words. " * 2000):
            session = new_session(api, room_goal=goal, metadata={"title": "T" * 100})
            await page.goto(f"{origin}/ui/#/sessions/{session}/chat")
            await expect(page.get_by_text("Goal: ")).to_be_visible()
            assert await page.evaluate("document.documentElement.scrollWidth") == 390
            await expect(page.get_by_role("link", name="Memory")).to_be_in_viewport()


async def test_an_imported_session_says_why_it_has_no_prompts_and_what_to_do(
    page: Page, api: httpx.Client, origin: str
) -> None:
    pair = [{"role": "user", "content": "Is order 1 paid?"}, {"role": "assistant", "content": "It is."}]
    session = api.post("/v1/sessions/import", json={"messages": pair * 2}).raise_for_status().json()["id"]
    await page.goto(f"{origin}/ui/#/sessions/{session}/window")
    await expect(page.get_by_text("Turn 2 was imported: no prompt was made for it here.")).to_be_visible()
    card, notice = [await page.locator(each).bounding_box() for each in ("main .card", ".notice")]
    assert card
    assert notice
    assert notice["y"] >= card["y"] + card["height"] + 8
    await page.get_by_role("link", name="Send a message").click()
    await expect(page.get_by_text("It is.", exact=True)).to_have_count(2)
    await expect(page.get_by_title("From the message to the end of the answer")).to_have_count(0)
