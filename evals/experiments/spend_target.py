"""
Measure how well `max_large_share` is kept: the large model's share of the tokens for several targets.

``python -m stepspec.evals.experiments.spend_target`` serves the miniature pair. For each target a new solver solves the
same problems, some at once, and learns from run to run as the service does.
"""

from __future__ import annotations

import asyncio
import datetime
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from stepspec.api import Solver
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.solution import Solution

from ..command_line import progress_bars, script, writable
from ..load import numbers
from ..results import Interval, bootstrap_ratio
from ..sample import Task
from ..testbed.servers import SHORT, describe_pace, find_world
from ..testbed.solving_pair import fresh_tasks, pair_solver

SMALL_PRINT = (
    "The miniature pair, served by real vLLM on this CPU; {pace}. Share: kept tokens of the large model over all kept "
    "tokens, answers included. Settled: the same after the first quarter of the runs, with a 95% bootstrap interval "
    "over problems. Missed: runs that reported that no threshold meets the target."
)
EXAMPLES = """
Examples:

  python -m stepspec.evals.experiments.spend_target

  python -m stepspec.evals.experiments.spend_target --targets 0.4,0.2 --problems 200 --concurrency 8
"""
stderr = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Reached:
    """The figures of one target."""

    target: float
    n: int
    share: float
    settled: Interval
    correct: float
    thresholds: tuple[float, ...]
    missed: int


async def reach(
    solver: Solver, policy: str, target: float, tasks: Sequence[Task], concurrency: int, advance: Callable[[], object]
) -> Reached:
    """Solve *tasks* in order with the *target*, so many at once."""
    slots, solutions = asyncio.Semaphore(concurrency), list[tuple[Task, Solution]]()

    async def solve(task: Task) -> None:
        async with slots:
            solutions.append((task, await solver.solve(task.problem, policy=policy, max_large_share=target)))
            advance()

    async with asyncio.TaskGroup() as group:
        for task in tasks:
            group.create_task(solve(task))
    return figures(target, solutions)


def figures(target: float, solutions: Sequence[tuple[Task, Solution]]) -> Reached:
    """Compute the figures of the *solutions*, which are in the order in which they ended."""
    large = [float(solution.ledger.large.kept) for _, solution in solutions]
    total = [each + solution.ledger.small.kept for each, (_, solution) in zip(large, solutions, strict=True)]
    settled = slice(len(large) // 4, None)
    spending = [solution.spending for _, solution in solutions if solution.spending is not None]
    return Reached(
        target,
        len(solutions),
        sum(large) / sum(total),
        bootstrap_ratio(large[settled], total[settled]),
        sum(solution.answer == task.answer for task, solution in solutions) / len(solutions),
        tuple(sorted({each.threshold for each in spending[settled] if each.threshold is not None}, reverse=True)),
        sum(each.out_of_reach for each in spending),
    )


def table(cells: Sequence[Reached], policy: str) -> Table:
    made = Table(title=f"{policy}: share of the large model")
    for column in ("target", "n", "share", "settled", "correct", "thresholds", "missed"):
        made.add_column(column, justify="right")
    for cell in cells:
        low, mid, high = cell.settled.low, cell.settled.value, cell.settled.high
        made.add_row(
            f"{cell.target:g}",
            str(cell.n),
            f"{cell.share:.3f}",
            f"{mid:.3f} ({low:.3f} to {high:.3f})",
            f"{cell.correct:.2f}",
            " ".join(f"{value:g}" for value in cell.thresholds),
            str(cell.missed),
        )
    return made


def main(
    policy: Annotated[str, typer.Option(help="The method.")] = "specreason",
    targets: Annotated[str, typer.Option(help="Targets of max_large_share.", metavar="SHARE,...")] = "0.5,0.3,0.1",
    problems: Annotated[int, typer.Option(min=8, help="Problems for each target.")] = 120,
    concurrency: Annotated[int, typer.Option(min=1, help="Problems at once.")] = 4,
    profile: Annotated[str, typer.Option(help="Pace of the miniature models.")] = "paced",
    world: Annotated[str, typer.Option(help="Problems and models of the miniature pair: short, long.")] = SHORT,
    seed: Annotated[int, typer.Option(help="Seed of the problems.")] = 0,
    output: Annotated[Path, typer.Option(help="File for the figures.")] = Path("build/spend_target.json"),
) -> None:
    """Measure how well the large model's share of the tokens follows its target."""
    find_world(world)
    writable("--output", output)
    wanted = numbers("--targets", targets, float)
    if outside := [target for target in wanted if not 0 <= target <= 1]:
        raise ConfigurationError(f"--targets {outside[0]:g}: a share is from 0 to 1")
    tasks = fresh_tasks(problems, seed, world=world)

    async def work() -> list[Reached]:
        async with pair_solver(profile, stderr, (), seed, 0, world=world) as solver:
            with progress_bars(stderr) as progress:
                bar = progress.add_task("problems", total=len(wanted) * problems)
                return [
                    await reach(solver, policy, target, tasks, concurrency, lambda: progress.advance(bar))
                    for target in wanted
                ]

    cells = asyncio.run(work())
    note = SMALL_PRINT.format(pace=describe_pace(profile, "large", "small"))
    about = {"date": str(datetime.date.today()), "policy": policy, "concurrency": concurrency, "note": note}
    output.write_bytes(orjson.dumps([{**asdict(cell), **about} for cell in cells], option=orjson.OPT_INDENT_2))
    console = Console(width=max(140, Console().width))
    console.print(table(cells, policy))
    console.print(f"{about['date']}   {platform.machine()}, {output}")
    console.print(note, style="dim")


if __name__ == "__main__":
    script(main, EXAMPLES)
