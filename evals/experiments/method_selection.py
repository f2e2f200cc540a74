"""
Measure what it costs not to know the fastest method: `auto` among several methods against each of them, with `auto`.

``python -m stepspec.evals.experiments.method_selection`` serves the miniature pair. The methods take turns, block by
block, on the same problems and at a constant number of problems at once. Runs that select begin with the first method.
"""

from __future__ import annotations

import asyncio
import datetime
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from stepspec import policies
from stepspec.api import Solver
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.feedback.calibration_monitor import Calibration
from stepspec.orchestrator.solution import Solution
from stepspec.policies import THRESHOLDS
from stepspec.settings import Alternative, Settings

from ..cli import arm as parse_arm
from ..command_line import progress_bars, script, writable
from ..crowd import Crowd, Deployment, Drafts, Load, Workload, attempt, grade_equal, run_block
from ..load import OTHERS, miniature_deployment, numbers
from ..plan import turns
from ..results import Interval, bootstrap_ratio
from ..sample import Arm, Task
from ..testbed.servers import SHORT, describe_pace, find_world
from ..testbed.solving_pair import fresh_tasks

POLICIES = ("specreason", "reflective", "bild")
SELECTING = "selecting"
DEADLINE = 600.0
SMALL_PRINT = (
    "The miniature pair, served by real vLLM on this CPU; {pace}. Seconds: mean latency of a problem after the first "
    "block. Vs best: summed over these problems, divided by that of the fastest fixed method under this load, with a "
    "95% bootstrap interval over problems. First block: the same for its problems, in which the selecting runs know "
    "least. Every method runs with auto. The calibrations by which the methods are selected promise nothing here: only "
    "time is measured."
)
EXAMPLES = """
Examples:

  python -m stepspec.evals.experiments.method_selection

  python -m stepspec.evals.experiments.method_selection --concurrency 8 --problems 96 -p bild -p reflective
"""
stderr = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Cell:
    """The figures of one way to solve under one load; *selected* counts its runs by method, where it selects."""

    name: str
    concurrency: int
    n: int
    seconds: float
    to_best: Interval
    first_block: Interval
    correct: float
    selected: Mapping[str, int] = field(default_factory=dict[str, int])


def calibrated(arm: Arm) -> Calibration:
    """A calibration that covers every run of *arm*, and promises nothing that anybody would rely on."""
    options = {**policies.defaults(arm.policy), **arm.options}
    known = THRESHOLDS.get(arm.policy)
    numeric = [name for name, value in options.items() if isinstance(value, int | float)]
    option = known.option if known else numeric[0]
    return Calibration(policy=arm.policy, option=option, value=options[option], max_loss=0.99, confidence=0.01)


def selecting(settings: Settings, arms: Sequence[Arm]) -> Settings:
    """*settings* of runs that select among *arms*."""
    first, *others = arms
    alternatives = [
        Alternative(policy=arm.policy, options=dict(arm.options), calibration=calibrated(arm)) for arm in others
    ]
    own = {"policy": first.policy, "options": dict(first.options), "calibration": calibrated(first)}
    return settings.model_copy(update={**own, "alternatives": tuple(alternatives), "auto": True})


async def measure(
    deployment: Deployment, arms: Sequence[Arm], loads: Sequence[int], workload: Workload, step: Callable[[], object]
) -> list[Cell]:
    """Measure every method alone, and runs that select among them, under every load."""
    fixed = [Arm(arm.name, arm.run.model_copy(update={"auto": True})) for arm in arms]
    choosing = Arm(SELECTING, fixed[0].run)
    cells: list[Cell] = []
    for number, concurrency in enumerate(loads):
        selected: Counter[str] = Counter()

        def note(solution: Solution, task: Task, selected: Counter[str] = selected) -> Drafts:
            if solution.selected is not None:
                selected[solution.selected.policy] += 1
            return ()

        latencies: dict[str, list[list[float]]] = {arm.name: [] for arm in (*fixed, choosing)}
        correct: Counter[str] = Counter()
        async with Solver(selecting(deployment.pair.settings, arms)) as selector:
            for block in range(workload.blocks):
                counted = workload.counted(number, block)
                for arm in turns((*fixed, choosing), block):
                    solver = selector if arm is choosing else deployment.pair
                    solve = partial(attempt, solver, arm, grade_equal, DEADLINE, None, None, judged=note)
                    load = Load(concurrency=concurrency)
                    crowd = Crowd(load, counted, workload.others, solve, workload.seed, block, warm_up=0)
                    timings = (await run_block(crowd, f"{arm.name!r}, {load.name}", deployment)).timings
                    latencies[arm.name].append([timing.latency for timing in timings])
                    correct[arm.name] += sum(timing.correct for timing in timings)
                    step()
        cells += summarise(concurrency, latencies, correct, selected)
    return cells


