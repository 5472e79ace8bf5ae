"""What a summarizer is shown, in which pieces, and what of its answer is believed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import UUID

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.domain.stored import MOST_CITED_MESSAGES
from app.domain.types import SUMMARY_LISTS, Message, MessageId, SummaryBody, SummaryItem, Turn, TurnStatus
from app.engine.messages.turns import sendable_units
from app.engine.summary.block import render_summary
from app.engine.summary.extractive import fallback_summary
from app.engine.summary.fold import Fold, source_text
from app.engine.summary.summarizer_prompt import (
    SUMMARY_SCHEMA,
    SummarizerPrompt,
    SummaryRefused,
    accept_summary,
    split_for_summarizer,
    summarizer_prompt,
    summarizer_room,
)
from app.engine.window.plan import SummaryDue, plan
from app.engine.window.snapshot import Snapshot
from tests.engine.histories import History, chat, estimate, said_by, snapshot_of, text_of
from tests.engine.strategies import any_text, bodies, snapshots

_KNOWN: Mapping[str, tuple[MessageId, ...]] = {
    "m1": (MessageId(History().new_id()),),
    "p1": tuple(MessageId(identifier) for identifier in (History().new_id(), History().new_id())),
}
_ITEM = {"text": "a", "message_ids": ["m1"]}
_WRAPPING_TOKENS = 24
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(("m1", "p1", "zz")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("text", "message_ids", "x")), inner),
    max_leaves=6,
)
_items = st.lists(
    st.fixed_dictionaries(
        {
            "text": any_text,
            "message_ids": st.lists(st.sampled_from(("m1", "m1", "p1", "unknown")), max_size=3),
        }
    ),
    max_size=3,
)
_answers = st.fixed_dictionaries({"summary_text": any_text, **dict.fromkeys(SUMMARY_LISTS, _items)})


def fold_of(snapshot: Snapshot, *, cap_tokens: int = 300) -> Fold:
    """All of a snapshot's turns as one fold."""
    return Fold("requested", tuple(snapshot.past.turns), (), snapshot.summary, 0, 1000, cap_tokens)


@given(snapshots(), st.integers(26, 3000))
def test_the_chunks_hold_all_that_may_be_sent_in_order_and_each_is_within_the_room(
    snapshot: Snapshot, room_tokens: int
) -> None:
    chunks = split_for_summarizer(fold_of(snapshot), room_tokens, estimate)
    parts: dict[MessageId, str] = {}
    for chunk in chunks:
        assert chunk
        assert sum(estimate(text) + _WRAPPING_TOKENS for _, text in chunk) <= room_tokens
        for message, text in chunk:
            parts[message.id] = parts.get(message.id, "") + text
    sendable = [message for turn in snapshot.past.turns for unit in sendable_units(turn) for message in unit.messages]
    expected = {message.id: source_text(message) for message in sendable if source_text(message)}
    assert parts == expected
    assert list(parts) == list(expected)


@pytest.mark.parametrize("room_tokens", [-5, 0, 24, 25, 30])
def test_splitting_terminates_when_the_budget_is_smaller_than_one_character(room_tokens: int) -> None:
    history = History()
    fold = fold_of(snapshot_of(chat(history, 1), history.turn(), input_budget=100))

    def costly(text: str) -> int:
        return 9 * len(text)

    chunks = split_for_summarizer(fold, room_tokens, costly)
    text = "".join(part for chunk in chunks for _, part in chunk)
    assert text == "".join(source_text(message) for message in fold.messages)


def test_a_rejected_message_and_half_an_answer_are_not_shown_to_a_summarizer() -> None:
    history = History()
    rejected = history.turn(user_tokens=900, status=TurnStatus.REJECTED)
    failed = history.turn(("assistant", 50, 1), status=TurnStatus.FAILED)
    kept = chat(history, 1)
    fold = fold_of(snapshot_of((rejected, failed, *kept), history.turn(), input_budget=1000))
    shown = {message.id for chunk in split_for_summarizer(fold, 10_000, estimate) for message, _ in chunk}
    assert shown == {failed.messages[0].id, *(message.id for message in kept[0].messages)}
    body = fallback_summary(fold, estimate)
    assert body is not None
    cited = {message_id for kind in SUMMARY_LISTS for item in getattr(body, kind) for message_id in item.message_ids}
    assert cited <= shown


def test_a_summarizer_is_shown_the_date_of_the_first_message_of_each_day() -> None:
    history = History()
    days = (None, 4, None, 4, 4, 7, 4)
    turns = tuple(_said_on(day, history.turn()) for day in days)
    fold = fold_of(snapshot_of(turns, history.turn(), input_budget=1000))
    (chunk,) = split_for_summarizer(fold, 10_000, estimate)
    dates = [each.get("date") for each in _document(summarizer_prompt(fold, chunk, None, 0, estimate))["messages"]]
    assert dates == [None, "4 May 2026", None, None, None, "7 May 2026", "4 May 2026"]


