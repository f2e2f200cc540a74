"""A calibration in force: what it guarantees, and which runs it covers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

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
    conditions: dict[str, Any] = {}
    """The options of the runs that the guarantee is for (see `Settings.conditions`); empty: not compared."""

    def differences(self, run: RunConditions) -> tuple[str, ...]:
        """The settings in which *run* differs from the runs that the calibration covers."""
        if run.policy != self.policy:
            return ("policy",)
        options = dict(run.values["options"])
        value = options.pop(self.option, _ABSENT)
        values = {**run.values, "options": options}
        return (
            *((f"options.{self.option}",) if value != self.value else ()),
            *_differences("models", self.models, run.models if self.models else {}),
            *_differences("", self.conditions, values if self.conditions else {}),
        )

    def warn_of_differences(self, run: RunConditions) -> None:
        """Log a warning if the calibration does not cover *run*."""
        if differences := self.differences(run):
            log.warning(
                "what %s was calibrated for is not what runs now (other: %s): its promise does not hold here; "
                "run `stepspec calibrate` again with these settings, or go back to those",
                self.policy,
                ", ".join(differences),
            )


@dataclass(frozen=True, slots=True)
class RunConditions:
    """What a calibration compares of a run: its *policy*, its *models* by role, and the *values* of its options."""

    policy: str
    models: Mapping[str, str]
    values: Mapping[str, Any]


def _differences(place: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The paths at which *before* and *now* hold different values."""
    for name in dict.fromkeys((*before, *now)):
        path = f"{place}.{name}".lstrip(".")
        old, new = before.get(name, _ABSENT), now.get(name, _ABSENT)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(path, cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new))
        elif old != new:
            yield path
