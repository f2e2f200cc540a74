"""
Logged steps of SpecReason with real models, and what simulations draw from them.

`lab/data/README.md` names the source.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from math import sqrt
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, NonNegativeInt, TypeAdapter, ValidationError

from stepspec.orchestrator.errors import ConfigurationError

LOG = Path(__file__).parent / "data" / "specreason-steps.csv"
Number = Annotated[NonNegativeInt | None, BeforeValidator(lambda text: text or None)]


class LoggedStep(BaseModel):
    """One step of a logged run."""

    run: int
    """The number of the run."""
    problem: str
    """The name of the problem."""
    small_tokens: Number = None
    """Tokens of the draft; None if the large model wrote the step by order."""
    accepted: bool
    """Whether the draft was kept."""
    large_tokens: Number = None
    """Tokens of the large model's step; None if the draft was kept."""

    @property
    def led(self) -> bool:
        """Whether the large model wrote the step by order."""
        return self.small_tokens is None

    @property
    def kept_tokens(self) -> int:
        """Tokens of the step that the chain kept, at least one."""
        tokens = self.small_tokens if self.accepted else self.large_tokens
        return max(1, tokens or 0)


_STEPS = TypeAdapter(list[LoggedStep])


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """One logged run."""

    problem: str
    """The name of the problem."""
    steps: tuple[LoggedStep, ...]
    """The steps in their order."""

    @property
    def verdicts(self) -> list[bool]:
        """Whether each draft was accepted, in their order."""
        return [step.accepted for step in self.steps if not step.led]


def read_runs(path: Path = LOG) -> list[LoggedRun]:
    """Read the runs of a log. Raise `ConfigurationError` if it is not one."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            steps = _STEPS.validate_python(list(csv.DictReader(lines)))
    except (OSError, ValidationError) as exc:
        cause = f"cannot read the log {path}: {exc}"
        raise ConfigurationError(
            f"{cause}; it needs the columns of lab/data/specreason-steps.csv",
        ) from exc
    if not steps:
        raise ConfigurationError(f"the log {path} has no step")
    groups = groupby(steps, key=attrgetter("run"))
    runs = [tuple(group) for _, group in groups]
    return [LoggedRun(problem=run[0].problem, steps=run) for run in runs]


def accept_rate(runs: Sequence[LoggedRun]) -> float:
    """Return the share of the drafts of *runs* that was accepted."""
    return fmean(verdict for run in runs for verdict in run.verdicts)


@cache
def step_lengths() -> tuple[int, ...]:
    """Return the tokens of all kept steps of the log, run after run."""
    return tuple(step.kept_tokens for run in read_runs() for step in run.steps)


def draw_quality(drawn: random.Random, count: int) -> list[float]:
    """
    Draw how good each of *count* drafts is: an autoregressive chain of normal variables.

    Where the best share of the drafts is accepted, rejections come in bursts as in the log.
    """
    carried = LATENT_CORRELATION
    quality = [drawn.gauss(0, 1)]
    for _ in range(count - 1):
        quality.append(carried * quality[-1] + sqrt(1 - carried * carried) * drawn.gauss(0, 1))
    return quality


LATENT_CORRELATION = 0.75
"""
Correlation of the quality of a draft with that of the next one.

With this value the verdicts of long chains correlate by 0.46 at 80% accepted, as in the log.
"""


def draw_lengths(drawn: random.Random, count: int, mean_tokens: int) -> list[int]:
    """
    Draw the tokens of *count* steps: a stretch of the log, scaled to *mean_tokens* on average.
    """
    logged = step_lengths()
    start = drawn.randrange(len(logged))
    stretch = [logged[(start + place) % len(logged)] for place in range(count)]
    scale = mean_tokens * count / sum(stretch)
    return [max(1, round(scale * tokens)) for tokens in stretch]
