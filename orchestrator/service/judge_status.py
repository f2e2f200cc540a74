"""Whether the judge can be trusted still: what a calibration promised, the grades since, and what shadows found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..feedback.drift import LEAST, Drift
from ..feedback.shadow import ShadowRecord
from ..stats import wilson


@dataclass(frozen=True, slots=True)
class CalibrationStatus:
    """With *confidence*, *policy* loses at most *max_loss* of the problems while its *option* has this *value*."""

    policy: str
    option: str
    value: float
    max_loss: float
    confidence: float


@dataclass(frozen=True, slots=True)
class JudgeStatus:
    """
    What there is to know by now; None where nothing is.

    The *promise* is that of the calibration in force, and *drift* the grades since. *shadows* are the checks so far.
    """

    promise: CalibrationStatus | None = None
    drift: Drift | None = None
    shadows: ShadowRecord | None = None

    @property
    def told(self) -> dict[str, Any]:
        """The same as values of JSON."""
        return {
            "promise": self.promise and asdict(self.promise),
            "drift": self.drift and _drift(self.drift),
            "shadows": self.shadows and _shadows(self.shadows),
        }


def _drift(drift: Drift) -> dict[str, Any]:
    return {"moved": drift.moved, "grades": drift.live.n, "least": LEAST, "drifted": drift.drifted}


def _shadows(record: ShadowRecord) -> dict[str, Any]:
    interval = wilson(record.agreed, record.checked) if record.checked else None
    return asdict(record) | {"checked": record.checked, "interval": interval}
