"""
The command ``eval``, and arms by name.

An arm is a method such as ``specreason`` or ``bild:scale=step,ahead=0``, or a policy file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from stepspec import policies, prompts
from stepspec.api import Solver
from stepspec.evals import provenance
from stepspec.evals.arms import LARGE, PLAIN, SMALL
from stepspec.evals.benchmarks import (
    Benchmark,
    Half,
    choose,
    duplicates,
    half,
    load,
    overlaps,
)
from stepspec.evals.evaluation import Evaluation, evaluate
from stepspec.evals.grading.graders import require_graders
from stepspec.evals.plan import Plan, check_arm, configured_arm, testbed_settings
from stepspec.evals.results import SMALL_PRINT, Result, tables
from stepspec.evals.runner import WorkerGroup
from stepspec.evals.sample import Arm, Task
from stepspec.evals.testbed import Profile
from stepspec.evals.testbed.solving_pair import pair_solver
from stepspec.orchestrator.errors import ConfigurationError, install_command
from stepspec.orchestrator.run_options import ARM_OPTIONS, RunOptions
from stepspec.setting_sources import read_toml
from stepspec.settings import Settings

from .command_line import (
    only_without_testbed,
    possible_folder,
    print_json,
)
from .flags import (
    BUDGET,
    SAMPLING,
    AnswerColumn,
    BenchmarkName,
    DataFile,
    Fresh,
    Json,
    Limit,
    MetricName,
    Pace,
    Policies,
    ProblemColumn,
    PromptName,
    SampleSeed,
    SharedOptions,
    Testbed,
    parse_options,
    with_settings,
)
from .program import stderr, stdout, wait

NO_OPTIONS: Mapping[str, Any] = {}
FILE = ".toml"
BASELINES: Mapping[str, Arm] = {"plain": PLAIN, "large": LARGE, "small": SMALL}


def arms(
    chosen: Sequence[str],
    baselines: Sequence[str],
    options: Mapping[str, Any] = NO_OPTIONS,
    settings: Settings | None = None,
) -> tuple[Arm, ...]:
    """
    Return the *baselines* and the *chosen* methods.

    The first baseline is the usual one. The *options* are of every chosen method that is no policy
    file, unless it sets its own. If none is chosen, the method of the *settings* is. Raise
    `ConfigurationError` for an unknown name, and for an arm that is named twice.
    """
    for name in baselines:
        if name not in BASELINES:
            raise ConfigurationError(
                f"no such baseline: {name!r}; there are {', '.join(BASELINES)}"
            )
    methods = [arm(spec, options) for spec in chosen]
    if settings is not None and not chosen:
        methods = [configured_arm(settings, options)]
    competing = (
        *(BASELINES[name] for name in dict.fromkeys(baselines)),
        *methods,
    )
    names = [competitor.name for competitor in competing]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"the arm {name!r} is there twice")
    return competing


def arm(spec: str, options: Mapping[str, Any] = NO_OPTIONS) -> Arm:
    """
    Read one method: its name with options after a colon, or a policy file.

    A method that is no file has the *options* too, unless it sets its own. Of a file, settings that
    are no options of a run are ignored.
    """
    if spec.endswith(FILE):
        path = Path(spec)
        table = read_toml(path)
        if "policy" not in table:
            raise ConfigurationError(
                f'{path} names no policy; write one as in policy = "specreason"'
            )
        known = ("policy", "options", *ARM_OPTIONS)
        return _arm(path.stem, {name: table[name] for name in known if name in table})
    policy, _, rest = spec.partition(":")
    own = parse_options(
        rest.split(",") if rest else None,
        f"{spec!r}: write options as NAME=VALUE after the colon, with commas between them",
    )
    method = {**options, **own}
    run = {name: method.pop(name) for name in ARM_OPTIONS if name in method}
    return _arm(spec, {"policy": policy, "options": method, **run})


def _arm(name: str, values: Any) -> Arm:
    """Make the arm *name*. Its *values* are the policy, the policy's options, and run options."""
    try:
        run = RunOptions(auto=False).with_overrides(values)
        policies.check(run.policy, run.options)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{name!r}: {exc}") from exc
    return Arm(name, run)


