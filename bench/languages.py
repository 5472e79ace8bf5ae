"""How well a question finds the message that answers it, in several languages.

    python -m bench.languages FOLDER

The folder has files `xquad.LANGUAGE.json` (XQuAD, github.com/google-deepmind/xquad, CC BY-SA 4.0): the same questions
about the same paragraphs in each language. Each sentence of a paragraph is stored as a message of one session, and each
question is asked with and without its question mark. Printed is the share of the questions for which the sentence with
the answer is recalled into a window of `_INPUT_BUDGET` tokens.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from app.domain.types import Message, MessageId, TurnId
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.bm25 import Query
from app.engine.recall.index import EMPTY, Index, Packed
from app.engine.recall.ranking import candidates, most_recalled_tokens, seqs_of
from app.tokenizers.counters import Tokenizers

_INPUT_BUDGET: Final = 2_000
_RECALL: Final = ContextPolicy().recall
_LEAST_CHARS: Final = 30
_END: Final = re.compile(r"[.!?。！？।؟](?:\s+|(?=[^\s\d])|$)|\n")
_MARKS: Final = re.compile("[?？؟;¿]")


def main() -> None:
    """Prints a line for each language."""
    print("language  messages  tokens each  with question mark  without")
    for path in sorted(Path(sys.argv[1]).glob("xquad.*.json")):
        messages, questions = _read(json.loads(path.read_text(encoding="utf-8")))
        index = EMPTY.extended(Packed.of(messages), len(messages))
        marked = sum(_is_found(index, text, seq) for text, seq in questions) / len(questions)
        bare = sum(_is_found(index, _MARKS.sub("", text), seq) for text, seq in questions) / len(questions)
        tokens = sum(message.tokens for message in messages) / len(messages)
        print(f"{path.stem[6:]:8s}  {len(messages):8,d}  {tokens:11.0f}  {marked:18.3f}  {bare:7.3f}", flush=True)


def _is_found(index: Index, text: str, seq: int) -> bool:
    room_tokens = most_recalled_tokens(text, _RECALL, _INPUT_BUDGET)
    query = Query(text, index.through_seq)
    return room_tokens > 0 and seq in seqs_of(candidates(index, query, room_tokens, _RECALL.min_score_ratio))


def _read(corpus: Any) -> tuple[list[Message], list[tuple[str, int]]]:
    """The sentences as messages, and each question with the `seq` of the one with its answer."""
    estimate = Tokenizers().estimator("o200k_base")
    messages: list[Message] = []
    questions: list[tuple[str, int]] = []
    for paragraph in (paragraph for article in corpus["data"] for paragraph in article["paragraphs"]):
        before, ends = len(messages), list(_ends_of(paragraph["context"]))
        for begin, end in zip((0, *ends), ends, strict=False):
            seq, text = len(messages) + 1, paragraph["context"][begin:end].strip()
            nobody = UUID(int=seq)
            messages.append(Message(MessageId(nobody), TurnId(nobody), seq, "user", text, tokens=estimate(text)))
        for question in paragraph["qas"]:
            start = question["answers"][0]["answer_start"]
            questions.append((question["question"], before + 1 + sum(end <= start for end in ends[:-1])))
    return messages, questions


def _ends_of(text: str) -> Iterator[int]:
    begin = 0
    for end in _END.finditer(text):
        if end.end() - begin > _LEAST_CHARS and end.end() < len(text):
            yield (begin := end.end())
    yield len(text)


if __name__ == "__main__":
    main()
