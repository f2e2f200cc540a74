"""
Compare what ``stepspec estimate`` predicts for the miniature pair with what is then measured on it.

``python -m lab.estimate_accuracy`` prints both side by side, for every method under every load, and
exits with 1 if a prediction is off by more than 25%. The measured problems are others than the
estimated ones; runs and their times are those of ``eval`` and ``lab.load``.
"""

from __future__ import annotations

import asyncio
import datetime
import platform
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from lab.crowd import Crowd, Timing, attempt, grade_equal, run_block
from stepspec.evals.arms import PLAIN
from stepspec.evals.cli import arm as parse_arm
from stepspec.evals.command_line import numbers, progress_bars, script, writable
from stepspec.evals.estimate.command import POLICIES, parts
from stepspec.evals.estimate.measuring import measure
from stepspec.evals.estimate.prediction import Estimate, Gain, predict
from stepspec.evals.estimate.report import record
from stepspec.evals.plan import turns
from stepspec.evals.results import Interval
from stepspec.evals.sample import Arm
from stepspec.orchestrator.errors import ConfigurationError

from .load import OTHERS, latency_ratio, miniature_deployment
from .tables import Sheet
from .worlds import SHORT, describe_pace, find_world, fresh_tasks

BAR = 0.25
SEED = 2028
DEADLINE = 600.0  # seconds for a problem
SMALL_PRINT = (
    "The miniature pair, served by real vLLM on this CPU; {pace}. Predicted: by `stepspec"
    " estimate`, from {minutes:g} minutes on {problems} problems, with its interval. Measured:"
    " summed seconds of the large model as one ordinary request over those of the method on"
    " {counted} other problems, with a 95% bootstrap interval over them. Both at the depth that the"
    " estimate names for the load. Off: predicted over measured, minus 1."
)
stderr = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The *predicted* and the *measured* gain of one method with *concurrency* problems at once."""

    method: str
    concurrency: int
    ahead: int
    predicted: Interval
    measured: Interval
    measured_seconds: float

    @property
    def off(self) -> float:
        """How far the prediction is above the measurement, as a share of it."""
        return self.predicted.value / self.measured.value - 1


def measured_arm(arm: Arm, gain: Gain) -> Arm:
    """The *arm* at the depth of this *gain*, with a name that says so."""
    run, name = (
        arm.run.with_overrides({"ahead": gain.ahead, "hedge": gain.hedge}),
        f"{arm.name}, {gain.ahead} ahead",
    )
    return replace(arm, run=run, name=name + ", hedged" * bool(gain.hedge))


def arms_by_load(estimate: Estimate) -> dict[int, tuple[Arm, ...]]:
    """
    What is measured for each load: an ordinary request, and every method at the depth estimated for
    it.
    """
    loads = sorted({gain.concurrency for method in estimate.methods for gain in method.gains})
    return {
        load: (PLAIN, *(measured_arm(arm, gain) for arm, gain in expected(estimate, load)))
        for load in loads
    }


def expected(estimate: Estimate, load: int) -> list[tuple[Arm, Gain]]:
    """The methods of which there is a gain for this *load*, with it."""
    return [
        (each.arm, gain)
        for each in estimate.methods
        for gain in each.gains
        if gain.concurrency == load
    ]


def compare(
    estimate: Estimate, timings: Mapping[tuple[int, str], Sequence[Timing]]
) -> Iterator[Comparison]:
    """Compare the *estimate* with the *timings* of each arm, by the load and its name."""
    for load, arms in arms_by_load(estimate).items():
        plain, *others = (timings[load, arm.name] for arm in arms)
        for (arm, gain), measured in zip(expected(estimate, load), others, strict=True):
            ratio = latency_ratio(plain, measured)
            assert ratio is not None
            seconds = sum(timing.latency for timing in measured) / len(measured)
            yield Comparison(arm.name, load, gain.ahead, gain.gain, ratio, seconds)


def table(comparisons: Sequence[Comparison]) -> Table:
    """A row for each comparison."""
    rows = [
        (
            each.method,
            str(each.concurrency),
            str(each.ahead),
            f"{each.predicted:.2f}",
            f"{each.measured:.2f}",
            f"{each.off:+.0%}",
            f"{each.measured_seconds:.2f}",
        )
        for each in comparisons
    ]
    return Sheet(("", "at once", "ahead", "predicted", "measured", "off", "seconds"), rows).table()


async def run(
    arms: Sequence[Arm], world: str, profile: str, loads: Sequence[int], problems: int, counted: int, blocks: int,
    minutes: float, output: Path, progress: Progress,
) -> list[Comparison]:  # fmt: skip
    """
    Start the pair, estimate, and measure on the same servers; the estimate is in a file beside the
    *output*.
    """
    part = parts(progress)
    async with miniature_deployment(profile, world, two=False, console=stderr) as deployment:
        solver = deployment.pair
        texts = [task.problem for task in fresh_tasks(problems, SEED, world=world)]
        found = await measure(solver, arms, texts, loads, minutes, SEED, part)
        estimate = predict(found, loads)
        figures = record(estimate, found, "")
        output.with_suffix(".estimate.json").write_bytes(
            orjson.dumps(figures, option=orjson.OPT_INDENT_2)
        )
        by_load, timings = arms_by_load(estimate), defaultdict[tuple[int, str], list[Timing]](list)
        tasks = fresh_tasks(counted, SEED + 1, world=world)
        others = fresh_tasks(OTHERS, SEED + 2, world=world)
        step = part("measuring", blocks * sum(map(len, by_load.values())))
        for (load, chosen), block in product(by_load.items(), range(blocks)):
            for arm in turns(chosen, block):
                solving = partial(attempt, solver, arm, grade_equal, DEADLINE, None, None)
                crowd = Crowd(load, tasks[block::blocks], others, solving, SEED, block)
                timings[load, arm.name] += await run_block(crowd, f"{arm.name}, {load} at once")
                step()
        return list(compare(estimate, timings))


def main(
    policy: Annotated[
        list[str] | None, typer.Option("--policy", "-p", help="A method with its options.")
    ] = None,
    concurrency: Annotated[
        str, typer.Option(help="Numbers of problems at once, besides one.", metavar="N,...")
    ] = "4,16",
    world: Annotated[
        str, typer.Option(help="Problems and models of the miniature pair: short, long, tools.")
    ] = SHORT,
    profile: Annotated[str, typer.Option(help="Pace of the miniature models.")] = "slow",
    problems: Annotated[int, typer.Option(min=1, help="Problems for the estimate.")] = 20,
    counted: Annotated[
        int, typer.Option(min=2, help="Measured problems of each method under each load.")
    ] = 32,
    blocks: Annotated[
        int, typer.Option(min=1, help="Parts of a measurement, in which the methods take turns.")
    ] = 2,
    minutes: Annotated[float, typer.Option(min=0.1, help="Deadline of the estimate.")] = 5.0,
    output: Annotated[Path, typer.Option(help="File for the figures.")] = Path(
        "build/estimate.json"
    ),
) -> None:
    """Estimate the miniature pair, measure it, and print both side by side."""
    find_world(world)
    loads = numbers("--concurrency", concurrency, int)
    if blocks > counted:
        raise ConfigurationError(
            f"--blocks {blocks}: every block needs a problem, and there are {counted}"
        )
    writable("--output", output)
    arms = [parse_arm(spec) for spec in policy or POLICIES]
    with progress_bars(stderr) as progress:
        comparisons = asyncio.run(
            run(
                arms, world, profile, loads, problems, counted, blocks, minutes,
                output, progress,
            )
        )  # fmt: skip
    note = SMALL_PRINT.format(
        pace=describe_pace(profile, "large", "small"),
        minutes=minutes,
        problems=problems,
        counted=counted,
    )
    about = {"date": str(datetime.date.today()), "world": world, "profile": profile, "note": note}
    rows = [{**asdict(each), "off": each.off, **about} for each in comparisons]
    output.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    console = Console(width=max(120, Console().width))
    console.print(table(comparisons))
    console.print(f"{about['date']}   {platform.machine()}, {output}")
    console.print(note, style="dim")
    far = [each for each in comparisons if abs(each.off) > BAR]
    for each in far:
        console.print(
            f"missed: {each.method}, {each.concurrency} at once: off by {each.off:+.0%}, bar"
            f" {BAR:.0%}"
        )
    if far:
        raise typer.Exit(1)


if __name__ == "__main__":
    script(main)
