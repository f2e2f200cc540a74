"""The command ``calibrate``: find the loosest threshold that keeps the loss below a limit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import orjson
from typer import Option

from stepspec import prompts
from stepspec.evals.benchmarks import CALIBRATED_ON, Benchmark, choose, load
from stepspec.evals.calibration.policy_file import (
    SEED_DISTANCE,
    CalibrationSettings,
    changed_settings,
    find_threshold,
    promise_conditions,
    served_arm,
    solve_on_servers,
)
from stepspec.evals.calibration.risk_bound import LossTest
from stepspec.evals.calibration.search import (
    CalibrationResult,
    RunStore,
    SolveAt,
    limited,
    search,
)
from stepspec.evals.grading.graders import Graders, require_graders
from stepspec.evals.plan import check_arm
from stepspec.evals.progress import progress_bars
from stepspec.evals.provenance import digest
from stepspec.evals.sample import Task
from stepspec.evals.testbed.servers import weights_digest
from stepspec.orchestrator.errors import ConfigurationError, install_command
from stepspec.policies import Threshold

from .command_line import numbers, writable, write_file
from .eval import configured, contact_before_download, seed_of, tasks_of, without_template
from .flags import (
    BUDGET,
    SAMPLING,
    AnswerColumn,
    BenchmarkName,
    Concurrency,
    DataFile,
    Fresh,
    Json,
    Limit,
    MetricName,
    Pace,
    ProblemColumn,
    PromptName,
    SampleSeed,
    Testbed,
    with_settings,
)
from .program import stderr, stdout, wait

CALIBRATE_EXAMPLES = """
Examples:

  stepspec calibrate gsm8k --policy specreason --max-loss 0.01 \\
      --small http://localhost:8001/v1 --large http://localhost:8002/v1

  # both servers are in stepspec.toml
  stepspec calibrate problems.jsonl -p bild --vary rollback --values 1,2,4,8

  stepspec calibrate arithmetic --testbed --limit 400 --max-loss 0.02

  stepspec serve --config policy.toml
