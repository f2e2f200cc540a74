"""
The targets of links in the documents exist: files, and headings in them. Lines of prose are short.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docker" / "README.md",
    ROOT / "src" / "stepspec" / "prompts" / "README.md",
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
WIDTH = 100  # of a line of prose
# tables, HTML, images, targets of links, headings
NO_PROSE = re.compile(r"\s*(?:\||<|!\[|\[!|\[[^\]]+\]: |#)")
CODE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`[^`\n]*`")
LINK = re.compile(
    r"\]\(<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]:\s+(\S+)|(?:href|src)=\"([^\"]+)\"",
    re.MULTILINE,
)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
NAMED = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


def links(text: str) -> list[str]:
    """Where *text* links to on this machine, not elsewhere on the net."""
    matches = LINK.finditer(SPAN.sub("", CODE.sub("", text)))
    found = ["".join(one or "" for one in match.groups()) for match in matches]
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(text: str) -> set[str]:
    """What of *text* can be linked to, as GitHub names it."""
    plain = CODE.sub("", text)
    found: set[str] = set(NAMED.findall(plain))
    for heading in HEADING.findall(plain):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        places = (name, *(f"{name}-{count}" for count in range(1, 99)))
        found.add(next(place for place in places if place not in found))
    return found


def broken(document: Path) -> list[str]:
    """The links of *document* that lead nowhere."""

    @cache
    def named(path: Path) -> set[str]:
        return anchors(path.read_text(encoding="utf-8"))

    missing: list[str] = []
    for link in links(document.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        path = (document.parent / file).resolve() if file else document
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in named(path)):
            missing.append(link)
    return missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_something(document: Path) -> None:
    assert broken(document) == []


def long_lines(text: str) -> list[str]:
    """The lines of prose in *text* that are too long, but for single words, such as addresses."""
    lines = CODE.sub("", text).splitlines()
    return [
        line
        for line in lines
        if len(line) > WIDTH and " " in line.strip() and not NO_PROSE.match(line)
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_of_prose_are_short(document: Path) -> None:
    assert long_lines(document.read_text(encoding="utf-8")) == []


def test_a_long_line_of_prose_is_found() -> None:
    word = "x" * 120
    prose = "word " * 21
    assert long_lines(f"{word}\n| {prose} |\n```\n{prose}\n```\n{prose}\n- {prose}\n") == [
        prose,
        f"- {prose}",
    ]


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text(
        "# A title, *here*\n\n## Twice\n\n## Twice\n\n```\n# no title\n```\n"
    )
    page = tmp_path / "page.md"
    page.write_text(
        "# Own `name`\n[a](other.md) [b](other.md#a-title-here) [c](#own-name)"
        " [d](https://x.org/y)\n[e](other.md#twice-1) `[f](shown.md)`\n[g](gone.md) [h](#gone)"
        ' [i](other.md#no-title) [j](other.md#twice-2) <img src="gone.png">\n'
    )
    assert broken(page) == ["gone.md", "#gone", "other.md#no-title", "other.md#twice-2", "gone.png"]
