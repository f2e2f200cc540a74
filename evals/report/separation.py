"""How scores are spread over right and wrong, and what any threshold would pass. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .drawing import NARROW, Scale, line, svg, text
from .judging import Graded, Judge, Separation
from .markup import Markup, element, join

HEIGHT, BOTTOM, NAMES = 190.0, 20.0, 18.0
SIDE, LEFT, FOOT = 236.0, 40.0, 36.0


def span(judge: Judge) -> tuple[float, float]:
    """The range of the scores: of digits, of probabilities, or what there is."""
    scores = [one.score for one in judge.graded]
    low, high = min(scores), max(scores)
    if judge.policy == "specreason":
        return 0.0, 9.0
    return (0.0, 1.0) if low >= 0 and high <= 1 else (min(0.0, low), max(high, low + 1e-9))


def histogram(judge: Judge, width: float = NARROW) -> Markup:
    """
    Shares of the scores in equal bins: above the line those that are right, below it those that are wrong.

    Where that is not known, those that were accepted and those that were rejected.
    """
    graded = [one for one in judge.graded if one.decided]
    known = any(one.right is not None for one in graded)
    above = [one for one in graded if (one.right if known else one.accepted)]
    below = [one for one in graded if not (one.right if known else one.accepted)]
    names = ("right", "wrong") if known else ("accepted", "rejected")
    low, high = span(judge)
    bins = 18 if high == 9.0 else 20
    x = Scale(low, high, 0.0, width)
    middle = (HEIGHT - BOTTOM) / 2
    room = middle - NAMES
    drawn = [
        *_columns(above, bins, x, middle, -room, f"{names[0]}"),
        *_columns(below, bins, x, middle, room, f"{names[1]}"),
        line(0.0, middle, width, middle, "zero"),
        text(0.0, 12.0, f"{names[0]}, n = {len(above)}", "label", data_author="small"),
        text(0.0, HEIGHT - BOTTOM - 2, f"{names[1]}, n = {len(below)}", "label", data_author="wrong"),
        *(text(x(tick), HEIGHT - 4, f"{tick:g}", "axis", _anchor(x(tick), width)) for tick in x.ticks(9)),
    ]  # fmt: skip
    said = f"Scores of {judge.arm}: {len(above)} {names[0]}, {len(below)} {names[1]}"
    return svg(width, HEIGHT, said, *drawn)


def _anchor(x: float, width: float) -> str:
    """How a number at *x* is kept within the drawing."""
    return "start" if x < 6 else "end" if x > width - 12 else "middle"


def _columns(graded: Sequence[Graded], bins: int, x: Scale, base: float, room: float, name: str) -> list[Markup]:
    """Bars from *base*; the tallest takes all the *room*, which points up if it is negative."""
    counts = [0] * bins
    for one in graded:
        place = int((one.score - x.low) / (x.high - x.low) * bins)
        counts[min(bins - 1, max(0, place))] += 1
    wide, most = (x.end - x.start) / bins, max([*counts, 1])
    found: list[Markup] = []
    for at, count in enumerate(counts):
        if count:
            tall = max(1.5, abs(room) * count / most)
            edges = x.low + at * (x.high - x.low) / bins, x.low + (at + 1) * (x.high - x.low) / bins
            told = element("title", f"{name}, {edges[0]:.3g} to {edges[1]:.3g}: {count}")
            found.append(
                element(
                    "rect", told, x=x.start + at * wide + 0.5, y=base - tall if room < 0 else base, width=wide - 1,
                    height=tall, class_="column", data_author="small" if room < 0 else "wrong",
                )
            )  # fmt: skip
    return found


def curve(judge: Judge, found: Separation) -> Markup:
    """The receiver operating curve, and the point at which the method worked."""
    x = Scale(0.0, 1.0, LEFT, SIDE - 6.0)
    y = Scale(0.0, 1.0, SIDE - FOOT, 22.0)
    path = "M" + "L".join(f"{x(wrong):.1f} {y(right):.1f}" for wrong, right in found.curve)
    drawn = [
        *(line(x(0.0), y(tick), x(1.0), y(tick), "gridline") for tick in (0.0, 0.5, 1.0)),
        *(line(x(tick), y(0.0), x(tick), y(1.0), "gridline") for tick in (0.0, 0.5, 1.0)),
        line(x(0.0), y(0.0), x(1.0), y(1.0), "chance"),
        element("path", d=path, class_="curve"),
        *(text(LEFT - 6, y(tick) + 4, f"{tick:.0%}", "axis", "end") for tick in (0.0, 0.5, 1.0)),
        text(x(0.0), SIDE - FOOT + 16, "0%", "axis", "middle"),
        text(x(0.5), SIDE - FOOT + 16, "50%", "axis", "middle"),
        text(x(1.0), SIDE - FOOT + 16, "100%", "axis", "end"),
        text(x(1.0), SIDE - 4, "wrong ones passed", "axis", "end"),
        text(0.0, 11.0, "right ones passed", "axis"),
        text(x(1.0) - 6, y(0.0) - 24, f"AUROC {found.area.value:.3f}", "label halo", "end"),
        text(x(1.0) - 6, y(0.0) - 9, f"[{found.area.low:.3f}, {found.area.high:.3f}]", "axis halo", "end"),
    ]
    if found.passed:
        wrong, right = found.passed
        told = element("title", f"the method passed {right:.1%} of the right ones and {wrong:.1%} of the wrong ones")
        drawn.append(element("circle", told, cx=x(wrong), cy=y(right), r=5.0, class_="mark", data_author="method"))
    said = f"Receiver operating curve of {judge.arm} by {found.level}: area {found.area.value:.3f}"
    return svg(SIDE, SIDE, said, join(*drawn))