"""


@with_settings(
    "calibrate",
    SAMPLING,
    BUDGET,
)
def calibrate(
    benchmark: BenchmarkName,
    max_loss: Annotated[float, Option(help="The largest loss, as a share of all problems.")] = 0.01,
    confidence: Annotated[float, Option(help="Confidence of the promise.")] = 0.95,
    vary: Annotated[
        str | None,
        Option(help="The option to calibrate; by default the method's threshold.", metavar="NAME"),
    ] = None,
    values: Annotated[str | None, Option(help="Its values, the strictest first: 9,8,7.")] = None,
    testbed: Testbed = False,
    profile: Pace = "off",
    data: DataFile = None,
    problem_column: ProblemColumn = None,
    answer_column: AnswerColumn = None,
    metric: MetricName = None,
    prompt: PromptName = None,
    limit: Limit = None,
    seed: SampleSeed = None,
    concurrency: Concurrency = 8,
    output: Annotated[
        Path, Option("--output", "-o", help="Where to write the policy file.")
    ] = Path("policy.toml"),
    fresh: Fresh = False,
    json: Json = False,
) -> None:
    """
    Find the loosest threshold whose loss against the large model alone is at most --max-loss, at
    --confidence.

    Half of the benchmark is used, chosen by hash; `stepspec eval --half report` measures on the
    other half. An interrupted calibration continues when the same command is run again. One
    calibration makes one promise: other problems, another --max-loss or another --confidence need
    another --output, or --fresh, and problems that no calibration has used.
    """
    if find_spec("scipy") is None:
        raise ConfigurationError(f"`stepspec calibrate` needs scipy: {install_command('evals')}")
    if not 0 < max_loss < 1 or not 0 < confidence < 1:
        raise ConfigurationError("--max-loss and --confidence are shares: above 0 and below 1")
    chosen, file = choose(
        benchmark, data, problem=problem_column, answer=answer_column, metric=metric, prompt=prompt
    )
    if testbed and file != data:
        chosen = without_template(chosen)
    opening, settings = configured(profile, testbed=testbed)
    seed = seed_of(settings, seed)
    threshold = find_threshold(settings.policy, vary, numbers("--values", values or "", float))
    for value in threshold.values:
        check_arm(served_arm(settings, threshold, value), settings)
    writable("--output", output)
    if not testbed:
        contact_before_download(settings, chosen, file)
    with prompts.replacing(settings.prompts):
        tasks = problems(chosen, file, seed, limit)
    require_graders(task.gold for task in tasks)
    test = LossTest(max_loss, level=round(1 - confidence, 9))
    _check_size(len(tasks), test)
    changes = changed_settings(settings)
    conditions = promise_conditions(settings, threshold)
    about = {
        "benchmark": chosen.name,
        "policy": settings.policy,
        "option": threshold.option,
        "values": threshold.values,
        "seed": seed,
        "testbed": testbed,
        "weights": weights_digest("large", "small") if testbed else None,
        "max_loss": max_loss,
        "confidence": confidence,
        "besides": changes,
        "conditions": conditions,
    }

    async def main() -> CalibrationSettings:
        async with opening as solver:
            solver.require_both()
            held = {**about, "problems": digest(tasks), "models": dict(solver.models)}
            trials = output.with_suffix(".trials.jsonl")
            solve = limited(
                solve_on_servers(solver, tasks, threshold, Graders(), seed), concurrency
            )
            with RunStore(trials, held, fresh=fresh) as store:
                result = await _search(solve, len(tasks), threshold, test, store)
            return CalibrationSettings(
                policy=settings.policy,
                threshold=threshold,
                benchmark=f"{chosen.name}, {CALIBRATED_ON}",
                result=result,
                options=settings.options,
                changes=changes,
                models=dict(solver.models),
                conditions=conditions,
            )

    _show(wait(main(), resumable=True), output, as_json=json)


def _show(calibrated: CalibrationSettings, output: Path, *, as_json: bool) -> None:
    """
    Print what is calibrated, and write the policy file.

    Exit with 1 if no threshold keeps the promise.
    """
    if as_json:
        stdout.print_json(orjson.dumps(calibrated).decode())
    else:
        stdout.print(calibrated.table())
        stdout.print(calibrated.summary())
    if calibrated.result.loosest is None:
        sys.exit(1)
    write_file(output, calibrated.toml())
    stderr.print(
        f"wrote {output}: name it with --config, or make it stepspec.toml",
        soft_wrap=True,
    )


def _check_size(count: int, test: LossTest) -> None:
    """Raise `ConfigurationError` if *count* problems are too few for *test*."""
    least = test.needed()
    if least is None or count < least:
        takes = "more than any number" if least is None else f"{least:,} even if none is lost"
        raise ConfigurationError(f"too few problems, {count}: this promise takes {takes}")


async def _search(
    solve: SolveAt, count: int, threshold: Threshold, test: LossTest, store: RunStore
) -> CalibrationResult:
    """Search the threshold with *count* problems, and show how far it is."""
    total = count * (1 + len(threshold.values))
    with progress_bars(stderr) as progress:
        bar = progress.add_task("large alone", total=total)

        def on_problem(value: float | None) -> None:
            solved_by = "large alone" if value is None else f"{threshold.option} {value:g}"
            progress.update(bar, advance=1, description=solved_by)

        return await search(solve, count, threshold, test, store, on_problem)


def problems(
    benchmark: Benchmark, data: Path | None, seed: int, count: int | None
) -> Sequence[Task]:
    """
    Return at most *count* problems of the calibration half of *benchmark*.

    A generated benchmark has no halves. It uses other seeds instead.
    """
    if benchmark.made is not None and data is None:
        return load(benchmark, seed=seed + SEED_DISTANCE, limit=count)
    return tasks_of(benchmark, data, seed, "calibration")[:count]
