"""
Predict from measurements what methods gain on a pair of servers, and from which accept rate and up to which load.

Times are those of a simulation: the real loop replays the recorded runs on servers with the measured costs. No I/O.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median, median_low
from typing import Protocol

from stepspec.policies.grading import BEST

from ..arms import LARGE
from ..crowd import Load
from ..results import Interval, bootstrap_ratio, wilson
from ..sample import Arm
from ..script import Script, Turn
from ..simulation import Figures, ServerCosts, simulate
from .measurements import Measurements, ServerMeasurement

DEPTHS = (0, 1, 2, 3)  # of the lookahead, to choose from
PAYS = 1.03  # the least speed-up that is worth another server
SHARES = tuple(step / 5 for step in range(6))  # accept rates at which a method is simulated, to find where it pays
MINIMUM_CORRECTION, MAXIMUM_CORRECTION = 0.5, 2.0  # of what timed runs took over what the simulation says
MOST_PROBLEMS = 64  # of one simulation
GOLDEN = (math.sqrt(5) - 1) / 2


class Simulate(Protocol):
    """`simulate`, or what takes its place in a test."""

    def __call__(
        self, load: Load, arm: Arm, scripts: Sequence[Script], small: ServerCosts, large: ServerCosts, *, problems: int
    ) -> Figures: ...


@dataclass(frozen=True, slots=True)
class Expected:
    """
    What is expected of a method with *concurrency* problems at once, *ahead* drafts ahead.

    *seconds* and *seconds_large* are the mean times of a problem, by the method and by the large model alone, and
    *speed_up* is their ratio. *break_even* is the accept rate from which on the method is faster; None: no rate is.
    """

    concurrency: int
    ahead: int
    seconds: float
    seconds_large: float
    speed_up: Interval
    break_even: float | None


@dataclass(frozen=True, slots=True)
class MethodEstimate:
    """
    What is expected of one method: the share *accepted* of its *drafts*, and its times under each load, the first of
    which is one problem at a time.

    *stop* is the number of problems at once from which the large model alone is faster; None if that is above the
    highest load. *correction* is what the timed runs took over what the simulation says, relative to the large model
    alone.
    """

    arm: Arm
    drafts: int
    accepted: Interval
    expected: tuple[Expected, ...]
    stop: int | None
    correction: float

    @property
    def alone(self) -> Expected:
        """What is expected with one problem at a time."""
        return self.expected[0]

    @property
    def pays(self) -> bool:
        """Whether the method is expected to save time, one problem at a time."""
        return self.alone.speed_up.value >= PAYS


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimates of all methods, the fastest first, from runs on *problems* problems, up to the load *highest*."""

    methods: tuple[MethodEstimate, ...]
    problems: int
    highest: int

    @property
    def best(self) -> MethodEstimate | None:
        """The fastest method; None if none pays."""
        return next((method for method in self.methods if method.pays), None)


