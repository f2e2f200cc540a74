"""What `stepspec judge` prints and writes: a table, one sentence, and settings. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from stepspec.settings import Settings

from ..estimate import report as estimate
from ..results import Interval
from .figures import ACCEPTED, MOST_PASSED, DraftFigures, ReadingFigures
from .readings import Request

SMALL_PRINT = (
    "AUROC: the probability that a right step is read as better than a slip; 0.5 is chance; brackets: a 95% bootstrap "
    "over the problems. Own steps: the large model samples them at 0.6 in the same places, and slips are made in them; "
    "they set the threshold, which accepts 90% of the right ones, because each model has a style of its own. Slips let "
    "through: their share at this threshold, with Wilson's 95% interval. Gaps and log-probabilities: in nats, larger "
    "ones for worse steps: of all tokens of a step, of those with digits, or of formulas, which are digits, operators "
    "and what follows a digit. ms: the median of the request with nothing beside it. In parentheses: a method with no "
    "threshold for this reading. Steps are short here, and slips are one kind of error: `stepspec eval` measures "
    "answers."
)


def table(rows: Sequence[ReadingFigures]) -> Table:
    """One row for each reading, the best first."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown = max((len(row.areas) for row in rows), default=1)
    areas = ("AUROC", "AUROC, own steps")[:shown]
    for column in ("reading", "method", *areas, "ms", "threshold", "slips let through"):
        made.add_column(column, justify="left" if column in ("reading", "method") else "right", no_wrap=True)
    for row in rows:
        reading = row.reading
        method = reading.policy if reading.options else f"({reading.policy})"
        threshold = abs(row.threshold)  # surprises are read as negative numbers, so that more is better
        ms = f"{1000 * row.seconds:.0f}"
        intervals = [f"{area.value:.2f} [{area.low:.2f}, {area.high:.2f}]" for area in row.areas]
        intervals += [""] * (shown - len(intervals))
        made.add_row(reading.name, method, *intervals, ms, f"{threshold:.2f}", percent(row.passed))
    return made


def percent(interval: Interval) -> str:
    return f"{interval.value:.0%} [{interval.low:.0%}, {interval.high:.0%}]"


def conclusion(rows: Sequence[ReadingFigures], chosen: ReadingFigures | None, drafts: DraftFigures | None) -> str:
    """Which method and settings fit the pair, or that none does."""
    if chosen is None:
        row = min((row for row in rows if row.reading.options), key=lambda row: row.passed.value, default=rows[0])
        return (
            f"No method fits this pair: the best reading, {row.reading.name}, lets {row.passed.value:.0%} of the slips "
            f"through where it accepts {ACCEPTED:.0%} of the right steps, and {MOST_PASSED:.0%} would be the most; use "
            "the large model alone, or a reward model (--critic)."
        )
    options = ", ".join(f"{name} = {value}" for name, value in chosen.options.items())
    text = (
        f"The method {chosen.reading.policy} with {options} fits this pair: it accepts {chosen.accepted:.0%} of the "
        f"right steps and lets {chosen.passed.value:.0%} of the slips through"
    )
    if drafts is not None:
        text += f", and it accepts {percent(drafts.accepted)} of {drafts.drafts} drafts of the small model"
    return f"{text}."


def settings_file(
    settings: Settings, chosen: ReadingFigures | None, drafts: DraftFigures | None, sentence: str, date: str
) -> str:
    """The settings to use, as a TOML file that stepspec reads; API keys are left out."""
    prior = None if drafts is None else (drafts.accepted.value, drafts.verdict_seconds)
    return estimate.settings_file(
        settings,
        (sentence, f"Measured by `stepspec judge` on {date}."),
        {"policy": chosen.reading.policy if chosen else "large"},
        chosen.options if chosen else None,
        prior,
    )


def record(
    rows: Sequence[ReadingFigures], chosen: ReadingFigures | None, drafts: DraftFigures | None, steps: int,
    skipped: Mapping[Request, str], sentence: str, toml: str,
) -> dict[str, Any]:  # fmt: skip
    """All figures, for ``--json``."""
    return {
        "fits": chosen is not None,
        "conclusion": sentence,
        "policy": chosen.reading.policy if chosen else None,
        "options": dict(chosen.options) if chosen else None,
        "steps": steps,
        "drafts": asdict(drafts) if drafts else None,
        "readings": [_row(row) for row in rows],
        "skipped": dict(skipped),
        "settings": toml,
    }


def _row(row: ReadingFigures) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(row).items() if name != "reading"}
    return {
        "name": row.reading.name,
        "policy": row.reading.policy,
        "area": row.area,
        **fields,
        "options": dict(row.options),
    }
