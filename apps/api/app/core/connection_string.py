"""The connection string of the database, as libpq, SQLAlchemy and providers of Postgres write it, for the driver."""

from __future__ import annotations

import re
import ssl
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

_WITH_DRIVER: Final = re.compile(r"\Apostgres(?:ql)?\+\w+(?=://)")
_LISTED: Final = re.compile(r"(\w+://(?:[^/?]*@)?)([^/?]*)(.*)", re.DOTALL)
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_OF_LIBPQ: Final = re.compile(
    r"connect_timeout|keepalives(_\w+)?|tcp_user_timeout|gssencmode|channel_binding|client_encoding"
    r"|fallback_application_name"
)
"""How libpq connects. The service has timeouts and keepalives of its own; the driver's encoding is always UTF8."""


def for_driver(given: str) -> str:
    """The same string without SQLAlchemy's name of a driver in the scheme and without what only libpq knows. The driver
    would send other names than its own to the server, as settings. `ssl` is SQLAlchemy's name for `sslmode`, and
    `sslrootcert=system` are the certificates that the system trusts.

    Raises `ValueError` for what the driver cannot do: `channel_binding=require`, and unknown modes.
    """
    address, _, query = _WITH_DRIVER.sub("postgresql", given).partition("?")
    kept: list[str] = []
    for parameter in query.split("&"):
        name, _, value = parameter.partition("=")
        name = "sslmode" if name == "ssl" else name
        if (name, value) == ("channel_binding", "require"):
            raise ValueError(
                "the driver has no channel binding: in the place of channel_binding=require, "
                "sslmode=verify-full&sslrootcert=system makes sure who answers"
            )
        if name == "sslmode" and value not in _SSL_MODES:
            raise ValueError(f"sslmode is one of {', '.join(_SSL_MODES)}")
        if (name, value) == ("sslrootcert", "system"):
            value = ssl.get_default_verify_paths().cafile or value
        if name and not _OF_LIBPQ.fullmatch(name):
            kept.append(f"{name}={value}")
    return f"{address}?{'&'.join(kept)}" if kept else address


def servers_of(dsn: str) -> tuple[str, ...]:
    """The string once for each server that it lists, in its order. Stays one string for `prefer-standby`, which chooses
    among several servers, and where ports and hosts do not match, which the driver refuses."""
    parts = _LISTED.match(dsn)  # `urlsplit` refuses several servers if one is in brackets
    if parts is None:
        return (dsn,)
    login, listed, rest = parts.groups()
    path, _, given = rest.partition("?")
    query = dict(parse_qsl(given))
    if query.get("target_session_attrs") == "prefer-standby":
        return (dsn,)
    if listed:
        return tuple(f"{login}{host}{rest}" for host in listed.split(","))
    hosts, ports = (query.pop(name, "").split(",") for name in ("host", "port"))
    if len(hosts) == 1 or len(ports) not in (1, len(hosts)):
        return (dsn,)
    each = zip(hosts, ports * (len(hosts) // len(ports)), strict=True)
    queries = [query | {"host": host} | ({"port": port} if port else {}) for host, port in each]
    return tuple(f"{login}{path}?{urlencode(one, quote_via=quote)}" for one in queries)
