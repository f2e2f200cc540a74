"""The layout of a section: blocks of plots and tables, in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from . import charts, tables
from .canvas import Markup
from .section import Case, CaseKind, Section
from .tables import Cell, Link, Table, number

Links: TypeAlias = Mapping[tuple[int, str], str]
"""Paths of the pages of traces, by the sample's number and arm."""
MAX_PROBLEM_CHARACTERS = 220


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of the page."""

    title: str
    """Its heading."""
    note: str
    """What it shows, in sentences."""
    drawing: Markup
    """The drawing."""


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a section with a heading of its own."""

    title: str
    """The heading."""
    tables: Sequence[Table]
    """The tables, below the plots."""
    plots: Sequence[Plot] = ()
    """The plots."""


def speed_plot(section: Section) -> Plot:
    """Return the plot at the beginning of a section."""
    return Plot(
        f"Time of a problem, {section.baseline} = 1",
        f"Mean seconds divided by those of {section.baseline}, with 95% intervals; less is better.",
        charts.speed_chart(section.figures, section.baseline),
    )


def accuracy_plot(section: Section) -> Plot:
    """Return the plot of accuracy against time."""
    names = ", ".join(f.arm.name for f in charts.front(section.figures))
    return Plot(
        "Accuracy against latency",
        (
            "The grey line joins the arms than which no other is both faster and more accurate:"
            f" {names}. Bars are 95% intervals."
        ),
        charts.scatter(section.figures),
    )


def blocks(section: Section, links: Links) -> list[Block]:
    """Return the blocks of *section* in their order. Cases with a trace lead to their *links*."""
    titles: dict[CaseKind, str] = {
        "slowest": "Slowest",
        "lost": f"Lost: only {section.baseline} was right",
        "gained": f"Gained: {section.baseline} was wrong",
    }
    cases = [
        _case_table(title, section.cases[kind], section, links)
        for kind, title in titles.items()
        if section.cases[kind]
    ]
    return [
        Block(
            "Accuracy and time",
            [tables.accuracy_table(section), tables.time_table(section)],
            [accuracy_plot(section)],
        ),
        Block(
            "Steps and tokens by author",
            [tables.steps_table(section), tables.tokens_table(section)],
        ),
        Block("Problems to look at", cases),
    ]


def _case_table(title: str, cases: Sequence[Case], section: Section, links: Links) -> Table:
    rows = [_case_row(case, section) for case in cases]
    targets = [links.get((case.number, case.arm), "") for case in cases]
    if not any(targets):
        note = "No traces: `stepspec eval --traces` keeps them; this table then links to them."
        return Table(title, rows, note, words=4)
    traces = [Link("look", target) if target else "" for target in targets]
    linked = [{**row, "trace": trace} for row, trace in zip(rows, traces, strict=True)]
    return Table(title, linked, words=4)


def _case_row(case: Case, section: Section) -> dict[str, Cell]:
    problem = " ".join(section.run.problems[case.problem].split())
    if len(problem) > MAX_PROBLEM_CHARACTERS:
        problem = f"{problem[: MAX_PROBLEM_CHARACTERS - 1]}…"
    return {
        "problem": str(case.problem + 1),
        "": problem,
        "arm": case.arm,
        "outcome": case.outcome,
        "seconds": number(case.seconds),
        f"{section.baseline}, s": number(case.baseline_seconds),
        "rejected": f"{case.rejected} of {case.drafts}",
    }
