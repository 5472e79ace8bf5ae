"""Reasoning that a server without a reasoning parser leaves in the text of an answer, between tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.domain.types import ToolCall
from app.providers.catalogue_file import ThinkTags
from app.providers.think_tags import TaggedText

from .asking import answer_to, chat, streamed
from .server import Answer, Stream
from .test_openai_stream import DONE, chunk, text

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

CASES: list[tuple[ThinkTags | None, str, str, str | None]] = [
    (None, "<think>\nWhy?\n</think>\n\nYes.", "Yes.", "Why?\n"),
    (None, "\n<think>Why?</think>Yes.", "Yes.", "Why?"),
    (None, "<think>\n\n</think>\n\nYes.", "Yes.", None),  # Qwen 3 with thinking off
    (None, " " * 64 + "<think>Why?</think>Yes.", "Yes.", "Why?"),
    (None, " " * 65 + "<think>Why?</think>Yes.", " " * 65 + "<think>Why?</think>Yes.", None),
    (None, "<think>It never", "", "It never"),
    (None, "<think>It never</thi", "", "It never</thi"),
    (None, "<think>a </thin b</think> c", "c", "a </thin b"),
    (None, "Write <think> and </think>.", "Write <think> and </think>.", None),
    (None, "<thinking>Yes</thinking>", "<thinking>Yes</thinking>", None),
    (None, "<think>a</think>Yes <think>b</think>", "Yes <think>b</think>", "a"),
    (None, "<thi", "<thi", None),
    (None, " \n" * 99 + "Yes.", " \n" * 99 + "Yes.", None),
    (None, "Why?</think>Yes.", "Why?</think>Yes.", None),
    ("opened", "Why?\n</think>\n\nYes.", "Yes.", "Why?\n"),
    ("opened", "It never", "", "It never"),
    ("opened", "<thi", "", "<thi"),
    ("opened", "<think>\nWhy?</think>Yes.", "Yes.", "Why?"),  # where the template does not open it each time
    ("keep", "<think>Why?</think>\nYes.", "<think>Why?</think>\nYes.", None),
]


@pytest.mark.parametrize(("tags", "content", "answered", "reasoning"), CASES)
async def test_a_block_of_reasoning_at_the_beginning_of_an_answer_is_not_part_of_its_text(
    tags: ThinkTags | None, content: str, answered: str, reasoning: str | None
) -> None:
    settings: dict[str, Any] = {"think_tags": tags}
    whole, _ = await answer_to(Answer(chat({"role": "assistant", "content": content})), **settings)
    assert (whole.text, whole.reasoning) == (answered, reasoning)
    letters = (*map(text, content), chunk(finish="stop"), DONE)
    in_pieces, _, _ = await streamed(Stream(letters), **settings)
    assert (in_pieces.text, in_pieces.reasoning) == (answered, reasoning)


async def test_calls_of_tools_after_a_block_of_reasoning_have_no_text() -> None:
    message = {"role": "assistant", "content": "<think>Which tool?</think>\n\n", "tool_calls": [CALL]}
    answer, _ = await answer_to(Answer(chat(message)))
    assert (answer.text, answer.reasoning, answer.tool_calls) == (None, "Which tool?", (ToolCall("call_1", "f", "{}"),))


async def test_reasoning_that_a_server_sends_both_ways_is_kept_once() -> None:
    """As llama.cpp does with `--reasoning-format deepseek-legacy`."""
    message = {"role": "assistant", "content": "<think>Why?</think>Yes.", "reasoning_content": "Why?"}
    answer, _ = await answer_to(Answer(chat(message)))
    assert (answer.text, answer.reasoning) == ("Yes.", "Why?")


async def test_models_that_want_their_tags_back_keep_them_in_the_text() -> None:
    content = "<think>Why?</think>Yes."
    answer, _ = await answer_to(Answer(chat({"role": "assistant", "content": content})), model="MiniMax-M2")
    assert (answer.text, answer.reasoning) == (content, None)


def separated(tags: ThinkTags, pieces: Sequence[str]) -> tuple[str, str]:
    tagged = TaggedText(tags)
    parts = [*map(tagged.add, pieces), tagged.rest()]
    return "".join(text for text, _ in parts), "".join(reasoning for _, reasoning in parts)


@example("separate", ["<think>a", "", " b"])
@given(
    st.sampled_from(("separate", "opened", "keep")),
    st.lists(st.text("<think/> \na", max_size=9) | st.sampled_from(("<think>", "</think>", "<thi", "</thin", "nk>"))),
)
def test_where_the_pieces_of_an_answer_end_does_not_change_what_is_separated(
    tags: ThinkTags, pieces: list[str]
) -> None:
    whole = "".join(pieces)
    assert separated(tags, pieces) == separated(tags, list(whole)) == separated(tags, [whole])


@given(st.text("<think/> \n", max_size=99).filter(lambda answer: not answer.lstrip().startswith("<think>")))
def test_an_answer_that_begins_with_no_block_is_passed_on_unchanged(answer: str) -> None:
    assert separated("separate", list(answer)) == (answer, "")
