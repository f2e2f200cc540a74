"""What a report shows of a section, in order, whatever it is written as: blocks of plots and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from . import paper_tables, plots, tables
from .cases import Case
from .figures import Figures
from .judging import Judge
from .plots import front, scatter
from .section import Section
from .svg import Drawing, Markup
from .tables import Cell, Link, Row, Table, number

Links: TypeAlias = Mapping[tuple[int, str], str]  # pages of traces, by the number of the sample and its arm
LONGEST = 220  # letters of a problem


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture for the page; *keys* explain its colours, each as a name, whose colour it is, and if it is hatched."""

    title: str
    note: str
    draw: Drawing
    keys: tuple[tuple[str, str, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class Beside:
    """Two small pictures of the same thing, one of which may be missing."""

    title: str
    note: str
    first: Markup
    second: Markup | None


@dataclass(frozen=True, slots=True)
class Block:
    title: str
    plots: tuple[Plot | Beside, ...] = ()
    tables: tuple[Table, ...] = ()


def blocks(section: Section, links: Links) -> Iterator[Block]:
    ran = [f for f in section.figures if not f.bound]
    against = [f for f in ran if f.arm.policy != "large"]
    yield Block(
        "Accuracy and time",
        (
            Plot(
                "Accuracy against latency",
                f"Nothing measured is both faster and more accurate than {_and(front(section.figures))}: the grey "
                "line. Bars are 95% intervals.",
                lambda width: scatter(section.figures, width),
            ),
            Plot(
                "Points of accuracy against large alone",
                "The same problems, with 95% intervals. An interval across the line is no proof of a difference, "
                "nor of none.",
                lambda width: plots.differences(against, width),
            ),
        )
        if against
        else (),
        (tables.accuracy(section), tables.time(section)),
    )
    yield Block(
        "Who writes, and what becomes of it",
        (
            _stacked("Steps", ran, plots.steps, lambda f: ""),
            _stacked("Tokens", ran, plots.tokens, _judging),
        ),
        (tables.steps(section), tables.tokens(section)),
    )
    if section.judges:
        yield Block("The judge", tuple(map(_judged, section.judges)), (tables.judges(section),))
    counted = (tables.servers(section),) if section.counted else ()
    yield Block("Servers and cost", (), (*counted, tables.cost(section)))
    yield Block("In the papers' layout", (), tuple(paper_tables.tables(section)))
    found = section.cases
    chosen = (
        ("Slowest", found.slowest),
        ("Most disputed: drafts rejected", found.disputed),
        ("Lost: large alone was right", found.lost),
        ("Gained: large alone was not", found.gained),
    )
    yield Block(
        "Problems to look at", (), tuple(_listed(title, each, section, links) for title, each in chosen if each)
    )


def _and(arms: list[Figures]) -> str:
    *others, last = [f.arm.name for f in arms]
    return f"{', '.join(others)} and {last}" if others else last


def _judging(f: Figures) -> str:
    judging = sum(spent.judging for spent in f.spent.values())
    return f", judging {judging:.0f}" if judging else ""


def _stacked(title: str, ran: list[Figures], parts: plots.Parts, more: Callable[[Figures], str]) -> Plot:
    rows = [(f.arm.name, parts(f), more(f)) for f in ran]
    unit = title.split()[0].lower()
    keys = tuple(
        (part.name, part.author, part.wasted)
        for place, part in enumerate(rows[0][1])
        if any(each[place].amount for _, each, _ in rows)
    )
    return Plot(
        f"{title} of a problem",
        f"Means over all samples. Hatched {unit} were written for nothing."
        + (" Judging: tokens read to judge, which cost far less." if unit == "tokens" else ""),
        lambda width: plots.stacked(rows, unit, width),
        keys,
    )


def _judged(judge: Judge) -> Beside:
    found = judge.separation
    better = "lower is better" if judge.doubt else "higher is better"
    level = (
        "" if found is None else {"step": ", steps known to be right or wrong", "answer": ", by answer"}[found.level]
    )
    return Beside(
        f"Scores of {judge.arm}",
        f"Both sides have a scale of their own; {better}{level}.",
        plots.histogram(judge),
        plots.curve(judge, found) if found else None,
    )


def _listed(title: str, chosen: tuple[Case, ...], section: Section, links: Links) -> Table:
    linked = any((case.number, case.arm) in links for case in chosen)
    return Table(
        title,
        ("problem", "", "arm", "outcome", "seconds", "large alone", "rejected", *(("trace",) if linked else ())),
        tuple((*_case(case, section), *((_link(case, links),) if linked else ())) for case in chosen),
        "" if linked else "No traces: `stepspec eval --traces` keeps them, and then this table leads to them.",
        words=4,
    )


def _case(case: Case, section: Section) -> Row:
    problem = " ".join(section.run.tasks[case.problem].problem.split())
    shown = problem if len(problem) <= LONGEST else f"{problem[: LONGEST - 1]}…"
    return (
        str(case.problem + 1),
        shown,
        case.arm,
        case.outcome,
        number(case.seconds),
        number(case.large_seconds),
        f"{case.rejected} of {case.drafts}",
    )


def _link(case: Case, links: Links) -> Cell:
    target = links.get((case.number, case.arm))
    return Link("look", target) if target else ""
