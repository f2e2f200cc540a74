"""The mark of an arm, the same in all plots: its colour, and a shape that repeats it. Pure."""

from __future__ import annotations

from .figures import ArmFigures
from .labels import MARK
from .svg import Markup, element


def author(f: ArmFigures) -> str:
    """Return the name of the arm's colour in the style sheet: a model alone has its own's."""
    return (
        f.arm.policy.replace("plain", "large")
        if f.alone
        else "critic"
        if f.arm.like
        else "method"
        if f.method
        else "bound"
    )


def draw_mark(f: ArmFigures, x: float, y: float, title: str, radius: float = MARK) -> Markup:
    """Draw the mark of an arm at (*x*, *y*): a disc, a square for the large model alone, a diamond for a bound."""
    name = element("title", title)
    kind = {"class_": "mark", "data_author": author(f)}
    if f.arm.policy in ("large", "plain") or f.bound:
        rotation = f"rotate(45 {x:.1f} {y:.1f})" if f.bound else None
        side = 2 * radius - 1.0
        return element(
            "rect", name, x=x - side / 2, y=y - side / 2, width=side, height=side, rx=1.5, transform=rotation, **kind
        )
    return element("circle", name, cx=x, cy=y, r=radius, **kind)
