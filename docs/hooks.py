"""
MkDocs hooks: documents of the repository that are pages of the site, and links that leave
``docs/``.

Documents link to each other and to code by relative paths, which work on GitHub. On the site, a
link to another page stays a link between pages, and a link to any other file leads to the
repository. `CHANGELOG.md`, `CONTRIBUTING.md` and the list of the decisions become pages here, and
the comment ``<!-- include README.md#heading -->`` is replaced by that section, so that no text
exists twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, cast

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DECISIONS = "docs/decisions"
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""The pages that are made of whole documents at the top."""

STANDS_FOR = PAGES | {"README.md": "index.md", DECISIONS: "decisions/index.md"}
FENCE = re.compile(r"^ *(```|~~~).*?^ *\1[^\n]*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<=\]\()[^()\s]+(?=(?:\s+\"[^\"]*\")?\))")
INCLUDE = re.compile(r"^<!-- include (\S+)#(\S+) -->$", re.MULTILINE)
HEADING = re.compile(r"^(#{1,6})\s+(.+)$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every decision into the navigation, in place of their folder."""
    config["nav"] = _expand(cast("object", config["nav"]))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of documents at the top, and the list of the decisions."""
    for document, page in PAGES.items():
        files.append(File.generated(config, page, content=_read(document)))
    items = (f"- [{_title(path)}]({PurePosixPath(path).name})" for path in _decisions())
    files.append(
        File.generated(
            config, STANDS_FOR[DECISIONS], content="# Design decisions\n\n" + "\n".join(items)
        )
    )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """
    Put in the sections that *markdown* includes, and let its links lead to pages or to the
    repository.
    """
    uri = page.file.src_uri
    source = {page: document for document, page in PAGES.items()}.get(uri, f"docs/{uri}")

    def linked(text: str, document: str) -> str:
        return _outside_code(
            text, lambda part: LINK.sub(lambda match: _link(match[0], document, uri, config), part)
        )

    def section(match: re.Match[str]) -> str:
        return linked(_section(match[1], match[2]), match[1])

    return INCLUDE.sub(section, linked(markdown, source))


def _link(link: str, document: str, page: str, config: MkDocsConfig) -> str:
    """Where a *link* of a *document* of the repository leads from the *page*."""
    path, mark, anchor = link.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return link
    target = os.path.normpath(PurePosixPath(document).parent / path)
    if target in STANDS_FOR or target.startswith("docs/"):
        inside = STANDS_FOR.get(target, target.removeprefix("docs/"))
        return os.path.relpath(inside, PurePosixPath(page).parent) + mark + anchor
    if not (ROOT / target).exists():
        raise PluginError(f"{document} links to {path}, which is not in the repository")
    kind = "tree" if (ROOT / target).is_dir() else "blob"
    return f"{config.extra['repository']}/{kind}/{config.extra['branch']}/{target}{mark}{anchor}"


def _expand(items: object) -> object:
    if isinstance(items, list):
        return [_expand(item) for item in cast("list[object]", items)]
    if isinstance(items, dict):
        return {name: _expand(item) for name, item in cast("dict[str, object]", items).items()}
    if items == "decisions/":
        return [STANDS_FOR[DECISIONS], *(path.removeprefix("docs/") for path in _decisions())]
    return items


def _decisions() -> list[str]:
    return sorted(f"{DECISIONS}/{file.name}" for file in (ROOT / DECISIONS).glob("*.md"))


def _read(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def _title(document: str) -> str:
    match = HEADING.search(_read(document))
    if match is None:
        raise PluginError(f"{document} has no heading")
    return match[2]


def _section(document: str, anchor: str) -> str:
    """The text of *document* below the heading *anchor*, up to the next heading."""
    text = _read(document)
    plain = FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    headings = list(HEADING.finditer(plain))
    ends = [*(heading.start() for heading in headings[1:]), len(text)]
    for heading, end in zip(headings, ends, strict=True):
        if re.sub(r"[^\w\- ]", "", heading[2].lower()).replace(" ", "-") == anchor:
            return text[heading.end() : end].strip()
    raise PluginError(f"{document} has no heading #{anchor}")


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    parts: list[str] = []
    end = 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])
