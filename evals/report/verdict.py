"""
The verdict on each method: is it faster, does it lose accuracy, or which number of problems would
tell. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..arms import LARGE
from ..results import Interval, Z, difference, disagreements, paired_difference
from ..sample import Sample
from .figures import ArmFigures

MAX_LOSS = 0.02  # a share of all problems, as for `stepspec calibrate`
# problems that show a difference in time: fewer all point one way by chance in over 5% of all runs
FEWEST = 6
MOST = 100_000  # further problems; larger numbers help nobody

Speed: TypeAlias = Literal["faster", "slower", "unknown"]
Loss: TypeAlias = Literal["excluded", "shown", "unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What a run shows about one method or control, compared with the baseline on the same problems.

    *speedup*: mean seconds of the baseline over the mean seconds of the arm. Its 95% interval is a
    percentile bootstrap over the problems, in which both arms keep the same problems: the
    reciprocal of `Result.ratio`'s.

    *difference*: accuracy of the arm minus that of the baseline, as a share. Its 95% interval is
    Tango's score interval for paired shares; with several samples per problem, a percentile
    bootstrap over the problems.

    *speed* is known if the interval of the speed-up, over `FEWEST` problems or more, excludes 1. A
    *loss* above *max_loss* is excluded if the interval of the difference lies above -*max_loss*,
    and shown if it lies below. Each end of a 95% interval errs in 2.5% of all runs, so that each
    statement about one end does so.

    *further_for_loss* are the further problems with which the interval is as likely as not to tell;
    None if it tells already, or if `MOST` would be too few.

    A control has the name of its method in *like*, and *judge* is the accuracy of that method minus
    that of the control, with an interval as above: what the method's judge is worth, since both
    accept the same share of drafts.
    """

    arm: str
    speedup: Interval
    speed: Speed
    difference: Interval
    loss: Loss
    max_loss: float
    further_for_loss: int | None
    like: str = ""
    judge: Interval | None = None

    @property
    def good(self) -> bool:
        """Whether the arm is shown to be faster, and not to lose more than *max_loss*."""
        return self.speed == "faster" and self.loss == "excluded"

    @property
    def sentence(self) -> str:
        """The verdict in one sentence, without the name of the arm."""
        ending = _judge_words(self.like, self.judge) if self.judge else f": {_loss_words(self)}"
        return f"{_speed_words(self)}, accuracy {_points(self.difference)}{ending}"


def judge_methods(
    figures: Sequence[ArmFigures],
    samples: Mapping[str, Mapping[int, Sample]],
    repeats: int = 1,
    max_loss: float = MAX_LOSS,
    baseline: str = LARGE.name,
) -> list[Verdict]:
    """
    Judge all methods and controls, in the order of *figures*.

    *samples* has those of each arm by number, and *repeats* samples for each problem.
    """
    by_arm = {name: list(numbered.values()) for name, numbered in samples.items()}
    return [
        _judge(f, by_arm, by_arm[baseline], repeats, max_loss)
        for f in figures
        if f.method or f.arm.like
    ]


def _judge(
    f: ArmFigures,
    by_arm: Mapping[str, list[Sample]],
    theirs: list[Sample],
    repeats: int,
    max_loss: float,
) -> Verdict:
    ours = by_arm[f.arm.name]
    problems = len(ours) // repeats
    apart = f.standing.difference
    ratio = Interval(f.result.ratio, *f.result.ratio_interval)
    told = ratio.value and problems >= FEWEST
    speed: Speed = (
        "faster" if told and ratio.high < 1 else "slower" if told and ratio.low > 1 else "unknown"
    )
    loss: Loss = (
        "excluded" if apart.low >= -max_loss else "shown" if apart.high < -max_loss else "unknown"
    )
    gained, lost = disagreements(ours, theirs)
    return Verdict(
        arm=f.arm.name,
        speedup=_reciprocal(ratio),
        speed=speed,
        difference=apart,
        loss=loss,
        max_loss=max_loss,
        further_for_loss=(
            further_for_loss(problems, gained / repeats, lost / repeats, apart, max_loss)
            if loss == "unknown"
            else None
        ),
        like=f.arm.like,
        judge=(
            paired_difference(by_arm[f.arm.like], ours, repeats) if f.arm.like in by_arm else None
        ),
    )


def _reciprocal(ratio: Interval) -> Interval:
    value, low, high = (
        1 / each if each else math.inf for each in (ratio.value, ratio.high, ratio.low)
    )
    return Interval(value, low, high)


