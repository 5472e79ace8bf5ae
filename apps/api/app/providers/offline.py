"""The built-in responder: needs no key, no network, and is not a language model.

It answers a turn with the recorded reply of the request, or else states what it received and quotes the message that
best matches the question. It summarizes by extraction. The same request always gets the same answer.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from math import log
from typing import Any, Final

import orjson

from app.domain.content import fields_of
from app.domain.errors import ProviderRefused
from app.domain.extractive import Material, SourceText, gather
from app.domain.types import (
    CHAT_OPTIONS,
    SUMMARY_LISTS,
    UNCHANGED_ITEMS,
    Completion,
    CompletionRequest,
    Delta,
    JsonObject,
    RecordedReply,
    SummaryBody,
    SummaryItem,
    Usage,
)
from app.providers.base import DeltaSink, Provider
from app.providers.wire import list_of, texts_of

LABEL: Final = "[offline responder, not a language model]"
_INLINE_CHARS: Final = 32_768
_MESSAGE_FRAMING_TOKENS: Final = 4
_QUOTE_CHARS: Final = 240
_CHARS_PER_TOKEN: Final = 3.0
_A_FEW_WORDS: Final = re.compile(r"(?:\s*\S+){1,4}\s*|\s+")
_WORD: Final = re.compile(r"\w{3,}")


class OfflineProvider(Provider):
    """Answers from the request's messages alone. `count` gives the tokens of a text, for the usage it reports."""

    options = CHAT_OPTIONS

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count

    async def complete(self, request: CompletionRequest, on_delta: DeltaSink | None = None) -> Completion:
        """Runs off the event loop if the prompt is large or a summary is requested. Streams a few words at a time.

        Raises `ProviderRefused` if a summary is requested and the last message is not the summarizer's document.
        """
        counted = [*texts_of(request.messages), *_calls_and_tools(request)]
        if request.purpose != "summary" and sum(map(len, counted)) <= _INLINE_CHARS:
            answer = self._answer(request, counted)
        else:
            answer = await asyncio.to_thread(self._answer, request, counted)
        if on_delta is not None and answer.text:
            for words in _A_FEW_WORDS.findall(answer.text):
                on_delta(Delta(words))
                await asyncio.sleep(0)  # lets listeners run between two deltas
        return answer

    def _answer(self, request: CompletionRequest, counted: Sequence[str]) -> Completion:
        made = self._summary if request.purpose == "summary" else _reply
        reply = request.recorded_reply or RecordedReply(made(request))
        return Completion(
            text=reply.content,
            finish_reason="tool_calls" if reply.tool_calls else "stop",
            usage=self._usage(request, counted, reply),
            tool_calls=reply.tool_calls,
            provider_model="offline",
        )

    def _usage(self, request: CompletionRequest, counted: Sequence[str], reply: RecordedReply) -> Usage:
        """Counts as a provider would: content, tool calls, tools, and a little framing for each message."""
        prompt = sum(map(self._count, counted)) + _MESSAGE_FRAMING_TOKENS * len(request.messages)
        answer = self._count(reply.content or "")
        answer += sum(self._count(call.name) + self._count(call.arguments) for call in reply.tool_calls)
        return Usage(prompt_tokens=prompt, completion_tokens=answer)

    def _summary(self, request: CompletionRequest) -> str:
        """The summarizer's JSON answer, in no more tokens than the document and the request allow."""
        document = _document(texts_of(request.messages)[-1] if request.messages else "")
        most_tokens = min(request.max_output_tokens, document["max_tokens"])
        max_chars = int(most_tokens * _CHARS_PER_TOKEN)
        previous = _previous(document)
        material = _material(document, previous)
        while True:
            found = material.within(max_chars)
            tokens = self._count(_summary_text(found, SummaryBody("")))
            if not max_chars or tokens <= most_tokens:
                return _summary_text(found, previous)
            max_chars = int(max_chars * max(0.5, 0.75 * most_tokens / tokens))


def _calls_and_tools(request: CompletionRequest) -> list[str]:
    calls = [message["tool_calls"] for message in request.messages if message.get("tool_calls")]
    return [orjson.dumps(each).decode() for each in (*calls, *request.tools)]


