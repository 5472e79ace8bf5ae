"""What the pages point at is there: other pages, files, headings, and the tests that decisions are enforced by."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from app.main import create_app
from tests.api.conftest import settings_for
from tests.docs.pages import PAGES, ROOT

DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
_NAMED_ROUTE = re.compile(r"((?:GET|PUT|POST|PATCH|DELETE)(?:[/ ](?:GET|PUT|POST|PATCH|DELETE))*)\s([/…][\w/{}…-]*)")
_NOT_OURS = {"/v1/agents/{}/export", "/v1/threads/{}/messages", "/docs"}
"""Of Letta and of OpenAI's Assistants; and a page, which is no operation."""


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert linked.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(linked), target


def test_every_route_a_page_names_is_served() -> None:
    paths = create_app(settings_for("postgresql://nowhere/none")).openapi()["paths"]
    served = [(method.upper(), re.sub(r"\{[^}]*\}", "{}", path)) for path, item in paths.items() for method in item]
    named = {
        (page.name, method, re.sub(r"\{[^}]*\}", "{}", path))
        for page in PAGES
        for methods, path in _NAMED_ROUTE.findall(page.read_text())
        for method in re.split("[/ ]", methods)
    }
    assert len(named) > 100
    missing = [
        (page, method, path)
        for page, method, path in sorted(named)
        if path not in _NOT_OURS
        and not any(method == of and re.fullmatch(".*".join(map(re.escape, path.split("…"))), at) for of, at in served)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    files = [ROOT / path for path in re.findall(r"tests/[\w/]+\.py", text)]
    assert all(path.is_file() for path in files), files
    defined = {
        name for path in files for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    named = set(re.findall(r"\b(test_\w+)\b(?!\.py)", text))
    assert named <= defined, named - defined


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_is_a_page_with_its_four_parts(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences", "Enforced by"]
    assert text.startswith(f"# {page.stem[:4]}: ")
    assert len(text.splitlines()) <= 60


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [int(page.stem[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))


def test_the_changelog_has_each_entry_once_in_groups_that_come_once() -> None:
    unreleased = (ROOT / "CHANGELOG.md").read_text().partition("## [Unreleased]")[2].partition("\n## ")[0]
    groups = re.findall(r"^### (.+)$", unreleased, re.MULTILINE)
    assert groups == ["Changed", "Security", "Fixed", "Added"]
    entries = [" ".join(entry.split()) for entry in re.split(r"^- ", unreleased, flags=re.MULTILINE)[1:]]
    assert len(entries) > 100
    assert [entry for entry, times in Counter(entries).items() if times > 1] == []
