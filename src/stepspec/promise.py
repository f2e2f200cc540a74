"""What a calibration promised, watched while it is relied on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, cast

from stepspec.orchestrator.events import Event
from stepspec.orchestrator.feedback.drift import Drift, GradeWatch

from .settings import Calibration, Settings

_NOTHING = object()

log = logging.getLogger("stepspec")


class CalibrationMonitor:
    """An observer of the runs that a *calibration* speaks of: it counts their grades, and warns once if they drift."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self._grades = GradeWatch(calibration.grades())
        self._warned = False

    def differs(self, told: Settings, models: Mapping[str, str]) -> tuple[str, ...]:
        """In what a run of *models*, by role, that is *told* so much is not one that the calibration speaks of."""
        one, now = self.calibration, told.bearing()
        if told.policy != one.policy:
            return ("policy",)
        value = now["options"].pop(one.option, _NOTHING)
        return (
            *((f"options.{one.option}",) if value != one.value else ()),
            *_differs("models", one.models, models if one.models else {}),
            *_differs("", one.told, now if one.told else {}),
        )

    def covers(self, told: Settings, models: Mapping[str, str]) -> bool:
        """Whether such a run is one that the calibration speaks of."""
        return not self.differs(told, models)

    def warn_of_differences(self, told: Settings, models: Mapping[str, str]) -> None:
        """Say so, if it is so, that the promise is of other runs than those that are *told* so much."""
        if differs := self.differs(told, models):
            log.warning(
                "what %s was calibrated for is not what runs now (other: %s): its promise does not hold here; "
                "run `stepspec calibrate` again with these settings, or go back to those",
                self.calibration.policy,
                ", ".join(differs),
            )

    def __call__(self, event: Event) -> None:
        self._grades(event)

    @property
    def drift(self) -> Drift:
        return self._grades.drift

    def warn_of_drift(self) -> None:
        """Say once, if it is so, that the promise may not hold any more."""
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


def _differs(place: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Where what was said *then* and is said *now* are not the same."""
    for name in dict.fromkeys((*then, *now)):
        path = f"{place}.{name}".lstrip(".")
        one, other = then.get(name, _NOTHING), now.get(name, _NOTHING)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differs(path, cast("Mapping[str, Any]", one), cast("Mapping[str, Any]", other))
        elif one != other:
            yield path
