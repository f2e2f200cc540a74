"""
Predict from trials, paces and short runs what methods gain, and choose one. No I/O.

The rounds of all trials are replayed with the measured paces, as the loop overlaps them. The gain
is the large model's seconds for the same progress, over those of the replay. Short runs of the
method correct both: they show what shared cards, other users and the client cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, hypot, inf, log, sqrt
from statistics import median
from typing import Literal, TypeAlias

from ..results import Interval, bootstrap_ratio
from ..sample import Arm
from .drafts import Trial
from .judging import share_by_problem
from .paces import PairPaces
from .rounds import Round, commit_times

Verdict: TypeAlias = Literal["pays", "does not pay", "not known"]
Outcomes: TypeAlias = list[tuple[int, bool]]
"""For each case the number of its problem, and whether it was let through."""

MIN_GAIN = 1.03  # times as fast as the large model alone; less is not worth a second server
MAX_PASSED = 1 / 3  # of the errors; a method that lets more through is not used
MIN_CASES = 5  # errors; the share of fewer errors says nothing
MIN_RUN_ROUNDS = 6  # rounds of short runs; fewer do not correct the prediction
ALIKE = 1.1  # ratio of two gains; below it, the method that lets fewer errors through is chosen


@dataclass
class MethodTrials:
    """Everything that was measured of one method so far."""

    arm: Arm
    """The method with its options."""
    trials: list[Trial] = field(default_factory=list[Trial])
    """What it made of the drafts."""
    errors: Outcomes = field(default_factory=Outcomes)
    """The small model's errors."""
    runs: dict[int, list[list[Round]]] = field(default_factory=dict[int, list[list[Round]]])
    """The rounds of short runs of it, by the number of runs at the same time."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What is expected of one method."""

    arm: Arm
    """The method with its options."""
    drafts: int
    """Drafts that were tried."""
    accepted: Interval
    """The share of drafts, or parts of drafts, that it accepts."""
    alone: Interval
    """How many times as fast as the large model alone it is, one problem at a time."""
    loaded: float | None
    """The same with several users; None if that was not measured."""
    errors: Interval | None
    """The share of the small model's errors that it lets through; None if there were too few."""
    verdict_seconds: float
    """Median seconds of a verdict, with nothing beside it."""
    spread: float
    """The half-width of the logarithm of `alone` that more drafts make smaller."""

    @property
    def careless(self) -> bool:
        """Whether it lets too many errors through to be used."""
        return self.errors is not None and self.errors.value > MAX_PASSED

    @property
    def verdict(self) -> Verdict:
        """Whether it pays."""
        if self.alone.low >= 1 and self.alone.value >= MIN_GAIN:
            return "pays"
        return "does not pay" if self.alone.high < MIN_GAIN else "not known"

    def minutes_needed(self, minutes: float) -> float | None:
        """
        How many more minutes than *minutes* would show whether it pays.

        None if it is about as fast as the large model, so that no time would.
        """
        if self.spread == inf:
            return minutes
        distance = abs(log(self.alone.value))
        if distance < log(MIN_GAIN):
            return None
        return max(1.0, ceil(minutes * ((self.spread / distance) ** 2 - 1)))


def predict(measured: MethodTrials, paces: PairPaces, chains: Mapping[int, int]) -> Figures:
    """
    Return the figures of the method.

    *chains* maps the number of a problem to the tokens of its chain. Trials cover a part of a
    chain, and stand for all of it.
    """
    verdict = _verdict_seconds(measured.trials)
    by_problem: dict[int, list[Trial]] = {}
    for trial in sorted(measured.trials, key=lambda trial: trial.step):
        by_problem.setdefault(trial.problem, []).append(trial)
    seconds: list[float] = []
    grown: list[float] = []
    outcomes: Outcomes = []
    for problem, trials in by_problem.items():
        rounds = [round for trial in trials for round in trial.rounds]
        outcomes += [(problem, round.accepted) for round in rounds if round.drafted]
        part = sum(trial.own for trial in trials) / chains[problem]
        seconds.append(commit_times(rounds, paces, verdict)[-1] / part)
        grown.append(sum(trial.tokens for trial in trials) / part)
    # An accepted draft may stand for its own tokens, or for the large model's step in its place.
    length = sqrt(sum(chains[problem] for problem in by_problem) / sum(grown))
    ratio = bootstrap_ratio(grown, seconds)
    spread = log(ratio.high / ratio.low) / 2 if len(seconds) > 1 else inf
    pace = log(max(paces.large.tokens) / min(paces.large.tokens)) / 2
    width = hypot(spread, log(length), pace)
    gain = paces.large.token * length * ratio.value
    alone = gain / (_correction(measured.runs.get(1, []), paces, verdict) or 1.0)
    loaded = None
    if correction := _correction(measured.runs.get(paces.users, []), paces, verdict):
        loaded = gain * paces.loaded / paces.large.token / correction
    errors = measured.errors
    return Figures(
        arm=measured.arm,
        drafts=len(measured.trials),
        accepted=share_by_problem(outcomes or [(0, False)]),
        alone=Interval(alone, alone * exp(-width), alone * exp(min(width, 700))),
        loaded=loaded,
        errors=share_by_problem(errors) if len(errors) >= MIN_CASES else None,
        verdict_seconds=verdict,
        spread=spread,
    )


def _verdict_seconds(trials: Sequence[Trial]) -> float:
    rounds = [(trial.alone, round) for trial in trials for round in trial.rounds if round.drafted]
    alone = [round.verdict_seconds for alone, round in rounds if alone]
    return median(alone or [round.verdict_seconds for _, round in rounds] or [0.0])


def _correction(runs: Sequence[Sequence[Round]], paces: PairPaces, verdict: float) -> float | None:
    """
    How many times as long as the replay of their rounds the *runs* took.

    None if they have too few rounds.
    """
    replayed = 0.0
    seconds = 0.0
    for rounds in runs:
        times = commit_times(rounds, paces, verdict)
        replayed += times[-1] - times[0]
        seconds += rounds[-1].at - rounds[0].at
    if sum(map(len, runs)) < MIN_RUN_ROUNDS or not replayed:
        return None
    return seconds / replayed


def ranked(methods: Sequence[Figures]) -> tuple[Figures, ...]:
    """
    Return *methods* in this order: the method to use, the others by their gains, the careless ones.

    The method to use is about as fast as the fastest method, and lets the fewest errors through. In
    a tie, it is the method that is fastest with several users.
    """
    ordered = sorted(methods, key=lambda method: (method.careless, -method.alone.value))
    usable = [method for method in ordered if not method.careless]
    if usable:
        about = [method for method in usable if method.alone.value * ALIKE >= usable[0].alone.value]
        best = min(about, key=_carelessness)
        ordered.remove(best)
        ordered.insert(0, best)
    return tuple(ordered)


def _carelessness(method: Figures) -> tuple[float, float]:
    passed = 1.0 if method.errors is None else method.errors.value
    return passed, -(method.loaded or 0.0)
