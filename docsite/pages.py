"""Which pages the site has, in which order, and where each one's links lead once they all lie in one folder."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = "docs/index.md"
REFERENCE = "reference"
SETTINGS = "settings"
"""Not written but made: of the OpenAPI document, and of `.env.example`."""
_FENCE = re.compile(r"^ *(?:```+|~~~+).*?^ *(?:```+|~~~+) *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_REMOTE = re.compile(r"[a-z]+:")


class NavigationError(Exception):
    """The navigation and the files do not agree."""


@dataclass(frozen=True, slots=True)
class Part:
    """A heading of the navigation with the names of its pages in the site, without their ending.

    `titles` are of pages that the navigation calls otherwise than they call themselves.
    """

    title: str
    names: tuple[str, ...]
    titles: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Pages:
    """The site's pages: `names` by path in the repository. A folder's name is that of the page that lists it."""

    root: Path
    parts: tuple[Part, ...]
    names: Mapping[str, str]

    def link(self, page: str, target: str) -> str | None:
        """Where a link of the page leads within the site; None when the site does not have it."""
        if _REMOTE.match(target) or target.startswith("#"):
            return target
        path, _, anchor = target.partition("#")
        linked = str((self.root / page).parent.joinpath(path).resolve().relative_to(self.root))
        suffix = f"#{anchor}" if anchor else ""
        if linked.startswith("docs/images/"):
            return linked.removeprefix("docs/")
        name = self.names.get(linked)
        return None if name is None else f"/{name}.md{suffix}"

    def text(self, page: str) -> str:
        """The page as the site has it: same text, links that lead within the site. What it does not have is named."""

        def rewritten(found: re.Match[str]) -> str:
            picture, label, target = found.groups()
            link = self.link(page, target)
            if link is None:
                return label if label.startswith("`") else f"`{label}`"
            if picture:
                return f"![{label}](/{link})"
            return f"[{label}]({link})"

        source = (self.root / page).read_text(encoding="utf-8")
        parts: list[str] = []
        at = 0
        for fence in _FENCE.finditer(source):
            parts += [_LINK.sub(rewritten, source[at : fence.start()]), fence[0]]
            at = fence.end()
        return "".join([*parts, _LINK.sub(rewritten, source[at:])])


def decisions(root: Path) -> list[Path]:
    """The records of decisions, in their order."""
    return sorted((root / "docs" / "decisions").glob("*.md"))


def read_pages(root: Path = ROOT) -> Pages:
    """The navigation, held against the files. Raises `NavigationError`."""
    listed = tomllib.loads((root / "docsite" / "nav.toml").read_text(encoding="utf-8"))
    names = {HOME: "index", "docs/decisions": "decisions/index", ".env.example": SETTINGS}
    names |= {str(path.relative_to(root)): f"decisions/{path.stem}" for path in decisions(root)}
    parts: list[Part] = []
    for part in listed["part"]:
        there = [page for page in part["pages"] if _is_there(root, page, listed["coming"])]
        names |= {page: _name(page) for page in there if page not in names}
        titles = {names[page]: title for page, title in part.get("titles", {}).items()}
        parts.append(Part(part["title"], tuple(names[page] for page in there), titles))
    unlisted = {str(path.relative_to(root)) for path in (root / "docs").rglob("*.md")} - names.keys()
    if unlisted:
        raise NavigationError(f"docsite/nav.toml does not list {', '.join(sorted(unlisted))}")
    return Pages(root, tuple(parts), names)


def _is_there(root: Path, page: str, coming: list[str]) -> bool:
    if page in {REFERENCE, SETTINGS} or (root / page).exists():
        return True
    if page not in coming:
        raise NavigationError(f"docsite/nav.toml lists {page}, which is not there")
    return False


def _name(page: str) -> str:
    if page.startswith("clients/"):
        return f"client-{Path(page).parent.name}"
    return Path(page).stem.lower()
