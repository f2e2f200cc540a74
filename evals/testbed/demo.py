"""``stepspec demo``: the miniature pair solves a few problems, alone and together, for people to watch."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from ...display import Narrator
from ...orchestrator.events import Event
from ..arms import LARGE, SHIPPED, SMALL, Result, Sample, Task, measure, summarise
from .solving_pair import pair_solver
from .tasks import fresh

ARMS = (LARGE, SMALL, SHIPPED)


async def demo(problems: int, seed: int, profile: str, console: Console) -> list[Result]:
    """Start the pair, solve, and narrate SpecReason's runs on *console*; return what the table shows."""
    async with pair_solver(profile, console, ARMS, seed + 1, problems=1) as solver:
        samples = await measure(
            solver,
            ARMS,
            fresh(problems, seed),
            on_sample=_tell(console),
            observers={SHIPPED.name: lambda task: _narrate(task, console)},
        )
    return summarise(samples, ARMS)


def _narrate(task: Task, console: Console) -> Callable[[Event], None]:
    console.print()
    console.print(Text(task.problem, "bold"), soft_wrap=True)
    return Narrator(console)


def _tell(console: Console) -> Callable[[int, Sample], None]:
    def tell(_: int, sample: Sample) -> None:
        mark = ("right", "green") if sample.correct else ("wrong", "red")
        console.print(Text.assemble((f"{sample.seconds:6.2f} s  {sample.arm}: ", "dim"), mark))

    return tell
