"""The figures of the recorded samples: accuracy paired with plain, tokens, and modelled seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lab.tables import Sheet
from stepspec.evals.plain import PLAIN
from stepspec.evals.results import Interval, bootstrap_ratio, difference

from .modelled import LARGE, replay
from .runs import Samples

AHEAD = 2
"""Drafts ahead in the modelled seconds."""
COLUMNS = (
    "",
    "n",
    "right",
    "plain right",
    "paired",
    "difference",
    "tokens of the large model",
    "drafts accepted",
    "draft tokens wasted",
    "one after the other",
    "two drafts ahead",
)


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm beside plain on the same problems."""

    problems: int
    """Problems that both solved."""
    right: int
    """Problems that the arm solved."""
    plain_right: int
    """Problems that plain solved."""
    gained: int
    """Problems that only the arm solved."""
    lost: int
    """Problems that only plain solved."""
    difference: Interval
    """Accuracy of the arm minus that of plain, with Tango's 95% score interval."""
    large_share: float
    """Share of the solutions' tokens that the large model wrote."""
    accepted: float
    """Share of the drafts that were accepted whole."""
    wasted: float
    """Share of the tokens of judged drafts that were cut."""
    sequential: Interval
    """Modelled seconds over those of plain, one request after the other."""
    ahead: Interval
    """The same with `AHEAD` drafts ahead."""

    def row(self, name: str) -> tuple[str, ...]:
        return (
            name,
            str(self.problems),
            str(self.right),
            str(self.plain_right),
            f"+{self.gained} -{self.lost}",
            f"{self.difference.points:+z.1f}",
            f"{self.large_share:.0%}",
            f"{self.accepted:.0%}",
            f"{self.wasted:.0%}",
            f"{self.sequential:.2f}",
            f"{self.ahead:.2f}",
        )


def figures(
    ours: Mapping[int, Mapping[str, Any]],
    plain: Mapping[int, Mapping[str, Any]],
    draft_tokens: int | None = None,
) -> Figures:
    """
    Compare samples by the number of their problem.

    Drafts have *draft_tokens* tokens; None: as recorded.
    """
    both = [(ours[number], plain[number]) for number in sorted(ours.keys() & plain.keys())]
    gained = sum(mine["right"] and not theirs["right"] for mine, theirs in both)
    lost = sum(theirs["right"] and not mine["right"] for mine, theirs in both)
    rounds = [each for mine, _ in both for each in mine["rounds"]]
    small = sum(each[1] for each in rounds)
    large = sum(each[3] for each in rounds)
    cuts = sum(not each[2] for each in rounds)
    once = [replay(mine["rounds"], draft_tokens, 0) for mine, _ in both]
    ahead = [replay(mine["rounds"], draft_tokens, AHEAD) for mine, _ in both]
    usual = [LARGE * theirs["large"]["kept"] for _, theirs in both]
    drafts = sum(work.drafts for _, work in once)
    return Figures(
        problems=len(both),
        right=sum(mine["right"] for mine, _ in both),
        plain_right=sum(theirs["right"] for _, theirs in both),
        gained=gained,
        lost=lost,
        difference=difference(len(both), gained, lost),
        large_share=large / (small + large),
        accepted=1 - cuts / drafts,
        wasted=1 - small / sum(work.drafted for _, work in once),
        sequential=bootstrap_ratio([seconds for seconds, _ in once], usual),
        ahead=bootstrap_ratio([seconds for seconds, _ in ahead], usual),
    )


def tables(samples: Samples, lengths: Sequence[int | None]) -> str:
    """A table in Markdown of each benchmark and temperature, with a row a method and length."""
    sheets: dict[str, list[tuple[str, ...]]] = {}
    for cell, ours in samples.items():
        plain = samples.get(replace(cell, method=PLAIN), {})
        if cell.method == PLAIN or not ours.keys() & plain.keys():
            continue
        title = f"{cell.benchmark}, {written_temperature(cell.temperature)}"
        rows = sheets.setdefault(title, [])
        for length in lengths:
            name = cell.method if length is None else f"{cell.method}, drafts of {length}"
            rows.append(figures(ours, plain, length).row(name))
    return "\n\n".join(Sheet(COLUMNS, rows, title).markdown() for title, rows in sheets.items())


def written_temperature(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"