@dataclass
class Predictor:
    """Predicts from what was *measured*; *simulate* gives the times, and *on_method* is called after each method."""

    measured: Measurements
    simulate: Simulate = simulate
    on_method: Callable[[], object] = lambda: None
    _large: dict[int, float] = field(default_factory=dict[int, float])

    def estimate(self, concurrency: Sequence[int]) -> Estimate:
        """Estimate every method, one problem at a time and with each number of *concurrency* at once."""
        loads = sorted({1, *concurrency})
        methods = [self._method(arm, loads) for arm in self.measured.arms if arm.name != LARGE.name]
        methods.sort(key=lambda method: -method.alone.speed_up.value)
        return Estimate(tuple(methods), len(self.measured.runs[LARGE.name]), loads[-1])

    def correction(self, arm: Arm) -> float:
        """What the timed runs of *arm* took, over what the simulation says of the same runs."""
        runs = [run for run in self.measured.runs[arm.name] if run.alone]
        expected = sum(self._seconds(arm, [run.script], 1) for run in runs)
        if not expected:
            return 1.0
        return min(MAXIMUM_CORRECTION, max(MINIMUM_CORRECTION, sum(run.seconds for run in runs) / expected))

    def _method(self, arm: Arm, loads: Sequence[int]) -> MethodEstimate:
        recorded = self._scripts(arm)
        accepted, drafts = count_drafts(recorded)
        rate = wilson(accepted, drafts) if drafts else Interval(0.0, 0.0, 1.0)
        own, large = self.correction(arm), self.correction(LARGE)
        expected: list[Expected] = []
        below = above = 0.0
        for load in loads:
            seconds = {depth: self._seconds(at_depth(arm, depth), recorded, load) for depth in DEPTHS}
            ahead = min(DEPTHS, key=seconds.__getitem__)
            method, alone = own * seconds[ahead], large * self._seconds_large(load)
            shares = self._by_share(at_depth(arm, ahead), recorded, load)
            ratios = {share: own * other / alone for share, other in shares.items()}
            if load == 1:
                below, above = self._spread(at_depth(arm, ahead), recorded, rate, ratios)
            value = alone / method
            interval = Interval(value, value * math.exp(-below), value * math.exp(above))
            even = crossing(ratios) if drafts else None
            expected.append(Expected(load, ahead, method, alone, interval, even))
        self.on_method()
        return MethodEstimate(arm, drafts, rate, tuple(expected), stopping_load(expected), own / large)

    def _scripts(self, arm: Arm) -> list[Script]:
        return [run.script for run in self.measured.runs[arm.name]]

    def _seconds(self, arm: Arm, recorded: Sequence[Script], load: int) -> float:
        """Mean seconds of a problem in the simulation, without a correction."""
        small, large = self.measured.small.costs(), self.measured.large.costs()
        arm = replace(arm, sampling={**arm.sampling, "temperature": self.measured.temperature})
        problems = len(recorded) if load == 1 else min(MOST_PROBLEMS, max(len(recorded), 2 * load))
        return self.simulate(Load(concurrency=load), arm, recorded, small, large, problems=problems).mean

    def _seconds_large(self, load: int) -> float:
        if load not in self._large:
            self._large[load] = self._seconds(LARGE, self._scripts(LARGE), load)
        return self._large[load]

    def _by_share(self, arm: Arm, recorded: Sequence[Script], load: int) -> dict[float, float]:
        """Seconds of a problem by the accept rate, for as many tokens as were recorded."""
        tokens = count_tokens(recorded)
        changed = {share: with_accept_rate(recorded, share) for share in SHARES}
        return {
            share: self._seconds(arm, other, load) * tokens / count_tokens(other) for share, other in changed.items()
        }

    def _spread(
        self, arm: Arm, recorded: Sequence[Script], rate: Interval, ratios: Mapping[float, float]
    ) -> tuple[float, float]:
        """
        How far the logarithm of the speed-up may lie below and above its estimate.

        The distances of two causes are combined as those of independent ones: the problems (the wider of a bootstrap
        over them, and of the accept rate's interval), and the paces.
        """
        theirs = [self._seconds(LARGE, [script], 1) for script in self._scripts(LARGE)]
        ours = [self._seconds(arm, [script], 1) for script in recorded]
        problems = bootstrap_ratio(theirs, ours)
        around = [1 / interpolated(ratios, share) for share in (rate.value, rate.low, rate.high)]
        fast, slow = (self._at_paces(arm, recorded, sign) for sign in (1, -1))
        usual = sum(theirs) / sum(ours)
        below = max(_log(problems.value, problems.low), _log(around[0], around[1])), _log(usual, slow)
        above = max(_log(problems.high, problems.value), _log(around[2], around[0])), _log(fast, usual)
        return math.hypot(*below), math.hypot(*above)

    def _at_paces(self, arm: Arm, recorded: Sequence[Script], sign: int) -> float:
        """The speed-up at those ends of the paces' spread that favour the method (*sign* 1), or the other one (-1)."""
        small, large = _at_end(self.measured.small, -sign), _at_end(self.measured.large, sign)
        other = replace(self, measured=replace(self.measured, small=small, large=large), _large={})
        return other._seconds_large(1) / other._seconds(arm, recorded, 1)


def _log(over: float, under: float) -> float:
    return max(0.0, math.log(over / under)) if over > 0 and under > 0 else 0.0


def _at_end(server: ServerMeasurement, sign: int) -> ServerMeasurement:
    """The *server* at the slow (1) or fast (-1) end of the times that were measured with one stream."""
    times = server.between[1]
    return server.at_pace((max(times) if sign > 0 else min(times)) / median(times))


