"""What a calibration promised, watched while it is relied on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .orchestrator.drift import Drift, GradeWatch
from .orchestrator.events import Event
from .settings import Calibration, Settings

log = logging.getLogger("stepspec")


class Promise:
    """An observer of the runs that a *calibration* speaks of: it counts their grades, and warns once if they drift."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self._grades = GradeWatch(calibration.grades())
        self._warned = False

    def covers(self, settings: Settings, policy: str, options: Mapping[str, Any] | None) -> bool:
        """Whether a run of *policy* with *options*, or the settings' own, is one that the calibration speaks of."""
        if policy != self.calibration.policy:
            return False
        chosen = settings.options if options is None and policy == settings.policy else options or {}
        return chosen.get(self.calibration.option) == self.calibration.value

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
