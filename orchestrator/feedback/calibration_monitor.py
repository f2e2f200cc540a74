"""A calibration in force: what it guarantees, which runs it covers, and whether live grades still look like its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, cast

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from ..events import Event
from ..run_options import RETIRED, is_on
from .drift import Drift, GradeWatch, Histogram

PROMPTS = "prompts"  # the condition that holds the hashes of the texts that decide what the method does
_ABSENT = object()

log = logging.getLogger("stepspec")


class Calibration(BaseModel):
    """
    The guarantee of ``stepspec calibrate`` for a *value* of one *option* of a *policy*, as a settings file holds it.

    With *confidence*, the policy loses at most *max_loss* of the problems to the large model alone. That holds for all
    attempts with the same trials together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str
    """The calibrated method."""
    option: str
    """The option whose value was searched, such as ``threshold``."""
    value: float
    """The value that was found."""
    max_loss: float = Field(gt=0, lt=1)
    """The guarantee: at most this share of the problems is lost to the large model alone."""
    confidence: float = Field(gt=0, lt=1)
    """The confidence of the guarantee."""
    attempt: PositiveInt = 1
    """Which attempt with the same trials it was."""
    benchmark: str = ""
    """Where the problems are from."""
    problems: NonNegativeInt = 0
    """How many problems were measured."""
    lost: NonNegativeInt = 0
    """How many of them the large model solved and the method did not."""
    gained: NonNegativeInt = 0
    """How many of them the method solved and the large model did not."""
    date: str = ""
    """The day of the calibration."""
    models: dict[str, str] = {}
    """The models that the guarantee is for, by role; empty: not compared."""
    conditions: Annotated[dict[str, Any], Field(alias="told")] = {}
    """The options of the runs that the guarantee is for (see `Settings.conditions`); empty: not compared."""
    edges: tuple[float, ...] = ()
    """The edges of the histogram of grades that live grades are compared with."""
    counts: tuple[int, ...] = (0,)
    """The counts of that histogram."""

    @field_validator("conditions")
    @classmethod
    def _without_retired(cls, conditions: dict[str, Any]) -> dict[str, Any]:
        """Leave out the options that no longer exist, where they were off: such runs are those of today."""
        for name in RETIRED:
            if is_on(conditions.get(name, False)):
                raise ValueError(
                    f"{name}: the calibration was made with this option, which is retired: run `stepspec calibrate` "
                    "again without it"
                )
        return {name: value for name, value in conditions.items() if name not in RETIRED}

    @model_validator(mode="after")
    def _histogram(self) -> Self:
        self.grades()
        return self

    def grades(self) -> Histogram:
        return Histogram(self.edges, self.counts)


@dataclass(frozen=True, slots=True)
class RunConditions:
    """What a calibration compares of a run: its *policy*, its *models* by role, and the *values* of its options."""

    policy: str
    models: Mapping[str, str]
    values: Mapping[str, Any]


class CalibrationMonitor:
    """An observer of the runs that a *calibration* covers: it counts their grades, and warns once if they drift."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self._grades = GradeWatch(calibration.grades())
        self._warned = False

    def differences(self, run: RunConditions) -> tuple[str, ...]:
        """The settings in which *run* differs from the runs that the calibration covers."""
        calibration = self.calibration
        if run.policy != calibration.policy:
            return ("policy",)
        options = dict(run.values["options"])
        value = options.pop(calibration.option, _ABSENT)
        values = {**run.values, "options": options}
        if PROMPTS not in calibration.conditions:
            values.pop(PROMPTS, None)  # the file is older than this condition
        return (
            *((f"options.{calibration.option}",) if value != calibration.value else ()),
            *_differences("models", calibration.models, run.models if calibration.models else {}),
            *_differences("", calibration.conditions, values if calibration.conditions else {}),
        )

    def covers(self, run: RunConditions) -> bool:
        """Whether the guarantee of the calibration holds for *run*."""
        return not self.differences(run)

    def warn_of_differences(self, run: RunConditions) -> None:
        """Log a warning if the calibration does not cover *run*."""
        if differences := self.differences(run):
            log.warning(
                "what %s was calibrated for is not what runs now (other: %s): its promise does not hold here; "
                "run `stepspec calibrate` again with these settings, or go back to those",
                self.calibration.policy,
                ", ".join(differences),
            )

    def __call__(self, event: Event) -> None:
        self._grades(event)

    @property
    def drift(self) -> Drift:
        return self._grades.drift

    def warn_of_drift(self) -> None:
        """Log a warning, once, if the grades have drifted."""
        drift = self.drift
        if self._warned or not drift.drifted:
            return
        self._warned = True
        log.warning(
            "the judge's grades have drifted: %.0f%% of %d fall into other bins than when %s was calibrated; "
            "its promise may not hold any more, run `stepspec calibrate` again on problems like these",
            100 * drift.moved,
            drift.live.n,
            self.calibration.policy,
        )


def _differences(place: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The paths at which *before* and *now* hold different values."""
    for name in dict.fromkeys((*before, *now)):
        path = f"{place}.{name}".lstrip(".")
        old, new = before.get(name, _ABSENT), now.get(name, _ABSENT)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(path, cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new))
        elif old != new:
            yield path
