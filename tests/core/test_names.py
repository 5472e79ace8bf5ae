"""One word, one thing: a name is given once, or to the same thing in several layers."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import app

_ROOT = Path(app.__file__).parent
_LAYERS = {"api", "services", "db", "commands"}
"""In these a function of one name is the same feature: its route, its service, its SQL, its command."""
_STARTS = {"main"}


def _definitions() -> Iterator[tuple[Path, ast.stmt]]:
    for path in sorted(_ROOT.rglob("*.py")):
        for statement in ast.parse(path.read_text()).body:
            yield path.relative_to(_ROOT), statement


def test_no_class_has_the_name_of_another() -> None:
    places: defaultdict[str, set[Path]] = defaultdict(set)
    for path, statement in _definitions():
        if isinstance(statement, ast.ClassDef):
            places[statement.name].add(path)
    assert len(places) > 300
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_public_function_has_the_name_of_another_only_as_the_same_feature_in_another_layer() -> None:
    layers: defaultdict[str, dict[Path, str]] = defaultdict(dict)
    for path, statement in _definitions():
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and not statement.name.startswith("_"):
            layers[statement.name][path] = path.parts[0]
    assert len(layers) > 500
    twice = {
        name: sorted(map(str, found))
        for name, found in layers.items()
        if len(found) > 1
        and name not in _STARTS
        and (len({*found.values()}) < len(found) or not {*found.values()} <= _LAYERS)
    }
    assert twice == {}
