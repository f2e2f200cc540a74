"""
One section of a report: the figures of one run, remarks on their limits, provenance, and cases to
look at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stepspec.orchestrator.errors import ConfigurationError

from ..results import Result, by_time, compare_arms, complete
from ..sample import Sample
from ..testbed.servers import miniature
from .run_folder import Run
from .verdict import MAX_LOSS, verdict

MAX_SLOWEST_CASES = 5
MAX_CHANGED_CASES = 12
"""The most cases that were lost, and the most that were gained."""


@dataclass(frozen=True, slots=True)
class Case:
    """A sample of a method beside that of the baseline."""

    number: int
    """The number of the sample."""
    problem: int
    """The number of the problem."""
    sample: Sample
    """The method's sample."""
    baseline: Sample
    """The baseline's sample."""


CaseKind: TypeAlias = Literal["slowest", "lost", "gained"]
Cases: TypeAlias = Mapping[CaseKind, Sequence[Case]]
"""Samples of methods with the most seconds, and samples lost to or gained on the baseline."""


@dataclass(frozen=True, slots=True)
class Section:
    """One run with its figures. All figures compare with one arm, the baseline."""

    run: Run
    """The run."""
    figures: Sequence[Result]
    """The figures of all arms."""
    cases: Cases
    """Cases to look at."""
    verdicts: Mapping[str, str]
    """The verdict on each method, the fastest first."""
    max_loss: float
    """The acceptable loss of accuracy, as a share of all problems."""
    baseline: str
    """The name of the baseline."""

    @property
    def title(self) -> str:
        return str(self.run.about["benchmark"])

    @property
    def problems(self) -> int:
        """The number of problems for which every arm has all its samples. All figures use these."""
        return self.figures[0].n // self.run.repeats

    @property
    def models(self) -> dict[str, str]:
        return dict(self.run.about["models"])

    @property
    def miniature(self) -> bool:
        return miniature(self.models.values())

    @property
    def stamp(self) -> str:
        """The line below every plot and table: benchmark, number of problems, models, dates."""
        count = str(self.problems)
        if self.run.repeats > 1:
            count += f" x {self.run.repeats} samples"
        models = f"{self.models['large']} with {self.models['small']}"
        if self.miniature:
            models += " (the miniature pair)"
        days = sorted({session["date"][:10] for session in self.run.sessions})
        dates = " to ".join(dict.fromkeys((days[0], days[-1])))
        return f"{self.title}, n = {count}; {models}; {dates}"

    @property
    def remarks(self) -> list[str]:
        """What was remarked when the run was measured."""
        sessions = self.run.sessions
        remarks = [remark for session in sessions for remark in session.get("remarks", ())]
        return list(dict.fromkeys(remarks))


def build_section(run: Run, max_loss: float = MAX_LOSS, baseline: str = "") -> Section:
    """
    Compute everything about *run*. The verdicts are about a loss of accuracy above *max_loss*.

    The *baseline* is by default the first arm. Raise `ConfigurationError`
    if the run has no such arm, or if no problem was solved by all of its arms.
    """
    baseline = baseline or run.arms[0]
    if baseline not in run.arms:
        raise ConfigurationError(
            f"--baseline {baseline}: the run has no such arm; its arms: {', '.join(run.arms)}",
        )
    figures = compare_arms(run.done, run.arms, run.repeats, baseline)
    if not figures:
        raise ConfigurationError(
            f"{run.path}: no problem was solved by all arms yet; go on with the same"
            " `stepspec eval`",
        )
    samples = complete(run.done, run.arms, run.repeats)
    methods = [result for result in by_time(figures) if result.kind == "method"]
    return Section(
        run=run,
        figures=figures,
        cases=choose_cases(figures, samples, run.repeats, baseline),
        verdicts={
            method.name: verdict(method, method.n // run.repeats, max_loss) for method in methods
        },
        max_loss=max_loss,
        baseline=baseline,
    )


def choose_cases(
    arms: Sequence[Result],
    samples: Mapping[str, Mapping[int, Sample]],
    repeats: int,
    baseline: str,
) -> Cases:
    """Choose cases of the methods from the *samples* of every arm by their number."""
    cases = [
        Case(number, number // repeats, sample, samples[baseline][number])
        for arm in arms
        if arm.kind == "method"
        for number, sample in samples[arm.name].items()
    ]
    changed = [case for case in cases if case.sample.correct != case.baseline.correct]
    lost = [case for case in changed if case.baseline.correct]
    gained = [case for case in changed if case.sample.correct]
    cases.sort(key=lambda case: -case.sample.seconds)
    return {
        "slowest": cases[:MAX_SLOWEST_CASES],
        "lost": lost[:MAX_CHANGED_CASES],
        "gained": gained[:MAX_CHANGED_CASES],
    }
