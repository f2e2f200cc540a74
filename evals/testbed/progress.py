"""What the terminal shows while servers start and while problems are gone through."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from ...orchestrator.serving.progress import line, starting

__all__ = ["counting", "line", "starting"]


def counting(console: Console) -> Bars:
    """Bars that count, with the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bars(*columns, console=console)
