"""
The site of the documents builds without a warning, also about its links, and loads nothing from
elsewhere.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import urldefrag, urlsplit

import pytest
from markdown_it import MarkdownIt

import stepspec

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SHAPE = {"table", "li", "pre", "img", "h2", "h3"}
LOADING = {
    ("script", "src"),
    ("link", "href"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
}


@dataclass
class Html(HTMLParser):
    """
    What an HTML page links to and loads, its anchors, and how often elements occur in its content.
    """

    links: list[str] = field(default_factory=list[str])
    loaded: list[str] = field(default_factory=list[str])
    anchors: set[str] = field(default_factory=set[str])
    content: Counter[str] = field(default_factory=Counter[str])
    article: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.article |= tag == "article"
        if self.article:
            self.content[tag] += 1
        self.anchors |= {named[name] for name in ("id", "name") if name in named}
        for name in ("href", "src"):
            if name in named:
                self.links.append(named[name])
                if (tag, name) in LOADING and named.get("rel") != "canonical":
                    self.loaded.append(named[name])

    def handle_endtag(self, tag: str) -> None:
        self.article &= tag != "article"


def read(file: Path) -> Html:
    page = Html()
    page.feed(file.read_text(encoding="utf-8"))
    return page


def elsewhere(site: Path) -> Iterator[str]:
    """What the pages and the style sheets of the *site* load from other hosts."""
    for file in site.rglob("*.html"):
        yield from (
            f"{file.relative_to(site)}: {link}"
            for link in read(file).loaded
            if urlsplit(link).netloc
        )
    for file in site.rglob("*.css"):
        found = re.findall(
            r"url\(['\"]?((?:https?:)?//[^)]+)\)|@import ['\"](https?:[^'\"]+)",
            file.read_text("utf-8"),
        )
        yield from (f"{file.relative_to(site)}: {url}" for pair in found for url in pair if url)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site").resolve()
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr, built.stderr
    return folder


def test_every_document_is_a_page_of_the_navigation(site: Path) -> None:
    pages = {file.relative_to(DOCS).with_suffix(".html") for file in DOCS.rglob("*.md")}
    home = read(site / "index.html")
    linked = {Path(urldefrag(link).url) for link in home.links}
    assert pages | {Path("changelog.html"), Path("contributing.html")} <= linked
    assert pages <= {file.relative_to(site) for file in site.rglob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert list(elsewhere(site)) == []


def test_links_to_code_lead_to_the_repository(site: Path) -> None:
    links = [link for file in site.rglob("*.html") for link in read(file).links]
    assert [
        link
        for link in links
        if re.search(r"\.(py|txt|md)(#|$)", link) and not link.startswith("http")
    ] == []
    assert any(link.endswith("/blob/main/prompts/README.md") for link in links)


def test_every_public_name_is_explained(site: Path) -> None:
    named = {name: getattr(stepspec, name) for name in stepspec.__all__ if not name.startswith("_")}
    places = {
        value.__name__ if isinstance(value, ModuleType) else f"stepspec.{name}"
        for name, value in named.items()
    }
    assert places <= read(site / "python.html").anchors


def test_the_home_page_has_the_time_diagram_of_the_readme(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert "commit the repair" in text
    assert "<!-- include" not in text


@pytest.mark.parametrize(
    "document", sorted(DOCS.rglob("*.md")), ids=lambda path: str(path.relative_to(DOCS))
)
def test_lists_tables_and_code_look_as_on_github(site: Path, document: Path) -> None:
    """
    Python-Markdown wants blank lines and indents where GitHub does not, and makes a paragraph of
    what lacks them.
    """
    text = document.read_text(encoding="utf-8")
    if "<!-- include" in text or ":::" in text:
        pytest.skip("contains what the document itself does not")
    github = Html(article=True)
    github.feed(MarkdownIt("commonmark").enable("table").render(text))
    page = read(site / document.relative_to(DOCS).with_suffix(".html"))
    assert {name: page.content[name] for name in SHAPE} == {
        name: github.content[name] for name in SHAPE
    }


def test_what_is_loaded_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text(
        "@import 'https://cdn.example/a.css'; b { background: url(//cdn.example/b) }"
    )
    (tmp_path / "page.html").write_text(
        '<a href="https://x.org"><script src="https://cdn.example/x.js">'
    )
    assert sorted(elsewhere(tmp_path)) == [
        "page.html: https://cdn.example/x.js",
        "style.css: //cdn.example/b",
        "style.css: https://cdn.example/a.css",
    ]