def further_for_loss(
    problems: int, gained: float, lost: float, apart: Interval, max_loss: float
) -> int | None:
    """
    Return how many further problems exclude a loss above *max_loss*; None if that are more than
    `MOST`.

    So far, *gained* of *problems* were right in this arm only, *lost* in the other arm only, and
    *apart* is the interval of the difference. Both arms are assumed to be equally accurate on the
    further problems and to disagree as often as so far: with this number the lower end of the
    interval is expected at -*max_loss*, so that the interval excludes the loss in about half of all
    continuations. If the arm is in fact less accurate, more are needed.
    """
    half = (gained + lost) / 2 / problems  # of the share on which the arms disagree
    score = apart == difference(problems, gained, lost)
    added = 2 * Z * Z  # by the two problems of `bootstrap_mean`
    spread = min(
        Z * Z * (gained + lost), max(0.0, ((apart.value - apart.low) * (problems + 2)) ** 2 - added)
    )

    def excluded(further: int) -> bool:
        total = problems + further
        if score:
            low = difference(total, gained + half * further, lost + half * further).low
        else:  # a bootstrap interval, which narrows about with the root of the number of problems
            low = apart.value * problems / total - math.sqrt(spread * total / problems + added) / (
                total + 2
            )
        return low >= -max_loss

    # a loss that a number excludes, all larger ones do
    least = bisect_left(range(MOST + 1), True, lo=1, key=excluded)
    return least if least <= MOST else None


def headline(verdicts: Sequence[Verdict], baseline: str = LARGE.name) -> str:
    """Sum up the verdicts on all methods in one sentence; empty if no method was measured."""
    methods = [verdict for verdict in verdicts if not verdict.like]
    if not methods:
        return ""
    if len(methods) == 1:
        return f"{methods[0].arm}: {methods[0].sentence}."
    limit = points(methods[0].max_loss)
    if good := [verdict for verdict in methods if verdict.good]:
        best = max(good, key=lambda verdict: verdict.speedup.value)
        return (
            f"Of {len(methods)} methods, {best.arm} is the fastest that excludes a loss above"
            f" {limit}: {_speed_words(best)}."
        )
    if any(verdict.speed == "faster" and verdict.loss == "unknown" for verdict in methods):
        return (
            f"Too few problems to tell whether any of the faster methods loses at most {limit} of"
            " accuracy."
        )
    return f"No method is shown to be faster than {baseline} without a loss above {limit}."


def small_print(max_loss: float, baseline: str) -> str:
    """Explain the sentences of the verdicts."""
    return (
        f"Faster: mean seconds of {baseline} divided by those of the method, on the same problems;"
        f" slower: the reciprocal. Accuracy: the difference from {baseline}. Brackets are 95%"
        " intervals: a bootstrap over the problems for the time, Tango's score interval for the"
        " accuracy (with several samples per problem, a bootstrap). A loss above"
        f" {points(max_loss)} is excluded if the whole interval is above -{points(max_loss)}. About"
        " N more: with N further problems, the interval is as likely as not to exclude that loss,"
        " if both are equally accurate and disagree as often as so far. Each interval stands for"
        " itself: of many methods, some will err."
    )


def points(share: float) -> str:
    """Write *share* in percentage points."""
    value = f"{100 * share:g}"
    return f"{value} point" if value == "1" else f"{value} points"


def _speed_words(verdict: Verdict) -> str:
    s = verdict.speedup
    if not math.isfinite(s.value):
        return "no time measured"
    if verdict.speed != "unknown":
        return _times(verdict.speed, s if verdict.speed == "faster" else _reciprocal(s))
    return f"no difference in time shown ({s.value:.2f}x [{s.low:.2f}, {s.high:.2f}])"


def _times(word: str, ratio: Interval) -> str:
    """Write *ratio* with as few decimals as show that its lower end is not 1."""
    digits = next((digits for digits in (1, 2) if round(ratio.low, digits) != 1), 3)
    value, low, high = (f"{number:.{digits}f}" for number in (ratio.value, ratio.low, ratio.high))
    return f"{value}x {word} [{low}, {high}]"


def _loss_words(verdict: Verdict) -> str:
    low = verdict.difference.points.low
    high = verdict.difference.points.high
    less = verdict.difference.high < 0
    if verdict.loss == "shown":
        return f"a loss of at least {-high:.1f} points at 95%"
    if verdict.loss == "excluded":
        if verdict.difference.low > 0:
            return "more accurate at 95%"
        return f"{'a loss, but none' if less else 'no loss'} above {abs(low):.1f} points at 95%"
    limit = points(verdict.max_loss)
    further = verdict.further_for_loss
    shown = (
        f"a loss, and too few problems to tell if it is above {limit}"
        if less
        else (f"too few problems to exclude a loss above {limit}")
    )
    return (
        f"{shown};"
        f" {f'about {_about(further)} more would' if further else f'{MOST:,} more would not'}"
    )


def _judge_words(like: str, judge: Interval) -> str:
    found = (
        "better than"
        if judge.low > 0
        else "worse than"
        if judge.high < 0
        else "not shown to differ from"
    )
    return f"; the judge of {like} adds {_points(judge)}: {found} chance"


def _points(share: Interval) -> str:
    found = share.points
    return f"{found.value:+.1f} points [{found.low:+.1f}, {found.high:+.1f}]"


def _about(number: int) -> str:
    """Round *number* to two digits."""
    return f"{float(f'{number:.2g}'):,.0f}"