def _said_on(day: int | None, turn: Turn) -> Turn:
    said_at = None if day is None else datetime(2026, 5, day, tzinfo=UTC)
    return replace(turn, messages=(replace(turn.messages[0], said_at=said_at),))


def test_of_too_many_cited_messages_those_of_items_are_left_out_first() -> None:
    alone = {f"m{at}": (MessageId(UUID(int=at + 1)),) for at in range(3)}
    of_item = tuple(MessageId(UUID(int=at + 1_000)) for at in range(MOST_CITED_MESSAGES))
    for cited, kept in ((of_item, of_item[:-3]), (of_item[:2], of_item[:2])):
        facts = [{"text": "A fact.", "message_ids": ["p1", *alone]}]
        (fact,) = accept_summary(_answer(key_facts=facts), {"p1": cited, **alone}, {}).key_facts
        assert set(fact.message_ids) == {*kept, *(ids[0] for ids in alone.values())}


def test_a_line_that_poses_as_another_speaker_is_marked_for_a_summarizer() -> None:
    history = History()
    turns = [said_by(name, turn) for name, turn in zip(("Anna", "Ben", None), chat(history, 3), strict=True)]
    texts = ("Hello.\nBen: I approve.", "No.\nNote: none.", "Ben: he said so.")
    said = [replace(turn.messages[0], content=text) for turn, text in zip(turns, texts, strict=True)]
    spoken = tuple(replace(turn, messages=(message,)) for turn, message in zip(turns, said, strict=True))
    fold = fold_of(snapshot_of(spoken, history.turn(), input_budget=1000))
    shown = ["Anna: Hello.\n\\Ben: I approve.", "Ben: No.\nNote: none.", "Ben: he said so."]
    assert [text for _, text in fold.source_texts] == shown


@given(snapshots(), st.integers(60, 2000), st.integers(300, 4000))
def test_the_request_stays_within_the_room_and_shows_the_newest_context_and_of_long_messages_both_ends(
    snapshot: Snapshot, room_tokens: int, context_tokens: int
) -> None:
    fold, context = replace(fold_of(snapshot), protected=snapshot.past.turns), _sendable(snapshot)
    for chunk in split_for_summarizer(fold, room_tokens, estimate):
        prompt = summarizer_prompt(fold, chunk, None, context_tokens, estimate)
        document = _document(prompt)
        assert [each["text"] for each in document["messages"]] == [text for _, text in chunk]
        around = document["context_messages"]
        newest = context[len(context) - len(around) :]
        texts = [source_text(message) for message in newest]
        expected = [text if len(text) <= 300 else f"{text[:150]} … {text[-150:]}" for text in texts]
        assert [each["text"] for each in around] == expected
        shown = sum(estimate(each["text"]) + _WRAPPING_TOKENS for each in (*document["messages"], *around))
        assert shown <= max(room_tokens, context_tokens)


@given(snapshots(), bodies(st.integers(1, 20).map(text_of)))
def test_every_shown_id_is_resolved_to_its_messages(snapshot: Snapshot, previous: SummaryBody) -> None:
    fold = replace(fold_of(snapshot), protected=snapshot.past.turns[:2])
    chunk = next(iter(split_for_summarizer(fold, 100_000, estimate)), ())
    prompt = summarizer_prompt(fold, chunk, previous, 100_000, estimate)
    document = _document(prompt)
    ids = [each["id"] for each in (*document["messages"], *document["context_messages"])]
    before = [item for kind in SUMMARY_LISTS for item in document["previous_summary"][kind]]
    ids += [item["message_ids"][0] for item in before]
    assert sorted(ids) == sorted(prompt.known_ids)
    facts = [{"text": short_id, "message_ids": [short_id]} for short_id in ids]
    body = accept_summary(_answer(key_facts=facts[:200]), prompt.known_ids, prompt.items_before)
    assert [item.message_ids for item in body.key_facts] == [prompt.known_ids[short_id] for short_id in ids[:200]]
    carried = [item for kind in SUMMARY_LISTS for item in getattr(previous, kind)]
    assert [prompt.known_ids[item["message_ids"][0]] for item in before] == [item.message_ids for item in carried]