def at_depth(arm: Arm, ahead: int) -> Arm:
    """Return *arm* with another lookahead."""
    return replace(arm, run=arm.run.with_overrides({"ahead": ahead}))


def count_drafts(scripts: Sequence[Script]) -> tuple[int, int]:
    """The number of drafts that were accepted, and of all drafts."""
    drafts = [turn for script in scripts for turn in script.turns if _judged(turn)]
    return sum(map(_accepted, drafts)), len(drafts)


def count_tokens(scripts: Sequence[Script]) -> int:
    """The number of tokens that are kept, in all scripts."""
    turns = (turn for script in scripts for turn in script.turns)
    return sum(turn.kept + (0 if _accepted(turn) else turn.repair or turn.draft) for turn in turns)


def with_accept_rate(scripts: Sequence[Script], share: float) -> list[Script]:
    """
    Return what would have been recorded if a *share* of the drafts were accepted, with as few changes as possible.

    The drafts to change are spread over all scripts. One that is rejected instead keeps as large a part, and has as
    long a repair, as the rejected ones in the middle; if none was rejected, nothing of it is kept.
    """
    drafts = [turn for script in scripts for turn in script.turns if _judged(turn)]
    accepted, rejected = [t for t in drafts if _accepted(t)], [t for t in drafts if not _accepted(t)]
    change = round(share * len(drafts)) - len(accepted)
    candidates = [place for place, turn in enumerate(drafts) if _accepted(turn) == (change < 0)]
    ranked = sorted(range(len(candidates)), key=lambda number: number * GOLDEN % 1)
    changing = {candidates[number] for number in ranked[: abs(change)]}
    kept = median(turn.kept / turn.draft for turn in rejected) if rejected else 0.0
    repair = median_low(turn.repair or turn.draft for turn in rejected) if rejected else 0
    good, bad = _grade(accepted, BEST), _grade(rejected, 0.0)

    def changed(turn: Turn) -> Turn:
        if change > 0:
            return replace(turn, kept=turn.draft, repair=0, grade=good)
        keeps = min(turn.draft - 1, round(kept * turn.draft))
        return replace(turn, kept=keeps, repair=repair, grade=bad)

    places = itertools.count()

    def rewritten(turns: Sequence[Turn]) -> Iterator[Turn]:
        for turn in turns:
            yield changed(turn) if _judged(turn) and next(places) in changing else turn

    return [replace(script, turns=tuple(rewritten(script.turns))) for script in scripts]


def _judged(turn: Turn) -> bool:
    return turn.author == "small" and turn.draft > 0


def _accepted(turn: Turn) -> bool:
    return turn.kept == turn.draft


def _grade(turns: Sequence[Turn], otherwise: float) -> float | None:
    """The middle grade of *turns*; None if their verdicts have no grades."""
    grades = [turn.grade for turn in turns if turn.grade is not None]
    return median_low(grades) if grades else None if turns else otherwise


def interpolated(values: Mapping[float, float], at: float) -> float:
    """The value *at* a place, on straight lines between the known ones; the nearest one outside of these."""
    places = sorted(values)
    for low, high in itertools.pairwise(places):
        if low <= at <= high:
            return values[low] + (values[high] - values[low]) * (at - low) / (high - low)
    return values[places[0] if at < places[0] else places[-1]]


def stopping_load(expected: Sequence[Expected]) -> int | None:
    """
    The number of problems at once from which on the large model alone is faster; None if there is none so far.

    Between two loads, the speed-up is a straight line over the logarithm of the load.
    """
    points = [(each.concurrency, each.speed_up.value) for each in expected]
    if points[-1][1] >= 1:
        return None
    for (low, before), (high, after) in reversed(list(itertools.pairwise(points))):
        if before >= 1:
            share = (before - 1) / (before - after)
            return math.ceil(math.exp(math.log(low) + share * math.log(high / low)))
    return 1


def crossing(ratios: Mapping[float, float]) -> float | None:
    """The least accept rate from which on the ratio of the times is at most 1; None if it is above 1 at the highest."""
    places = sorted(ratios, reverse=True)
    if ratios[places[0]] > 1:
        return None
    for high, low in pairwise(places):
        if ratios[low] > 1:
            return low + (high - low) * (ratios[low] - 1) / (ratios[low] - ratios[high])
    return places[-1]
