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
from statistics import NormalDist, fmean, median
from typing import Literal, TypeAlias

from ..results import Interval
from ..sample import Arm
from .drafts import Round, Trial
from .judging import MIN_ERRORS, JudgedDraft, clustered, length_alone
from .paces import ServerPace

Verdict: TypeAlias = Literal["pays", "does not pay", "not known"]

MIN_GAIN = 1.03  # times as fast as the large model alone: less is not worth a second server
MAX_PACE = 0.8  # of the large model's seconds a token, above which no small model can pay
MAX_ERRORS_PASSED = (
    1 / 3
)  # of the small model's errors: a method that lets more through is not used
MIN_RUN_ROUNDS = 6  # of runs that correct the prediction
ALIKE = 1.1  # times: of methods whose gains differ by less, the one that catches more is chosen


@dataclass(frozen=True, slots=True)
class SeenRun:
    """A run of a method, or its beginning."""

    seconds: float
    """Seconds from the commit of its first round to that of its last one."""
    rounds: tuple[Round, ...]
    """Its rounds."""


@dataclass(frozen=True, slots=True)
class MethodTrials:
    """Everything that was measured of one method."""

    arm: Arm
    """The method with its options."""
    trials: tuple[Trial, ...] = ()
    """What it made of the drafts."""
    drafts: tuple[JudgedDraft, ...] = ()
    """Whether it accepted the drafts, and whether these are errors."""
    slips: tuple[tuple[int, bool], ...] = ()
    """For each slip the number of the problem, and whether the method let the slip through."""
    runs: Mapping[int, tuple[SeenRun, ...]] = field(default_factory=dict[int, tuple[SeenRun, ...]])
    """Short runs of it, by the number of runs at the same time."""


@dataclass(frozen=True, slots=True)
class PairPaces:
    """How fast both servers write."""

    small: ServerPace
    """The small model's server."""
    large: ServerPace
    """The large model's server."""
    users: int
    """The number of streams at which `loaded` was measured."""
    ahead: int
    """Drafts that a run makes ahead."""

    @property
    def ratio(self) -> float:
        """The small model's seconds per token over those of the large one."""
        return self.small.token / self.large.token

    @property
    def hopeless(self) -> bool:
        """Whether no method can pay, because the small model is hardly faster."""
        return self.ratio > MAX_PACE


def commit_times(rounds: Sequence[Round], paces: PairPaces, verdict: float) -> list[float]:
    """
    The second at which each of *rounds* is in the chain, if a *verdict* takes so many seconds.

    Drafts go on while earlier ones are judged, as far ahead as `PairPaces.ahead` says. A rejection
    loses the later drafts: the small model begins again after the repair.
    """
    small, large = paces.small, paces.large
    times: list[float] = []
    now = 0.0  # the last step was committed
    free = small.first  # the small model can draft
    judged = 0  # drafts since the last restart
    for round in rounds:
        if not round.drafted:
            now += large.first + round.repaired * large.token
            free = now + small.first
            judged = 0
            times.append(now)
            continue
        waits_for = times[-1 - paces.ahead] if judged > paces.ahead else 0.0
        began = max(free, waits_for)
        free = began + round.drafted * small.token
        prepared = round.prepared and began + large.first + round.prepared * large.token
        now = max(now, max(free, prepared) + verdict)
        judged += 1
        if not round.accepted:
            if round.repaired:
                now += large.first + max(0, round.repaired - 1) * large.token
            free = now + small.first
            judged = 0
        times.append(now)
    return times


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
    slips: Interval | None
    """The share of slips that it lets through; None if too few were tried."""
    errors: Interval | None
    """The share of the small model's own errors that it lets through; None as for `slips`."""
    seen_errors: int
    """Drafts that are errors."""
    length: float | None
    """The share of these errors that the length of a draft alone lets through."""
    verdict_seconds: float
    """Median seconds of a verdict, with nothing beside it."""
    spread: float
    """The half-width of the logarithm of `alone` that more drafts make smaller."""

    @property
    def careless(self) -> bool:
        """Whether it lets too many errors through to be used."""
        shown = self.errors or self.slips
        return shown is not None and shown.value > MAX_ERRORS_PASSED

    @property
    def passed(self) -> float:
        """The share of errors that it lets through, or of slips; 1 if neither is known."""
        shown = self.errors or self.slips
        return shown.value if shown else 1.0

    def minutes_needed(self, minutes: float) -> float | None:
        """
        How many more minutes than *minutes* would show whether it pays.

        None if it is about as fast as the large model, so that no time would.
        """
        distance = abs(log(self.alone.value))
        if distance < log(MIN_GAIN) or self.spread == inf:
            return minutes if self.spread == inf else None
        return max(1.0, ceil(minutes * ((self.spread / distance) ** 2 - 1)))


