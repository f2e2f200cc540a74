"""The tables of a report, independent of their written format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stepspec.orchestrator.chain import Party

from ..results import accuracy_rows
from .figures import ArmFigures
from .section import Section

MODELS: tuple[Party, ...] = ("small", "large")


@dataclass(frozen=True, slots=True)
class Link:
    """A text that leads to the page of a trace."""

    text: str
    """The text."""
    target: str
    """The path of the page, relative to the report."""


Cell: TypeAlias = str | Link
Row: TypeAlias = Mapping[str, Cell]
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


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def accuracy_table(section: Section) -> Table:
    rows = accuracy_rows([f.standing for f in section.figures], section.baseline)
    return Table("Accuracy", rows, ACCURACY_NOTE)


ACCURACY_NOTE = (
    "Brackets are 95% intervals: Wilson's for accuracy, Tango's score interval for the difference"
    " on the same problems (with several samples per problem, a bootstrap over the problems for"
    " both). p: McNemar's exact test. The oracle takes the small model's sample where it is right"
    " and the large model's elsewhere: no choice of a model per problem is more accurate. Truncated"
    " runs ran out of tokens, time or context; they count as right if their answer is right."
)


def time_table(section: Section) -> Table:
    return Table(
        "Time of a problem, seconds",
        [_times(f, section.baseline) for f in section.figures],
        f"Vs {section.baseline}: total time divided by that of this arm, with a 95% bootstrap"
        " interval over the problems. Vs floor: divided by the time to write every kept token on"
        " the model that wrote it. First step: the median time until a step was committed. Small"
        " busy, large busy, judging: mean seconds with a request open to that model, or to judge;"
        " they overlap. Busy seconds times the GPUs of the model are the GPU-seconds on servers"
        " that others use in between; without others, GPUs are held for the mean time.",
    )


def _times(f: ArmFigures, baseline: str) -> Row:
    r = f.result
    busy = {f"{role} busy": number(f.busy[role]) if role in f.spent else "" for role in MODELS}
    return {
        "": r.name,
        "mean": number(r.seconds),
        "median": number(f.median),
        "p95": number(f.tail),
        f"vs {baseline}": f"{r.ratio_estimate:,.2f}",
        "vs floor": number(r.ratio_to_floor),
        "first step": number(f.first),
        **busy,
        "judging": number(_spent(f, "judged")),
    }


def _spent(f: ArmFigures, field: str) -> float | None:
    """Return the sum of a *field* of the accounts; None if it is 0."""
    return sum(account[field] for account in f.spent.values()) or None


def tokens_table(section: Section) -> Table:
    return Table(
        "Tokens of a problem, by model and fate",
        [_tokens(f) for f in section.figures],
        "Means. Kept: in the chain or the answer. Discarded: in rejected drafts and lost bets;"
        " waste is their share of all written tokens. Judging: read or written to judge, without"
        " those in a prefix cache. By large: the large model's share of the kept tokens. Cached:"
        " the share of a model's prompt tokens that its server had in the prefix cache, from the"
        " ledgers.",
    )


def _tokens(f: ArmFigures) -> Row:
    accounts = [(role, f.spent.get(role, {})) for role in MODELS]
    return {
        "": f.arm.name,
        **{f"{role} kept": number(account.get("kept"), 1) for role, account in accounts},
        **{f"{role} discarded": number(account.get("discarded"), 1) for role, account in accounts},
        "waste": percent(f.result.waste),
        "judging": number(_spent(f, "judging"), 0),
        "by large": percent(f.result.share_large_tokens),
        "requests": number(_spent(f, "requests"), 1),
        **{f"{role} cached": percent(_cached(account)) for role, account in accounts},
    }


def _cached(account: Mapping[str, float]) -> float | None:
    """Return the share of the prompt tokens that were in the server's prefix cache."""
    prompt = account.get("prompt")
    return account["cached"] / prompt if prompt else None


def steps_table(section: Section) -> Table:
    return Table(
        "Steps of a problem, by author and fate",
        [_steps(f) for f in section.figures if not f.bound],
        "Means. By small, by large: steps of the chain. Rejected: drafts that a verdict discarded,"
        " entirely or from some point on. Lost: drafts that were bets on a rejected one. Drafts"
        " accepted: the share of the judged drafts, without lost bets.",
    )


def _steps(f: ArmFigures) -> Row:
    steps = f.steps
    kept = steps["small"] + steps["large"]
    return {
        "": f.arm.name,
        "by small": number(steps["small"], 1),
        "by large": number(steps["large"], 1),
        "share by small": percent(steps["small"] / kept if kept else None),
        "rejected": number(steps["rejected"]),
        "lost": number(steps["lost"]),
        "drafts accepted": percent(f.result.accept_rate),
    }
