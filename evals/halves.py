"""The two halves of a benchmark: what a method is calibrated on is not what is reported on."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal, TypeAlias

from .sample import Task

Half: TypeAlias = Literal["calibration", "report"]
CALIBRATED_ON = "calibration half"


def half(task: Task) -> Half:
    """
    Which half of its benchmark *task* belongs to, for good.

    That depends on its question alone: neither on the template that it is put into, nor on how choices are shuffled.
    """
    question = task.question or task.problem
    return "calibration" if blake2b(question.encode(), digest_size=1).digest()[0] % 2 else "report"


def overlaps(calibrated: Mapping[str, str], benchmark: str, part: str | None) -> list[str]:
    """
    What has to be said beside the figures of arms that were *calibrated* on problems that are measured here.

    *calibrated* says by the name of an arm what it was calibrated on, *part* which half of *benchmark* is measured.
    """
    if part == "report":
        return []
    shared = "the very problems" if part == "calibration" else "half of the problems"
    return [
        f"{name!r} was calibrated on {shared} that are measured here, and chosen to lose few of just those: these "
        "figures are no evidence for its promise. Those of `--half report` are."
        for name, on in calibrated.items()
        if on == f"{benchmark}, {CALIBRATED_ON}"
    ]
