"""A report as Markdown: all its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .layout import Links, blocks
from .section import Section, origin
from .tables import Cell, Link, Table


def markdown(sections: Sequence[tuple[Section, Links]], made: str) -> str:
    """The report; *made* says by what and when it was made."""
    lines = ["# Report", "", made, "The plots are in report.html.", ""]
    for section, links in sections:
        lines += _section(section, links)
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section, links: Links) -> Iterator[str]:
    yield from (f"## {_plain(section.title)}", "", _plain(section.stamp), "")
    for remark in section.remarks:
        yield from (f"> {remark}", "")
    for block in blocks(section, links):
        yield from (f"### {block.title}", "")
        for table in block.tables:
            yield from _table(table, section.stamp)
    yield from ("### How it was measured", "")
    yield from (f"- **{name}**: {_plain(value)}" for name, value in origin(section))
    yield ""


def _table(table: Table, stamp: str) -> Iterator[str]:
    yield from (f"**{_plain(table.title)}**", "")
    marks = ["---" if place < table.words else "--:" for place in range(len(table.columns))]
    for cells in (table.columns, marks, *table.rows):
        yield f"| {' | '.join(map(_cell, cells))} |"
    yield from ("", f"{table.note} *{_plain(stamp)}*".strip(), "")


def _cell(cell: Cell) -> str:
    return f"[{_plain(cell.text)}]({cell.target})" if isinstance(cell, Link) else _plain(cell)


def _plain(text: str) -> str:
    """Text that Markdown leaves alone: problems are full of its signs."""
    return "".join(f"\\{sign}" if sign in "\\|*_<>`$[]" else sign for sign in " ".join(text.split()))
