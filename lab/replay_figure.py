# pyright: reportUnknownMemberType=false
"""Draw replayed logs: the time of each arm by problem, with the accept rate beside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ARMS = {
    "sequential": ("script: one draft, then its verdict", "#9a8c7a"),
    "ahead": ("stepspec, two drafts ahead", "#2f7fd6"),
    "auto_1": ("stepspec with auto", "#1f9d57"),
}
PANELS = {"logs": "at the paces of the logs", "h200": "at the paces of an H200"}
INK = "#7d7d7d"
"""A grey that has a contrast of 4 both to white and to GitHub's dark page."""
BAR_HEIGHT = 0.26
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "stepspec",
    "font.size": 12,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 11,
    "ytick.labelsize": 12,
}


def draw(figures: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """
    Draw *figures*, as `lab.replay --json` prints them, into *path*, an SVG or a PNG file.

    The background is transparent, and the text grey, so that light and dark pages can show it.
    """
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(8, 5.6), layout="constrained")
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for axes, (pace, title) in zip(panels, PANELS.items(), strict=True):
            _draw_panel(axes, figures[pace], title)
        panels[0].invert_yaxis()  # for both: they share it
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="outside upper center",
            ncols=2,
            frameon=False,
        )
        figure.supxlabel("time over that of the large model alone (1: no gain)", fontsize=12)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, transparent=True, metadata=metadata)


def _draw_panel(axes: Axes, figures: Mapping[str, Any], title: str) -> None:
    rows = {"all runs": {"accept_rate": figures["accept_rate"], **figures["all"]}}
    rows |= figures["problems"]
    for place, row in enumerate(rows.values()):
        for number, (arm, (label, colour)) in enumerate(ARMS.items()):
            height = place + (number - 1) * BAR_HEIGHT
            name = label if place == 0 else None
            axes.barh(
                height,
                row[arm],
                height=BAR_HEIGHT,
                color=colour,
                label=name,
            )
            axes.text(
                row[arm] + 0.02,
                height,
                f"{row[arm]:.2f}",
                va="center",
                fontsize=9,
            )
    names = [f"{name}\n{row['accept_rate']:.0%} accepted" for name, row in rows.items()]
    axes.set_yticks(range(len(rows)), names)
    axes.axvline(1.0, color=INK, linewidth=1, linestyle="--")
    axes.set_xlim(0, 1.42)
    axes.set_title(title, fontsize=12)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
