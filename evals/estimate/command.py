"""The command ``estimate``: what methods are expected to gain on a user's own servers."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress

from stepspec import prompts
from stepspec.api import Solver
from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.settings import Settings

from ..cli import WIDTH
from ..cli import arm as parse_arm
from ..command_line import (
    finite,
    numbers,
    only_without_testbed,
    print_json,
    progress_bars,
    stderr,
    stdout,
    wait,
    writable,
    write_settings,
)
from ..flags import (
    BUDGET,
    PAIR,
    SAMPLING,
    Json,
    Pace,
    Policies,
    ProblemsFile,
    SettingsOutput,
    SharedOptions,
    Testbed,
    parse_options,
    with_settings,
)
from ..plan import check_arm, testbed_settings
from ..problems import PROBLEMS, read_problems
from ..testbed.solving_pair import fresh_tasks, pair_solver
from .measurements import Measurements
from .measuring import OnPart, measure, unlimited
from .prediction import Estimate, predict
from .report import (
    SMALL_PRINT,
    estimated_settings,
    headline,
    methods_table,
    notes,
    record,
    servers_table,
)

T = TypeVar("T")
POLICIES = ("specreason", "reading", "bild", "reflective")
EXAMPLES = """
Examples:

  stepspec estimate --small http://localhost:8001/v1 \\
      --large http://localhost:8002/v1

  # both servers are in stepspec.toml
  stepspec estimate --problems problems.txt -n 40 --minutes 10 --users 8,32

  stepspec estimate -p specreason:threshold=8 -p bild --output settings.toml

  # the miniature pair; no GPU
  stepspec estimate --testbed --json | jq .methods
"""


@with_settings("estimate", PAIR, SAMPLING, BUDGET, before="testbed")
def command(
    policy: Policies = None,
    option: SharedOptions = None,
    problems: ProblemsFile = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Maximum number of problems.")
    ] = len(PROBLEMS),
    users: Annotated[
        str,
        typer.Option(
            help="Numbers of users to estimate for as well; empty: none.", metavar="N,..."
        ),
    ] = "4,16",
    minutes: Annotated[
        float, typer.Option(min=0.1, help="Limit of the measurements; there is an answer then.")
    ] = 2.0,
    seed: Annotated[int, typer.Option(help="Seed of the samples, and of generated problems.")] = 0,
    testbed: Testbed = False,
    profile: Pace = "paced",
    output: SettingsOutput = None,
    json: Json = False,
) -> None:
    """
    Measure both servers for two minutes, and print what each method is expected to gain, alone and
    under load.

    Measured are seconds for a token, alone and with several streams, the cost of a verdict, and how
    many drafts are accepted after beginnings of the large model's chains, which need not end.
    Nobody else should use the servers meanwhile. The exit code is 0 if a method is expected to pay,
    1 if none is or the servers cannot be measured.
    """
    options = parse_options(option)
    arms = [parse_arm(spec, options) for spec in policy or POLICIES]
    if len({arm.name for arm in arms}) < len(arms):
        raise ConfigurationError("a method is there twice")
    if any(arm.policy in ("large", "small", "plain") for arm in arms):
        raise ConfigurationError(
            "--policy: large, small and plain are no methods; methods are compared with plain"
        )
    loads = numbers("--users", users, int)
    settings, texts = prepare(problems, limit, minutes, seed, output, testbed=testbed)
    for arm in arms:
        check_arm(arm, settings)
        if ignored := arm.run.model_fields_set - {"policy", "options", "auto"}:
            names = ", ".join(sorted(ignored))
            raise ConfigurationError(
                f"{arm.name}: an estimate knows no {names} (`ahead` it chooses itself)"
            )
    solving = pair_solver(profile, stderr) if testbed else Solver(unlimited(settings))

    async def work(part: OnPart) -> tuple[Measurements, Settings]:
        async with solving as solver:
            solver.require_both()
            used = solver.settings if testbed else settings
            return (
                await measure(
                    solver, arms, texts or [*PROBLEMS[:limit]], loads, minutes, seed, part
                ),
                used,
            )

    measured, settings = with_bars(settings, work)
    estimate = predict(measured, loads)
    toml = estimated_settings(estimate, measured, settings, str(datetime.date.today()))
    if json:
        print_json(record(estimate, measured, toml))
    else:
        show(stdout, measured, estimate, toml)
    write_settings(output, toml)
    if estimate.best is None:
        raise typer.Exit(1)


def prepare(
    problems: Path | None,
    limit: int,
    minutes: float,
    seed: int,
    output: Path | None,
    *,
    testbed: bool,
) -> tuple[Settings, list[str]]:
    """
    The settings and problems of a measurement. Raise `ConfigurationError` unless they name two
    different models.
    """
    finite("--minutes", minutes)
    if output is not None:
        writable("--output", output)
    if testbed:
        only_without_testbed(problems=problems)
        return testbed_settings(), [task.problem for task in fresh_tasks(limit, seed)]
    texts = [each.text for each in read_problems(problems, limit)] if problems else []
    settings = Solver().settings
    small, large = settings.small, settings.large
    if not isinstance(small, Endpoint):
        raise ConfigurationError("a nested pair cannot be measured: name one server with --small")
    if large is not None and set(small.urls) & set(large.urls) and small.model == large.model:
        raise ConfigurationError(
            f"--small and --large are the same server, {small.url}: name the server of a smaller"
            " model with --small"
        )
    return settings, texts


def parts(progress: Progress) -> OnPart:
    """Show a bar for each part of a measurement."""
    return lambda name, total: partial(progress.advance, progress.add_task(name, total=total))


def with_bars(settings: Settings, work: Callable[[OnPart], Coroutine[Any, Any, T]]) -> T:
    """
    Run *work* with the prompts of *settings*, and a bar for each of its parts; Ctrl-C exits with
    130.
    """
    with prompts.replacing(settings.prompts), progress_bars(stderr) as progress:
        return wait(work(parts(progress)))


def show(console: Console, measured: Measurements, estimate: Estimate, toml: str) -> None:
    """Print an estimate: the verdict first."""
    plain: dict[str, Any] = {"highlight": False, "markup": False}
    # so that no cell is cut off
    wide = Console(file=console.file, width=max(console.width, WIDTH), **plain)
    console.print(f"{headline(estimate)}\n", style="bold", **plain)
    wide.print(methods_table(estimate))
    console.print()
    wide.print(servers_table(measured))
    for note in notes(measured, estimate):
        console.print(f"- {note}", **plain)
    console.print(f"\nThe settings to use:\n\n{toml}", soft_wrap=True, **plain)
    console.print(SMALL_PRINT.format(problems=len(measured.chains)), style="dim", **plain)
