"""The site builds strictly: every page is in it, every link leads somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.main import create_app
from docsite.checking import faults
from docsite.pages import NavigationError, read_pages
from docsite.pictures import pictures, play
from plimsoll_demo.client import Service
from tests.api.conftest import serving, settings_for
from tests.core.test_env_example import variables
from tests.docs.pages import PAGES, ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "docsite", str(folder)]
    built = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_page_is_in_it_and_leads_to_the_others(site: Path) -> None:
    names = read_pages().names
    for page in PAGES:
        assert (site / f"{names[str(page.relative_to(ROOT))]}.html").is_file(), page
    home = (site / "index.html").read_text()
    for part in read_pages().parts:
        assert part.title in home
        assert all(f'href="{name}.html"' in home for name in part.names), part


def test_the_reference_has_every_operation_and_every_schema(site: Path) -> None:
    document = create_app(settings_for("postgresql://nowhere/none")).openapi()
    text = (site / "reference.html").read_text()
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"{method.upper()}" in text
            assert path in text, path
    for name in document["components"]["schemas"]:
        assert f'id="{name.lower()}"' in text, name


def test_the_page_of_the_settings_has_every_variable_with_its_default(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "settings.html").read_text())
    for variable, default in variables().items():
        shown = str(default).lower() if isinstance(default, bool) else "" if default is None else str(default)
        assert re.search(rf"^{variable}\s+{re.escape(shown)}\s", text, re.MULTILINE), variable


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ('<a href="gone.html">x</a>', "which is not there"),
        ('<a href="index.html#gone">x</a>', "which has no such anchor"),
        ('<img src="images/gone.svg">', "which is not there"),
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js"),
        ('<link href="//fonts.example/css" rel="stylesheet">', "loads //fonts.example/css"),
    ],
)
def test_a_link_that_leads_nowhere_and_whatever_is_remote_is_seen(page: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(page)
    (found,) = faults(tmp_path)
    assert fault in found


def test_a_stylesheet_that_loads_from_elsewhere_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text('@import "https://fonts.example/css";')
    assert faults(tmp_path) == ["a.css loads https://fonts.example/css"]


def test_a_page_that_the_navigation_does_not_list_is_refused(tmp_path: Path) -> None:
    for name in ("docs", "docsite"):
        shutil.copytree(ROOT / name, tmp_path / name)
    clients = ("clients/python/README.md", "clients/typescript/README.md")
    for name in ("README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md", *clients):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    assert read_pages(tmp_path).names["docs/start.md"] == "start"
    (tmp_path / "docs" / "new.md").write_text("# New\n")
    with pytest.raises(NavigationError, match=r"docs/new\.md"):
        read_pages(tmp_path)
    (tmp_path / "docs" / "new.md").unlink()
    (tmp_path / "docs" / "start.md").unlink()
    with pytest.raises(NavigationError, match=r"docs/start\.md"):
        read_pages(tmp_path)


def test_the_pictures_of_the_concepts_are_what_the_service_makes_of_the_conversation(database_url: str) -> None:
    with serving(settings_for(database_url)) as address, Service(address, key=None) as service:
        drawn = pictures(play(service))
    page = (ROOT / "docs" / "concepts.md").read_text()
    for name, picture in drawn.items():
        assert (ROOT / "docs" / "images" / name).read_text() == picture, "python -m docsite.pictures draws them anew"
        assert f"](images/{name})" in page