def predict(measured: MethodTrials, paces: PairPaces, weights: Mapping[int, float]) -> Figures:
    """
    Return the figures of the method.

    *weights* says by problem how many tokens of its chain a token of a trial stands for.
    """
    trials = sorted(measured.trials, key=lambda trial: trial.step)
    verdict = _verdict_seconds(trials)
    by_problem: dict[int, list[Trial]] = {}
    for trial in trials:
        by_problem.setdefault(trial.problem, []).append(trial)
    seconds: list[float] = []
    grown: list[float] = []
    own: list[float] = []
    for problem, some in by_problem.items():
        rounds = [round for trial in some for round in trial.rounds]
        weight = weights.get(problem, 1.0)
        seconds.append(weight * commit_times(rounds, paces, verdict)[-1])
        grown.append(weight * sum(trial.tokens for trial in some))
        own.append(weight * sum(trial.own for trial in some))
    # An accepted draft may stand for its own tokens, or for the large model's step in its place.
    length = sqrt(sum(own) / sum(grown))
    progress = [length * tokens for tokens in grown]
    gain = paces.large.token * sum(progress) / sum(seconds)
    spread = _jackknife(progress, seconds)
    pace = log(max(paces.large.tokens) / min(paces.large.tokens)) / 2
    width = hypot(spread, log(length), pace)
    corrections = {
        users: correction
        for users, runs in measured.runs.items()
        if (correction := _correction(runs, paces, verdict)) is not None
    }
    alone = gain / corrections.get(1, 1.0)
    loaded = None
    if paces.users in corrections and paces.large.loaded is not None:
        slower = paces.large.loaded / paces.large.token
        loaded = gain * slower / corrections[paces.users]
    known = [draft for draft in measured.drafts if draft.error is not None]
    errors = [draft for draft in known if draft.error]
    enough = len(errors) >= MIN_ERRORS
    return Figures(
        arm=measured.arm,
        drafts=len(trials),
        accepted=clustered(_outcomes(trials)),
        alone=Interval(alone, alone * exp(-width), alone * exp(min(width, 700))),
        loaded=loaded,
        slips=clustered(measured.slips) if len(measured.slips) >= MIN_ERRORS else None,
        errors=clustered([(each.problem, each.accepted) for each in errors]) if enough else None,
        seen_errors=len(errors),
        length=length_alone(known) if enough else None,
        verdict_seconds=verdict,
        spread=spread,
    )


def _verdict_seconds(trials: Sequence[Trial]) -> float:
    rounds = [(trial.alone, round) for trial in trials for round in trial.rounds if round.drafted]
    alone = [round.verdict_seconds for alone, round in rounds if alone]
    return median(alone or [round.verdict_seconds for _, round in rounds] or [0.0])


def _outcomes(trials: Sequence[Trial]) -> list[tuple[int, bool]]:
    """Each round of *trials* with a draft: the number of its problem, whether it was accepted."""
    drafted = [
        (trial.problem, round.accepted)
        for trial in trials
        for round in trial.rounds
        if round.drafted
    ]
    return drafted or [(trial.problem, False) for trial in trials]


def _jackknife(progress: Sequence[float], seconds: Sequence[float]) -> float:
    """
    The half-width at 95% of the logarithm of *progress* over *seconds*, by the jackknife.

    Both have a value for each problem, because steps of one problem depend on each other. Infinite
    for one problem.
    """
    count = len(seconds)
    if count < 2:
        return inf
    all_progress = sum(progress)
    all_seconds = sum(seconds)
    without = [
        log((all_progress - own) / (all_seconds - taken))
        for own, taken in zip(progress, seconds, strict=True)
    ]
    middle = fmean(without)
    variance = (count - 1) / count * sum((value - middle) ** 2 for value in without)
    return _student(count - 1) * sqrt(variance)


def _student(freedom: int) -> float:
    """The 97.5% quantile of Student's t, by Hill's expansion; exact to 3% from 2 degrees on."""
    z = NormalDist().inv_cdf(0.975)
    if freedom == 1:
        return 12.706
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return z + first + second + third


def _correction(runs: Sequence[SeenRun], paces: PairPaces, verdict: float) -> float | None:
    """
    How many times as long as the replay of their rounds the *runs* took.

    None if they have too few rounds.
    """
    replayed = 0.0
    for run in runs:
        times = commit_times(run.rounds, paces, verdict)
        replayed += times[-1] - times[0]
    if sum(len(run.rounds) for run in runs) < MIN_RUN_ROUNDS or not replayed:
        return None
    return sum(run.seconds for run in runs) / replayed


@dataclass(frozen=True, slots=True)
class Conclusion:
    """Whether a pair pays, and with which method."""

    verdict: Verdict
    """Whether it pays."""
    methods: tuple[Figures, ...]
    """All methods, the best first."""
    best: Figures | None
    """The method to use, or that may pay; None if none may."""
    fastest: Figures | None
    """The fastest method, also where it lets errors through; None without any."""


def conclude(methods: Sequence[Figures]) -> Conclusion:
    """
    Choose among *methods* the fastest one that does not let errors through.

    Of methods that are about as fast, choose the one that lets the fewest errors through, then the
    one that is faster with several users.
    """
    ordered = sorted(methods, key=lambda method: (method.careless, -method.alone.value))
    fastest = max(methods, key=lambda method: method.alone.value, default=None)
    usable = [method for method in ordered if not method.careless]
    if not usable:
        return Conclusion("does not pay", tuple(ordered), None, fastest)
    top = usable[0].alone.value
    alike = [method for method in usable if method.alone.value * ALIKE >= top]
    best = min(alike, key=lambda method: (method.passed, -(method.loaded or 0.0)))
    ordered.remove(best)
    verdict: Verdict = "not known"
    if best.alone.low >= 1 and best.alone.value >= MIN_GAIN:
        verdict = "pays"
    elif best.alone.high < MIN_GAIN:
        verdict = "does not pay"
    return Conclusion(verdict, (best, *ordered), best, fastest)
