"""The inspector's page as it is served: open to all, cached as it may be, under a policy that lets nothing else in."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import httpx
import pytest

from app.api.routes.inspector import CONTENT_SECURITY_POLICY, DOCS_POLICY, file_answer, read_files
from app.domain.errors import NotFound
from tests.api.conftest import PATIENCE_S, assert_problem, serving, settings_for
from tests.api.test_auth import client_of, make_key

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A page as Vite builds it."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "docs.html").write_text("<!doctype html><title>API</title>")
    (tmp_path / "index.html").write_text("<!doctype html><title>Page</title>")
    (tmp_path / "assets" / "index-Ab12.js").write_text("export {}")
    return tmp_path


def test_files_with_hashed_names_are_cached_forever_and_the_index_is_revalidated(folder: Path) -> None:
    files = read_files(folder)
    index, script = (
        file_answer(files[name], CONTENT_SECURITY_POLICY, None) for name in ("index.html", "assets/index-Ab12.js")
    )
    assert index.headers["cache-control"] == "no-cache"
    assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert script.headers["content-type"].startswith("text/javascript")
    for each in (index, script):
        assert each.headers["content-security-policy"] == POLICY
        assert each.headers["x-content-type-options"] == "nosniff"
    again = file_answer(files["index.html"], CONTENT_SECURITY_POLICY, index.headers["etag"])
    assert (again.status_code, again.body) == (304, b"")


def test_the_page_of_the_api_has_a_policy_of_its_own(folder: Path) -> None:
    docs = read_files(folder)["docs.html"]
    page = file_answer(docs, DOCS_POLICY, None)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["content-security-policy"] == POLICY.partition("; require-trusted")[0]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert file_answer(docs, DOCS_POLICY, page.headers["etag"]).status_code == 304


@pytest.mark.parametrize("path", ["../inspector_files.py", "assets/../../secret", "/etc/passwd", "assets", "assets/"])
def test_only_what_was_built_is_there(folder: Path, path: str) -> None:
    (folder.parent / "secret").write_text("secret")
    with pytest.raises(NotFound):
        file_answer(read_files(folder).get(path), CONTENT_SECURITY_POLICY, None)


def test_the_page_needs_no_key_and_the_data_behind_it_does(database_url: str) -> None:
    make_key(database_url, "anna")
    with serving(settings_for(database_url)) as address, client_of(address, None) as client:
        moved = client.get("/ui")
        assert (moved.status_code, moved.headers["location"]) == (307, "ui/")
        page = client.get("/ui/")
        assert page.headers["content-type"].startswith("text/html")
        assert page.status_code == 200
        for path in ("nothing.js", "docs.html"):
            assert_problem(client.get(f"/ui/{path}"), 404, "not_found")
        assert_problem(client.post("/ui/"), 405, "method_not_allowed")
        assert_problem(client.get("/v1/sessions"), 401, "unauthenticated")


def test_a_path_that_climbs_out_is_no_file(address: str) -> None:
    with httpx.Client(base_url=address, timeout=PATIENCE_S) as client:
        for path in ("/ui/%2e%2e/main.py", "/ui/..%2fmain.py", "/ui//etc/passwd"):
            assert client.get(path).status_code == 404, path


def test_people_are_sent_to_the_page_and_clients_get_the_addresses(client: httpx.Client) -> None:
    answer = client.get("/")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["vary"] == "Accept"
    assert (answer.json()["name"], answer.json()["version"]) == ("Plimsoll", version("plimsoll-server"))
    for link in answer.json()["links"].values():
        assert client.get(link, follow_redirects=True).status_code == 200, link
    moved = client.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (moved.status_code, moved.headers["location"]) == (307, "ui/")


def test_head_is_answered_as_get_without_the_body_where_no_key_is_needed(client: httpx.Client) -> None:
    for path in ("/", "/ui", "/ui/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics"):
        head, get = client.head(path), client.get(path)
        assert (head.status_code, head.content) == (get.status_code, b""), path
        assert head.headers["content-type"] == get.headers["content-type"] if get.content else True
    assert client.post("/healthz").headers["allow"] == "GET, HEAD"
