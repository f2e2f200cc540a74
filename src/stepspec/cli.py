"""The command line. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import policies
from .api import Solution, Solver
from .display import Narrator, summary
from .evals.tables import SMALL_PRINT, table
from .evals.testbed import demo as demonstration
from .evals.testbed import up as testbed
from .orchestrator.endpoints.doctor import diagnose, render
from .orchestrator.errors import ConfigurationError, StepspecError
from .orchestrator.events import Event, Observer
from .prompts import load

T = TypeVar("T")

EXAMPLES = """
Examples:

  stepspec solve "What is 6 x 7?" --small http://localhost:8001/v1 --large http://localhost:8002/v1

  stepspec solve - -o threshold=8 --trace run.jsonl < problem.txt

  stepspec up --testbed            # a miniature pair on this CPU, no downloads

  stepspec demo                    # the pair, a few problems, a table
"""

app = typer.Typer(
    help="Reasoning-step-level speculation over two vLLM endpoints.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
stdout, stderr = Console(), Console(stderr=True)

SmallUrl = Annotated[str | None, typer.Option("--small", help="Base URL of the small model's server.", metavar="URL")]
CriticUrl = Annotated[
    str | None,
    typer.Option("--critic", help="Base URL of the reward model's server, if the method needs one.", metavar="URL"),
]
LargeUrl = Annotated[str | None, typer.Option("--large", help="Base URL of the large model's server.", metavar="URL")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Profile = Annotated[str, typer.Option(help="How the miniature models' passes are paced; see profiles.toml.")]


def main() -> None:
    """Run the command; print the project's own errors as one line, without a traceback."""
    try:
        app()
    except StepspecError as exc:
        stderr.print(Text.assemble(("error: ", "bold red"), str(exc)), soft_wrap=True)
        sys.exit(2 if isinstance(exc, ConfigurationError) else 1)


