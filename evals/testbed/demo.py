"""``stepspec demo``: the miniature pair solves a few problems, alone and together, for people to watch."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from ...api import Solver
from ...display import Narrator
from ...orchestrator.endpoints import Endpoint, Sampling
from ...orchestrator.events import Event
from ..arms import LARGE, SHIPPED, SMALL, Result, Sample, Task, measure, summarise
from .servers import running
from .tasks import fresh

ARMS = (LARGE, SMALL, SHIPPED)
GREEDY = Sampling()


async def demo(problems: int, seed: int, profile: str, console: Console) -> list[Result]:
    """Start the pair, solve, and narrate SpecReason's runs on *console*; return what the table shows."""
    async with running(profile, console=console) as served:
        small, large = (Endpoint(role=role, url=served[role].base_url) for role in ("small", "large"))
        async with Solver(small, large, sampling=GREEDY) as solver:
            await measure(solver, ARMS, fresh(1, seed + 1))  # warm both servers up
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


def _tell(console: Console) -> Callable[[Sample], None]:
    def tell(sample: Sample) -> None:
        mark = ("right", "green") if sample.correct else ("wrong", "red")
        console.print(Text.assemble((f"{sample.seconds:6.2f} s  {sample.arm}: ", "dim"), mark))

    return tell
