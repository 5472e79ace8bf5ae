"""The tree of errors is whole: as it is drawn, and in the table of problems."""

from __future__ import annotations

import re
from collections.abc import Iterator

from app.api.problems import KINDS
from app.domain import errors
from app.domain.errors import PlimsollError, ProviderError
from app.main import create_app

_WITHOUT_A_CODE = {"RetryLater", "Conflict", "Busy", "StoredFailure"}
"""Those that are raised as one of their kinds only, and that of a stored error, which has the code of that."""


def _below(parent: type[PlimsollError]) -> Iterator[tuple[type[PlimsollError], str]]:
    """The service's errors below an error, each with the name of its parent."""
    assert create_app, "all of its modules are loaded"
    for kind in parent.__subclasses__():
        if kind.__module__.startswith("app."):
            yield kind, parent.__name__
            yield from _below(kind)


def test_every_error_is_drawn_below_its_parent() -> None:
    drawn: list[tuple[str, str]] = []
    above = ["PlimsollError"]
    for indent, name in re.findall(r"^([│├└─ ]+)(\w+)", errors.__doc__ or "", re.MULTILINE):
        del above[len(indent) // 4 :]
        drawn.append((name, above[-1]))
        above.append(name)
    of_domain = [(kind, parent) for kind, parent in _below(PlimsollError) if kind.__module__ == errors.__name__]
    assert sorted(drawn) == sorted((kind.__name__, parent) for kind, parent in of_domain)


def test_every_error_has_a_code_of_the_table_of_problems() -> None:
    others = {kind.__name__ for kind, _ in _below(PlimsollError) if kind.code not in KINDS.keys() - {"internal_error"}}
    assert others == _WITHOUT_A_CODE


def test_each_kind_of_failed_call_is_counted_by_itself() -> None:
    kinds = [kind for kind in ProviderError.__subclasses__() if kind.__module__ == errors.__name__]
    assert len({kind.kind for kind in kinds}) == len(kinds)
