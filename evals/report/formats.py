"""A report as HTML (one document that loads nothing) and as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from stepspec.service.watch.page import allowed, style

from ..results import by_time
from . import charts
from .section import Section, provenance
from .tables import Links, blocks
from .verdict import small_print

TEMPLATES = Path(__file__).with_name("templates")
WIDE_CELL_CHARACTERS = 40
"""A cell of words with more characters gets a wider column."""
CODE = re.compile(r"`([^`]+)`")


def with_code(text: str) -> Markup:
    """Mark the words between backticks as code."""
    return Markup(CODE.sub(r"<code>\1</code>", str(escape(text))))


ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters["with_code"] = with_code


def to_html(sections: Sequence[tuple[Section, Links]], origin: str) -> str:
    """
    Return the document with the *sections* and the paths of their traces' pages.

    *origin* is a line with the program's version, the date and the command.
    """
    styles = f"{style()}{(TEMPLATES / 'page.css').read_text(encoding='utf-8')}"
    security = (
        f"default-src 'none'; style-src {allowed(styles)}; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )
    return ENVIRONMENT.get_template("page.html").render(
        security=Markup(security),
        style=Markup(styles),
        sections=[_content(section, links) for section, links in sections],
        outlines=charts.SHAPES,
        wide=WIDE_CELL_CHARACTERS,
        made=origin,
    )


def _content(section: Section, links: Links) -> dict[str, Any]:
    """Return the values of the template for one section."""
    arms = section.figures
    return {
        "section": section,
        "fastest": by_time(arms),
        "shapes": charts.shapes(arms),
        "ratios": charts.ratio_axis(arms),
        "seconds": charts.seconds_axis(arms),
        "accuracies": charts.accuracy_axis(arms),
        "front": charts.front(arms),
        "blocks": blocks(section, links),
        "note": small_print(section.max_loss, section.baseline),
        "provenance": list(provenance(section)),
    }


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
        "arms": [result.record() for result in section.figures],
        "cases": section.cases,
        "measured": section.run.about,
    }
