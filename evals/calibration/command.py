"""The command ``calibrate``: the loosest threshold whose loss is at most so much, with a confidence."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.console import Console
from rich.progress import TaskID

from stepspec.api import Solver
from stepspec.orchestrator.errors import ConfigurationError

from ..benchmarks import CALIBRATED_ON, Benchmark, find, half, load, own
from ..command_line import finite, only_without_testbed, script, writable
from ..grading.graders import Graders, require
from ..plan import of_pair, possible
from ..provenance import digests
from ..sample import Task
from ..testbed.servers import counting, weights_digest
from ..testbed.solving_pair import pair_solver

if TYPE_CHECKING:  # what brings scipy is imported where it is used: `stepspec` has to start without it
    from stepspec.policies.option_types import Threshold

    from .policy_file import CalibrationSettings
    from .risk_bound import LossTest
    from .search import Attempt, CalibrationResult, Trial, TrialStore

EXAMPLES = """
Examples:

  stepspec calibrate gsm8k --policy specreason --max-loss 0.01 --small http://localhost:8001/v1 --large http://localhost:8002/v1

  stepspec calibrate problems.jsonl --policy bild --option rollback --values 1,2,4,8

  stepspec calibrate arithmetic --testbed --count 400 --max-loss 0.02 --output policy.toml

  STEPSPEC_CONFIG=policy.toml stepspec serve --small ... --large ...
