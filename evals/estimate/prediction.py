"""
Predict from measurements what methods gain on a pair of servers, and from which accept rate. No
I/O.

A method goes round: a draft, a verdict, and a repair if the draft is rejected. The seconds of a
round and its tokens follow from the measured times, for any accept rate; the gain is the seconds of
an ordinary request to the large model for as many tokens, over these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import exp, hypot, log
from statistics import fmean, median
from typing import Literal, NamedTuple, TypeAlias

from stepspec.orchestrator import auto
from stepspec.orchestrator.interfaces import answered_by
from stepspec.policies import METHODS

from ..results import Interval, wilson
from ..sample import Arm
from .drafts import repairs_whole_steps
from .measurements import AHEAD, SHARED, DraftTrial, Measurements

# the end of what was measured that speaks against a method, the middle, the other
End: TypeAlias = Literal[-1, 0, 1]
PAYS = 1.03  # the least gain that is worth another server
UNKNOWN = Interval(0.5, 0.0, 1.0)  # accept rate without a draft
RARE = 1e-9


@dataclass(frozen=True, slots=True)
class Round:
    """
    Mean tokens of *accepted* drafts, of which the chain keeps those *passed*, and of *rejected*
    ones, of which it keeps those *kept* and the large model writes those *repaired*. An accepted
    draft stands for so many tokens of an ordinary request: its *progress*.
    """

    accepted: float
    passed: float
    progress: Mapping[End, float]
    rejected: float
    kept: float
    repaired: float

    @classmethod
    def of(cls, trials: Sequence[DraftTrial], step: float) -> Round:
        """
        The round of a method with these *trials*; *step* are the tokens of a step of the large
        model's own.

        An accepted draft may stand for as many tokens of an ordinary request as it has, or for the
        large model's own step in its place: one of both is the progress at each end, and their
        geometric mean that in the middle.
        """
        good, bad = [t for t in trials if t.accepted], [t for t in trials if not t.accepted]
        usual = _mean([trial.drafted for trial in trials], step)
        kept = _mean([trial.kept for trial in good], usual)
        known = [(trial.kept, trial.own) for trial in good if trial.own]
        own = kept * (
            sum(own for _, own in known) / max(1, sum(tokens for tokens, _ in known))
            if known
            else 1
        )
        return cls(
            accepted=_mean([trial.drafted for trial in good], usual),
            passed=kept,
            progress={-1: min(kept, own), 0: (kept * own) ** 0.5, 1: max(kept, own)},
            rejected=_mean([trial.drafted for trial in bad], usual),
            kept=_mean([trial.kept for trial in bad], 0),
            repaired=_mean([trial.repaired for trial in bad], step),
        )

    def tokens(self, share: float, accepted: float) -> float:
        """
        Mean tokens of a round if a *share* of the drafts is accepted and stands for so many
        *accepted* tokens.
        """
        return share * accepted + (1 - share) * (self.kept + self.repaired)


def _mean(values: Sequence[float], otherwise: float) -> float:
    return fmean(values) if values else otherwise


@dataclass(frozen=True, slots=True)
class Times:
    """
    Seconds at one *end* of what was measured: of tokens, of first tokens, of a verdict, and of a
    token of an ordinary request. A draft takes *drafting* times what its tokens say; it stands
    still for the seconds *stalled* of a verdict.
    """

    small: float
    small_first: float
    large: float
    large_first: float
    plain: float
    verdict: float
    drafting: float
    stalled: float

    @classmethod
    def of(cls, measured: Measurements, trials: Sequence[DraftTrial], end: End = 0) -> Times:
        at: Mapping[End, Callable[[Sequence[float]], float]] = {-1: max, 0: median, 1: min}
        worst, best = at[end], at[-end]
        small, large = measured.small, measured.large
        alone = [(trial.drafted, *trial.seconds) for trial in trials if trial.seconds is not None]
        verdict = worst([verdict for _, _, verdict in alone] or [median(large.first)])
        expected = sum(
            median(small.first) + max(0, tokens - 1) * small.token for tokens, _, _ in alone
        )
        return cls(
            small=worst(small.between[1]),
            small_first=median(small.first),
            large=large.token,
            large_first=median(large.first),
            plain=best(measured.plain or large.between[1]),
            verdict=verdict,
            drafting=sum(seconds for _, seconds, _ in alone) / expected if expected else 1.0,
            stalled=small.stalled * verdict,
        )


class Mode(NamedTuple):
    """So many drafts *ahead*; with a *hedge*, every repair begins with its draft."""

    ahead: int
    hedge: bool = False


MODES = [Mode(ahead, hedge) for hedge in (False, True) for ahead in range(4)]  # to choose from


def pace(rounds: Round, times: Times, share: float, mode: Mode, end: End = 0) -> float:
    """
    Seconds for a token of progress of a method in this *mode* of which a *share* of the drafts is
    accepted.

    A chain goes from one rejection to the next. Verdicts of drafts that are accepted are hidden by
    the drafts ahead; the first draft after a rejection waits for its first token, and the rejected
    one for its verdict and its repair.
    """
    drafted = share * rounds.accepted + (1 - share) * rounds.rejected
    writing, first = drafted * times.small * times.drafting, times.small_first * times.drafting
    known = first + writing + times.verdict  # that a draft is rejected
    repair = times.large_first + max(0.0, rounds.repaired - 1) * times.large
    repair = max(0.0, repair - known) if mode.hedge else repair
    each = (
        max(writing + times.stalled, (writing + times.verdict) / (mode.ahead + 1))
        if mode.ahead
        else known
    )
    rejection = known - each + repair
    return (each + (1 - share) * rejection) / max(RARE, rounds.tokens(share, rounds.progress[end]))


@dataclass(frozen=True, slots=True)
class Gain:
    """
    The *gain* of a method with *concurrency* problems at once, so many drafts *ahead*, and this
    *hedge*.
    """

    concurrency: int
    ahead: int
    gain: Interval
    hedge: float = 0.0


@dataclass(frozen=True, slots=True)
class MethodEstimate:
    """
    What is expected of one method: the share *accepted* of its *drafts*, and its gains, first one
    problem at a time.

    *break_even* is the accept rate from which on it is faster than an ordinary request; None: no
    rate is. *widths* are those of the interval's causes, as logarithms.
    """

    arm: Arm
    drafts: int
    accepted: Interval
    gains: tuple[Gain, ...]
    break_even: float | None
    widths: Mapping[str, float]
    verdict_seconds: float

    @property
    def alone(self) -> Gain:
        return self.gains[0]

    @property
    def runs(self) -> int | None:
        """The most problems at once with which it saved time, if it saved none with more."""
        saving = list(takewhile(lambda gain: gain.gain.value >= 1, self.gains))
        return saving[-1].concurrency if 0 < len(saving) < len(self.gains) else None

    @property
    def tried(self) -> bool:
        """Whether enough drafts were tried to tell anything."""
        return self.drafts >= auto.WEIGHT

    @property
    def pays(self) -> bool:
        """Whether the method is expected to save time, one problem at a time."""
        return self.alone.gain.value >= PAYS


@dataclass(frozen=True, slots=True)
class Estimate:
    """
    The estimates of all methods, the fastest first, then those of which too few drafts were tried.

    *seconds* are those of an ordinary request, as far as it was seen.
    """

    methods: tuple[MethodEstimate, ...]
    seconds: float

    @property
    def best(self) -> MethodEstimate | None:
        """The fastest method; None if none pays."""
        return next((method for method in self.methods if method.pays), None)


def predict(measured: Measurements, concurrency: Sequence[int] = ()) -> Estimate:
    """
    Estimate every method, one problem at a time and with each number of *concurrency* at once that
    was measured.
    """
    methods = [_method(measured, arm, sorted({*concurrency} - {1})) for arm in measured.arms]
    methods.sort(key=lambda method: (not method.tried, -method.alone.gain.value))
    plain = median(measured.plain or measured.large.between[1])
    return Estimate(tuple(methods), median(measured.large.first) + measured.length[0] * plain)


def _method(measured: Measurements, arm: Arm, loads: Sequence[int]) -> MethodEstimate:
    trials = measured.trials[arm.name]
    rate = wilson(sum(trial.accepted for trial in trials), len(trials)) if trials else UNKNOWN
    rounds, tokens = Round.of(trials, measured.step), _tokens(measured, arm)
    times: dict[End, Times] = {end: Times.of(measured, trials, end) for end in (-1, 0, 1)}

    def at(share: float, mode: Mode, end: End = 0, progress: End = 0) -> float:
        now = times[end]
        return _gain(tokens, now, pace(rounds, now, share, mode, progress), now.plain, now.large)

    may_hedge = (
        repairs_whole_steps(arm) and rate.value <= auto.HEDGED and measured.small.stalled < SHARED
    )
    modes = [mode for mode in MODES if may_hedge or not mode.hedge]
    best = max(modes, key=lambda mode: at(rate.value, mode) / (PAYS if mode.hedge else 1))
    by_cause = {
        "accept": (at(rate.low, best), at(rate.high, best)),
        "length": (at(rate.value, best, progress=-1), at(rate.value, best, progress=1)),
        "pace": (at(rate.value, best, -1), at(rate.value, best, 1)),
    }
    value = at(rate.value, best)
    widths = {cause: abs(log(high / low)) for cause, (low, high) in by_cause.items()}
    below = hypot(*(max(0.0, log(value / min(ends))) for ends in by_cause.values()))
    above = hypot(*(max(0.0, log(max(ends) / value)) for ends in by_cause.values()))
    loaded = {
        load: _gain_under(measured, rounds, times[0], arm, rate.value, load) for load in loads
    }
    gains = tuple(
        Gain(
            load,
            mode.ahead,
            Interval(gain, gain * exp(-below), gain * exp(above)),
            float(mode.hedge),
        )
        for load, mode, gain in [
            (1, best, value),
            *((load, Mode(AHEAD), gain) for load, gain in loaded.items()),
        ]
        if gain is not None
    )
    even = _break_even(lambda share: max(at(share, mode) for mode in modes))
    return MethodEstimate(arm, len(trials), rate, gains, even, widths, times[0].verdict)


def _tokens(measured: Measurements, arm: Arm) -> tuple[float, float]:
    """
    Mean tokens of a chain that the method writes, and those of the answer if that is the large
    model's alone.
    """
    tokens, answer = measured.length
    alone = answer if answered_by(METHODS.find(arm.policy).source) == "large" else 0.0
    return max(1.0, tokens - alone), alone


def _gain(
    tokens: tuple[float, float], times: Times, token: float, plain: float, large: float
) -> float:
    """
    The seconds of a request, *plain* for each token, over those of a method: *token*, and *large*
    in the answer.
    """
    written, answer = tokens
    ending = times.large_first + answer * large if answer else 0.0
    return (times.large_first + (written + answer) * plain) / (
        times.small_first + written * token + ending
    )


def _gain_under(
    measured: Measurements, rounds: Round, times: Times, arm: Arm, share: float, load: int
) -> float | None:
    """
    The same with *load* problems at once, from runs that were measured so; None if they were not.
    """
    stream, run = measured.large.under(load), measured.runs.get((arm.name, load))
    if stream is None or run is None:
        return None
    plain = stream * median(measured.plain or measured.large.between[1]) / measured.large.token
    longer = rounds.tokens(share, rounds.passed) / max(
        RARE, rounds.tokens(share, rounds.progress[0])
    )
    return _gain(_tokens(measured, arm), times, run * longer, plain, plain)


def _break_even(gain: Callable[[float], float]) -> float | None:
    """The accept rate at which the *gain* is 1, by halving; None if it is below 1 at every rate."""
    if gain(1.0) < 1:
        return None
    low, high = 0.0, 1.0
    if gain(low) >= 1:
        return 0.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle) >= 1 else (middle, high)
    return high