def _reply(request: CompletionRequest) -> str:
    texts = texts_of(request.messages)
    question = texts[-1] if texts else ""
    received = "1 message" if len(texts) == 1 else f"{len(texts)} messages"
    parts = [f"{LABEL} I received {received}; the newest says: {_quoted(question)}"]
    earlier: list[tuple[str, str]] = []
    recorded: list[tuple[str, str]] = []
    for message, text in zip(request.messages[:-1], texts, strict=False):
        role = str(message.get("role"))
        recorded.extend(("summary", line) for line in _summary_lines(text))
        if role in {"user", "assistant", "tool"} and not text.startswith(LABEL):
            earlier.append((role, text))
    best = _closest(question, [*recorded, *earlier])
    if best is not None:
        role, text = best
        where = "the summary records" if role == "summary" else f"an earlier {role} message says"
        parts.append(f"Closest to it, {where}: {_quoted(text)}")
    elif recorded:
        parts.append(f"The summary records: {_quoted(recorded[0][1])}")
    parts.append("Point MODELS_FILE at a real model for real answers.")
    return "\n".join(parts)


def _quoted(text: str) -> str:
    short = " ".join(text[: 2 * _QUOTE_CHARS].split())
    return f"“{short[:_QUOTE_CHARS]}…”" if len(short) > _QUOTE_CHARS or len(text) > 2 * _QUOTE_CHARS else f"“{short}”"


def _closest(question: str, candidates: list[tuple[str, str]]) -> tuple[str, str] | None:
    """The candidate that shares the rarest words with the question, the newest of equals; None if none shares any."""
    words = [set(_WORD.findall(text.lower())) for _, text in candidates]
    seen_in = Counter(word for of_one in words for word in of_one)
    wanted = set(_WORD.findall(question.lower()))
    best, best_score = None, 0.0
    for candidate, of_one in zip(candidates, words, strict=True):
        # Sorted, so that the sum of floats is the same in every process.
        score = sum(log(1 + len(candidates) / seen_in[word]) for word in sorted(wanted & of_one))
        if score and score >= best_score:
            best, best_score = candidate, score
    return best


def _summary_lines(text: str) -> list[str]:
    """The lines of a summary block of the prompt; empty when the text is no summary block."""
    if not text.endswith("</conversation-record>"):
        return []
    try:
        fields = fields_of(orjson.loads(text[text.index("{") : text.rindex("}") + 1]))
    except ValueError:
        return []
    listed = [line for kind in SUMMARY_LISTS for line in list_of(fields.get(kind)) if isinstance(line, str)]
    summary = fields.get("summary")
    return [*listed, *(summary.splitlines() if isinstance(summary, str) else [])]


def _document(text: str) -> JsonObject:
    """The summarizer's document (`engine/summary/summarizer_prompt.py`), which is always of this form."""
    try:
        document = fields_of(orjson.loads(text))
    except orjson.JSONDecodeError:
        document = {}
    if not isinstance(document.get("messages"), list):
        raise ProviderRefused("The offline summarizer got a message that is not its document.")
    return document


def _previous(document: JsonObject) -> SummaryBody:
    """The previous summary, whose items have their short ids in place of message ids."""
    before = fields_of(document["previous_summary"])
    items = {
        kind: tuple(SummaryItem(item["text"], tuple(item["message_ids"])) for item in before.get(kind, ()))
        for kind in SUMMARY_LISTS
    }
    return SummaryBody(before.get("summary_text", ""), **items)


def _material(document: JsonObject, previous: SummaryBody) -> Material:
    new, context = (
        [SourceText(each["id"], each["role"], each["text"]) for each in document[name]]
        for name in ("messages", "context_messages")
    )
    return gather(new, context=context, focus=document.get("focus", ""), previous=previous)


def _summary_text(found: SummaryBody, previous: SummaryBody) -> str:
    """The answer, with the ids alone of items that are as in the previous summary."""
    before = set(previous.items)
    answer: dict[str, Any] = {"summary_text": found.summary_text}
    for kind, found_items in found.lists.items():
        listed: list[JsonObject] = []
        for is_unchanged, items in groupby(found_items, before.__contains__):
            if is_unchanged:
                ids = [short_id for item in items for short_id in item.message_ids]
                listed.append({"text": UNCHANGED_ITEMS, "message_ids": ids})
            else:
                listed += [{"text": item.text, "message_ids": item.message_ids} for item in items]
        answer[kind] = listed
    return orjson.dumps(answer).decode()
