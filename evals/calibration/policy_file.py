"""
Runs of a calibration on real servers, and the policy file that `solve`, `serve` and `eval` accept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any

from pydantic import BaseModel
from rich.table import Table

from stepspec import policies
from stepspec.api import Solver
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.run_options import arm_options
from stepspec.orchestrator.toml import document
from stepspec.policies import Threshold
from stepspec.settings import Settings

from ..arms import LARGE
from ..grading.graders import Graders
from ..plan import configured_arm
from ..sample import Arm, Task, derive_seed, solve_once
from .search import CalibrationResult, CalibrationRun, SolveAt

# between the seeds of generated problems for reports and those for calibration
SEEDS_APART = 1_000_003


def find_threshold(
    policy: str, option: str | None = None, values: Sequence[float] | None = None
) -> Threshold:
    """
    Return the threshold of *policy*, or another *option* with its *values*, the strictest first.

    Raise `ConfigurationError` if there is none.
    """
    known = policies.METHODS.find(policy).threshold
    if option is None or (known is not None and option == known.option):
        if known is None:
            known_thresholds = (
                name for name, method in policies.METHODS.items() if method.threshold
            )
            raise ConfigurationError(
                f"{policy!r} has no known threshold: name an option and its values, the strictest"
                " first, as in --vary threshold --values 9,8,7 (methods with a known threshold:"
                f" {', '.join(known_thresholds)})"
            )
        _check_order(values or known.values, rising=known.values[0] < known.values[-1])
        return Threshold(known.option, tuple(values)) if values else known
    if not values:
        raise ConfigurationError(f"--vary {option} needs --values, the strictest first")
    _check_order(values, rising=values[0] < values[-1])
    return Threshold(option, tuple(values))


def _check_order(values: Sequence[float], *, rising: bool) -> None:
    """Raise `ConfigurationError` unless *values* rise, or fall: the strictest has to come first."""
    ordered = sorted(values, reverse=not rising)
    if list(values) != ordered:
        right = ",".join(f"{value:g}" for value in ordered)
        raise ConfigurationError(f"--values: the strictest comes first, as in {right}")


def served_arm(settings: Settings, threshold: Threshold, value: float) -> Arm:
    """
    The arm that solves as a solver with these *settings* does, with the *threshold* at *value*.
    """
    return configured_arm(settings, {threshold.option: value})


def promise_conditions(settings: Settings, threshold: Threshold) -> dict[str, Any]:
    """
    The settings that the promise depends on, without the *threshold* itself; see
    `Settings.conditions`.
    """
    conditions = settings.conditions()
    conditions["options"].pop(threshold.option, None)
    return conditions


def changed_settings(settings: Settings) -> dict[str, Any]:
    """
    The fields that are not at their defaults: a settings file needs them to serve what was
    calibrated.
    """
    usual = Settings.model_construct()
    changed = {
        key: getattr(settings, key)
        for key in arm_options()
        if getattr(settings, key) != getattr(usual, key)
    }
    return changed | {
        table: fields
        for table, omitted in (("sampling", {"seed"}), ("budget", set[str]()))
        if (fields := _changed_fields(getattr(settings, table), getattr(usual, table), omitted))
    }


def _changed_fields(model: BaseModel, usual: BaseModel, omitted: set[str]) -> dict[str, Any]:
    values, defaults = (
        m.model_dump(mode="json", exclude=omitted, exclude_none=True) for m in (model, usual)
    )
    return {key: value for key, value in values.items() if defaults.get(key) != value}


def solve_on_servers(
    solver: Solver, tasks: Sequence[Task], threshold: Threshold, graders: Graders, base_seed: int
) -> SolveAt:
    """
    Return a function that solves on real servers; a run without an answer that could be graded is
    not right.

    Each problem has its own sampling seed, derived from *base_seed* and the same for all values.
    """

    async def solve(problem: int, value: float | None) -> CalibrationRun:
        arm = LARGE if value is None else served_arm(solver.settings, threshold, value)
        task = tasks[problem]
        seeded = solver.settings.sampling.model_copy(
            update={"seed": derive_seed(base_seed, problem, 0)}
        )
        solved = await solve_once(solver, arm, task.problem, sampling=seeded)
        text = solved.solution.text if solved.solution else ""
        right = bool(text) and await task.gold.grade(text, graders) == "right"
        return CalibrationRun(problem, value, right)

    return solve


@dataclass(frozen=True, slots=True)
class CalibrationSettings:
    """
    The result of a calibration with everything that a policy file needs.

    *options* are the policy's other options, *changes* the other settings that are not at their
    defaults. The promise holds for these *models*, by role, and for runs with the settings in
    *conditions*.
    """

    policy: str
    threshold: Threshold
    benchmark: str
    result: CalibrationResult
    options: Mapping[str, Any]
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    conditions: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def confidence(self) -> float:
        return round(1 - self.result.test.level, 6)

    def summary(self) -> str:
        """The promise in one sentence, or the number of problems that it would take."""
        result = self.result
        limit = result.test.limit
        best = result.loosest
        if best is not None:
            return (
                f"With {self.threshold.option} = {best.threshold:g}, {self.policy} loses at most"
                f" {limit:.1%} of such problems to the large model alone, at"
                f" {self.confidence:.0%} confidence."
            )
        strictest = result.tested[0]
        failure = (
            f"No {self.threshold.option} of {self.policy} can be promised: at"
            f" {strictest.threshold:g}, the strictest, {strictest.paired.n} problems with"
            f" {strictest.paired.lost} lost and {strictest.paired.gained} gained do not show that"
            f" the loss is at most {limit:.1%} at {self.confidence:.0%} confidence."
        )
        if result.problems_needed is None:
            return (
                f"{failure} Nor would more problems at these rates: the loss itself is no less than"
                " the limit."
            )
        return (
            f"{failure} At these rates {result.problems_needed:,} problems would do: a new"
            " calibration, on problems that were not used in this one."
        )

    def table(self) -> Table:
        table = Table(title=f"{self.policy} on {self.benchmark}, against the large model alone")
        for column in (self.threshold.option, "problems", "lost", "gained", "loss", "p", "holds"):
            table.add_column(column, justify="right")
        for test in self.result.tested:
            paired = test.paired
            counts = (str(paired.n), str(paired.lost), str(paired.gained))
            table.add_row(
                f"{test.threshold:g}",
                *counts,
                f"{paired.loss:.1%}",
                f"{test.p:.4f}",
                "yes" if test.holds else "no",
            )
        return table

    def json(self) -> dict[str, Any]:
        """All fields, for `stepspec calibrate --json`."""
        return {
            "policy": self.policy,
            "knob": asdict(self.threshold),
            "benchmark": self.benchmark,
            "calibrated": asdict(self.result),
            "options": self.options,
            "besides": self.changes,
            "models": self.models,
            "conditions": self.conditions,
        }

    def toml(self) -> str:
        """The settings file. Raise `ConfigurationError` if nothing can be promised."""
        best = self.result.loosest
        if best is None:
            raise ConfigurationError(self.summary())
        calibration = {
            "policy": self.policy,
            "option": self.threshold.option,
            "value": float(best.threshold),
            "max_loss": self.result.test.limit,
            "confidence": self.confidence,
            "benchmark": self.benchmark,
            "problems": best.paired.n,
            "lost": best.paired.lost,
            "gained": best.paired.gained,
            "date": str(date.today()),
        }
        options = {**self.options, self.threshold.option: float(best.threshold)}
        about = {"calibration.models": self.models, "calibration.conditions": self.conditions}
        tables = {
            "policy": self.policy,
            **self.changes,
            "options": options,
            "calibration": calibration,
            **about,
        }
        return f"# {self.summary()}\n{document(tables)}"
