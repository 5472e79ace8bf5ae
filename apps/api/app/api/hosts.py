"""What a browser may ask of the service: by a name that is ours, and from our own pages.

A page of a stranger can make its reader's browser send requests to addresses that only the reader reaches. It reads the
answers if its own name leads to the service (DNS rebinding), so the name is checked; and requests may act without an
answer, so where they come from is checked too (`Sec-Fetch-Site`, else `Origin`). Other clients send neither of the two.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from starlette.types import Scope

# No name of a stranger leads to `localhost`, and one who asks for a literal address has resolved no name.
_NAMES = (r"(?:[a-z0-9-]+\.)*localhost", r"\d{1,3}(?:\.\d{1,3}){3}", r"\[[0-9a-f:.]+\]")
_OWN_SITE = (b"same-origin", b"none")
_REMEMBERED_NAMES = 100
_PAGES = re.compile(r"/|/docs|/ui(?:/.*)?")


class Hosts:
    """The names that the service answers to: loopback names, literal addresses, `host`, and those of `allowed`.

    `allowed` are names with commas between them; `*` is any. Without one, a service on a literal address that others
    can reach answers to any name: it does not start without API keys, which no page of a stranger has.
    """

    def __init__(self, host: str, allowed: str) -> None:
        named = {name.strip().lower() for name in allowed.split(",")} - {""}
        self._named = frozenset(name.encode() for name in named)
        any_name = "*" in named or (not named and _reached_by_others(host))
        names = "|".join((*_NAMES, *map(re.escape, sorted({host.lower(), *named} - {""}))))
        self.known: set[bytes] = set()  # saves every request but the first the pattern
        self._ours = re.compile(rb"(?is).*" if any_name else rf"(?i)(?:{names})(?::\d{{1,5}})?".encode())

    def refusal_of(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[str, str] | None:
        """The problem's code and detail, for a request that a page of a stranger may have sent; else None."""
        host = headers.get(b"host", b"localhost")  # no browser leaves it out
        if host not in self.known:
            if not self._ours.fullmatch(host):
                return "host_not_allowed", "If this name is meant to lead here, put it into PLIMSOLL_ALLOWED_HOSTS."
            if len(self.known) < _REMEMBERED_NAMES:
                self.known.add(host)
        site = headers.get(b"sec-fetch-site")
        if site is None:
            origin = headers.get(b"origin")
            own = origin is None or self._is_own(origin.lower(), host.lower())
        else:
            own = site in _OWN_SITE or _follows_link_to_page(scope, headers)
        return None if own else ("origin_not_allowed", "Only pages of this service itself may ask it from a browser.")

    def _is_own(self, origin: bytes, host: bytes) -> bool:
        authority = origin.partition(b"://")[2]
        return authority == host or authority.partition(b":")[0] in self._named


def _reached_by_others(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _follows_link_to_page(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Pages hold no data and let nobody frame them, so links from anywhere may lead to them."""
    return (
        scope["method"] in ("GET", "HEAD")
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
        and _PAGES.fullmatch(scope["path"]) is not None
    )
