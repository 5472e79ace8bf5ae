"""Splits a text into statements, each of which can be read alone.

Prose gives whole sentences. A list, a table, JSON and code give statements that begin with their lead: the preceding
line that ends with a colon, their heading, or the head of their column. Markdown marks are left out. The time is about
linear in the number of characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, cast

from app.domain.content import storable

LONGEST_STATEMENT_CHARS: Final = 320
_SHORTEST_CHARS: Final = 12
_LONGEST_LEAD_CHARS: Final = 120
_LONGEST_GROUP_CHARS: Final = 200
"""Longest list, or lines of code, that make one statement."""
_MOST_CODE_LINES: Final = 3
_MOST_JSON_CHARS: Final = 65_536
_WRAPPED_CHARS: Final = 50
"""A longer line of prose, followed by a line in lower case, was wrapped at a fixed width; the two are joined."""

SENTENCE_END: Final = re.compile(r"[.!?…؟۔।。！？](?:(?<=[.!?…؟۔।])[\"'”’)\]]*\s+|(?<=[。！？]))")
"""It begins with a character set, because the search is several times as fast that way."""
_NO_END: Final = re.compile(
    r"(?:(?:^|[\s(])(?:Mrs?|Ms|Dr|Prof|St|No|Nr|vs|approx|ca|e\.g|i\.e|z\.B|bzw|usw|Sra?|[A-Z])|^\W*\d{1,3})\.\s*$"
)
_ORDINAL: Final = re.compile(r"\b\d{1,2}\.\s*$")
_MONTH: Final = re.compile(r"(?:Jan|Feb|März|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez|[a-zäöü])")
_CLAUSE_END: Final = re.compile(r"[;,:、，；)]\s*|\s+[-–—]\s+")
_BULLET: Final = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+")
_HEADING: Final = re.compile(r"#{1,6}\s+")
_RULE: Final = re.compile(r"[-=*_~+|:\s]{3,}$")
_EMPHASIS: Final = re.compile(r"(?<![\w*])\*{1,3}([^\s*](?:[^*\n]*[^\s*])?)\*{1,3}(?![\w*])")
_FENCES: Final = ("```", "~~~")


def statements(text: str) -> list[str]:
    """The statements of a text in order and in its own words, each with at most about `LONGEST_STATEMENT_CHARS`."""
    if "\n" not in text and text[:1].isalnum():
        found = list(_sentences(_plain(text.rstrip())))
    else:
        found = _of_json(text) or _of_lines(text)
    return [piece for piece in found if len(piece) >= _SHORTEST_CHARS or not piece.isascii()]


def _whole(lead: str) -> str:
    """A lead as a statement of its own, if no statement follows that begins with it."""
    return f"{lead.removesuffix(':')}." if lead.endswith(":") else lead


def _plain(line: str) -> str:
    return _EMPHASIS.sub(r"\1", line) if "*" in line else line


def _sentences(text: str) -> Iterator[str]:
    """The sentences of a text; one that is too long is split at clauses, with an ellipsis at each split."""
    begin = 0
    for end in SENTENCE_END.finditer(text):
        if text[end.start()] == "." and not _ends(text, begin, end):
            continue
        sentence = text[begin : end.end()].strip()
        yield from _in_length(sentence) if len(sentence) > LONGEST_STATEMENT_CHARS else (sentence,)
        begin = end.end()
    if begin < len(text):
        last = text[begin:].strip()
        yield from _in_length(last) if len(last) > LONGEST_STATEMENT_CHARS else (last,) if last else ()


def _ends(text: str, begin: int, stop: re.Match[str]) -> bool:
    """Whether the full stop ends a sentence, and not an abbreviation, an initial, or the number of an item or a day.
    Only the characters near it are read: a text may have no other end."""
    end, marks_end = stop.end(), stop.start() + len(stop[0].rstrip())
    last = text[max(begin, marks_end - 6) : marks_end - 1]
    if len(last) == 5 and last.isalpha() and last != "pprox":
        return True  # the word is longer than the other abbreviations
    tail = text[max(begin, end - 12) : end]
    if _NO_END.search(tail):
        return False
    return not (_ORDINAL.search(tail) and _MONTH.match(text, end))


def _in_length(sentence: str) -> Iterator[str]:
    begin = 0
    while len(sentence) - begin > LONGEST_STATEMENT_CHARS:
        latest = begin + LONGEST_STATEMENT_CHARS
        ends = [found.end() for found in _CLAUSE_END.finditer(sentence, begin + 40, latest)]
        end = ends[-1] if ends else sentence.rfind(" ", begin + 40, latest) + 1
        end = end if end > begin else latest
        yield f"{'… ' if begin else ''}{sentence[begin:end].strip()} …"
        begin = end
    if begin < len(sentence):
        yield f"… {sentence[begin:].strip()}" if begin else sentence


@dataclass(slots=True)
class _Reader:
    """The state of reading a text line by line. `lead` is the text with which the next statement begins."""

    found: list[str] = field(default_factory=list[str])
    lead: str = ""
    prose: list[str] = field(default_factory=list[str])
    items: list[list[str]] = field(default_factory=list[list[str]])
    head: list[str] = field(default_factory=list[str])
    headed: bool = False
    code: list[str] | None = None
    code_lines: int = 0

    def add(self, statement: str) -> None:
        """Add a statement, which begins with the lead if there is one."""
        if self.lead and len(self.lead) + len(statement) < LONGEST_STATEMENT_CHARS:
            statement = f"{self.lead} {statement}"
        elif self.lead:
            self.found.append(_whole(self.lead))
        self.lead = ""
        self.found.append(statement)

    def stand_under(self, lead: str) -> None:
        """Let the next statement begin with this lead; one that is too long is added as sentences instead."""
        if self.lead:
            self.found.append(_whole(self.lead))
        self.lead = lead if len(lead) <= _LONGEST_LEAD_CHARS else ""
        if not self.lead:
            self.found += _sentences(lead)

    def end(self) -> None:
        """End the paragraph, the list or the table that is being read."""
        if self.prose:
            for sentence in _sentences(" ".join(self.prose)):
                (self.stand_under if sentence.endswith(":") else self.add)(sentence)
        self._end_items()
        if self.head and not self.headed:
            self.add(", ".join(self.head))
        self.prose, self.items, self.head, self.headed = [], [], [], False

    def _end_items(self) -> None:
        if not self.items:
            return
        items = [" ".join(lines) for lines in self.items]
        if len(self.lead) + sum(map(len, items)) <= _LONGEST_GROUP_CHARS:
            self.add("; ".join(item.rstrip(".;,") for item in items).replace(":; ", ": "))
            return
        self.lead = ""  # it would be in the way before each item
        for item in items:
            for sentence in _sentences(item):
                (self.stand_under if sentence.endswith(":") else self.add)(sentence)

    def row(self, line: str) -> None:
        """Read a row of a table. The first row is its head if a rule follows it."""
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if self.head and _RULE.match(line):
            self.headed = True
        elif not self.head:
            self.end()
            self.head = cells
        elif self.headed:
            named = zip(self.head, cells, strict=False)
            self.lead = ""
            self._add_row(f"{head}: {cell}" if head.strip("#") else cell for head, cell in named if cell)
        else:
            self._add_row(cells)

    def _add_row(self, cells: Iterable[str]) -> None:
        for piece in _in_length(", ".join(cells)):
            self.add(piece)

    def end_code(self) -> None:
        """End a code block. A few lines are one statement; longer code is left out: a part of it says nothing alone."""
        shown = "\n".join(self.code or [])
        if shown and self.code_lines <= _MOST_CODE_LINES and len(shown) <= _LONGEST_GROUP_CHARS:
            self.add(shown)
        self.stand_under("")
        self.code, self.code_lines = None, 0

    def line(self, line: str) -> None:
        line = line if self.code is not None else _plain(line)
        stripped = line.strip()
        if stripped.startswith(_FENCES):
            self.end()
            self.code = [] if self.code is None else self.end_code()
        elif self.code is not None:
            self.code_lines += bool(stripped)
            if stripped and self.code_lines <= _MOST_CODE_LINES:
                self.code.append(stripped)
        else:
            self._line_of_text(line, stripped)

    def _line_of_text(self, line: str, stripped: str) -> None:
        if stripped.startswith("|") and stripped.count("|") > 1:
            self.row(stripped)
        elif not stripped or _RULE.match(stripped):
            self.end()
        elif stripped[0] == "[" and stripped[-1] == "]":  # a tool call or the head of a file, not sentences
            self.end()
            self.add(stripped if len(stripped) <= _LONGEST_GROUP_CHARS else f"{stripped[:_LONGEST_GROUP_CHARS]} …]")
        elif heading := _HEADING.match(stripped):
            self.end()
            self.stand_under(stripped[heading.end() :].rstrip(":# ") + ":")
        elif bullet := _BULLET.match(line):
            if not self.items:
                self.end()
            self.items.append([line[bullet.end() :].rstrip()])
        elif self.items and line[0].isspace():
            self.items[-1].append(stripped)
        else:
            stripped = stripped.removeprefix("> ")
            before = self.prose[-1] if self.prose else ""
            if len(before) <= _WRAPPED_CHARS or not stripped[:1].islower() or before[-1] in ".!?:":
                self.end()
            self.prose.append(stripped)


def _of_lines(text: str) -> list[str]:
    reader = _Reader()
    for line in text.split("\n"):
        reader.line(line)
    reader.end()
    reader.end_code()
    return reader.found


def _of_json(text: str) -> list[str]:
    """`key: value` pairs of each object, after the name of what contains it; empty if the text is not JSON."""
    if text[:1] not in {"{", "["} or len(text) > _MOST_JSON_CHARS:
        return []
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found: list[str] = []
    waiting: list[tuple[str, object]] = [("", value)]
    while waiting:
        lead, value = waiting.pop()
        members = _members(lead, value)
        scalars = [f"{name}: {_scalar(of)}" if name != lead else _scalar(of) for name, of in members if not _holds(of)]
        if scalars:
            found += _in_length(f"{lead[:_LONGEST_LEAD_CHARS]}: {', '.join(scalars)}" if lead else ", ".join(scalars))
        waiting += reversed([(name, of) for name, of in members if _holds(of)])
    return [*map(storable, found)]


def _members(lead: str, value: object) -> list[tuple[str, object]]:
    """The members of an object by their names, or of an array by the name of the array."""
    if isinstance(value, dict):
        return list(cast("dict[str, object]", value).items())
    return [(lead, of) for of in (cast("list[object]", value) if isinstance(value, list) else [value])]


def _holds(value: object) -> bool:
    return isinstance(value, dict | list)


def _scalar(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
