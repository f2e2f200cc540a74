"""A report as HTML (one document that loads nothing) and as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from stepspec.service.watch.page import allowed, style

from .canvas import Markup, element, join
from .layout import Block, Links, Plot, blocks, speed_plot
from .section import Section, provenance
from .tables import Cell, Link, Table
from .verdict import small_print

TEMPLATES = Path(__file__).with_name("templates")
WIDE_CELL_CHARACTERS = 40
"""A cell of words with more characters gets a wider column."""
CODE = re.compile(r"`([^`]+)`")


def to_html(sections: Sequence[tuple[Section, Links]], origin: str) -> str:
    """
    Return the document with the *sections* and the paths of their traces' pages.

    *origin* is a line with the program's version, the date and the command.
    """
    styles = f"{style()}{_read('page.css')}"
    security = (
        f"default-src 'none'; style-src {allowed(styles)}; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )
    return _fill(
        "page.html",
        security=Markup(security),
        title=f"stepspec report: {', '.join(section.title for section, _ in sections)}",
        style=Markup(styles),
        sections=join(*(_section(number, *pair) for number, pair in enumerate(sections, 1))),
        made=origin,
    )


def _read(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _fill(template: str, **values: str) -> Markup:
    """Return the *template* with the *values*. A value that is no markup is escaped."""
    return Markup(re.sub(r"{{(\w+)}}", lambda match: join(values[match[1]]), _read(template)))


def _section(number: int, section: Section, links: Links) -> Markup:
    named = [(f"{number}-{index}", block) for index, block in enumerate(blocks(section, links))]
    verdicts = [
        element("li", element("strong", name), f": {sentence}")
        for name, sentence in section.sentences
    ]
    contents = [element("a", block.title, href=f"#block-{name}") for name, block in named]
    rows = [join(element("dt", key), element("dd", value)) for key, value in provenance(section)]
    return _fill(
        "section.html",
        number=str(number),
        title=section.title,
        stamp=section.stamp,
        headline=section.headline,
        speed=_figure(speed_plot(section), section.stamp, "h3"),
        verdicts=join(*verdicts),
        note=small_print(section.max_loss, section.baseline),
        remarks=join(*(element("p", _with_code(remark)) for remark in section.remarks)),
        contents=join(*contents),
        blocks=join(*(_block(name, block, section.stamp) for name, block in named)),
        provenance=join(*rows),
    )


def _block(name: str, block: Block, stamp: str) -> Markup:
    return _fill(
        "block.html",
        name=name,
        title=block.title,
        figures=join(*(_figure(plot, stamp, "h4") for plot in block.plots)),
        tables=join(*(_table(table, stamp) for table in block.tables)),
    )


def _figure(plot: Plot, stamp: str, heading: str) -> Markup:
    return _fill(
        "figure.html",
        heading=heading,
        title=plot.title,
        drawing=plot.drawing,
        note=plot.note,
        stamp=stamp,
    )


def _table(table: Table, stamp: str) -> Markup:
    columns = list(table.rows[0])
    head = [_head(name, words=index < table.words) for index, name in enumerate(columns)]
    rows = [
        element("tr", *(_cell(table, index, cell) for index, cell in enumerate(row.values())))
        for row in table.rows
    ]
    return _fill(
        "table.html",
        title=table.title,
        head=join(*head),
        rows=join(*rows),
        note=_with_code(table.note),
        stamp=stamp,
    )


def _head(name: str, *, words: bool) -> Markup:
    kind = "prose" if words else None
    if not name:
        return element("td", class_=kind)
    return element("th", name, scope="col", class_=kind)


def _cell(table: Table, index: int, cell: Cell) -> Markup:
    if isinstance(cell, Link):
        return element("td", element("a", cell.text, href=cell.target))
    if index == 0:
        return element("th", cell, scope="row", class_="prose")
    if index >= table.words:
        return element("td", cell)
    return element("td", cell, class_="prose long" if len(cell) > WIDE_CELL_CHARACTERS else "prose")


def _with_code(text: str) -> Markup:
    """Mark the words between backticks as code."""
    return Markup(CODE.sub(r"<code>\1</code>", join(text)))


def to_json(sections: Sequence[Section], origin: str) -> bytes:
    """Encode every figure of the report, with full precision. *origin* is as for `to_html`."""
    content = {"made": origin, "sections": [_values(section) for section in sections]}
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def _values(section: Section) -> dict[str, Any]:
    return {
        "benchmark": section.title,
        "about": section.stamp,
        "remarks": section.remarks,
        "problems": section.problems,
        "verdict": {
            "headline": section.headline,
            "max_loss": section.max_loss,
            "arms": [
                {**asdict(verdict), "sentence": verdict.sentence} for verdict in section.verdicts
            ],
        },
        "origin": [{"name": name, "value": value} for name, value in provenance(section)],
        "arms": [{**asdict(figures), "arm": figures.arm.record()} for figures in section.figures],
        "cases": section.cases,
        "measured": section.run.about,
    }