def calibrated(chosen: Sequence[str], settings: Settings | None = None) -> dict[str, str]:
    """
    Return what the policy files among *chosen* were calibrated on, by the names of the arms.

    If none is chosen, return it for the method of the *settings*.
    """
    if settings and settings.calibration and not chosen:
        return {settings.policy: settings.calibration.benchmark}
    problems: dict[str, str] = {}
    for path in [Path(spec) for spec in chosen if spec.endswith(FILE)]:
        with suppress(KeyError, TypeError):
            problems[path.stem] = str(read_toml(path)["calibration"]["benchmark"])
    return problems


EVAL_EXAMPLES = """
Examples:

  stepspec eval math500 -p specreason -p bild -n 100 \\
      --small http://localhost:8001/v1 --large http://localhost:8002/v1

  # both servers are in stepspec.toml
  stepspec eval arithmetic -p specreason:threshold=8 -p calibrated.toml

  stepspec eval problems.jsonl --samples 4 --temperature 0.6 -O threshold=8

  # on the miniature pair of this CPU
  stepspec eval arithmetic --testbed --policy reflective --limit 20

  # on all machines of a Ray cluster
  stepspec eval math500 --ray auto --concurrency 8
"""


@with_settings("system", *SAMPLING, *BUDGET)
def command(
    benchmark: BenchmarkName,
    policy: Policies = None,
    option: SharedOptions = None,
    baseline: Annotated[
        list[str] | None,
        Option(
            help=(
                "A model alone: plain (the large one as one ordinary request), large or small;"
                " default: plain and "
                "small. All others are compared with the first."
            )
        ),
    ] = None,
    testbed: Testbed = False,
    profile: Pace = "paced",
    data: DataFile = None,
    problem_column: ProblemColumn = None,
    answer_column: AnswerColumn = None,
    metric: MetricName = None,
    prompt: PromptName = None,
    limit: Limit = None,
    part: Annotated[
        Half | None,
        Option(
            "--half",
            help="report: leave out what `calibrate` uses; calibration: only that.",
            metavar="HALF",
        ),
    ] = None,
    samples: Annotated[int, Option(min=1, help="Samples of each problem by each arm.")] = 1,
    seed: SampleSeed = None,
    concurrency: Annotated[
        int,
        Option(
            min=1, help="Number of problems solved at the same time; with --ray, at every worker."
        ),
    ] = 1,
    ray: Annotated[
        str | None,
        Option(
            help=(
                "Share the runs among workers of a Ray cluster: auto, HOST:PORT, ray://HOST:PORT;"
                " local: one here."
            ),
            metavar="ADDRESS",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        Option(min=1, help="Workers of the Ray cluster, one CPU each; by default one per node."),
    ] = None,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            help="The run folder, by default runs/BENCHMARK. An interrupted run continues there.",
            metavar="FOLDER",
        ),
    ] = None,
    traces: Annotated[
        bool, Option("--traces", help="Also keep the trace of every run in the folder.")
    ] = False,
    fresh: Fresh = False,
    json: Json = False,
) -> None:
    """
    Measure methods on a benchmark, next to each model alone: same servers, problems and budgets,
    interleaved.

    Without --policy, the configured method is measured, with its options: SpecReason unless a
    settings file or STEPSPEC_POLICY names another.
    """
    chosen, source = choose(
        benchmark, data, problem=problem_column, answer=answer_column, metric=metric, prompt=prompt
    )
    if testbed and source != data:
        chosen = without_template(chosen)
    is_made = chosen.made is not None and source is None
    opening, settings = configured(profile, testbed=testbed)
    competing = arms(policy or [], baseline or ["plain", "small"], parse_options(option), settings)
    _check_arms(competing, settings, samples)
    seed = seed_of(settings, seed)
    folder = output or Path("runs") / chosen.name
    possible_folder("--output", folder, folder)
    with prompts.replacing(settings.prompts):
        all_tasks = tasks_of(chosen, source, seed, part)
        tasks = all_tasks[:limit]
        remarks = overlaps(calibrated(policy or [], settings), chosen.name, part)
        if is_made:
            tasks = tuple(load(chosen, seed=seed, limit=limit))
            remarks = []  # Calibrations use other seeds.
        remarks += duplicates(tasks)
        require_graders(task.gold for task in tasks)
        plan = Plan(
            tasks,
            competing,
            settings.sampling,
            settings.budget,
            samples,
            seed,
            concurrency,
        )
        evaluation = Evaluation(
            chosen,
            plan,
            folder,
            provenance.digest(all_tasks),
            half=part,
            profile=profile if testbed else None,
            traces=traces,
            fresh=fresh,
            remarks=tuple(remarks),
        )
        sharing = _team(ray, workers, testbed=testbed)
        _remark(remarks)

        async def work() -> list[Result]:
            async with sharing as team, opening as solver:
                solver.require_both()
                return await evaluate(solver, evaluation, stderr, team)

        results = wait(work(), resumable=True)
        show_results(results, competing[0].name, SMALL_PRINT, as_json=json)
        stderr.print(f"wrote {folder}; next: stepspec report {folder}", soft_wrap=True)
        _remark(remarks)


