"""
The verdict on each method: whether it is faster, and whether it loses accuracy. Pure.

If the problems are too few to tell, the verdict says how many more would do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..results import Interval, Result, difference

MAX_LOSS = 0.02
"""The acceptable loss of accuracy as a share of all problems, as for `stepspec calibrate`."""
MIN_PROBLEMS = 6
"""Problems that show a difference in time. Fewer all point one way by chance in over 5% of runs."""
MAX_FURTHER_PROBLEMS = 100_000
"""The largest number of further problems that is named. Larger numbers help nobody."""

Speed: TypeAlias = Literal["faster", "slower", "unknown"]
Loss: TypeAlias = Literal["excluded", "shown", "unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What a run shows about one method, compared with the baseline on the same problems.

    Each end of a 95% interval errs in 2.5% of all runs, and so does each statement about one end.
    """

    arm: str
    """The name of the arm."""
    speedup: Interval
    """Mean seconds of the baseline over those of the arm: the reciprocal of `Result.ratio`."""
    speed: Speed
    """Known if the interval of the speed-up excludes 1 over `MIN_PROBLEMS` problems or more."""
    difference: Interval
    """
    Accuracy of the arm minus that of the baseline, as a share.

    The interval is Tango's score interval for paired shares. With several samples per problem it is
    a percentile bootstrap over the problems.
    """
    loss: Loss
    """
    Whether the arm loses more than *max_loss*.

    Such a loss is excluded if the interval of the difference lies above -*max_loss*, and shown if
    it lies below.
    """
    max_loss: float
    """The acceptable loss, as a share of all problems."""
    further_for_loss: int | None
    """
    Further problems with which the interval is as likely as not to tell.

    None if it tells already, if each problem has several samples, or if `MAX_FURTHER_PROBLEMS`
    would be too few.
    """

    @property
    def sentence(self) -> str:
        """The verdict in one sentence, without the name of the arm."""
        accuracy = f"{self.difference.points:+z.1f}".replace(" [", " points [")
        return f"{_speed_words(self)}, accuracy {accuracy}: {_loss_words(self)}"


def judge_methods(
    figures: Sequence[Result],
    repeats: int = 1,
    max_loss: float = MAX_LOSS,
) -> list[Verdict]:
    """Judge all methods, in the order of *figures*, with *repeats* samples of each problem."""
    return [_judge(result, repeats, max_loss) for result in figures if result.kind == "method"]


def _judge(result: Result, repeats: int, max_loss: float) -> Verdict:
    problems = result.n // repeats
    loss = _loss(result.difference, max_loss)
    further = None
    if loss == "unknown" and repeats == 1:
        further = further_for_loss(problems, result.gained, result.lost, max_loss)
    return Verdict(
        arm=result.name,
        speedup=_reciprocal(result.ratio),
        speed=_speed(result.ratio, problems),
        difference=result.difference,
        loss=loss,
        max_loss=max_loss,
        further_for_loss=further,
    )


def _speed(ratio: Interval, problems: int) -> Speed:
    if problems < MIN_PROBLEMS:
        return "unknown"
    if ratio.high < 1:
        return "faster"
    return "slower" if ratio.low > 1 else "unknown"


def _loss(apart: Interval, max_loss: float) -> Loss:
    if apart.low >= -max_loss:
        return "excluded"
    return "shown" if apart.high < -max_loss else "unknown"


def _reciprocal(ratio: Interval) -> Interval:
    return Interval(1 / ratio.value, 1 / ratio.high, 1 / ratio.low)


def further_for_loss(
    problems: int,
    gained: int,
    lost: int,
    max_loss: float,
) -> int | None:
    """
    Return how many further problems exclude a loss above *max_loss*.

    So far, *gained* of *problems* were right in this arm only, *lost* in the other arm only. Both
    arms are assumed to be equally accurate on the further problems and to disagree as often as so
    far. The lower end of the interval is then expected at -*max_loss*, so that about half of all
    continuations exclude the loss. If the arm is in fact less accurate, more problems are needed.
    None if `MAX_FURTHER_PROBLEMS` are too few.
    """
    half = (gained + lost) / 2 / problems  # of the share on which the arms disagree

    def excluded(further: int) -> bool:
        added = half * further
        return difference(problems + further, gained + added, lost + added).low >= -max_loss

    # If a number of problems excludes the loss, all larger numbers do.
    least = bisect_left(range(MAX_FURTHER_PROBLEMS + 1), True, lo=1, key=excluded)
    return least if least <= MAX_FURTHER_PROBLEMS else None


def points(share: float) -> str:
    """Write *share* in percentage points."""
    value = f"{100 * share:g}"
    return f"{value} point" if value == "1" else f"{value} points"


def _speed_words(verdict: Verdict) -> str:
    s = verdict.speedup
    if verdict.speed != "unknown":
        return _times(verdict.speed, s if verdict.speed == "faster" else _reciprocal(s))
    return f"no difference in time shown ({s.value:.2f}x [{s.low:.2f}, {s.high:.2f}])"


def _times(word: str, ratio: Interval) -> str:
    """Write *ratio* with as few decimals as show that its lower end is not 1."""
    digits = next((digits for digits in (1, 2) if round(ratio.low, digits) != 1), 3)
    return f"{ratio:.{digits}f}".replace(" [", f"x {word} [")


def _loss_words(verdict: Verdict) -> str:
    points_apart = verdict.difference.points
    limit = points(verdict.max_loss)
    is_loss = verdict.difference.high < 0
    match verdict.loss:
        case "shown":
            return f"a loss of at least {-points_apart.high:.1f} points at 95%"
        case "excluded":
            if verdict.difference.low > 0:
                return "more accurate at 95%"
            found = "a loss, but none" if is_loss else "no loss"
            return f"{found} above {abs(points_apart.low):.1f} points at 95%"
        case "unknown":
            found = f"too few problems to exclude a loss above {limit}"
            if is_loss:
                found = f"a loss, and too few problems to tell if it is above {limit}"
            if verdict.further_for_loss is None:
                return found
            return f"{found}; about {_about(verdict.further_for_loss)} more would"


def _about(number: int) -> str:
    """Round *number* to two digits."""
    return f"{float(f'{number:.2g}'):,.0f}"
