"""Bars: what a problem is made of, arm by arm, and the differences from the large model alone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .drawing import Scale, line, svg, text
from .figures import Figures
from .markup import Markup, element, join

ROW, BAR, HEAD, AXIS = 42.0, 14.0, 16.0, 24.0


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a bar: whose it is, whether it was for nothing, and how long."""

    name: str
    author: str
    amount: float
    wasted: bool = False


Parts: TypeAlias = Callable[[Figures], Sequence[Part]]


def steps(f: Figures) -> list[Part]:
    return [
        Part("small", "small", f.steps.small),
        Part("large", "large", f.steps.large),
        Part("rejected", "small", f.steps.rejected, wasted=True),
        Part("lost bets", "judging", f.steps.lost, wasted=True),
    ]


def tokens(f: Figures) -> list[Part]:
    small, large = f.spent.get("small"), f.spent.get("large")
    return [
        Part("small, kept", "small", small.kept if small else 0.0),
        Part("large, kept", "large", large.kept if large else 0.0),
        Part("small, discarded", "small", small.discarded if small else 0.0, wasted=True),
        Part("large, discarded", "large", large.discarded if large else 0.0, wasted=True),
    ]


Rows: TypeAlias = Sequence[tuple[str, Sequence[Part], str]]


def stacked(rows: Rows, unit: str, width: float) -> Markup:
    """A bar of parts for each of the *rows*, its name above it and what else is to be said of it at the end."""
    longest = max(sum(part.amount for part in parts) for _, parts, _ in rows) or 1.0
    x = Scale(0.0, longest, 0.0, width)
    drawn = [_bar(name, parts, f"{unit}{more}", x, ROW * at) for at, (name, parts, more) in enumerate(rows)]
    said = "; ".join(f"{name}: {', '.join(_amount(part) for part in parts if part.amount)}" for name, parts, _ in rows)
    return svg(width, ROW * len(rows), f"{unit} of a problem. {said}", *drawn)


def _amount(part: Part) -> str:
    return f"{part.name} {part.amount:.1f}"


def _bar(name: str, parts: Sequence[Part], unit: str, x: Scale, top: float) -> Markup:
    total = sum(part.amount for part in parts)
    head = join(text(0.0, top + 13, name, "label"), text(x.end, top + 13, f"{total:.1f} {unit}", "value", "end"))
    drawn, at = list[Markup](), 0.0
    for part in parts:
        if part.amount:
            drawn.append(_part(part, x(at), x(at + part.amount), top + HEAD + 3))
        at += part.amount
    return element("g", head, *drawn)


def _part(part: Part, left: float, right: float, top: float) -> Markup:
    return element(
        "rect",
        element("title", _amount(part)),
        x=left,
        y=top,
        width=max(1.0, right - left - 1),
        height=BAR,
        rx=2,
        class_="part",
        data_author=part.author,
        data_wasted=part.wasted,
    )


def differences(arms: Sequence[Figures], width: float) -> Markup:
    """Points of accuracy won or lost against the large model alone, with their intervals."""
    shown = [f.standing for f in arms]
    low = min(0.0, *(s.difference.low for s in shown)) * 100
    high = max(0.0, *(s.difference.high for s in shown)) * 100
    x = Scale(low - 1, high + 1, 6.0, width - 6.0)
    bottom = ROW * len(shown)
    ticks = x.ticks(int(width / 70))
    axis = [text(x(tick), bottom + 16, f"{tick:+g}" if tick else "0", "axis", "middle") for tick in ticks]
    rows: list[Markup] = []
    for at, (f, s) in enumerate(zip(arms, shown, strict=True)):
        value, least, most = (100 * one for one in (s.difference.value, s.difference.low, s.difference.high))
        y = ROW * at + HEAD + 12
        rows += [line(x(tick), y - 8, x(tick), y + 10, "gridline" if tick else "zero") for tick in {*ticks, 0.0}]
        rows.append(text(0.0, ROW * at + 13, f.arm.name, "label"))
        rows.append(text(width, ROW * at + 13, f"{value:+.1f} [{least:+.1f}, {most:+.1f}]", "value", "end"))
        rows.append(line(x(least), y, x(most), y, "span-line"))
        rows.append(element("circle", cx=x(value), cy=y, r=4.5, class_="mark", data_author="method"))
    said = "; ".join(f"{s.result.name}: {100 * s.difference.value:+.1f} points" for s in shown)
    return svg(width, bottom + AXIS, f"Accuracy against large alone. {said}", *axis, *rows)
