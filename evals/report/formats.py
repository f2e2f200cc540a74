"""A report as HTML (one document that loads nothing) and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from stepspec.service.watch.page import allowed, style

from .canvas import Markup, element, join
from .layout import Block, Links, Plot, Summary, blocks, summarise
from .section import Section, provenance
from .tables import Cell, Link, Table
from .verdict import headline

FOLDER = Path(__file__).parent
LONG_CELL = 40  # a cell with more characters gets a wider column
CODE = re.compile(r"`([^`]+)`")


def to_html(sections: Sequence[tuple[Section, Links]], origin: str) -> str:
    """
    Render the document; *origin* is a line with the program's version, the date and the command.
    """
    styles = f"{style()}{_read('page.css')}"
    security = (
        f"default-src 'none'; style-src {allowed(styles)}; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )
    values = {
        "security": security,
        "title": join("stepspec report: ", ", ".join(section.title for section, _ in sections)),
        "style": styles,
        "sections": join(*(_section(number, *pair) for number, pair in enumerate(sections, 1))),
        "made": join(origin),
    }
    return re.sub(r"{{(\w+)}}", lambda match: values[match[1]], _read("page.html"))


def _section(number: int, section: Section, links: Links) -> Markup:
    shown = list(blocks(section, links))
    name = f"section-{number}"
    return element(
        "section",
        element("h2", section.title, id=name),
        element("p", section.stamp, class_="status"),
        _summary(summarise(section), section.stamp),
        _remarks(section),
        element(
            "nav",
            *_contents(number, shown),
            class_="contents",
            aria_label=f"Contents of {section.title}",
        ),
        *(_block(f"{number}-{index}", block, section.stamp) for index, block in enumerate(shown)),
        _provenance(f"{number}-origin", section),
        class_="section",
        aria_labelledby=name,
    )


def _summary(summary: Summary, stamp: str) -> Markup:
    sentences = (
        element("li", element("strong", name), f": {said}") for name, said in summary.sentences
    )
    verdicts = element("ul", *sentences, class_="verdicts") if summary.sentences else Markup()
    return join(
        element("p", summary.headline, class_="headline") if summary.headline else Markup(),
        element(
            "div",
            _figure(summary.chart, stamp, "h3"),
            element(
                "section",
                element(
                    "h3", "Verdict on each method" if summary.sentences else "About the verdict"
                ),
                verdicts,
                element("p", stamp, class_="stamp"),
                class_="card",
            ),
            class_="columns summary",
        ),
        element("p", summary.note, class_="note"),
    )


def _remarks(section: Section) -> Markup:
    remarks = [element("p", _with_code(remark)) for remark in section.remarks]
    return element("div", *remarks, class_="notice") if remarks else Markup()


def _with_code(text: str) -> Markup:
    """Mark the words between backticks as code."""
    return join(
        *(
            element("code", part) if index % 2 else part
            for index, part in enumerate(CODE.split(text))
        )
    )


def _contents(number: int, shown: Sequence[Block]) -> Iterator[Markup]:
    for index, block in enumerate(shown):
        yield element("a", block.title, href=f"#block-{number}-{index}")
    yield element("a", "How it was measured", href=f"#block-{number}-origin")


def _block(name: str, block: Block, stamp: str) -> Markup:
    figures = [_figure(plot, stamp) for plot in block.plots]
    paired = element("div", *figures, class_="columns") if figures else Markup()
    tables = [_table(table, stamp) for table in block.tables]
    return element(
        "section",
        element("h3", block.title, id=f"block-{name}"),
        paired,
        *tables,
        class_="block",
        aria_labelledby=f"block-{name}",
    )


def _figure(plot: Plot, stamp: str, heading: str = "h4") -> Markup:
    note = element("p", _with_code(plot.note), class_="note")
    caption = element("figcaption", note, element("p", stamp, class_="stamp"))
    drawing = element(
        "div", plot.draw(), class_="drawing", tabindex="0", role="region", aria_label=plot.title
    )
    return element("figure", element(heading, plot.title), drawing, caption, class_="card")


def _table(table: Table, stamp: str) -> Markup:
    head = element(
        "tr", *(_head(name, words=index < table.words) for index, name in enumerate(table.columns))
    )
    rows = [
        element("tr", *(_cell(table, index, cell) for index, cell in enumerate(row)))
        for row in table.rows
    ]
    content = element("table", element("thead", head), element("tbody", *rows))
    return element(
        "section",
        element("h4", table.title),
        element(
            "div", content, class_="scroll", tabindex="0", role="region", aria_label=table.title
        ),
        element("p", _with_code(table.note), class_="note") if table.note else Markup(),
        element("p", stamp, class_="stamp"),
        class_="card",
    )


def _head(name: str, *, words: bool) -> Markup:
    kind = "prose" if words else None
    return element("th", name, scope="col", class_=kind) if name else element("td", class_=kind)


def _cell(table: Table, index: int, cell: Cell) -> Markup:
    if isinstance(cell, Link):
        return element("td", element("a", cell.text, href=cell.target))
    words = index < table.words
    if index == 0:
        return element("th", cell, scope="row", class_="prose")
    return element(
        "td", cell, class_=("prose long" if len(cell) > LONG_CELL else "prose") if words else None
    )


def _provenance(name: str, section: Section) -> Markup:
    rows = (join(element("dt", key), element("dd", value)) for key, value in provenance(section))
    return element(
        "section",
        element("h3", "How it was measured", id=f"block-{name}"),
        element("div", element("dl", *rows, class_="provenance"), class_="card"),
        class_="block",
        aria_labelledby=f"block-{name}",
    )


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def to_json(sections: Sequence[Section], origin: str) -> bytes:
    """Encode every figure of the report, with full precision; *origin* is as for `to_html`."""
    content = {"made": origin, "sections": [_values(section) for section in sections]}
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def _values(section: Section) -> dict[str, Any]:
    return {
        "benchmark": section.title,
        "about": section.stamp,
        "remarks": section.remarks,
        "problems": section.problems,
        "verdict": _verdict(section),
        "origin": [{"name": name, "value": value} for name, value in provenance(section)],
        "arms": [{**asdict(figures), "arm": figures.arm.record()} for figures in section.figures],
        "cases": section.cases,
        "measured": section.run.about,
    }


def _verdict(section: Section) -> dict[str, Any]:
    return {
        "headline": headline(section.verdicts, section.baseline),
        "max_loss": section.max_loss,
        "arms": [{**asdict(verdict), "sentence": verdict.sentence} for verdict in section.verdicts],
    }
