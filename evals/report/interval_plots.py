"""
Plots with a row for each arm: its name, a mark with its 95% interval, and both in figures. Pure.

Lines through all rows mark the values to compare with. On a phone, the names are above the marks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..arms import LARGE
from ..results import Interval
from .figures import ArmFigures, by_time
from .marks import author, draw_mark
from .svg import GLYPH, NARROW, Markup, Scale, element, join, line, svg, text

TOP, FOOT, EDGE = 20.0, 22.0, 8.0
DIGIT = 6.7  # pixels, the width of a figure in the column at the right
RADIUS, BAR, ARROW = 4.0, 12.0, 5.0


@dataclass(frozen=True, slots=True)
class Row:
    """The *interval* of an arm, as the plot draws it, and as *figures* in words; *exact* values have no interval."""

    arm: ArmFigures
    interval: Interval
    figures: str
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """A line through all rows at *value*; *kind* is its class in the style sheet, *anchor* that of its *name*."""

    value: float
    name: str
    kind: str
    anchor: str = "middle"


def speed_chart(arms: Sequence[ArmFigures], width: float, baseline: str = LARGE.name) -> Markup:
    """Draw the time of every arm that ran, divided by that of the *baseline*, the fastest first."""
    rows: list[Row] = []
    for f in by_time(arms):
        r, itself = f.standing.result, f.arm.name == baseline
        low, high = r.ratio_interval
        figures = "1.00" if itself else f"{r.ratio:.2f} [{low:.2f}, {high:.2f}]"
        rows.append(Row(f, Interval(r.ratio, low, high), figures, exact=itself))
    longest = max(1.0, *(row.interval.high for row in rows))
    label = "; ".join(f"{row.arm.arm.name}: {row.figures}" for row in rows)
    return _draw(
        rows,
        (0.0, 1.04 * longest),
        [Reference(1.0, baseline, "zero", "end" if longest < 1.6 else "middle")],
        width,
        f"Time of a problem, divided by that of {baseline}. {label}",
        bars=True,
    )


def differences(arms: Sequence[ArmFigures], width: float, max_loss: float, baseline: str = LARGE.name) -> Markup:
    """
    Draw the differences in accuracy from the *baseline*, in percentage points, with their intervals.

    A dashed line marks the acceptable loss, *max_loss*. The scale is that of the methods: an arrow marks a model alone
    or a control that is outside of it.
    """
    rows = [_difference_row(f) for f in by_time(arms) if f.arm.name != baseline]
    shown = [row.interval for row in rows if row.arm.method] or [row.interval for row in rows]
    low = min(-150 * max_loss, *(interval.low for interval in shown))
    high = max(100 * max_loss, *(interval.high for interval in shown))
    pad = 0.04 * (high - low)
    label = "; ".join(f"{row.arm.arm.name}: {row.figures} points" for row in rows)
    return _draw(
        rows,
        (low - pad, high + pad),
        [Reference(-100 * max_loss, f"-{100 * max_loss:g}", "limit", "end"), Reference(0.0, "0", "zero", "start")],
        width,
        f"Difference in accuracy from {baseline}. {label}",
        tick=lambda tick: f"{tick:+g}" if tick else "0",
    )


def _difference_row(f: ArmFigures) -> Row:
    d = f.standing.difference
    interval = Interval(100 * d.value, 100 * d.low, 100 * d.high)
    return Row(f, interval, f"{interval.value:+.1f} [{interval.low:+.1f}, {interval.high:+.1f}]")


def _draw(
    rows: Sequence[Row],
    values: tuple[float, float],
    references: Sequence[Reference],
    width: float,
    label: str,
    *,
    bars: bool = False,
    tick: Callable[[float], str] = "{:g}".format,
) -> Markup:
    stacked = width <= NARROW
    pitch = 34.0 if stacked else 28.0
    names = 0.0 if stacked else GLYPH * max(len(row.arm.arm.name) for row in rows) + 10
    figures = DIGIT * max(len(row.figures) for row in rows) + 6
    left = names + EDGE if not stacked else 0.0 if bars else ARROW + 1  # of the scale, with room for an arrow
    x = Scale(*values, left, width - figures - EDGE)
    bottom = TOP + pitch * len(rows)
    ticks = [value for value in x.ticks(int((x.end - x.start) / 55)) if x.start <= x(value) <= x.end]
    grid = [line(x(value), TOP, x(value), bottom, "gridline") for value in ticks]
    axis = [text(x(value), bottom + 16, tick(round(value, 9)), "axis", "middle") for value in ticks]
    lines = [
        join(line(x(ref.value), TOP - 4, x(ref.value), bottom, ref.kind), _name(ref, x(ref.value)))
        for ref in references
    ]
    drawn = [_row(row, x, TOP + pitch * index, width, stacked=stacked, bar=bars) for index, row in enumerate(rows)]
    return svg(width, bottom + FOOT, label, *grid, *axis, *lines, *drawn)


def _name(ref: Reference, x: float) -> Markup:
    shift = {"start": 4.0, "end": 4.0, "middle": 0.0}[ref.anchor]
    at = x + shift if ref.anchor == "start" or ref.kind == "zero" else x - shift
    return text(at, TOP - 9, ref.name, "axis", ref.anchor)


def _row(row: Row, x: Scale, top: float, width: float, *, stacked: bool, bar: bool) -> Markup:
    f, interval, kind = row.arm, row.interval, author(row.arm)
    y = top + (25.0 if stacked else 14.0)
    drawn: list[Markup] = []
    if bar:
        drawn.append(
            element(
                "rect", x=x.start, y=y - BAR / 2, width=x(interval.value) - x.start, height=BAR, rx=2, class_="length",
                data_author=kind,
            )
        )  # fmt: skip
    left, right = max(x.start, x(interval.low)), min(x.end, x(interval.high))
    if left < right and not row.exact:
        drawn.append(line(left, y, right, y, "span-line", data_author=kind))
    if interval.low < x.low:
        drawn.append(_arrow(x.start, y, -ARROW, kind))
    if interval.high > x.high:
        drawn.append(_arrow(x.end, y, ARROW, kind))
    if x.low <= interval.value <= x.high:
        drawn.append(draw_mark(f, x(interval.value), y, f"{f.arm.name}: {row.figures}", RADIUS))
    name = text(0.0, top + 13 if stacked else y + 4, f.arm.name, "label halo", data_author=kind)
    return element("g", *drawn, name, text(width, y + 4, row.figures, "value", "end"))


def _arrow(x: float, y: float, length: float, kind: str) -> Markup:
    """Draw an arrow at the edge of the scale, for what is outside of it."""
    path = f"M{x:.1f} {y - ARROW:.1f}L{x + length:.1f} {y:.1f}L{x:.1f} {y + ARROW:.1f}Z"
    return element("path", d=path, class_="arrow", data_author=kind)
