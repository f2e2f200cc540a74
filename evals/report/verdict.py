"""The verdict on each method: whether it is faster, and whether it loses accuracy. Pure."""

from __future__ import annotations

from ..results import Interval, Result

MAX_LOSS = 0.02
"""The acceptable loss of accuracy as a share of all problems, as for `stepspec calibrate`."""
MIN_PROBLEMS = 6
"""Problems that show a difference in time. Fewer all point one way by chance in over 5% of runs."""


def verdict(result: Result, problems: int, max_loss: float) -> str:
    """
    Say in one sentence, without the name of the method, what a run of *problems* shows about it.

    *max_loss* is the acceptable loss, as a share of all problems. Each end of a 95% interval errs
    in 2.5% of all runs, and so does each statement about one end.
    """
    accuracy = f"{result.difference.points:+z.1f}".replace(" [", " points [")
    return (
        f"{_speed_words(result.ratio, problems)}, accuracy {accuracy}:"
        f" {_loss_words(result.difference, max_loss)}"
    )


def points(share: float) -> str:
    """Write *share* in percentage points."""
    value = f"{100 * share:g}"
    return f"{value} point" if value == "1" else f"{value} points"


def _speed_words(ratio: Interval, problems: int) -> str:
    """Say how the seconds of a method compare, if the interval of their *ratio* excludes 1."""
    speedup = Interval(1 / ratio.value, 1 / ratio.high, 1 / ratio.low)
    if problems >= MIN_PROBLEMS and ratio.high < 1:
        return _times("faster", speedup)
    if problems >= MIN_PROBLEMS and ratio.low > 1:
        return _times("slower", ratio)
    interval = f"{speedup:.2f}".replace(" [", "x [")
    return f"no difference in time shown ({interval})"


def _times(word: str, ratio: Interval) -> str:
    """Write *ratio* with as few decimals as show that its lower end is not 1."""
    digits = next((digits for digits in (1, 2) if round(ratio.low, digits) != 1), 3)
    return f"{ratio:.{digits}f}".replace(" [", f"x {word} [")


def _loss_words(apart: Interval, max_loss: float) -> str:
    """
    Say whether a method loses more than *max_loss* of accuracy. *apart* is the difference.

    Such a loss is excluded if the interval lies above -*max_loss*, and shown if it lies below.
    """
    low = abs(apart.points.low)
    is_loss = apart.high < 0
    if apart.low > 0:
        return "more accurate at 95%"
    if apart.low >= -max_loss:
        found = "a loss, but none" if is_loss else "no loss"
        return f"{found} above {low:.1f} points at 95%"
    if apart.high < -max_loss:
        return f"a loss of at least {-apart.points.high:.1f} points at 95%"
    if is_loss:
        return f"a loss, and too few problems to tell if it is above {points(max_loss)}"
    return f"too few problems to exclude a loss above {points(max_loss)}"