def _wait(work: Coroutine[Any, Any, T]) -> T:
    """Run *work*; Ctrl-C cancels it, and with it every request and every child, and exits with 130."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        stderr.print("interrupted", style="yellow")
        raise typer.Exit(130) from None


def _version(wanted: bool) -> None:
    if wanted:
        stdout.print(importlib.metadata.version("stepspec"), highlight=False)
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def solve(
    problem: Annotated[str, typer.Argument(help="The problem, or - to read it from standard input.")],
    small: SmallUrl = None,
    large: LargeUrl = None,
    critic: CriticUrl = None,
    policy: Annotated[
        str | None, typer.Option("--policy", "-p", help="The method; `stepspec policies` lists them.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="An option of the method.", metavar="NAME=VALUE")
    ] = None,
    ahead: Annotated[
        int | None, typer.Option(help="Drafts made beyond the one to be committed; 0: one by one.")
    ] = None,
    hedge: Annotated[
        float | None,
        typer.Option(help="Repair drafts of at most this confidence while they are judged; 1: all.", min=0, max=1),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampling.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Budget of thinking and answer together.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Budget of thinking steps.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Budget of wall time.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write every event to this file, as lines of JSON.")] = None,
    json: Json = False,
) -> None:
    """
    Solve one problem, showing every step as it is committed.

    Endpoints and all else may also come from STEPSPEC_* variables and from stepspec.toml.
    """
    text = sys.stdin.read().strip() if problem == "-" else problem.strip()
    if not text:
        raise ConfigurationError("the problem is empty")
    sampling = {k: v for k, v in (("temperature", temperature), ("seed", seed)) if v is not None}
    budget = {
        k: v for k, v in (("tokens", max_tokens), ("steps", max_steps), ("seconds", max_seconds)) if v is not None
    }
    solver = Solver(
        small,
        large,
        critic=critic,
        policy=policy,
        options=dict(map(_option, option)) if option else None,
        ahead=ahead,
        hedge=hedge,
        sampling=sampling or None,
        budget=budget or None,
    )
    solution = _wait(_solve(solver, text, trace, quiet=json))
    if json:
        _print_json(dataclasses.asdict(solution))
    else:
        _print_solution(solution)


async def _solve(solver: Solver, problem: str, trace: Path | None, *, quiet: bool) -> Solution:
    async with solver:
        observe: Observer = _ignore if quiet else Narrator(stderr)
        return await solver.solve(problem, observe=observe, trace_to=trace)


def _ignore(event: Event) -> None:
    pass


def _print_solution(solution: Solution) -> None:
    stderr.print(summary(solution))
    stdout.print(solution.answer, markup=False, highlight=False, soft_wrap=True)


def _option(given: str) -> tuple[str, Any]:
    """Read ``name=value``; a value that is no JSON is a word."""
    name, equals, value = given.partition("=")
    if not equals:
        raise ConfigurationError(f"--option {given!r}: write it as NAME=VALUE")
    try:
        return name.strip(), orjson.loads(value)
    except orjson.JSONDecodeError:
        return name.strip(), value


def _print_json(value: object) -> None:
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.flush()


@app.command("policies")
def list_policies(json: Json = False) -> None:
    """List the methods: their options, what they need from the endpoints, and what they cost."""
    described = {
        name: {
            "about": method.about,
            "paper": method.paper,
            "options": {key: parameter.default for key, parameter in policies.options(name).items()},
            "needs": method.needs,
            "cost": method.cost,
        }
        for name, method in policies.METHODS.items()
    }
    if json:
        _print_json(described)
        return
    for name, method in policies.METHODS.items():
        stdout.print(Text.assemble((name, "bold"), f"  {method.about}"), highlight=False)
        chosen = " ".join(f"{key}={parameter.default!r}" for key, parameter in policies.options(name).items())
        rows = Table.grid(padding=(0, 2))
        for what, said in (
            ("paper", method.paper), ("options", chosen), ("needs", method.needs), ("cost", method.cost),
        ):  # fmt: skip
            if said:
                rows.add_row(Text(f"  {what}", "dim"), Text(said))
        stdout.print(rows)


@app.command()
def doctor(small: SmallUrl = None, large: LargeUrl = None, json: Json = False) -> None:
    """Try what both endpoints can do, and say what is missing and what that costs."""
    solver = Solver(small, large)
    grade = load("specreason.grade")
    endpoints = solver.small.settings, solver.large.settings
    diagnosis = _wait(diagnose(*endpoints, question=grade.text, opening=grade.opening))
    if json:
        _print_json(dataclasses.asdict(diagnosis))
    else:
        stdout.print(render(diagnosis))


@app.command()
def up(
    use_testbed: Annotated[bool, typer.Option("--testbed", help="The miniature pair, on this CPU.")] = False,
    profile: Profile = "paced",
    other: Annotated[
        bool, typer.Option("--small-other", help="Start the small model of another vocabulary as well.")
    ] = False,
    json: Json = False,
) -> None:
    """Start the servers of a pair, print their base URLs, and stop them on Ctrl-C."""
    if not use_testbed:
        raise ConfigurationError("only the miniature pair can be started so far: pass --testbed")
    roles = ("large", "small", "small-other") if other else ("large", "small")
    _wait(testbed.up(profile, roles, json_output=json))


@app.command()
def demo(
    problems: Annotated[int, typer.Option(min=1, help="How many problems.")] = 6,
    seed: Annotated[int, typer.Option(help="Which problems.")] = 0,
    profile: Profile = "paced",
    json: Json = False,
) -> None:
    """
    Start the miniature pair and solve a few problems: the large model alone, the small one alone, SpecReason.

    The models are tiny and their passes are paced like a GPU's, so that it runs anywhere; all else is real.
    """
    results = _wait(demonstration.demo(problems, seed, profile, stderr))
    if json:
        _print_json([dataclasses.asdict(result) for result in results])
        return
    stdout.print()
    stdout.print(table(results, intervals=False))
    stdout.print(SMALL_PRINT, style="dim")
