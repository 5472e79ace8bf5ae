"""What a built site must not have: links, anchors or files that are not there, and anything loaded from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("use", "href")}
_STYLE_URL = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")


class _Page(HTMLParser):
    """The ids of a page, where its links lead, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id":
                self.ids.add(value)
            elif (tag, name) in _LOADED:
                self.loads.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)


def faults(site: Path) -> list[str]:
    """What is wrong with the site, a line each."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found: list[str] = []
    for path, page in pages.items():
        where = path.relative_to(site)
        found += [f"{where} loads {url}" for url in page.loads if urlsplit(url).netloc]
        for target in (*page.links, *(url for url in page.loads if not urlsplit(url).netloc)):
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            linked = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not linked.is_file():
                found.append(f"{where} links to {target}, which is not there")
            elif url.fragment and linked in pages and unquote(url.fragment) not in pages[linked].ids:
                found.append(f"{where} links to {target}, which has no such anchor")
    for path in sorted((*site.rglob("*.css"), *site.rglob("*.svg"))):
        remote = _STYLE_URL.findall(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)} loads {url}" for url in remote]
    return found
