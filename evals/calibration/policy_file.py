"""From a calibration on real servers to a policy file that `solve`, `serve` and `eval` accept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from hashlib import blake2b
from typing import Any

from pydantic import BaseModel
from rich.table import Table

from stepspec import policies
from stepspec.api import Solver
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Committed, Event, Judged, Lost, Repaired
from stepspec.orchestrator.feedback.drift import grades
from stepspec.orchestrator.toml import document
from stepspec.policies.option_types import THRESHOLDS, Threshold
from stepspec.settings import Settings

from ..benchmarks import Benchmark
from ..experiments.arms import LARGE
from ..grading.graders import Graders
from ..sample import Arm, Task, seed, solve_once
from .search import Attempt, CalibrationResult, Decision, Trial

SERVED = ("ahead", "hedge", "lead", "ending", "answer", "early_exit", "sure_bets", "delimiter")
SEEDS_APART = 1_000_003  # between those that eval reports on and those that are calibrated on


def knob(policy: str, option: str | None = None, values: Sequence[float] | None = None) -> Threshold:
    """
    The knob of *policy*, or another *option* with its *values*, the strictest first.

    Raise `ConfigurationError` where there is none.
    """
    policies.options(policy)  # raises for a name that is none
    known = THRESHOLDS.get(policy)
    if option is None or (known is not None and option == known.option):
        if known is None:
            raise ConfigurationError(
                f"what makes {policy!r} looser is not known: name an option and its values, the strictest first, as in "
                f"--option threshold --values 9,8,7 (known: {', '.join(THRESHOLDS)})"
            )
        return Threshold(known.option, tuple(values), known.compared) if values else known
    if not values:
        raise ConfigurationError(f"--option {option} needs --values, the strictest first")
    return Threshold(option, tuple(values))


def served(settings: Settings, policy: str, knob: Threshold, value: float) -> Arm:
    """What a solver with these *settings* does by *policy*, once the *knob* is at *value*."""
    told = settings.with_overrides({"policy": policy})
    own = {name: getattr(told, name) for name in SERVED}
    return Arm(policy, policy, {**told.options, knob.option: value}, **own)


def bearing(settings: Settings, policy: str, knob: Threshold) -> dict[str, Any]:
    """What else the promise is about; see `Settings.conditions`."""
    found = settings.with_overrides({"policy": policy}).conditions()
    found["options"].pop(knob.option, None)
    return found


def differing(settings: Settings) -> dict[str, Any]:
    """What a settings file has to say beside the options, so that what is served is what was calibrated."""
    usual = Settings.model_construct()
    own = {name: getattr(settings, name) for name in SERVED if getattr(settings, name) != getattr(usual, name)}
    return own | {
        table: found
        for table, omitted in (("sampling", {"seed"}), ("budget", set[str]()))
        if (found := _differing(getattr(settings, table), getattr(usual, table), omitted))
    }


def _differing(one: BaseModel, usual: BaseModel, omitted: set[str]) -> dict[str, Any]:
    values, others = (each.model_dump(mode="json", exclude=omitted, exclude_none=True) for each in (one, usual))
    return {key: value for key, value in values.items() if others.get(key) != value}


def attempts(
    solver: Solver,
    tasks: Sequence[Task],
    benchmark: Benchmark,
    policy: str,
    knob: Threshold,
    graders: Graders,
    base: int,
) -> Attempt:
    """
    Try a value by solving on real servers; what ended without an answer that could be graded is not right.

    The sampling of each problem has a seed of its own, derived from *base*, which is the same for all values.
    """

    async def attempt(problem: int, value: float | None) -> Trial:
        events: list[Event] = []
        arm = LARGE if value is None else served(solver.settings, policy, knob, value)
        task = tasks[problem]
        seeded = solver.settings.sampling.model_copy(update={"seed": seed(base, problem, 0)})
        solved = await solve_once(solver, arm, task.problem, sampling=seeded, observe=events.append)
        text = solved.solution.text if solved.solution else ""
        right = bool(text) and await graders.grade(text, task.answer, benchmark.metric) == "right"
        finish = solved.solution.finish_reason if solved.solution else "failed"
        written = [event.step.text for event in events if isinstance(event, Committed)]
        digest = _digest(*written, text, finish)
        return Trial(problem, value, right, tuple(grades(events)), tuple(decisions(events)), digest)

    return attempt


def decisions(events: Iterable[Event]) -> list[Decision]:
    """
    The verdicts that a run went by, in the order of its steps: those on drafts that were committed or repaired.

    A verdict that the run ended with counts too. Those on lost bets do not: they bear on nothing.
    """
    judged: dict[int, Judged] = {}
    chain: list[str] = []
    places = 0
    decided: list[Decision] = []

    def decide(index: int) -> None:
        if event := judged.pop(index, None):
            decided.append(Decision(event.verdict.score, _digest(*chain, event.draft.text)))

    for event in events:
        match event:
            case Judged(index):
                judged[index] = event
            case Lost(index):
                judged.pop(index, None)
            case Repaired(index):
                decide(index)
            case Committed(index, step):
                decide(index)
                chain.append(step.text)
                places = index + 1
            case _:
                pass
    decide(places)
    return decided


def _digest(*texts: str) -> str:
    return blake2b("".join(texts).encode(), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True)
class CalibrationSettings:
    """
    What was calibrated, and what came of it; made for the eye and for a settings file.

    *options* are the policy's others, *besides* what else the file says. The promise is of these *models*, by their
    roles, and of runs that are *told* so much.
    """

    policy: str
    knob: Threshold
    benchmark: str
    calibrated: CalibrationResult
    options: Mapping[str, Any]
    besides: Mapping[str, Any] = field(default_factory=dict[str, Any])
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    told: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def confidence(self) -> float:
        return round(1 - self.calibrated.level, 6)

    def said(self) -> str:
        """One sentence that says what may be relied on, or what it would take."""
        c, found = self.calibrated, self.calibrated.found
        if found is not None:
            attempts = f", all {c.attempt} attempts together" if c.attempt > 1 else ""
            return (
                f"With {self.knob.option} = {found.threshold:g}, {self.policy} loses at most {c.limit:.1%} of such "
                f"problems to the large model alone, at {self.confidence:.0%} confidence{attempts}."
            )
        strictest = c.tested[0]
        said = (
            f"No {self.knob.option} of {self.policy} can be promised: at {strictest.threshold:g}, the strictest, "
            f"{strictest.paired.n} problems with {strictest.paired.lost} lost and {strictest.paired.gained} gained do "
            f"not show that the loss is at most {c.limit:.1%} at {self.confidence:.0%} confidence."
        )
        if c.enough is None:
            return f"{said} Nor would more problems at these rates: the loss itself is no less than the limit."
        least = c.next_attempt.needed()
        return (
            f"{said} At these rates {c.enough:,} problems would do in another attempt with these trials, and with "
            f"nothing lost at all {least:,}: the same command with a larger --count."
        )

    def table(self) -> Table:
        shown = Table(title=f"{self.policy} on {self.benchmark}, against the large model alone")
        for column in (self.knob.option, "problems", "lost", "gained", "loss", "p", "holds"):
            shown.add_column(column, justify="right")
        for each in self.calibrated.tested:
            paired = each.paired
            counts = (str(paired.n), str(paired.lost), str(paired.gained))
            shown.add_row(
                f"{each.threshold:g}", *counts, f"{paired.loss:.1%}", f"{each.p:.4f}", "yes" if each.holds else "no"
            )
        return shown

    def toml(self) -> str:
        """The settings file. Raise `ConfigurationError` if nothing can be promised."""
        found, c = self.calibrated.found, self.calibrated
        if found is None:
            raise ConfigurationError(self.said())
        calibration = {
            "policy": self.policy,
            "option": self.knob.option,
            "value": float(found.threshold),
            "max_loss": c.limit,
            "confidence": self.confidence,
            "attempt": c.attempt,
            "benchmark": self.benchmark,
            "problems": found.paired.n,
            "lost": found.paired.lost,
            "gained": found.paired.gained,
            "date": str(date.today()),
            "edges": list(c.grades.edges),
            "counts": list(c.grades.counts),
        }
        options = {**self.options, self.knob.option: float(found.threshold)}
        about = {"calibration.models": self.models, "calibration.told": self.told}
        tables = {"policy": self.policy, **self.besides, "options": options, "calibration": calibration, **about}
        return f"# {self.said()}\n{document(tables)}"
