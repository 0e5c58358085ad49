"""The documentation site: complete, built without warnings, and independent of other servers.

Pages are short; details belong in docs/lab-notes. The limit of README.md is in test_docs.py.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
MAX_PAGES = 22  # without lab notes, with the generated ones
MAX_PAGE_LINES = 4500  # of all pages together
MAX_ARCHITECTURE_LINES = 400


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    out = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},  # about a later version of another project
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return out


@pytest.mark.long
def test_every_document_is_in_the_navigation(site: Path) -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    named = [
        page
        for entry in nav
        for page in ([entry] if isinstance(entry, str) else next(iter(entry.values())))
    ]
    assert sorted(named) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    assert all((site / name.removesuffix(".md") / "index.html").exists() for name in named[1:])


def test_every_lab_note_is_linked_from_a_page() -> None:
    """Lab notes are not in the navigation."""
    pages = [path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md")]
    linked = {name for page in pages for name in re.findall(r"\]\(lab-notes/([\w-]+\.md)", page)}
    assert linked == {path.name for path in (ROOT / "docs" / "lab-notes").glob("*.md")}


def test_the_pages_are_few_and_short() -> None:
    lines = {p.name: p.read_text("utf-8").count("\n") for p in (ROOT / "docs").glob("*.md")}
    assert len(lines) <= MAX_PAGES
    assert sum(lines.values()) <= MAX_PAGE_LINES, lines
    assert lines["architecture.md"] <= MAX_ARCHITECTURE_LINES


@pytest.mark.long
def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    """Links are allowed; scripts, styles, fonts and images from other servers are not."""
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 20
    loads = re.compile(
        r"""<(?:script|img|iframe)[^>]+src="?https?://|<link[^>]+rel="?(?:stylesheet|preconnect)"""
        r"""[^>]+https?://|url\(["']?https?://|@import ["']https?://"""
    )
    found = {page.name: loads.findall(page.read_text("utf-8")) for page in pages}
    assert {name: hits for name, hits in found.items() if hits} == {}


@pytest.mark.long
def test_the_search_finds_words_of_the_documents(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text("utf-8")
    assert "A recipe names the model, the questions, the tools" in index
