"""`docs/contract.md` and `docs/architecture.md` name what is there, and the code cites headings that exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import floor
from pathlib import Path
from typing import Any, get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.api.problems import KINDS as CODES
from app.core.config import Settings
from app.db.tables import metadata
from app.domain.audit import CacheBreak, TrimKind
from app.domain.types import REGIONS, TurnStatus
from app.engine.policy.budget import budget_for
from app.engine.policy.fields import MEANINGS
from app.engine.policy.policy import PRESETS, ContextPolicy
from app.main import create_app
from app.services.views.deployment import value_schemas
from app.telemetry.metrics import Telemetry
from tests.api.conftest import settings_for
from tests.core.test_env_example import variable_of
from tests.docs.pages import ROOT, table

CONTRACT = (ROOT / "docs" / "contract.md").read_text()
_CITED = re.compile(r"contract\.md, ((?:section|decision)s? [0-9, and to]+)")
_ROUTE = re.compile(r"((?:GET|PUT|POST|PATCH|DELETE)(?:/(?:GET|PUT|POST|PATCH|DELETE))*) ([/…][^\s`?]*)")


def section(number: int) -> str:
    """The text of a numbered section."""
    found = re.search(rf"^## {number}\. .*?(?=^## |\Z)", CONTRACT, re.MULTILINE | re.DOTALL)
    assert found, f"no section {number}"
    return found[0]


def citations() -> Iterator[tuple[str, str]]:
    """(file, heading) of every section and decision that a Python file cites."""
    for folder in ("apps", "tests", "bench", "torture"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for cited in _CITED.findall(path.read_text()):
                kind = cited.split()[0].removesuffix("s")
                first, *others = (int(number) for number in re.findall(r"\d+", cited))
                numbers = range(first, others[-1] + 1) if " to " in cited else (first, *others)
                for number in numbers:
                    yield (
                        str(path.relative_to(ROOT)),
                        f"## {number}. " if kind == "section" else f"### Decision {number}:",
                    )


def test_every_citation_names_a_heading() -> None:
    found = list(citations())
    assert len(found) > 30
    assert [(path, heading) for path, heading in found if f"\n{heading}" not in CONTRACT] == []


def plain(paths: str) -> str:
    """Paths of sessions whole, and every parameter without its name."""
    return re.sub(r"\{[^}]*\}", "{}", paths.replace("…", "/v1/sessions/{sid}"))


def test_every_route_is_served_and_every_path_is_listed() -> None:
    document = create_app(settings_for("postgresql://nowhere/none")).openapi()
    served = {(method.upper(), plain(path)) for path, item in document["paths"].items() for method in item}
    named = {(method, plain(path)) for methods, path in _ROUTE.findall(section(5)) for method in methods.split("/")} - {
        ("GET", "/docs")
    }
    assert len(named) > 30
    assert named - served == set()
    listed = plain(CONTRACT)
    assert [path for path in sorted({path for _, path in served}) if path not in listed] == []


def test_every_code_and_every_added_setting_is_one_of_the_service() -> None:
    added = re.search(r"\*\*Codes\*\*: (.*?)\n- ", section(11), re.DOTALL)
    assert added
    coded = {code for _, codes, _ in table("status", CONTRACT) for code in re.findall(r"`([a-z_]+)`", codes)}
    assert (coded | set(re.findall(r"`([a-z_]+)`", added[1]))) - CODES.keys() == set()
    settings = set(re.findall(r"`PLIMSOLL_([A-Z_]+)`", section(11)))
    assert settings
    assert settings - {name.upper() for name in Settings.model_fields} == set()


_SERIES = [family.name for family in text_string_to_metric_families(Telemetry(()).render()[0].decode())]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("code", CODES),
        ("policy field", MEANINGS),
        ("part of a policy field", [part for of in value_schemas().values() for part in of.get("properties", ())]),
        ("trim kind", get_args(TrimKind)),
        ("cause of a cache break", get_args(CacheBreak)),
        ("setting", [variable_of(name, field) for name, field in Settings.model_fields.items()]),
        ("metric", _SERIES),
        ("column of a message", metadata.tables["messages"].columns.keys()),
        ("column of an audit", metadata.tables["turn_context_audit"].columns.keys()),
    ],
)
def test_every_name_that_clients_see_is_listed(kind: str, names: Iterable[str]) -> None:
    listed = set(re.findall(r"\w+", CONTRACT))
    assert [name for name in names if not {name, f"{name}_total"} & listed] == [], kind


def test_every_setting_has_the_default_that_the_table_shows() -> None:
    fields = {variable_of(name, field): field for name, field in Settings.model_fields.items()}
    for names, defaults, _ in table("variable", CONTRACT):
        for name, default in zip(names.split(", "), defaults.split(", "), strict=True):
            field = fields[name.strip("`")]
            if default.startswith("`"):
                assert str(type(field.default)(default.strip("`"))) == str(field.default), name
            else:
                assert field.default in (None, ""), name


@pytest.mark.parametrize(
    ("name", "listed"), re.findall(r"^- `([a-z_]+)`: ((?:`[a-z_]+`|[^;\n])+)", section(4), re.MULTILINE)
)
def test_every_column_of_a_table_is_there(name: str, listed: str) -> None:
    if name == "prompt_blocks":
        assert {"session_id", "sha256"} <= set(metadata.tables[name].columns.keys())
        return
    outside_parentheses = re.sub(r"\([^)]*\)", "", listed)
    columns = set(re.findall(r"`([a-z_0-9]+)`", outside_parentheses))
    assert len(columns) > 4
    assert columns - set(metadata.tables[name].columns.keys()) == set()


def test_statuses_presets_regions_and_policy_fields_are_those_of_the_code() -> None:
    statuses = re.search(r"`status` \(((?:`[a-z_]+` ?)+)\), `user_input`", section(4))
    assert statuses
    assert re.findall(r"`([a-z_]+)`", statuses[1]) == [status.value for status in TurnStatus]
    assert {row[0].split("`")[1] for row in table("preset", CONTRACT)} == set(PRESETS)
    regions = re.search(r"regions: \{([^}]*)\}", section(5))
    assert regions
    assert tuple(re.split(r",\s+", regions[1])) == REGIONS
    fields = re.search(r"set `guarded`'s defaults only\): `(.*)`\. ", section(9), re.DOTALL)
    assert fields
    bare = re.sub(r"\([^)]*\)|\{[^}]*\}", "", fields[1])
    assert set(bare.split()) - set(ContextPolicy.__dataclass_fields__) == set()


@pytest.mark.parametrize("limit", [1280, 1281, 4096, 16_384, 200_000])
def test_the_windows_arithmetic_is_that_of_the_engine(limit: int) -> None:
    names: dict[str, Any] = {"limit": limit, "CONTEXT_MAX_OUTPUT_TOKENS": 2048, "min": min, "max": max, "floor": floor}
    for name, formula in re.findall(r"^(\w+_\w+) += (.*?)(?: +#.*)?$", section(8), re.MULTILINE):
        names[name] = eval(formula, {}, names)  # noqa: S307 - our own page
    budget = budget_for(limit, "test", 2048)
    assert (names["output_reserve"], names["overhead_reserve"], names["input_budget"]) == (
        budget.output_reserve,
        budget.overhead_reserve,
        budget.input_budget,
    )


def test_the_tree_of_the_architecture_is_there() -> None:
    (tree,) = re.findall(
        r"^## The tree\n\n```\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE | re.DOTALL
    )
    first, *lines = tree.splitlines()
    named: set[Path] = set()
    room = ROOT
    for line in lines:
        depth = len(line) - len(line.lstrip())
        folder = {0: ROOT, 2: ROOT / first, 4: room}[depth]
        places = [folder / place for place in re.split(r" {2,}", line.strip())[0].split()]
        for place in places:
            assert place.exists(), place
        if depth == 2:
            room = places[0]
        named |= set(places)
    app = ROOT / first
    rooms = {*app.iterdir(), *(app / "engine").iterdir(), *(app / "services").iterdir()}
    assert {path for path in rooms if path.is_dir() and path.name[0] not in "_."} - named == set()
