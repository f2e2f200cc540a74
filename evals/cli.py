"""The command ``eval``, and arms by name: ``specreason``, ``bild:scale=step,ahead=0``, or a policy file."""

from __future__ import annotations

import asyncio
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints

import orjson
import typer
from rich.console import Console

from stepspec import policies
from stepspec.api import Solver
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.installation import install_command
from stepspec.orchestrator.interfaces import answered_by, ended_by
from stepspec.orchestrator.run_options import RETIRED, arm_options, refuse_retired
from stepspec.settings import Settings

from . import provenance
from .benchmarks import BENCHMARKS, Benchmark, bare, find, half, load, overlaps, own
from .command_line import changed, finite, only_without_testbed, script
from .evaluation import Evaluation, evaluate
from .experiments.arms import LARGE, SMALL
from .grading.graders import SECONDS, require
from .plan import Plan, check_arm, testbed_settings
from .results import SMALL_PRINT, ArmSummary, table
from .runner import WorkerGroup
from .sample import Arm, Task
from .testbed.servers import miniature
from .testbed.solving_pair import pair_solver

CONTROL = "random"
FILE = ".toml"
BASELINES: Mapping[str, Arm] = {"large": LARGE, "small": SMALL}


def arms(chosen: Sequence[str], baselines: Sequence[str], controls: Sequence[str]) -> tuple[Arm, ...]:
    """
    The large model alone, the other *baselines*, the *chosen* methods, and *controls* of some of these methods.

    Raise `ConfigurationError` for an unknown name, and for an arm that is named twice.
    """
    unknown = [name for name in baselines if name not in BASELINES]
    if unknown:
        raise ConfigurationError(f"no such baseline: {unknown[0]!r}; there are {' and '.join(BASELINES)}")
    methods = [arm(spec) for spec in chosen]
    others = [BASELINES[name] for name in dict.fromkeys(baselines) if name != "large"]
    competing = (LARGE, *others, *methods, *(control(name, methods) for name in controls))
    names = [competitor.name for competitor in competing]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigurationError(f"the arm {twice.pop()!r} is there twice")
    return competing


def arm(spec: str) -> Arm:
    """Parse one method: its name with options after a colon, or a policy file as ``stepspec calibrate`` writes it."""
    if spec.endswith(FILE):
        return _from_file(Path(spec))
    policy, _, rest = spec.partition(":")
    pairs = [part.partition("=") for part in rest.split(",")] if rest else []
    if not all(equals for _, equals, _ in pairs):
        raise ConfigurationError(f"{spec!r}: write options as NAME=VALUE after the colon, with commas between them")
    return _arm(spec, policy, {name.strip(): _value(value) for name, _, value in pairs})


def calibrated(chosen: Sequence[str]) -> dict[str, str]:
    """The benchmarks that the policy files among the *chosen* arms were calibrated on, by the arm's name."""
    files = [Path(spec) for spec in chosen if spec.endswith(FILE)]
    entries: dict[str, Any] = {path.stem: _settings(path).get("calibration") for path in files}
    tables = {name: cast("dict[str, Any]", entry) for name, entry in entries.items() if isinstance(entry, dict)}
    return {name: str(table["benchmark"]) for name, table in tables.items() if "benchmark" in table}


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:  # no TOML, or not even text
        raise ConfigurationError(f"no policy file at {path}: {exc}") from exc
    if "policy" not in settings:
        raise ConfigurationError(f'{path} names no policy; write one as in policy = "specreason"')
    return settings


def _from_file(path: Path) -> Arm:
    """Read the policy and the run options from a settings file; other settings, such as URLs, are ignored."""
    settings = _settings(path)
    for name in set(RETIRED) & set(settings):
        refuse_retired(f"{path}: {name}", settings[name])
    options = {name: settings[name] for name in arm_options() if name in settings}
    return _arm(path.stem, settings["policy"], {**settings.get("options", {}), **options})


def _arm(name: str, policy: str, options: Mapping[str, Any]) -> Arm:
    own = {key: value for key, value in options.items() if key not in arm_options()}
    overrides: Any = {key: value for key, value in options.items() if key in arm_options()}
    try:
        made = Arm.of(name, policy, own, **overrides)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{name!r}: {exc}") from exc
    try:
        policies.check(policy, own)
    except ConfigurationError as exc:
        unknown = set(own) - set(policies.options(policy))
        raise ConfigurationError(f"{exc}; of any arm: {', '.join(arm_options())}" if unknown else str(exc)) from exc
    return made


