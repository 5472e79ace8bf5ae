"""Every fenced block of the documentation, and how the tests run the kinds that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import ROOT

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<mark>```+|~~~+)(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=indent)(?P=mark) *$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `info` are the words behind the fence: the language, and what the block is."""

    page: str
    line: int
    info: tuple[str, ...]
    text: str

    @property
    def language(self) -> str:
        return self.info[0] if self.info else ""

    @property
    def role(self) -> tuple[str, ...]:
        """What the block is beside its language: `output`, `POST /v1/sessions` …"""
        return self.info[1:]

    @property
    def is_output(self) -> bool:
        return self.role == ("output",)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """The README, the pages at the top, all of docs, and the clients' own."""
    top = [ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "clients").glob("*/README.md"))]


def fences(page: Path) -> Iterator[Block]:
    """The page's blocks, in order."""
    text = page.read_text()
    for found in _FENCE.finditer(text):
        indent = found["indent"]
        body = "\n".join(line.removeprefix(indent) for line in found["body"].split("\n"))
        line = text.count("\n", 0, found.start()) + 1
        yield Block(str(page.relative_to(ROOT)), line, tuple(found["info"].split()), body)


def unfenced(page: Path) -> list[str]:
    """Lines that begin a fence which `fences` did not see: one that is never closed, say."""
    rest = _FENCE.sub("", page.read_text())
    return re.findall(r"^ *(?:```|~~~).*$", rest, re.MULTILINE)


BLOCKS = [block for page in pages() for block in fences(page)]
