"""
``python -m lab.replay``: replay logged runs of SpecReason with real models through the real loop.

The models answer from the log on simulated servers: `lab.simulation`. Only seconds are simulated.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, TypeAlias

import orjson
import typer
from rich.console import Console

from stepspec.cli.command_line import writable
from stepspec.cli.flags import Json
from stepspec.cli.program import new_app, run, verbatim
from stepspec.evals.arms import LARGE
from stepspec.evals.grading.graders import Answer
from stepspec.evals.progress import progress_bars
from stepspec.evals.sample import Arm, Task

from .crowd import attempt, run_block
from .script import Script, Turn
from .simulation.figures import SimulatedSolver, start_servers
from .simulation.grid import CLOSE, GPUS, Pair, accepted_turn, find_pair, rejected_turn
from .specreason_log import LOG, LoggedRun, LoggedStep, accept_rate, read_runs
from .tables import Sheet
from .virtual_clock import run as run_on_virtual_clock

EXAMPLES = """
Examples:

  python -m lab.replay

  python -m lab.replay --json > replay.json

  python -m lab.replay --figure docs/assets/replay.svg
"""
PACES = {"logs": "qwq-32b-logged", "h200": "qwen3-32b-two-h200"}
SEQUENTIAL = Arm.of("sequential", "specreason", ahead=0)
AHEAD = Arm.of("ahead", "specreason", ahead=2)
AUTO = Arm.of("auto", "specreason", ahead=2, auto=True)
PROMPT_TOKENS = 200
QUESTION_TOKENS = 80
CROWDS = (1, 4, 16)
Seconds: TypeAlias = Sequence[float]
"""The seconds of each run, in the order of the log."""

app = new_app(help=__doc__, epilog=verbatim(EXAMPLES))
stderr = Console(stderr=True)


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="Log of steps, as lab/data/README.md says.")] = LOG,
    json: Json = False,
    figure: Annotated[
        Path | None,
        typer.Option(help="Draw the problems into this SVG or PNG file."),
    ] = None,
    orders: Annotated[
        int,
        typer.Option(min=1, help="Random orders of the runs of one solver."),
    ] = 2,
) -> None:
    """Print the time of each arm over that of the large model alone."""
    if figure is not None:
        writable("--figure", figure)
    runs = read_runs(file)
    with progress_bars(stderr) as progress:
        paces = progress.track(PACES.items(), description="paces")
        found = {pace: compare(runs, find_pair(GPUS, pair), orders) for pace, pair in paces}
    figures = {pace: comparison.figures() for pace, comparison in found.items()}
    if figure is not None:
        from .replay_figure import draw  # which needs matplotlib

        draw(figures, figure)
    if json:
        print(orjson.dumps(figures, option=orjson.OPT_INDENT_2).decode())
        return
    for pace, comparison in found.items():
        Console(width=120).print(comparison.sheet(f"at the paces of {pace}").table())


@dataclass(frozen=True)
class Comparison:
    """The seconds of all arms over the runs of a log."""

    runs: Sequence[LoggedRun]
    """The logged runs."""
    arms: Mapping[str, tuple[Seconds, Seconds]]
    """The seconds by each arm, and by the large model alone under the same load."""

    def ratio(self, arm: str, problem: str | None = None) -> float:
        """Return the time of *arm* over the large model's, for all runs or those of *problem*."""
        places = [place for place, each in enumerate(self.runs) if problem in (None, each.problem)]
        seconds, alone = (sum(times[place] for place in places) for times in self.arms[arm])
        return seconds / alone

    def worst(self, arm: str) -> float:
        """Return the time of the worst run of *arm* over the large model's."""
        return max(seconds / alone for seconds, alone in zip(*self.arms[arm], strict=True))

    @property
    def problems(self) -> list[str]:
        """The problems, those whose drafts are accepted most often first."""
        return sorted({each.problem for each in self.runs}, key=lambda name: -self.rate(name))

    def rate(self, problem: str) -> float:
        """Return the share of the drafts of *problem* that was accepted."""
        return accept_rate([each for each in self.runs if each.problem == problem])

    def figures(self) -> dict[str, Any]:
        """Return all ratios, as values of JSON."""
        return {
            "runs": len(self.runs),
            "steps": sum(len(each.steps) for each in self.runs),
            "accept_rate": accept_rate(self.runs),
            "all": {arm: self.ratio(arm) for arm in self.arms},
            "worst_run": {arm: self.worst(arm) for arm in self.arms},
            "problems": {
                name: {
                    "runs": sum(each.problem == name for each in self.runs),
                    "accept_rate": self.rate(name),
                    **{arm: self.ratio(arm, name) for arm in self.arms},
                }
                for name in self.problems
            },
        }

    def sheet(self, title: str) -> Sheet:
        """Return a table with a line for each arm."""
        columns = ("time over the large model's", "all", "worst run", *self.problems)
        rows = [
            [arm, f"{self.ratio(arm):.3f}", f"{self.worst(arm):.2f}"]
            + [f"{self.ratio(arm, name):.2f}" for name in self.problems]
            for arm in self.arms
        ]
        rates = [f"{self.rate(name):.0%}" for name in self.problems]
        rows.append(["drafts accepted", f"{accept_rate(self.runs):.0%}", "", *rates])
        return Sheet(columns, rows, title)


