"""
The arms of a calibration, and the policy file.

`solve`, `serve` and `eval` accept the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from rich.table import Table

from stepspec import policies
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.run_options import ARM_OPTIONS
from stepspec.orchestrator.toml import document
from stepspec.policies import Threshold
from stepspec.settings import Settings

from ..plan import configured_arm
from ..results import aligned
from ..sample import Arm
from .search import CalibrationResult

SEED_DISTANCE = 1_000_003
"""Between the seeds of generated problems for reports and those for calibration."""


def find_threshold(
    policy: str,
    option: str | None = None,
    values: Sequence[float] | None = None,
) -> Threshold:
    """
    Return the threshold of *policy*, or another *option* with its *values*, the strictest first.

    Raise `ConfigurationError` if there is none.
    """
    known = policies.METHODS.find(policy).threshold
    if known is not None and option in (None, known.option):
        threshold = Threshold(known.option, tuple(values or known.values))
        is_falling = known.values[0] > known.values[-1]
    elif option is None:
        names = [name for name, method in policies.METHODS.items() if method.threshold]
        raise ConfigurationError(
            f"{policy!r} has no known threshold: name an option and its values, the strictest"
            " first, as in --vary threshold --values 9,8,7 (methods with a known threshold:"
            f" {', '.join(names)})"
        )
    elif values:
        threshold = Threshold(option, tuple(values))
        is_falling = values[0] > values[-1]
    else:
        raise ConfigurationError(f"--vary {option} needs --values, the strictest first")
    ordered = tuple(sorted(threshold.values, reverse=is_falling))
    if threshold.values != ordered:
        right = ",".join(f"{value:g}" for value in ordered)
        raise ConfigurationError(f"--values: the strictest comes first, as in {right}")
    return threshold


def served_arms(settings: Settings, threshold: Threshold) -> tuple[Arm, ...]:
    """Return the arms that solve as a solver with *settings* does, one a value of *threshold*."""
    option = threshold.option
    return tuple(
        replace(
            configured_arm(settings, {option: value}),
            name=f"{settings.policy}:{option}={value}",
        )
        for value in threshold.values
    )


def promise_conditions(settings: Settings, threshold: Threshold) -> dict[str, Any]:
    """
    Return the settings that the promise depends on, without the *threshold* itself.

    See `Settings.conditions`.
    """
    conditions = settings.conditions()
    conditions["options"].pop(threshold.option, None)
    return conditions


def changed_settings(settings: Settings) -> dict[str, Any]:
    """
    Return the run's settings that are not at their defaults.

    A settings file needs them to serve what was calibrated.
    """
    changed = settings.model_dump(
        mode="json",
        include={*ARM_OPTIONS, "sampling", "budget"},
        exclude={"sampling": {"seed"}},
        exclude_defaults=True,
        exclude_none=True,
    )
    # A table of which only the seed was set is empty.
    return {name: value for name, value in changed.items() if value != {}}


@dataclass(frozen=True, slots=True)
class CalibrationSettings:
    """The result of a calibration with everything that a policy file needs."""

    policy: str
    """The calibrated policy."""
    threshold: Threshold
    """The option that was varied, and its values."""
    benchmark: str
    """The problems that were solved."""
    result: CalibrationResult
    """The result."""
    options: Mapping[str, Any]
    """The policy's other options."""
    changes: Mapping[str, Any]
    """The other settings that are not at their defaults."""
    models: Mapping[str, str]
    """The models that the promise holds for, by role."""
    conditions: Mapping[str, Any]
    """The settings of the runs that the promise holds for."""

    @property
    def confidence(self) -> float:
        return round(1 - self.result.test.level, 6)

    def summary(self) -> str:
        """Return the promise in one sentence, or the number of problems that it would take."""
        limit = self.result.test.limit
        best = self.result.loosest
        if best is not None:
            return (
                f"With {self.threshold.option} = {best.threshold:g}, {self.policy} loses at most"
                f" {limit:.1%} of such problems to the large model alone, at"
                f" {self.confidence:.0%} confidence."
            )
        strictest = self.result.tested[0]
        paired = strictest.paired
        needed = self.result.problems_needed
        remedy = (
            "Nor would more problems at these rates: the loss itself is no less than the limit."
        )
        if needed is not None:
            remedy = (
                f"At these rates {needed:,} problems would do: a new calibration, on problems that"
                " were not used in this one."
            )
        return (
            f"No {self.threshold.option} of {self.policy} can be promised: at"
            f" {strictest.threshold:g}, the strictest, {paired.n} problems with {paired.lost} lost"
            f" and {paired.gained} gained do not show that the loss is at most {limit:.1%} at"
            f" {self.confidence:.0%} confidence. {remedy}"
        )

    def table(self) -> Table:
        """A line for each value that was tested, against the large model alone."""
        return aligned(
            [
                {
                    self.threshold.option: f"{test.threshold:g}",
                    "problems": str(test.paired.n),
                    "lost": str(test.paired.lost),
                    "gained": str(test.paired.gained),
                    "loss": f"{test.paired.loss:.1%}",
                    "p": f"{test.p:.4f}",
                    "holds": "yes" if test.holds else "no",
                }
                for test in self.result.tested
            ]
        )

    def toml(self) -> str:
        """Return the settings file. Raise `ConfigurationError` if nothing can be promised."""
        best = self.result.loosest
        if best is None:
            raise ConfigurationError(self.summary())
        value = float(best.threshold)
        calibration = {
            "policy": self.policy,
            "option": self.threshold.option,
            "value": value,
            "max_loss": self.result.test.limit,
            "confidence": self.confidence,
            "benchmark": self.benchmark,
            "problems": best.paired.n,
            "lost": best.paired.lost,
            "gained": best.paired.gained,
            "date": str(date.today()),
            "models": self.models,
            "conditions": self.conditions,
        }
        tables = {
            "policy": self.policy,
            **self.changes,
            "options": {**self.options, self.threshold.option: value},
            "calibration": calibration,
        }
        return f"# {self.summary()}\n{document(tables)}"