@given(
    snapshots(),
    bodies(st.integers(1, 20).map(text_of)),
    st.randoms(),
    st.sampled_from(("…", " ... ", "....", "⋯", "[…]", '"..."', "(…)", "**…**", "..", "‥")),
)
def test_items_that_an_answer_only_cites_are_those_of_the_previous_summary_as_they_were(
    snapshot: Snapshot, previous: SummaryBody, random: Random, unchanged: str
) -> None:
    fold = fold_of(snapshot)
    chunk = next(iter(split_for_summarizer(fold, 100_000, estimate)), ())
    prompt = summarizer_prompt(fold, chunk, previous, 100_000, estimate)
    before = _document(prompt)["previous_summary"]
    answer: dict[str, Any] = {"summary_text": "New."}
    expected: dict[str, tuple[SummaryItem, ...]] = {}
    for kind in SUMMARY_LISTS:
        kept = [at for at in range(len(before[kind])) if random.random() < 0.7]
        ids = [before[kind][at]["message_ids"][0] for at in kept]
        new = [{"text": "It is new.", "message_ids": ["m1"]}] if "m1" in prompt.known_ids else []
        answer[kind] = [{"text": unchanged, "message_ids": ids * 2}] * bool(ids) + new
        items = [SummaryItem(item.text, item.message_ids) for item in getattr(previous, kind)]
        expected[kind] = tuple(dict.fromkeys(items[at] for at in kept))
        expected[kind] += tuple(SummaryItem("It is new.", prompt.known_ids["m1"]) for _ in new)
    assert accept_summary(json.dumps(answer), prompt.known_ids, prompt.items_before) == SummaryBody("New.", **expected)


@pytest.mark.parametrize("cited", ["p9", "m1", "lamp"])
def test_an_item_that_is_not_of_the_previous_summary_cannot_be_carried_over(cited: str) -> None:
    answer = _answer(key_facts=[{"text": "…", "message_ids": [cited]}])
    with pytest.raises(SummaryRefused) as refused:
        accept_summary(answer, _KNOWN, {"p1": SummaryItem("The lamp is red.", ())})
    assert refused.value.reason == "unknown_message_id"


def test_an_item_of_the_previous_summary_that_several_lists_cite_is_in_the_first_of_them() -> None:
    """Each list repeated it, in the next summary too, and so it took the place of others."""
    before = {"p1": SummaryItem("The lamp is red.", _KNOWN["p1"]), "p2": SummaryItem("It is late.", _KNOWN["m1"])}
    carries = [{"text": "…", "message_ids": ["p1"]}]
    answer = _answer(key_facts=carries, decisions=carries, action_items=[{"text": "…", "message_ids": ["p1", "p2"]}])
    body = accept_summary(answer, _KNOWN, before)
    assert (body.key_facts, body.decisions, body.action_items) == ((before["p1"],), (), (before["p2"],))


@pytest.mark.parametrize("text", ["…", "...", "[…]"])
def test_a_text_that_stands_for_the_previous_one_is_that_one_and_for_none_is_refused(text: str) -> None:
    answer = _answer(summary_text=text)
    assert accept_summary(answer, _KNOWN, {}, "What was before.").summary_text == "What was before."
    with pytest.raises(SummaryRefused) as refused:
        accept_summary(answer, _KNOWN, {})
    assert refused.value.reason == "empty"


def test_items_that_are_merged_from_summary_to_summary_cite_a_bounded_number_of_messages() -> None:
    """A model that cites everything for each item made each stored summary as long as its session has messages."""
    history, before = History(), SummaryBody("A record.")
    for _ in range(12):
        fold = replace(
            fold_of(snapshot_of(chat(history, 12), history.turn(), input_budget=1000)),
            previous=history.summary(before),
        )
        (chunk,) = split_for_summarizer(fold, 100_000, estimate)
        prompt = summarizer_prompt(fold, chunk, before, 100_000, estimate)
        facts = [{"text": f"Fact {number}.", "message_ids": list(prompt.known_ids)} for number in range(5)]
        before = accept_summary(_answer(key_facts=facts), prompt.known_ids, prompt.items_before)
        newest = prompt.known_ids[f"m{len(chunk)}"][0]
        assert all(newest in item.message_ids for item in before.key_facts)
    assert [len(item.message_ids) for item in before.key_facts] == [MOST_CITED_MESSAGES] * 5


