"""The layout of a section: blocks of plots and tables, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from . import charts, tables
from .canvas import Markup
from .figures import ArmFigures
from .section import Case, Section
from .tables import Cell, Link, Row, Table, number
from .verdict import headline, points, small_print

# paths of the pages of traces, by the sample's number and arm
Links: TypeAlias = Mapping[tuple[int, str], str]
MAX_PROBLEM = 220  # characters of a problem that are shown


@dataclass(frozen=True, slots=True)
class Plot:
    """
    A plot of the page.
    """

    title: str
    """Its heading."""
    note: str
    """What it shows, in sentences."""
    draw: Callable[[], Markup]
    """Draws it."""


@dataclass(frozen=True, slots=True)
class Block:
    title: str
    plots: tuple[Plot, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """
    The beginning of a section: the *headline*, a chart of the times, and the sentences about arms
    by their names.

    The headline is empty if no method was measured. A sentence that is the headline is not
    repeated.
    """

    headline: str
    chart: Plot
    sentences: tuple[tuple[str, str], ...]
    note: str


def summarise(section: Section) -> Summary:
    methods = [verdict for verdict in section.verdicts if not verdict.like]
    listed = [verdict for verdict in section.verdicts if verdict.like or len(methods) > 1]
    return Summary(
        headline(section.verdicts, section.baseline),
        Plot(
            f"Time of a problem, {section.baseline} = 1",
            f"Mean seconds divided by those of {section.baseline}, with 95% intervals; less is"
            " better.",
            partial(charts.speed_chart, section.figures, section.baseline),
        ),
        tuple((verdict.arm, f"{verdict.sentence}.") for verdict in listed),
        small_print(section.max_loss, section.baseline),
    )


def blocks(section: Section, links: Links) -> Iterator[Block]:
    compared = any(f.arm.name != section.baseline for f in section.figures if not f.bound)
    yield Block(
        "Accuracy and time",
        (
            (
                Plot(
                    "Accuracy against latency",
                    "No measured arm is both faster and more accurate than"
                    f" {_join_names(charts.front(section.figures))} (grey line). Bars are 95%"
                    " intervals.",
                    partial(charts.scatter, section.figures),
                ),
                Plot(
                    f"Points of accuracy against {section.baseline}",
                    "On the same problems, with 95% intervals, the fastest first. Dashed: the"
                    f" acceptable loss, {points(section.max_loss)}; an interval to the right of it"
                    " excludes a larger loss. An arrow is outside of the scale.",
                    partial(
                        charts.differences, section.figures, section.max_loss, section.baseline
                    ),
                ),
            )
            if compared
            else ()
        ),
        (tables.accuracy_table(section), tables.time_table(section)),
    )
    yield Block(
        "Steps and tokens by author",
        (),
        (tables.steps_table(section), tables.tokens_table(section)),
    )
    titles = {
        "slowest": "Slowest",
        "lost": f"Lost: only {section.baseline} was right",
        "gained": f"Gained: {section.baseline} was wrong",
    }
    found = [
        _case_table(titles[kind], cases, section, links)
        for kind, cases in section.cases.items()
        if cases
    ]
    yield Block("Problems to look at", (), tuple(found))


def _join_names(arms: list[ArmFigures]) -> str:
    *others, last = [f.arm.name for f in arms]
    return f"{', '.join(others)} and {last}" if others else last


def _case_table(title: str, cases: tuple[Case, ...], section: Section, links: Links) -> Table:
    linked = any((case.number, case.arm) in links for case in cases)
    seconds = ("seconds", f"{section.baseline}, s")
    return Table(
        title,
        ("problem", "", "arm", "outcome", *seconds, "rejected", *(("trace",) if linked else ())),
        tuple(
            (*_case_row(case, section), *((_link(case, links),) if linked else ()))
            for case in cases
        ),
        (
            ""
            if linked
            else "No traces: `stepspec eval --traces` keeps them; this table then links to them."
        ),
        words=4,
    )


def _case_row(case: Case, section: Section) -> Row:
    problem = " ".join(section.run.problems[case.problem].split())
    shown = problem if len(problem) <= MAX_PROBLEM else f"{problem[: MAX_PROBLEM - 1]}…"
    seconds = (number(case.seconds), number(case.baseline_seconds))
    return (
        str(case.problem + 1),
        shown,
        case.arm,
        case.outcome,
        *seconds,
        f"{case.rejected} of {case.drafts}",
    )


def _link(case: Case, links: Links) -> Cell:
    target = links.get((case.number, case.arm))
    return Link("look", target) if target else ""