def compare(runs: Sequence[LoggedRun], pair: Pair, orders: int) -> Comparison:
    """Replay *runs* by every arm on the servers of *pair*."""
    large, sequential, ahead, auto = (
        [seconds_of({0: logged}, arm, pair, 1)[0] for logged in runs]
        for arm in (LARGE, SEQUENTIAL, AHEAD, AUTO)
    )
    single = {
        "sequential": sequential,
        "ahead": ahead,
        "auto": auto,
        "oracle": _better(ahead, large),
    }
    arms: dict[str, tuple[Sequence[float], Sequence[float]]] = {
        name: (seconds, large) for name, seconds in single.items()
    }
    for users in CROWDS:
        together = partial(_mean_of_orders, runs, pair, users, orders)
        alone = large if users == 1 else together(LARGE)
        always = ahead if users == 1 else together(AHEAD)
        crowd = {"auto": together(AUTO), "ahead": always, "oracle": _better(always, alone)}
        arms |= {f"{name}_{users}": (seconds, alone) for name, seconds in crowd.items()}
    return Comparison(runs=runs, arms=arms)


def _better(first: Seconds, second: Seconds) -> Seconds:
    return [min(pair) for pair in zip(first, second, strict=True)]


def _mean_of_orders(
    runs: Sequence[LoggedRun],
    pair: Pair,
    users: int,
    orders: int,
    arm: Arm,
) -> Seconds:
    """Return the mean seconds of each run, over random *orders* in which one solver has them."""
    found: list[dict[int, float]] = []
    for seed in range(orders):
        places = random.Random(seed).sample(range(len(runs)), len(runs))
        found.append(
            seconds_of(
                {place: runs[place] for place in places},
                arm,
                pair,
                users,
            )
        )
    return [fmean(by_run[place] for by_run in found) for place in range(len(runs))]


def seconds_of(
    runs: Mapping[int, LoggedRun],
    arm: Arm,
    pair: Pair,
    users: int,
) -> dict[int, float]:
    """
    Return the seconds of each of *runs*, which one solver has in this order, *users* at once.

    Runs of the same log go on beside the last ones, so that the load stays the same.
    """

    async def work() -> dict[int, float]:
        servers = start_servers(pair.small, pair.large, shared=pair.shared)
        scripts = {f"{place}": script_of(logged) for place, logged in runs.items()}
        async with SimulatedSolver(servers, scripts) as solver:

            async def solve(task: Task, seed: int) -> Any:
                leading = _leading(runs[int(task.problem)])
                led = replace(arm, run=arm.run.with_overrides({"lead": leading}))
                return await attempt(solver, led, task, seed)

            tasks = [Task(name, Answer("", "exact")) for name in scripts]
            block = await run_block(
                users,
                tasks,
                tasks,
                solve,
                0,
                warm_up=0,
            )
        return {place: timing.latency for place, timing in zip(runs, block, strict=True)}

    return run_on_virtual_clock(work())[0]


def _leading(logged: LoggedRun) -> int:
    """The number of steps that the large model wrote by order, before the first draft."""
    return next((place for place, step in enumerate(logged.steps) if not step.led), 0)


def script_of(logged: LoggedRun) -> Script:
    """Return the script of a logged run, and an answer of one token."""
    end = replace(accepted_turn(1), stop="end", ends=True)
    turns = (*_turns(logged.steps), CLOSE, end)
    return Script(PROMPT_TOKENS, turns, QUESTION_TOKENS)


def _turns(steps: Sequence[LoggedStep]) -> Iterator[Turn]:
    for step in steps:
        if step.accepted or step.led:
            yield accepted_turn(step.kept_tokens)
        else:
            yield rejected_turn(max(1, step.small_tokens or 0), repair=step.kept_tokens)


if __name__ == "__main__":
    run(app)
