"""Builds the site, strictly: a warning, a link or an anchor that leads nowhere, or anything remote is an error.

python -m docsite [FOLDER]      # dist/docs unless you say otherwise
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from sphinx.application import Sphinx

from docsite.checking import faults
from docsite.pages import HOME, REFERENCE, ROOT, SETTINGS, Pages, Part, decisions, read_pages
from docsite.reference import reference, settings


def build(folder: Path, work: Path) -> list[str]:
    """Builds the site into `folder`; what is wrong with it. `work` holds what is made on the way."""
    source = work / "source"
    _write(source, read_pages())
    sphinx = Sphinx(
        srcdir=source,
        confdir=ROOT / "docsite",
        outdir=folder,
        doctreedir=work / "doctrees",
        buildername="html",
        status=None,
        warning=sys.stderr,
        freshenv=True,
        warningiserror=True,
    )
    sphinx.build(force_all=True)
    warnings = ["Sphinx warned, see above"] if sphinx.statuscode else []
    return warnings + faults(folder)


def _write(source: Path, pages: Pages) -> None:
    shutil.rmtree(source, ignore_errors=True)
    (source / "decisions").mkdir(parents=True)
    shutil.copytree(ROOT / "docs" / "images", source / "images")
    for path, name in pages.names.items():
        if name != SETTINGS and (ROOT / path).is_file():
            (source / f"{name}.md").write_text(pages.text(path), encoding="utf-8")
    (source / f"{REFERENCE}.md").write_text(reference(), encoding="utf-8")
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    (source / f"{SETTINGS}.md").write_text(settings(example), encoding="utf-8")
    (source / "decisions" / "index.md").write_text(_decisions(), encoding="utf-8")
    with (source / f"{pages.names[HOME]}.md").open("a", encoding="utf-8") as home:
        for part in pages.parts:
            entries = "\n".join(_entry(part, name) for name in part.names)
            home.write(f"\n```{{toctree}}\n:hidden:\n:caption: {part.title}\n\n{entries}\n```\n")


def _entry(part: Part, name: str) -> str:
    title = part.titles.get(name)
    return f"{title} </{name}>" if title else f"/{name}"


def _decisions() -> str:
    entries = "\n".join(path.stem for path in decisions(ROOT))
    return (
        "# Decisions\n\nWhy things are as they are: a page each, with the context, the decision, its consequences and "
        f"what enforces it.\n\n```{{toctree}}\n:maxdepth: 1\n\n{entries}\n```\n"
    )


def main() -> int:
    """Builds, and says what is wrong."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / "docs"
    shutil.rmtree(folder, ignore_errors=True)
    with TemporaryDirectory() as work:
        wrong = build(folder, Path(work))
    for fault in wrong:
        sys.stderr.write(f"{fault}\n")
    if not wrong:
        sys.stdout.write(f"{len(list(folder.rglob('*.html')))} pages: {folder / 'index.html'}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