def _remark(remarks: list[str]) -> None:
    """Print remarks about the figures. They stand at the start and again with the figures."""
    for remark in remarks:
        stderr.print(remark, style="yellow", soft_wrap=True)


def _team(
    address: str | None, workers: int | None, *, testbed: bool
) -> AbstractAsyncContextManager[WorkerGroup | None]:
    if address is None and workers is not None:
        raise ConfigurationError("--workers are those of a Ray cluster: name it with --ray")
    if address is None:
        return nullcontext()
    if testbed and address != "local":
        raise ConfigurationError(
            "the servers of --testbed listen on this machine's loopback, which no other machine"
            " reaches: pass --ray local, or serve the models where every machine reaches them and"
            " name them with --small and --large"
        )
    try:
        from stepspec.evals.ray_pool import cluster
    except ModuleNotFoundError as exc:
        raise ConfigurationError(
            f"--ray needs {exc.name}: {install_command('evals', 'ray')}"
        ) from exc
    return cluster(address, workers, stderr)


def without_template(benchmark: Benchmark) -> Benchmark:
    """Return the *benchmark* of a file for the miniature models, which know no template."""
    return replace(benchmark, prompt=None)


def tasks_of(
    benchmark: Benchmark, data: Path | None, seed: int, part: Half | None
) -> tuple[Task, ...]:
    """Return the problems of *benchmark*, or those of one half, the *part*."""
    tasks = tuple(load(benchmark, data, seed=seed))
    if part is None:
        return tasks
    if benchmark.made is not None and data is None:
        raise ConfigurationError(
            f"{benchmark.name} has no halves: `calibrate` uses other seeds; leave --half out"
        )
    chosen = tuple(task for task in tasks if half(task) == part)
    if not chosen:
        raise ConfigurationError(
            f"none of the {len(tasks)} problems of {benchmark.name} is in its {part} half: take"
            " more problems"
        )
    return chosen


def _check_arms(competing: tuple[Arm, ...], settings: Settings, samples: int) -> None:
    """Raise `ConfigurationError` if the arms cannot be compared with these *settings*."""
    for arm in competing:
        check_arm(arm, settings)
    if len({arm.resolve(settings.run).system for arm in competing}) > 1:
        raise ConfigurationError(
            "the arms have different system messages: set the same one for all with --system"
        )
    if samples > 1 and not settings.sampling.temperature:
        raise ConfigurationError(
            f"--samples {samples} at temperature 0 are all the same one: set --temperature"
        )


def configured(
    profile: Profile, *, testbed: bool
) -> tuple[AbstractAsyncContextManager[Solver], Settings]:
    """Return what opens the configured solver, or the miniature pair, with its settings."""
    if testbed:
        only_without_testbed()
        return pair_solver(profile, stderr), testbed_settings()
    solver = Solver()
    return solver, solver.settings


def seed_of(settings: Settings, seed: int | None) -> int:
    """Return *seed*, or the configured one if it is None."""
    if seed is None:
        return settings.sampling.seed or 0
    return seed


def show_results(results: list[Result], baseline: str, note: str, *, as_json: bool) -> None:
    """Print the *results*, compared with the *baseline*, and the *note* below."""
    if as_json:
        print_json(results)
        return
    for part in tables(results, baseline):
        stdout.print(part)
    stdout.print(note, style="dim")
