"""Which requests of browsers are accepted: for the service's own names, and from its own pages.

A web page can make a browser send requests to addresses that only its user can reach. It could read the answers if its
own name resolved to the service (DNS rebinding), so the `Host` is checked. Requests can have effects even if the
answer is not readable, so their origin is checked too (`Sec-Fetch-Site`, else `Origin`). Other clients send neither.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping

from starlette.types import Scope

# Nobody else controls `localhost`, and a literal address needs no name resolution.
_NAMES = (r"(?:[a-z0-9-]+\.)*localhost", r"\d{1,3}(?:\.\d{1,3}){3}", r"\[[0-9a-f:.]+\]")
_OWN_SITE = (b"same-origin", b"none")
_REMEMBERED_NAMES = 100
_PAGES = re.compile(r"/|/docs|/ui(?:/.*)?")


class Hosts:
    """The accepted host names: loopback names, literal addresses, `host`, and those of `allowed`.

    `allowed` is a comma-separated list; `*` accepts any name. If it is empty, a service on a public literal address
    accepts any name: it does not start without API keys, which other pages do not have. Pages of `origins` may call it.
    """

    def __init__(self, host: str, allowed: str, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        named = {name.strip().lower() for name in allowed.split(",")} - {""}
        self._named = frozenset(name.encode() for name in named)
        any_name = "*" in named or (not named and _reached_by_others(host))
        names = "|".join((*_NAMES, *map(re.escape, sorted({host.lower(), *named} - {""}))))
        self.known: set[bytes] = set()  # saves every request but the first the pattern
        self._ours = re.compile(rb"(?is).*" if any_name else rf"(?i)(?:{names})(?::\d{{1,5}})?".encode())

    def refusal_of(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[str, str] | None:
        """The problem's code and detail for a request that another site's page may have sent, else None."""
        host = headers.get(b"host", b"localhost")  # browsers always send it
        if host not in self.known:
            if not self._ours.fullmatch(host):
                return "host_not_allowed", "If this name is yours, add it to PLIMSOLL_ALLOWED_HOSTS."
            if len(self.known) < _REMEMBERED_NAMES:
                self.known.add(host)
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if origin in self._origins:
            return None
        if site is None:
            own = origin is None or self._is_own(origin.lower(), host.lower())
        else:
            own = site in _OWN_SITE or _follows_link_to_page(scope, headers)
        if own:
            return None
        return "origin_not_allowed", "Browsers call this service from its own pages and those of PLIMSOLL_CORS_ORIGINS."

    def _is_own(self, origin: bytes, host: bytes) -> bool:
        authority = origin.partition(b"://")[2]
        return authority == host or authority.partition(b":")[0] in self._named


def _reached_by_others(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _follows_link_to_page(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Pages contain no data and cannot be framed, so links from anywhere are allowed."""
    return (
        scope["method"] in ("GET", "HEAD")
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
        and _PAGES.fullmatch(scope["path"]) is not None
    )
