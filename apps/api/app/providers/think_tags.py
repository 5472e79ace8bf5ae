"""Reasoning that servers without a parser for it leave in the text of an answer, between `<think>` and `</think>`."""

from __future__ import annotations

from typing import Final, Literal

from app.providers.catalogue_file import ModelEntry, ThinkTags

_OPENING: Final = "<think>"
_CLOSING: Final = "</think>"
_MOST_BLANKS: Final = 64
"""White space before a block; after more of it a tag is text, because what is held has to be bounded."""


def tags_of(entry: ModelEntry) -> ThinkTags:
    """MiniMax's models want their tags back, in the text: platform.minimax.io/docs/api-reference/text-openai-api"""
    return entry.think_tags or ("keep" if "minimax" in (entry.model or "").lower() else "separate")


class TaggedText:
    """Separates the reasoning at the beginning of an answer, which arrives in pieces that end anywhere, from its text.

    The tags are left out, with the white space before the reasoning and before the text. A block that is not closed is
    reasoning to its end. Tags after the beginning of the text are text.
    """

    def __init__(self, tags: ThinkTags) -> None:
        self._without_opening: Literal["inside", "text"] = "inside" if tags == "opened" else "text"
        self._at: Literal["before", "inside", "behind", "text"] = "text" if tags == "keep" else "before"
        self._held = ""
        self._has_reasoning = False

    def add(self, piece: str) -> tuple[str, str]:
        """The text and the reasoning that can be passed on. What may be the beginning of a tag is held."""
        text, self._held, reasoning = self._held + piece, "", ""
        if self._at == "before":
            begun = text.lstrip()
            may_be_block = len(text) - len(begun) <= _MOST_BLANKS
            if may_be_block and begun.startswith(_OPENING):
                self._at, text = "inside", begun.removeprefix(_OPENING)
            elif may_be_block and _OPENING.startswith(begun):
                self._held = text
                return "", ""
            else:
                self._at = self._without_opening
        if self._at == "inside":
            text, reasoning = self._inside(text)
        if self._at == "behind":
            text = text.lstrip()
            self._at = "text" if text else "behind"
        return text, reasoning

    def rest(self) -> tuple[str, str]:
        """The text and the reasoning that were held, for the end of the answer."""
        held, self._held = self._held, ""
        self._at = self._without_opening if self._at == "before" else self._at
        return ("", held) if self._at == "inside" else (held, "")

    def _inside(self, piece: str) -> tuple[str, str]:
        reasoning, closing, text = piece.partition(_CLOSING)
        if closing:
            self._at = "behind"
        else:
            held = next(size for size in range(len(_CLOSING) - 1, -1, -1) if piece.endswith(_CLOSING[:size]))
            reasoning, self._held = piece[: len(piece) - held], piece[len(piece) - held :]
        reasoning = reasoning if self._has_reasoning else reasoning.lstrip()
        self._has_reasoning = self._has_reasoning or bool(reasoning)
        return text, reasoning