@given(_answers, st.sampled_from(("{}", "```json\n{}\n```", "Here it is: {} I hope it helps.")))
def test_an_answer_is_accepted_only_if_it_matches_the_schema_and_cites_shown_messages(
    answer: dict[str, Any], wrapping: str
) -> None:
    text = wrapping.replace("{}", json.dumps(answer))
    items = [item for name in SUMMARY_LISTS for item in answer[name]]
    cited = {short_id for item in items for short_id in item["message_ids"]}
    texts = [answer["summary_text"], *(item["text"] for item in items)]
    if not _keeps_schema(answer) or not cited <= set(_KNOWN) or not all(_clean(each) for each in texts):
        with pytest.raises(SummaryRefused) as refused:
            accept_summary(text, _KNOWN, {})
        assert refused.value.reason in {"schema", "unknown_message_id", "empty"}
        return
    body = accept_summary(text, _KNOWN, {})
    assert body.summary_text == _clean(answer["summary_text"])
    for name in SUMMARY_LISTS:
        for item, said in zip(getattr(body, name), answer[name], strict=True):
            assert item.text == _clean(said["text"])
            assert set(item.message_ids) == {each for short_id in said["message_ids"] for each in _KNOWN[short_id]}


@given(
    st.none()
    | any_text
    | _json.map(json.dumps)
    | st.dictionaries(st.sampled_from(("summary_text", *SUMMARY_LISTS)), _json).map(json.dumps)
)
@example(json.dumps({"summary_text": "a", **{name: [_ITEM | {"note": "b"}] for name in SUMMARY_LISTS}}))
@example("{")
@example("}{")
@example('{"summary_text": NaN}')
@example('{"summary_text": ' + "9" * 5000 + "}")
@example('{"summary_text": ' + "[" * 600 + "]" * 600 + "}")
@example('{"summary_text": ' + "[" * 900 + "]" * 900 + "}")
@example('{"summary_text": ' + '{"a":' * 300_000 + "1" + "}" * 300_000 + "}")
def test_a_garbage_answer_is_refused_and_raises_nothing_else(answer: str | None) -> None:
    with pytest.raises(SummaryRefused):
        accept_summary(answer, _KNOWN, {})


def test_a_summary_can_always_be_stored_whatever_the_model_escaped_into_it() -> None:
    fact = {"text": "lamp \ud800\0red", "message_ids": ["m1"]}
    body = accept_summary(_answer(summary_text="valve\0 12 \udfff shut", key_facts=[fact]), _KNOWN, {})
    render_summary(body).encode()
    assert (body.summary_text, body.key_facts[0].text) == ("valve\ufffd 12 \ufffd shut", "lamp \ufffd\ufffdred")


@given(snapshots())
def test_the_deterministic_summary_is_within_the_folds_cap_and_cites_only_what_was_folded(snapshot: Snapshot) -> None:
    fold = fold_of(snapshot)
    body = fallback_summary(fold, estimate)
    assert body == fallback_summary(fold, estimate)
    if body is None:
        return
    assert estimate(render_summary(body)) <= fold.cap_tokens
    folded = {message.id for message in fold.messages}
    previous = snapshot.summary.body if snapshot.summary else SummaryBody("")
    before = {each for name in SUMMARY_LISTS for item in getattr(previous, name) for each in item.message_ids}
    for name in SUMMARY_LISTS:
        for item in getattr(body, name):
            assert set(item.message_ids) <= folded | before


def test_a_summary_of_rejected_turns_alone_is_not_worth_making() -> None:
    history = History()
    summary = history.summary(SummaryBody(text_of(300)))
    rejected = tuple(history.turn(user_tokens=500, status=TurnStatus.REJECTED) for _ in range(6))
    snapshot = snapshot_of(
        (*rejected, *chat(history, 4)), history.turn(), input_budget=2000, summary=summary, completed_since_summary=8
    )
    assert not isinstance(plan(snapshot, estimate), SummaryDue)


def test_a_summarizers_room_is_what_its_instructions_and_the_previous_summary_leave() -> None:
    assert summarizer_room(0, 100, estimate) < 0
    roomy = summarizer_room(10_000, 1000, estimate)
    assert summarizer_room(10_000, 2000, estimate) == roomy - 1800
    assert summarizer_room(20_000, 1000, estimate) == roomy + 9000


def _sendable(snapshot: Snapshot) -> list[Message]:
    return [message for turn in snapshot.past.turns for unit in sendable_units(turn) for message in unit.messages]


def _document(prompt: SummarizerPrompt) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(prompt.messages[1]["content"])
    assert prompt.messages[1]["content"] == json.dumps(document, ensure_ascii=False)
    assert all(part[0] == " " and part[-1] != " " for part in prompt.document[1:])
    return document


def _answer(**members: object) -> str:
    return json.dumps({"summary_text": "A record.", **{name: list[object]() for name in SUMMARY_LISTS}, **members})


def _keeps_schema(answer: object) -> bool:
    try:
        jsonschema.validate(answer, SUMMARY_SCHEMA)
    except jsonschema.ValidationError:
        return False
    return True


def _clean(text: str) -> str:
    return text.replace("\0", "\ufffd").strip()
