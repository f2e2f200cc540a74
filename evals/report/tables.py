"""
The tables of a report, and those of the papers by their definitions, independent of their written
format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stepspec.orchestrator.chain import Party

from ..results import Interval, noted_outcomes
from .figures import ArmFigures
from .section import Section

MODELS: tuple[Party, ...] = ("small", "large")


@dataclass(frozen=True, slots=True)
class Link:
    """Text with a link to the page of a trace."""

    text: str
    target: str


Cell: TypeAlias = str | Link
Row: TypeAlias = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """
    A table: the first of its *columns* names the rows, and a *note* below explains the others.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    words: int = 1  # the number of columns, from the first, with words; the others have numbers


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def accuracy_table(section: Section) -> Table:
    shown = noted_outcomes([f.standing for f in section.figures])
    return Table(
        "Accuracy",
        ("", "right", "accuracy", f"difference from {section.baseline}, points", "p", *shown),
        tuple(
            (
                *_accuracy_row(f, section.run.repeats, section.baseline),
                *map(f.standing.count, shown),
            )
            for f in section.figures
        ),
        "Brackets are 95% intervals: Wilson's for accuracy, Tango's score interval for the"
        " difference on the same problems (with several samples per problem, a bootstrap over the"
        " problems for both). p: McNemar's exact test. The oracle takes the small model's sample"
        " where it is right and the large model's elsewhere: no choice of a model per problem is"
        " more accurate."
        + (
            " Truncated runs ran out of tokens, time or context; they count as right if their"
            " answer is right."
            if shown
            else ""
        ),
    )


def _accuracy_row(f: ArmFigures, repeats: int, baseline: str) -> Row:
    r = f.result
    itself = r.name == baseline
    return (
        r.name,
        f"{round(r.accuracy * r.n)} of {r.n}",
        f"{Interval(r.accuracy, *r.accuracy_interval):.1%}",
        "" if itself else f"{f.standing.difference.points:+.1f}",
        "" if itself or repeats > 1 else number(f.standing.p, 3),
    )


def time_table(section: Section) -> Table:
    return Table(
        "Time of a problem, seconds",
        (
            *("", "mean", "median", "p95", f"vs {section.baseline}", "vs floor", "first step"),
            *("small busy", "large busy", "judging"),
        ),
        tuple(_time_row(f) for f in section.figures),
        f"Vs {section.baseline}: total time divided by that of this arm, with a 95% bootstrap"
        " interval over the problems. Vs floor: divided by the time to write every kept token on"
        " the model that wrote it. First step: the median time until a step was committed. Small"
        " busy, large busy, judging: mean seconds with a request open to that model, or to judge;"
        " they overlap. Busy seconds times the GPUs of the model are the GPU-seconds on servers"
        " that others use in between; without others, GPUs are held for the mean time.",
    )


def _time_row(f: ArmFigures) -> Row:
    r = f.result
    judged = sum(account.judged for account in f.spent.values())
    return (
        r.name,
        number(r.seconds),
        number(f.median),
        number(f.tail),
        f"{Interval(r.ratio, *r.ratio_interval):,.2f}",
        number(r.ratio_to_floor),
        number(f.first),
        *(number(f.busy[party]) if party in f.spent else "" for party in MODELS),
        number(judged) if judged else "",
    )


def tokens_table(section: Section) -> Table:
    return Table(
        "Tokens of a problem, by model and fate",
        (
            "", "small kept", "large kept", "small discarded", "large discarded", "waste", "judging", "by large",
            "requests", "small cached", "large cached",
        ),
        tuple(_token_row(f) for f in section.figures),
        "Means. Kept: in the chain or the answer. Discarded: in rejected drafts and lost bets; waste is their share of "
        "all written tokens. Judging: read or written to judge, without those in a prefix cache. By large: the large "
        "model's share of the kept tokens. Cached: the share of a model's prompt tokens that its server had in the "
        "prefix cache, from the ledgers.",
    )  # fmt: skip


def _token_row(f: ArmFigures) -> Row:
    small = f.spent.get("small")
    large = f.spent.get("large")
    judging = sum(account.judging for account in f.spent.values())
    return (
        f.arm.name,
        *(number(account.kept if account else None, 1) for account in (small, large)),
        *(number(account.discarded if account else None, 1) for account in (small, large)),
        percent(f.result.waste),
        number(judging, 0) if judging else "",
        percent(f.result.share_large_tokens),
        number(sum(account.requests for account in f.spent.values()), 1),
        *(percent(account.hits if account else None) for account in (small, large)),
    )


def steps_table(section: Section) -> Table:
    return Table(
        "Steps of a problem, by author and fate",
        (
            "",
            "by small",
            "by large",
            "share by small",
            "rejected",
            "lost",
            "drafts accepted",
            "reasons of repairs",
        ),
        tuple(_step_row(f) for f in section.figures if not f.bound),
        "Means. By small, by large: steps of the chain. Rejected: drafts that a verdict discarded,"
        " entirely or from some point on. Lost: drafts that were bets on a rejected one. Drafts"
        " accepted: the share of the judged drafts, without lost bets.",
    )


def _step_row(f: ArmFigures) -> Row:
    reasons = ", ".join(
        f"{reason} {count}"
        for reason, count in sorted(f.rejections.items(), key=lambda row: -row[1])
    )
    return (
        f.arm.name,
        number(f.steps.small, 1),
        number(f.steps.large, 1),
        percent(f.steps.share_small),
        number(f.steps.rejected),
        number(f.steps.lost),
        percent(f.result.accept_rate),
        reasons,
    )