def control(name: str, methods: Sequence[Arm]) -> Arm:
    """A control that accepts steps at random, as often as the arm *name* does, and is like that arm otherwise."""
    for method in methods:
        if method.name == name:
            built = policies.METHODS[method.policy].build
            run = method.run.with_overrides(
                {
                    "policy": CONTROL,
                    "ending": method.run.ending or ended_by(built),
                    "answer": method.run.answer or answered_by(built),
                }
            )
            return replace(method, name=f"{CONTROL} like {name}", run=run, like=name)
    known = ", ".join(repr(method.name) for method in methods)
    raise ConfigurationError(f"--random {name!r}: not one of the methods of this run, which are {known}")


def _value(text: str) -> Any:
    """Parse JSON; other text is a string."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.strip()


WIDTH = 170
FILES = (".jsonl", ".parquet")
EXAMPLES = """
Examples:

  stepspec eval math500 --policy specreason --policy bild --random specreason --limit 100 --small ... --large ...

  stepspec eval arithmetic --testbed --policy specreason:threshold=8 --policy reflective --policy calibrated.toml

  stepspec eval problems.jsonl --samples 4 --temperature 0.6 --small ... --large ...

  stepspec eval math500 --ray auto --concurrency 8 --small ... --large ...     # on all machines of a Ray cluster
"""

ALONE = """
Examples:

  python -m stepspec.evals.{name} --policy specreason --policy bild --limit 100 --small ... --large ...

  python -m stepspec.evals.{name} --data {name}.parquet --policy policy.toml --half report --small ... --large ...

  python -m stepspec.evals.{name} --samples 4 --temperature 0.6 --output runs/four --small ... --large ...