"""

FORMAT = 2  # of the lines of a trials file
stdout, stderr = Console(), Console(stderr=True)


def calibrate(
    benchmark: Annotated[str, typer.Argument(help="A benchmark's name, or a JSONL or Parquet file of problems.")],
    policy: Annotated[str, typer.Option("--policy", "-p", help="The method.")] = "specreason",
    max_loss: Annotated[float, typer.Option(help="The most that may be lost, as a share of all problems.")] = 0.01,
    confidence: Annotated[float, typer.Option(help="Of the promise.")] = 0.95,
    small: Annotated[str | None, typer.Option(help="Base URL of the small model's server.", metavar="URL")] = None,
    large: Annotated[str | None, typer.Option(help="Base URL of the large model's server.", metavar="URL")] = None,
    critic: Annotated[str | None, typer.Option(help="Base URL of the reward model's server.", metavar="URL")] = None,
    testbed: Annotated[bool, typer.Option("--testbed", help="The miniature pair, on this CPU.")] = False,
    profile: Annotated[str, typer.Option(help="How the miniature models' passes are paced.")] = "off",
    option: Annotated[str | None, typer.Option(help="What makes the method looser, if not what is known to.")] = None,
    values: Annotated[str | None, typer.Option(help="Its values, the strictest first: 9,8,7.")] = None,
    data: Annotated[Path | None, typer.Option(help="A file with the benchmark's columns, instead of the hub.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="How many problems at most.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the sampling, and of problems that are made.")] = 0,
    at_once: Annotated[int, typer.Option(min=1, help="Problems solved at the same time.")] = 8,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the policy file.")] = Path(
        "policy.toml"
    ),
    work: Annotated[Path | None, typer.Option(help="Keeps what was tried; OUTPUT.trials.jsonl unless given.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget earlier trials, and the attempts that failed.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """
    Find the loosest threshold whose loss against the large model alone is at most --max-loss, at --confidence.

    Half of the benchmark is used, chosen by hash; `stepspec eval --half report` measures on the other half. Started
    again, it goes on where it was cut short. With a larger --count it is another attempt with the same trials, and the
    confidence stays that of all attempts together. The policy file is a settings file: name it in STEPSPEC_CONFIG.
    """
    if importlib.util.find_spec("scipy") is None:
        raise ConfigurationError("`stepspec calibrate` needs scipy: pip install 'stepspec[evals]'")
    from .policy_file import (
        CalibrationSettings,
        attempts,
        bearing,
        differing,
        knob,
        served,
    )
    from .risk_bound import LossTest
    from .search import Concluded, TrialStore

    if not 0 < max_loss < 1 or not 0 < confidence < 1:
        raise ConfigurationError("--max-loss and --confidence are shares: above 0 and below 1")
    file = Path(benchmark) if Path(benchmark).suffix in (".jsonl", ".parquet") else None
    chosen = own(file) if file else find(benchmark)
    turned = knob(policy, option, _numbers(values) if values else None)
    if testbed:
        only_without_testbed(small=small, large=large, critic=critic)
    ours = None if testbed else Solver(small, large, critic=critic)
    settings = ours.settings if ours else of_pair()
    for value in turned.values:
        possible(served(settings, policy, turned, value), settings)
    writable("--output", output)
    path = work or output.with_suffix(".trials.jsonl")
    tasks = problems(chosen, data or file, seed, count)
    require(chosen.metric)
    about = {
        "benchmark": chosen.name, "policy": policy, "option": turned.option, "seed": seed, "testbed": testbed,
        "weights": weights_digest("large", "small") if testbed else None,
        "besides": differing(settings), "told": bearing(settings, policy, turned), "format": FORMAT,
    }  # fmt: skip
    solving = ours or pair_solver(profile, stderr, (), seed, problems=0)

    level = round(1 - confidence, 9)

    async def main() -> CalibrationSettings:
        async with solving as solver, Graders() as graders:
            trials = TrialStore(path, {**about, "models": dict(solver.models)}, fresh=fresh)
            attempt = attempts(solver, tasks, chosen, policy, turned, graders, seed)
            with trials:
                trials.begin(digests(tasks))
                end = Concluded(len(tasks), max_loss, level, turned.values)
                test = LossTest(max_loss, level, again=trials.attempt(end) > 1)
                least = test.needed()
                too_few = least is None or len(tasks) < least
                if too_few:
                    takes = "more than can be counted" if least is None else f"{least:,} even if none is lost"
                    stderr.print(f"{len(tasks)} problems cannot carry this promise: it takes {takes}", style="yellow")
                calibrated = await _calibrated(attempt, len(tasks), turned, trials, test, at_once)
                calibrated = dataclasses.replace(calibrated, attempt=trials.attempt(end), counts=not too_few)
                if not too_few:  # what can promise nothing, whatever comes of it, is no attempt
                    trials.conclude(end)
            fixed = solver.settings.with_overrides({"policy": policy}).options
            return CalibrationSettings(
                policy, turned, f"{chosen.name}, {CALIBRATED_ON}", calibrated, fixed, differing(solver.settings),
                dict(solver.models), bearing(solver.settings, policy, turned),
            )  # fmt: skip

    try:
        promise = asyncio.run(main())
    except KeyboardInterrupt:
        stderr.print("interrupted: the same command goes on from here", style="yellow")
        raise typer.Exit(130) from None
    if json:
        stdout.print_json(orjson.dumps(dataclasses.asdict(promise)).decode())
    else:
        stdout.print(promise.table())
        stdout.print(promise.said(), highlight=False)
    if promise.calibrated.found is None:
        sys.exit(1)
    output.write_text(promise.toml(), encoding="utf-8")
    stderr.print(f"wrote {output}: set STEPSPEC_CONFIG to it, or make it stepspec.toml", highlight=False)


async def _calibrated(
    attempt: Attempt, problems: int, turned: Threshold, trials: TrialStore, test: LossTest, at_once: int
) -> CalibrationResult:
    from .search import CalibrationSearch

    with counting(stderr) as progress:
        bars: dict[float | None, TaskID] = {None: progress.add_task("large alone", total=problems)}

        def tell(value: float | None, ran: bool) -> None:
            if value not in bars:
                bars[value] = progress.add_task(f"{turned.option} {value:g}", total=problems)
            progress.advance(bars[value])

        def differing(tried: Trial) -> None:
            stderr.print(
                f"problem {tried.problem} at {turned.option} {tried.value:g} did not repeat its run at the value "
                "before: no run is reused, and every problem is run at every value",
                style="yellow",
            )
            for value, bar in bars.items():
                if value is not None:
                    progress.reset(bar)

        calibration = CalibrationSearch(attempt, problems, turned, test, trials, at_once, tell, True, differing)
        return await calibration.run()


def problems(benchmark: Benchmark, data: Path | None, seed: int, count: int | None) -> list[Task]:
    """The half of *benchmark* that is for calibration; of one that is made, as many as are wanted of other seeds."""
    from .policy_file import SEEDS_APART

    if benchmark.made is not None and data is None:
        return load(benchmark, seed=seed + SEEDS_APART, limit=count)
    tasks = [task for task in load(benchmark, data, seed=seed) if half(task) == "calibration"]
    if not tasks:
        raise ConfigurationError(f"no problem of {benchmark.name} is in its calibration half: it has too few")
    return tasks[:count]


def _numbers(values: str) -> list[float]:
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError as exc:
        raise ConfigurationError(f"--values {values!r}: write numbers with commas between them, as in 9,8,7") from exc
    finite("--values", *numbers)
    return numbers


if __name__ == "__main__":
    script(calibrate, EXAMPLES)
