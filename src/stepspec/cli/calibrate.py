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
from stepspec.api import Solver
from stepspec.evals.arms import LARGE
from stepspec.evals.benchmarks import CALIBRATED_ON, Benchmark, choose, load
from stepspec.evals.calibration.policy_file import (
    SEED_DISTANCE,
    CalibrationSettings,
    changed_settings,
    find_threshold,
    promise_conditions,
    served_arms,
)
from stepspec.evals.calibration.risk_bound import LossTest
from stepspec.evals.calibration.search import CalibrationResult, TrialStore, search
from stepspec.evals.grading.graders import require_graders
from stepspec.evals.plan import Plan, check_arm, identity
from stepspec.evals.progress import progress_bars
from stepspec.evals.provenance import digest
from stepspec.evals.sample import Sample, Task
from stepspec.evals.testbed.servers import weights_digest
from stepspec.orchestrator.errors import ConfigurationError, install_command
from stepspec.policies import Threshold

from .command_line import numbers, writable, write_file
from .eval import configured, seed_of, tasks_of, without_template
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


@with_settings("policy", "options", "system", *SAMPLING, *BUDGET)
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
    arms = (LARGE, *served_arms(settings, threshold))
    for arm in arms:
        check_arm(arm, settings)
    writable("--output", output)
    with prompts.replacing(settings.prompts):
        tasks = problems(chosen, file, seed, limit)
    require_graders(task.gold for task in tasks)
    test = LossTest(max_loss, level=round(1 - confidence, 9))
    _check_size(len(tasks), test)
    conditions = promise_conditions(settings, threshold)
    plan = Plan(
        tuple(tasks),
        arms,
        settings.sampling,
        settings.budget,
        seed=seed,
        concurrency=concurrency,
    )
    about = {
        **identity(plan),
        "concurrency": None,  # Another --concurrency may continue a calibration.
        "benchmark": chosen.name,
        "problems": digest(tasks),
        "weights": weights_digest() if testbed else None,
        "max_loss": max_loss,
        "confidence": confidence,
        "conditions": conditions,
    }

    async def main() -> CalibrationSettings:
        async with opening as solver:
            solver.require_both()
            held = {**about, "models": dict(solver.models)}
            with TrialStore(output.with_suffix(".trials.jsonl"), held, fresh=fresh) as samples:
                result = await _search(solver, plan, threshold, test, samples)
            return CalibrationSettings(
                policy=settings.policy,
                threshold=threshold,
                benchmark=f"{chosen.name}, {CALIBRATED_ON}",
                result=result,
                options=settings.options,
                changes=changed_settings(settings),
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
    solver: Solver,
    plan: Plan,
    threshold: Threshold,
    test: LossTest,
    samples: TrialStore,
) -> CalibrationResult:
    """Search the threshold, and show how far it is."""
    total = len(plan.tasks) * len(plan.arms)
    with progress_bars(stderr) as progress:
        bar = progress.add_task(LARGE.name, total=total, completed=len(samples.done))

        def advance(sample: Sample) -> None:
            progress.update(bar, advance=1, description=sample.arm)

        return await search(solver, plan, threshold, test, samples, advance)


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
