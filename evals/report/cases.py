"""Single problems worth looking at: the slowest, the most disputed, and those that only one of two arms got right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..experiments.arms import LARGE
from ..sample import Sample
from .figures import Figures

SHOWN = 5
SHOWN_APART = 12


@dataclass(frozen=True, slots=True)
class Case:
    """One sample, beside the large model's own: *number* is the sample's, *rejected* of *drafts* were repaired."""

    number: int
    problem: int
    arm: str
    outcome: str
    seconds: float
    large_seconds: float
    drafts: int
    rejected: int


@dataclass(frozen=True, slots=True)
class Cases:
    """The *slowest* samples of the methods, the most *disputed*, and those *lost* or *gained* against large alone."""

    slowest: tuple[Case, ...]
    disputed: tuple[Case, ...]
    lost: tuple[Case, ...]
    gained: tuple[Case, ...]


def cases(arms: Sequence[Figures], numbered: Mapping[str, Mapping[int, Sample]], repeats: int) -> Cases:
    """Choose from the samples of the methods; *numbered* are those of every arm, by their number."""
    large = numbered[LARGE.name]
    ours = [
        (_case(number, repeats, sample, large[number]), sample.correct - large[number].correct)
        for figures in arms
        if figures.method
        for number, sample in numbered[figures.arm.name].items()
    ]
    every = [case for case, _ in ours]
    return Cases(
        tuple(sorted(every, key=lambda case: -case.seconds)[:SHOWN]),
        tuple(sorted((case for case in every if case.rejected), key=lambda c: (-c.rejected, -c.seconds))[:SHOWN]),
        tuple(case for case, apart in ours if apart < 0)[:SHOWN_APART],
        tuple(case for case, apart in ours if apart > 0)[:SHOWN_APART],
    )


def _case(number: int, repeats: int, sample: Sample, large: Sample) -> Case:
    ledger = sample.ledger
    return Case(
        number,
        number // repeats,
        sample.arm,
        sample.outcome,
        sample.seconds,
        large.seconds,
        ledger.drafts,
        ledger.drafts - ledger.accepted,
    )
