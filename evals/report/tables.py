"""The tables of a report, independent of their written format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from markupsafe import Markup

from stepspec.orchestrator.chain import Party

from ..results import Result, accuracy_rows
from .section import Case, CaseKind, Section

MODELS: tuple[Party, ...] = ("small", "large")
MAX_PROBLEM_CHARACTERS = 220
LINK = Markup('<a href="{}">look</a>')
Links: TypeAlias = Mapping[tuple[int, str], str]
"""Paths of the pages of traces, by the sample's number and arm."""
Row: TypeAlias = Mapping[str, str]
"""The cells of a row by the names of their columns. The first one names the row."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with at least one row."""

    title: str
    """Its heading."""
    rows: Sequence[Row]
    """The rows. All have the same columns in the same order."""
    note: str = ""
    """What its columns mean, in sentences."""
    words: int = 1
    """The number of columns with words, from the first. The other columns have numbers."""


def blocks(section: Section, links: Links) -> dict[str, list[Table]]:
    """
    Return the tables of *section* by the titles of their blocks, in order.

    Cases with a trace lead to their *links*.
    """
    titles: dict[CaseKind, str] = {
        "slowest": "Slowest",
        "lost": f"Lost: only {section.baseline} was right",
        "gained": f"Gained: {section.baseline} was wrong",
    }
    return {
        "Accuracy and time": [accuracy_table(section), time_table(section)],
        "Steps and tokens by author": [steps_table(section), tokens_table(section)],
        "Problems to look at": [
            _case_table(title, section.cases[kind], section, links)
            for kind, title in titles.items()
            if section.cases[kind]
        ],
    }


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def accuracy_table(section: Section) -> Table:
    return Table(
        "Accuracy",
        accuracy_rows(section.figures, section.baseline),
        "Brackets are 95% intervals: Wilson's for accuracy, Tango's score interval for the"
        " difference on the same problems (with several samples per problem, a bootstrap over the"
        " problems for both). The oracle takes the small model's sample"
        " where it is right and the large model's elsewhere: no choice of a model per problem is"
        " more accurate. Truncated runs ran out of tokens, time or context; they count as right if"
        " their answer is right.",
    )


def time_table(section: Section) -> Table:
    return Table(
        "Time of a problem, seconds",
        [_times(result, section.baseline) for result in section.figures],
        f"Vs {section.baseline}: total time divided by that of this arm, with a 95% bootstrap"
        " interval over the problems. First step: the median time until a step was committed."
        " Judging: mean seconds with a request open to judge; requests may overlap.",
    )


def _times(result: Result, baseline: str) -> Row:
    return {
        "": result.name,
        "mean": number(result.seconds),
        "median": number(result.median),
        "p95": number(result.tail),
        f"vs {baseline}": f"{result.ratio:,.2f}",
        "first step": number(result.first),
        "judging": number(result.total("judged") or None),
    }


def tokens_table(section: Section) -> Table:
    return Table(
        "Tokens of a problem, by model and fate",
        [_tokens(result) for result in section.figures],
        "Means. Kept: in the chain or the answer. Discarded: in rejected drafts and lost bets;"
        " waste is their share of all written tokens. Judging: read or written to judge, without"
        " those in a prefix cache. By large: the large model's share of the kept tokens. Cached:"
        " the share of a model's prompt tokens that its server had in the prefix cache, from the"
        " ledgers.",
    )


def _tokens(result: Result) -> Row:
    spent = result.spent
    return {
        "": result.name,
        **{f"{role} kept": number(spent[role]["kept"], 1) for role in MODELS},
        **{f"{role} discarded": number(spent[role]["discarded"], 1) for role in MODELS},
        "waste": percent(result.waste),
        "judging": number(result.total("judging") or None, 0),
        "by large": percent(result.share_large_tokens),
        "requests": number(result.total("requests") or None, 1),
        **{f"{role} cached": percent(_cached(spent[role])) for role in MODELS},
    }


def _cached(spent: Mapping[str, float]) -> float | None:
    """Return the share of the prompt tokens that were in the server's prefix cache."""
    return spent["cached"] / spent["prompt"] if spent["prompt"] else None


def steps_table(section: Section) -> Table:
    return Table(
        "Steps of a problem, by author and fate",
        [_steps(result) for result in section.figures if result.kind != "bound"],
        "Means. By small, by large: steps of the chain. Rejected: drafts that a verdict discarded,"
        " entirely or from some point on. Lost: drafts that were bets on a rejected one. Drafts"
        " accepted: the share of the judged drafts, without lost bets.",
    )


def _steps(result: Result) -> Row:
    steps = result.steps
    kept = steps["small"] + steps["large"]
    return {
        "": result.name,
        "by small": number(steps["small"], 1),
        "by large": number(steps["large"], 1),
        "share by small": percent(steps["small"] / kept if kept else None),
        "rejected": number(steps["rejected"]),
        "lost": number(steps["lost"]),
        "drafts accepted": percent(result.accept_rate),
    }


def _case_table(
    title: str,
    cases: Sequence[Case],
    section: Section,
    links: Links,
) -> Table:
    rows = [_case_row(case, section) for case in cases]
    targets = [links.get((case.number, case.sample.arm)) for case in cases]
    if not any(targets):
        note = "No traces: `stepspec eval --traces` keeps them; this table then links to them."
        return Table(title, rows, note, words=4)
    traces = [LINK.format(target) if target else "" for target in targets]
    linked = [{**row, "trace": trace} for row, trace in zip(rows, traces, strict=True)]
    return Table(title, linked, words=4)


def _case_row(case: Case, section: Section) -> Row:
    problem = " ".join(section.run.problems[case.problem].split())
    if len(problem) > MAX_PROBLEM_CHARACTERS:
        problem = f"{problem[: MAX_PROBLEM_CHARACTERS - 1]}…"
    sample = case.sample
    ledger = sample.ledger
    return {
        "problem": str(case.problem + 1),
        "": problem,
        "arm": sample.arm,
        "outcome": sample.outcome,
        "seconds": number(sample.seconds),
        f"{section.baseline}, s": number(case.baseline.seconds),
        "rejected": f"{ledger.drafts - ledger.accepted} of {ledger.drafts}",
    }
