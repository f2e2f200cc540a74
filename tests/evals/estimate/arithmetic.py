"""Measurements made by hand, and a simulation that is arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.evals.crowd import Load
from stepspec.evals.estimate.measurements import Measurements, RecordedRun, ServerMeasurement, VerdictMeasurement
from stepspec.evals.sample import Arm
from stepspec.evals.script import Script, Turn
from stepspec.evals.simulation import Figures, ServerCosts

SMALL_SERVER = ServerMeasurement("small", "http://s", "tiny", {1: (0.01,)}, (0.0,), (0.02,), (0.02,), 1000)
LARGE_SERVER = ServerMeasurement("large", "http://l", "big", {1: (0.1,)}, (0.001,), (0.2,), (1.2,), 1000)
VERDICT = VerdictMeasurement((0.2, 0.25, 0.3), (80, 80, 80), 400, 0.98)
GOOD, BAD = Turn(10, 10, 0, 9.0), Turn(10, 0, 10, 1.0)
ALONE = Script(50, (Turn(10, 10, author="large"),) * 10)


def script(accepted: int, rejected: int, question: int = 60, *, uncached: bool = False) -> Script:
    return Script(50, (GOOD,) * accepted + (BAD,) * rejected, question, uncached)


def simulate(
    load: Load, arm: Arm, scripts: Sequence[Script], small: ServerCosts, large: ServerCosts, *, problems: int
) -> Figures:
    """
    Add up the tokens of every turn, and a pass of the large model for every verdict, which lookahead hides if it holds.

    Tokens of the large model, and its verdicts, take the longer the more problems there are at once.
    """
    at_once = load.concurrency or 0
    assert 1 <= problems <= 64
    slow, fast = large.seconds(at_once), small.seconds(1)

    def seconds(turn: Turn) -> float:
        if arm.name == LARGE.name or turn.author == "large":
            return turn.draft * slow
        hidden = arm.run.ahead > 0 and turn.kept == turn.draft
        verdict = 0.0 if hidden else slow * at_once
        return turn.draft * fast + verdict + turn.repair * slow

    mean = fmean(sum(map(seconds, each.turns)) for each in scripts)
    return Figures(problems, {}, mean, None, None, 1 / mean, 1.0, {})


def recorded(*scripts: Script, seconds: float | None = None) -> tuple[RecordedRun, ...]:
    """Runs of these *scripts*; the first took so many *seconds* with nothing beside it."""
    return tuple(
        RecordedRun(number, seconds or 0.0, each, alone=seconds is not None and number == 0, cut=False)
        for number, each in enumerate(scripts)
    )


def measured(
    *scripts: Script, arm: Arm = SHIPPED, runs: Mapping[str, tuple[RecordedRun, ...]] | None = None, **changes: Any
) -> Measurements:
    """Measurements of *arm* with these *scripts*, and of the large model alone with as many of ten turns."""
    both = {LARGE.name: recorded(*(ALONE,) * len(scripts)), arm.name: recorded(*scripts)} | dict(runs or {})
    made = Measurements(SMALL_SERVER, LARGE_SERVER, VERDICT, (LARGE, arm), both, 8192, 100.0)
    return replace(made, **changes)
