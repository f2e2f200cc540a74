"""A report as HTML (one document that loads nothing) and as JSON."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from stepspec.service.watch.page import allowed, style

from ..results import accuracy_rows, by_time
from . import charts
from .section import Section
from .verdict import points

TEMPLATES = Path(__file__).with_name("templates")
Links: TypeAlias = Mapping[tuple[int, str], str]
"""Paths of the pages of traces, by the sample's number and arm."""
CODE = re.compile(r"`([^`]+)`")


def with_code(text: str) -> Markup:
    """Mark the words between backticks as code."""
    return Markup(CODE.sub(r"<code>\1</code>", str(escape(text))))


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def words(value: object) -> str:
    """Write a *value* of JSON. Of a table, names without a value are left out."""
    if not isinstance(value, dict):
        return str(value)
    fields = cast("Mapping[str, object]", value)
    return ", ".join(f"{name} {field}" for name, field in fields.items() if field not in (None, ""))


ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters.update(
    with_code=with_code,
    percent=percent,
    number=number,
    words=words,
    command=shlex.join,
    points=points,
)


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
        sections=[_content(*section) for section in sections],
        outlines=charts.SHAPES,
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
        "accuracy_rows": accuracy_rows(arms, section.baseline),
        "links": links,
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
        "max_loss": section.max_loss,
        "verdicts": section.verdicts,
        "arms": section.figures,
        "cases": section.cases,
        "measured": section.run.about,
        "sessions": section.run.sessions,
    }