"""

stdout, stderr = Console(), Console(stderr=True)


def command(
    benchmark: Annotated[
        str, typer.Argument(help="math500, gsm8k, aime24, aime25, amc23, gpqa_diamond, arithmetic; or a file.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", "-p", help="A method with its options, or a policy file.", metavar="NAME[:OPTION=VALUE,...]"
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None, typer.Option(help="large, which is always measured, or small; both by default.")
    ] = None,
    random: Annotated[
        list[str] | None,
        typer.Option(help="Add a control that accepts steps at random, as often as this method does."),
    ] = None,
    small: Annotated[str | None, typer.Option(help="Base URL of the small model's server.", metavar="URL")] = None,
    large: Annotated[str | None, typer.Option(help="Base URL of the large model's server.", metavar="URL")] = None,
    critic: Annotated[str | None, typer.Option(help="Base URL of the reward model's server.", metavar="URL")] = None,
    testbed: Annotated[bool, typer.Option("--testbed", help="Start the miniature pair and measure that.")] = False,
    profile: Annotated[str, typer.Option(help="Pace of the miniature models.")] = "paced",
    data: Annotated[
        Path | None, typer.Option(help="Read the problems from this JSONL or Parquet file, not from the hub.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only this number of problems, the first ones.")] = None,
    part: Annotated[
        str | None,
        typer.Option("--half", help="report: leave out what `calibrate` uses; calibration: only that.", metavar="HALF"),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of each problem by each arm.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the samples, the order of choices, and generated problems.")] = 0,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; by default as in the settings.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Token budget of a run, the same for all arms.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Wall time budget of a run, in seconds.")] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Number of concurrent runs; with --ray, at every worker.")
    ] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Share the runs among workers of a Ray cluster: auto, HOST:PORT, ray://HOST:PORT; local: one here.",
            metavar="ADDRESS",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Workers of the Ray cluster, one CPU each; by default one per node.")
    ] = None,
    graders: Annotated[int, typer.Option(min=1, help="Number of grading processes.")] = 2,
    grading_seconds: Annotated[
        float, typer.Option(min=0.1, help="Maximum time to grade an answer, in seconds.")
    ] = SECONDS,
    output: Annotated[
        Path | None, typer.Option(help="The run folder, by default runs/BENCHMARK. An interrupted run continues there.")
    ] = None,
    traces: Annotated[bool, typer.Option("--traces", help="Also keep the trace of every run in the folder.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the samples in the folder.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """
    Measure methods on a benchmark, next to each model alone: same servers, same problems, same budgets, interleaved.

    Endpoints and sampling may also come from STEPSPEC_* variables and from stepspec.toml.
    """
    chosen, source = _chosen(benchmark, data)
    require(chosen.metric)
    methods = policy or ["specreason"]
    competing = arms(methods, baseline or ["large", "small"], random or [])
    all_tasks = _tasks(chosen, source, seed, None, part)
    tasks = all_tasks[:limit] if chosen.made is None or source else _tasks(chosen, source, seed, limit, part)
    if testbed:
        only_without_testbed(small=small, large=large, critic=critic)
    own_solver = None if testbed else Solver(small, large, critic=critic)
    settings = own_solver.settings if own_solver else testbed_settings()
    plan = _plan(settings, chosen, tasks, competing, samples, seed, temperature, max_tokens, max_seconds, concurrency)
    finite("--grading-seconds", grading_seconds)
    pair = own_solver or pair_solver(profile, stderr, (), seed, problems=0)
    sharing = _team(ray, workers)
    remarks = [] if source is None and chosen.made else overlaps(calibrated(methods), chosen.name, part)
    _remark(remarks)

    async def work() -> list[ArmSummary]:
        async with sharing as team, pair as solver:
            folder = output or Path("runs") / chosen.name
            put, planned, every = _put(chosen, plan, all_tasks, solver.models)
            evaluation = Evaluation(
                put,
                planned,
                folder,
                provenance.digest(every),
                half=part,
                profile=profile if testbed else None,
                traces=traces,
                fresh=fresh,
                graders=graders,
                patience=grading_seconds,
                remarks=tuple(remarks),
            )
            return await evaluate(solver, evaluation, stderr, team)

    _show(_wait(work()), as_json=json)
    _remark(remarks)


def _remark(remarks: list[str]) -> None:
    """Print remarks about the figures: at the start, and again with the figures."""
    for remark in remarks:
        stderr.print(remark, style="yellow", highlight=False, soft_wrap=True)


def _team(address: str | None, workers: int | None) -> AbstractAsyncContextManager[WorkerGroup | None]:
    if address is None and workers is not None:
        raise ConfigurationError("--workers are those of a Ray cluster: name it with --ray")
    if address is None:
        return nullcontext()
    try:
        from .ray_pool import cluster
    except ModuleNotFoundError as exc:
        raise ConfigurationError(f"--ray needs {exc.name}: {install_command('evals', 'ray')}") from exc
    return cluster(address, workers, stderr)


def _chosen(name: str, data: Path | None) -> tuple[Benchmark, Path | None]:
    """The benchmark called *name*, or the one in the file *name*, and the file to read it from."""
    path = Path(name)
    if path.suffix not in FILES:
        return find(name), data
    if data is not None:
        raise ConfigurationError(f"{name} is a file already: leave --data out")
    return own(path), path


def _tasks(benchmark: Benchmark, data: Path | None, seed: int, limit: int | None, part: str | None) -> tuple[Task, ...]:
    if part not in (None, "report", "calibration"):
        raise ConfigurationError(f"--half {part!r}: use report or calibration")
    if part is not None and benchmark.made is not None and data is None:
        raise ConfigurationError(f"{benchmark.name} has no halves: `calibrate` uses other seeds; leave --half out")
    tasks = tuple(load(benchmark, data, seed=seed, limit=limit))
    if part is None:
        return tasks
    return tuple(task for task in tasks if half(task) == part)


def _plan(
    settings: Settings, benchmark: Benchmark, tasks: tuple[Task, ...], competing: tuple[Arm, ...], samples: int,
    seed: int, temperature: float | None, max_tokens: int | None, max_seconds: float | None, concurrency: int,
) -> Plan:  # fmt: skip
    for arm in competing:
        check_arm(arm, settings)
    sampling = changed(settings.sampling, {"temperature": ("--temperature", temperature)})
    if samples > 1 and not sampling.temperature:
        raise ConfigurationError(
            f"--samples {samples} at temperature 0 are the same one {samples} times: set --temperature"
        )
    limits = changed(
        settings.budget, {"tokens": ("--max-tokens", max_tokens), "seconds": ("--max-seconds", max_seconds)}
    )
    return Plan(tasks, competing, benchmark.metric, sampling, limits.budget(), samples, seed, concurrency)


def _put(
    benchmark: Benchmark, plan: Plan, tasks: tuple[Task, ...], models: Mapping[str, str]
) -> tuple[Benchmark, Plan, tuple[Task, ...]]:
    """The same problems as the *models* know them: those of a file without a template for the miniature models."""
    if benchmark.name in BENCHMARKS or not miniature(models.values()):
        return benchmark, plan, tasks
    return replace(benchmark, prompt=None), replace(plan, tasks=bare(plan.tasks)), bare(tasks)


def _wait(work: Any) -> list[ArmSummary]:
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        stderr.print("interrupted: the same command goes on from here", style="yellow")
        raise typer.Exit(130) from None


def _show(summaries: list[ArmSummary], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(orjson.dumps([asdict(summary) for summary in summaries]) + b"\n")
        return
    Console(width=max(stdout.width, WIDTH)).print(table(summaries))  # so that no cell is cut off
    stdout.print(SMALL_PRINT, style="dim")


def alone(benchmark: str) -> None:
    """Run the command for one *benchmark*, as ``python -m stepspec.evals.NAME`` does."""
    only: Any = partial(command, benchmark)
    only.__name__, only.__doc__ = benchmark, command.__doc__
    only.__annotations__ = get_type_hints(command, include_extras=True)
    script(only, ALONE.format(name=benchmark))
