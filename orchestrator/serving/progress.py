"""What the terminal shows while servers start."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from rich.console import Console

from .server import Progress


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
