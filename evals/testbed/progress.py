"""What the terminal shows while servers start and while problems are gone through."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from ...orchestrator.serving import Progress


def counting(console: Console) -> Bars:
    """Bars that count, with the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bars(*columns, console=console)


@contextmanager
def starting(console: Console) -> Generator[Callable[[Progress], None]]:
    """Draw a line that what we yield keeps up to date; where there is no terminal, say only who is ready."""
    seen: dict[str, Progress] = {}
    with console.status("starting vLLM") as status:

        def tell(progress: Progress) -> None:
            seen[progress.name] = progress
            if progress.state == "ready":
                console.print(f"{progress.name} is ready after {progress.seconds:.0f} s", style="dim")
            status.update(line(seen.values()))

        yield tell


def line(seen: Iterable[Progress]) -> str:
    """Say who is still starting, and since when."""
    waiting = [progress for progress in seen if progress.state == "starting"]
    return (
        f"starting {' and '.join(p.name for p in waiting)}: {max(p.seconds for p in waiting):.0f} s" if waiting else ""
    )