def summarise(
    concurrency: int,
    latencies: Mapping[str, Sequence[Sequence[float]]],
    correct: Mapping[str, int],
    selected: Mapping[str, int],
) -> list[Cell]:
    """The cells of one load, from the latencies of every block by name, and the correct answers by name."""
    later = {name: [seconds for block in blocks[1:] for seconds in block] for name, blocks in latencies.items()}
    best = min((name for name in later if name != SELECTING), key=lambda name: sum(later[name]))
    return [
        Cell(
            name,
            concurrency,
            len(later[name]),
            sum(later[name]) / len(later[name]),
            bootstrap_ratio(later[name], later[best]),
            bootstrap_ratio(blocks[0], latencies[best][0]),
            correct[name] / sum(map(len, blocks)),
            dict(selected) if name == SELECTING else {},
        )
        for name, blocks in latencies.items()
    ]


def table(cells: Sequence[Cell]) -> Table:
    """A row for each of the *cells*."""
    rendered = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("at once", "", "n", "seconds", "vs best", "first block", "accuracy", "runs by method"):
        rendered.add_column(column, justify="left" if column in ("", "runs by method") else "right")
    for cell in cells:
        rendered.add_row(
            str(cell.concurrency),
            cell.name,
            str(cell.n),
            f"{cell.seconds:.2f}",
            *(f"{it.value:.2f} [{it.low:.2f}, {it.high:.2f}]" for it in (cell.to_best, cell.first_block)),
            f"{cell.correct:.0%}",
            ", ".join(f"{name} {count}" for name, count in cell.selected.items()),
        )
    return rendered


def main(
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", "-p", help="A method with its options; the first one is used before anything is known."
        ),
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Numbers of problems at once.", metavar="N,...")] = "1,8",
    world: Annotated[str, typer.Option(help="Problems and models of the miniature pair: short, long, tools.")] = SHORT,
    profile: Annotated[str, typer.Option(help="Pace of the miniature models.")] = "paced",
    problems: Annotated[int, typer.Option(min=4, help="Problems of each method under each load.")] = 96,
    blocks: Annotated[int, typer.Option(min=2, help="Parts of a measurement, in which the methods take turns.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the problems.")] = 0,
    output: Annotated[Path, typer.Option(help="File for the figures.")] = Path("build/method_selection.json"),
) -> None:
    """Measure runs that select among several methods against each method alone, with `auto`."""
    find_world(world)
    writable("--output", output)
    loads = numbers("--concurrency", concurrency, int)
    arms = [parse_arm(spec) for spec in policy or POLICIES]
    if len(arms) < 2:
        raise ConfigurationError("one method leaves nothing to select: name two with --policy")
    if blocks > problems:
        raise ConfigurationError(f"--blocks {blocks}: every block needs a problem, and there are {problems}")
    tasks = fresh_tasks(len(loads) * problems, seed, world=world)
    workload = Workload(tasks, fresh_tasks(OTHERS, seed + 1, world=world), problems, blocks, seed)

    async def work() -> list[Cell]:
        async with miniature_deployment(profile, world, two=False, console=stderr) as deployment:
            await deployment.pair.warm_up()
            with progress_bars(stderr) as progress:
                bar = progress.add_task("blocks", total=len(loads) * blocks * (len(arms) + 1))
                return await measure(deployment, arms, loads, workload, lambda: progress.advance(bar))

    cells = asyncio.run(work())
    note = SMALL_PRINT.format(pace=describe_pace(profile, "large", "small"))
    about = {"date": str(datetime.date.today()), "world": world, "profile": profile, "seed": seed, "note": note}
    output.write_bytes(orjson.dumps([{**asdict(cell), **about} for cell in cells], option=orjson.OPT_INDENT_2))
    console = Console(width=max(140, Console().width))
    console.print(table(cells))
    console.print(f"{about['date']}   {platform.machine()}, {output}")
    console.print(note, style="dim")


if __name__ == "__main__":
    script(main, EXAMPLES)
