"""A report as one HTML document that loads nothing from anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from stepspec.orchestrator.service.page import allowed, script, style

from .layout import Beside, Block, Links, Plot, blocks
from .section import Section, origin
from .svg import Markup, both, element, join
from .tables import Cell, Link, Table

FOLDER = Path(__file__).parent
HALF = 76  # letters of a row that fit into half a page
LONG = 40  # letters of a cell, from which on it gets a wider column
CODE = re.compile(r"`([^`]+)`")


def page(sections: Sequence[tuple[Section, Links]], made: str) -> str:
    """The document; *made* says by what and when it was made."""
    looks = f"{style()}{_read('page.css')}"
    does = f"{script(('element', 'theme'))}\nconnectTheme();\n"
    security = (
        f"default-src 'none'; script-src {allowed(does)}; style-src {allowed(looks)}; img-src data:; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'"
    )
    places = {
        "security": security,
        "title": join("stepspec report: ", ", ".join(section.title for section, _ in sections)),
        "style": looks,
        "script": does,
        "sections": join(*(_section(at, *each) for at, each in enumerate(sections, 1))),
        "made": join(made),
    }
    return re.sub(r"{{(\w+)}}", lambda place: places[place[1]], _read("page.html"))


def _section(at: int, section: Section, links: Links) -> Markup:
    shown = list(blocks(section, links))
    name = f"section-{at}"
    return element(
        "section",
        element("div", element("h2", section.title, id=name), _models(section), class_="title"),
        element("p", section.stamp, class_="status"),
        _remarks(section),
        element("nav", *_contents(at, shown), class_="contents", aria_label=f"Contents of {section.title}"),
        *(_block(f"{at}-{place}", block, section.stamp) for place, block in enumerate(shown)),
        _origin(f"{at}-origin", section),
        class_="section",
        aria_labelledby=name,
    )


def _models(section: Section) -> Markup:
    letters = {"small": "S", "large": "L"}
    return element(
        "ul",
        *(
            element("li", element("span", letters[role], class_="badge", data_author=role, aria_hidden="true"),
                    f"{role}: {section.models[role]}")
            for role in letters
        ),
        class_="models",
        aria_label="Models",
    )  # fmt: skip


def _remarks(section: Section) -> Markup:
    said = section.remarks
    return element("div", *(element("p", _coded(one)) for one in said), class_="notice") if said else Markup()


def _coded(said: str) -> Markup:
    """Words between backticks are code."""
    return join(*(element("code", part) if at % 2 else part for at, part in enumerate(CODE.split(said))))


def _contents(at: int, shown: Sequence[Block]) -> Iterator[Markup]:
    for place, block in enumerate(shown):
        yield element("a", block.title, href=f"#block-{at}-{place}")
    yield element("a", "How it was measured", href=f"#block-{at}-origin")


def _block(name: str, block: Block, stamp: str) -> Markup:
    figures = [_figure(plot, stamp) for plot in block.plots]
    paired = element("div", *figures, class_="pair") if figures else Markup()
    halves = _halves(block.tables)
    tables = [_table(table, stamp, half=at in halves) for at, table in enumerate(block.tables)]
    return element(
        "section",
        element("h3", block.title, id=f"block-{name}"),
        paired,
        element("div", *tables, class_="pair"),
        class_="block",
        aria_labelledby=f"block-{name}",
    )


def _figure(plot: Plot | Beside, stamp: str) -> Markup:
    if isinstance(plot, Beside):
        drawn = element(
            "div",
            *(element("div", one, class_="drawing") for one in (plot.first, plot.second) if one is not None),
            class_="beside",
        )
        keys = Markup()
    else:
        drawn, keys = both(plot.draw), element("ul", *map(_key, plot.keys), class_="legend") if plot.keys else Markup()
    caption = element("figcaption", element("p", plot.note, class_="note"), element("p", stamp, class_="stamp"))
    return element("figure", element("h4", plot.title), drawn, keys, caption, class_="card")


def _key(key: tuple[str, str, bool]) -> Markup:
    name, author, wasted = key
    return element("li", element("span", class_="swatch", data_author=author, data_wasted=wasted), name)


def _halves(tables: Sequence[Table]) -> set[int]:
    """Which of the *tables* get half of the page: two narrow ones after each other."""
    found: set[int] = set()
    for at in range(1, len(tables)):
        if at - 1 not in found and _letters(tables[at - 1]) <= HALF and _letters(tables[at]) <= HALF:
            found |= {at - 1, at}
    return found


def _letters(table: Table) -> int:
    rows = (table.columns, *table.rows)
    each = zip(*(((cell.text if isinstance(cell, Link) else cell) for cell in row) for row in rows), strict=True)
    return sum(max(map(len, column)) + 2 for column in each)


def _table(table: Table, stamp: str, *, half: bool) -> Markup:
    head = element("tr", *(_head(name, words=at < table.words) for at, name in enumerate(table.columns)))
    rows = [element("tr", *(_cell(table, at, cell) for at, cell in enumerate(row))) for row in table.rows]
    made = element("table", element("thead", head), element("tbody", *rows))
    return element(
        "section",
        element("h4", table.title),
        element("div", made, class_="scroll", tabindex="0", role="region", aria_label=table.title),
        element("p", _coded(table.note), class_="note") if table.note else Markup(),
        element("p", stamp, class_="stamp"),
        class_="card" if half else "card across",
    )


def _head(name: str, *, words: bool) -> Markup:
    kind = "words" if words else None
    return element("th", name, scope="col", class_=kind) if name else element("td", class_=kind)


def _cell(table: Table, at: int, cell: Cell) -> Markup:
    if isinstance(cell, Link):
        return element("td", element("a", cell.text, href=cell.target))
    words = at < table.words
    if at == 0:
        return element("th", cell, scope="row", class_="words")
    return element("td", cell, class_=("words long" if len(cell) > LONG else "words") if words else None)


def _origin(name: str, section: Section) -> Markup:
    rows = (join(element("dt", key), element("dd", value)) for key, value in origin(section))
    return element(
        "section",
        element("h3", "How it was measured", id=f"block-{name}"),
        element("div", element("dl", *rows, class_="origin"), class_="card"),
        class_="block",
        aria_labelledby=f"block-{name}",
    )


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
