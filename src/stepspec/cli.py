"""The command line. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import importlib.metadata
import sys
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import policies, serving
from .api import Solver
from .display import Narrator, summary
from .evals import calibrate as calibrating
from .evals import command as evaluating
from .evals import profile as profiling
from .evals.report import command as reporting
from .evals.tables import SMALL_PRINT, table
from .evals.testbed import demo as demonstration
from .evals.testbed import up as testbed
from .evals.testbed.progress import counting
from .evals.testbed.servers import miniature_servers, speculating
from .evals.testbed.solving_pair import pair_solver
from .orchestrator.endpoints import ReplicatedEndpoint
from .orchestrator.endpoints.doctor import diagnose, render
from .orchestrator.errors import ConfigurationError, StepspecError
from .orchestrator.events import Event, Observer
from .orchestrator.service.page import html
from .orchestrator.serving import up as bringing
from .orchestrator.serving.commands import shown
from .orchestrator.solution import Solution
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

URL = "Base URL of the {} model's server; of several replicas, with commas between them."
SmallUrl = Annotated[str | None, typer.Option("--small", help=URL.format("small"), metavar="URL")]
CriticUrl = Annotated[
    str | None,
    typer.Option("--critic", help="Base URL of the reward model's server, if the method needs one.", metavar="URL"),
]
LargeUrl = Annotated[str | None, typer.Option("--large", help=URL.format("large"), metavar="URL")]
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
    load: Annotated[
        str | None, typer.Option(help="adapt: work less ahead while the large model is busy; ignore: do not.")
    ] = None,
    lead: Annotated[int | None, typer.Option(help="First steps that the large model writes.")] = None,
    plan: Annotated[
        bool | None, typer.Option("--plan/--no-plan", help="Let the large model write a plan first.")
    ] = None,
    early_exit: Annotated[
        bool | None, typer.Option("--early-exit/--no-early-exit", help="Answer once a trial answer is sure.")
    ] = None,
    give_up: Annotated[
        bool | None, typer.Option("--give-up/--no-give-up", help="Answer once thinking on looks hopeless.")
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
        load=load,  # type: ignore[arg-type]  # the settings check the word
        lead=lead,
        plan=plan,
        early_exit=early_exit,
        give_up=give_up,
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
        for endpoint in (solver.small, solver.large):
            if isinstance(endpoint, ReplicatedEndpoint) and not quiet:
                for url, cause in endpoint.down.items():
                    stderr.print(
                        f"the {endpoint.role} model at {url} is down, going on without: {cause}", style="yellow"
                    )
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


SERVE_EXAMPLES = """
Examples:

  stepspec serve --small http://localhost:8001/v1 --large http://localhost:8002/v1

  stepspec serve --host 0.0.0.0 --key SECRET --log-format json
"""


@app.command(epilog=SERVE_EXAMPLES)
def serve(
    small: SmallUrl = None,
    large: LargeUrl = None,
    critic: CriticUrl = None,
    policy: Annotated[str | None, typer.Option("--policy", "-p", help="The method that `auto` means.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen at; 127.0.0.1 unless given.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; 8765 unless given, 0 for any that is free.")] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="An API key that opens the service; better in STEPSPEC_SERVICE__KEYS.")
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Serve a public address without a key.", show_default=False)
    ] = None,
    cors_origin: Annotated[list[str] | None, typer.Option(help="A web page's origin that may use it.")] = None,
    thinking: Annotated[
        str | None, typer.Option(help="Where replies tell it: both, reasoning, reasoning_content, content, none.")
    ] = None,
    max_running: Annotated[int | None, typer.Option(help="Requests worked on at the same time.")] = None,
    max_waiting: Annotated[int | None, typer.Option(help="Requests that may wait; more are refused.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="A request's deadline; it ends in an answer.")] = None,
    drain_seconds: Annotated[float | None, typer.Option(help="How long running requests may finish.")] = None,
    root_path: Annotated[str | None, typer.Option(help="The path that a proxy serves it under.")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_prompts: Annotated[
        bool | None, typer.Option("--log-prompts", help="Write problems and answers to the log.", show_default=False)
    ] = None,
) -> None:
    """
    Serve an OpenAI-compatible endpoint in front of both models, and a page at / to watch them on.

    Every flag, and more, may also come from STEPSPEC_SERVICE__* variables and the table [service] of stepspec.toml.
    """
    serving.require()
    settings = serving.service_settings(
        host=host,
        port=port,
        keys=key,
        insecure=insecure,
        cors_origins=cors_origin,
        thinking=thinking,
        max_running=max_running,
        max_waiting=max_waiting,
        max_seconds=max_seconds,
        drain_seconds=drain_seconds,
        root_path=root_path,
        log_format=log_format,
        log_level=log_level,
        log_prompts=log_prompts,
    )
    _wait(serving.serve(Solver(small, large, critic=critic, policy=policy), settings))


@app.command("trace")
def show_trace(
    file: Annotated[Path, typer.Argument(help="A trace, as `stepspec solve --trace FILE` writes it.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write the page; - is standard output.", metavar="OUT"),
    ] = None,
) -> None:
    """Make a page of a trace, to be looked at in any browser: one file, FILE with the ending .html if not told else."""
    try:
        page = html(file.read_bytes()).encode()
        if output == Path("-"):
            sys.stdout.buffer.write(page)
            return
        target = output or file.with_suffix(".html")
        target.write_bytes(page)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{file}: {exc}") from exc
    except OSError as exc:
        raise ConfigurationError(f"{exc.filename}: {exc.strerror}") from exc
    stderr.print(f"wrote {target}", highlight=False, soft_wrap=True)


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


PROFILE_EXAMPLES = """
Examples:

  stepspec profile problems.txt --small http://localhost:8001/v1 --large http://localhost:8002/v1

  stepspec profile --testbed --count 200 --output relay.toml

  STEPSPEC_CONFIG=relay.toml stepspec solve "What is 6 x 7?" --small ... --large ...
"""


@app.command("profile", epilog=PROFILE_EXAMPLES)
def profile_pair(
    problems: Annotated[
        Path | None, typer.Argument(help="A file of problems, one a line: text, or JSON with its problem.")
    ] = None,
    small: SmallUrl = None,
    large: LargeUrl = None,
    use_testbed: Annotated[
        bool, typer.Option("--testbed", help="The miniature pair, on problems of its training half.")
    ] = False,
    count: Annotated[int, typer.Option(min=1, help="How many problems at most.")] = 100,
    seed: Annotated[int, typer.Option(help="Which problems of the testbed.")] = 0,
    least: Annotated[int, typer.Option(min=2, help="In how many sentences a cue has to be found.")] = profiling.LEAST,
    output: Annotated[Path, typer.Option(help="Where to write the settings for `solve`.")] = Path("relay.toml"),
    json: Json = False,
) -> None:
    """
    Find the cues of a pair for the method relay: words after which the small model may finish the sentence.

    The large model solves the problems alone, and the small one reads what it wrote. Use problems that you will not
    measure on.
    """
    if use_testbed == (problems is not None):
        raise ConfigurationError("name a file of problems, or pass --testbed")
    texts = profiling.load_problems(problems, count) if problems else profiling.training_problems(count, seed)
    pair = pair_solver("off", stderr, (), seed, problems=0) if use_testbed else Solver(small, large)
    found, about = _wait(_profile(pair, texts, least))
    if json:
        _print_json(dataclasses.asdict(found))
    else:
        stdout.print(profiling.table(found))
        stdout.print(profiling.caption(found), style="dim", highlight=False)
    if not found.cues:
        raise typer.Exit(1)
    output.write_text(profiling.snippet(found, about), encoding="utf-8")
    stderr.print(f"wrote {output}: set STEPSPEC_CONFIG to it, or make it stepspec.toml", highlight=False)


async def _profile(
    pair: AbstractAsyncContextManager[Solver], problems: list[str], least: int
) -> tuple[profiling.PairProfile, str]:
    async with pair as solver:
        with counting(stderr) as progress:
            bar = progress.add_task("solving and reading", total=len(problems))
            found = await profiling.profile(solver, problems, least=least, on_problem=lambda: progress.advance(bar))
        names = f"{solver.large.name} with {solver.small.name}"
        return found, f"Found by `stepspec profile` on {datetime.date.today()} for {names}."


app.command("eval", epilog=evaluating.EXAMPLES)(evaluating.command)
app.command("calibrate", epilog=calibrating.EXAMPLES)(calibrating.calibrate)
app.command("report", epilog=reporting.EXAMPLES)(reporting.command)


UP_EXAMPLES = """
Examples:

  stepspec up recipes/qwen3-32b.toml --dry-run     # check it, and print the commands

  stepspec up recipes/qwen3-32b.toml

  stepspec up --testbed --speculation ngram        # the miniature pair, on this CPU
"""


@app.command(epilog=UP_EXAMPLES)
def up(
    pair: Annotated[Path | None, typer.Argument(help="A pair of models as a TOML file; see recipes/.")] = None,
    use_testbed: Annotated[bool, typer.Option("--testbed", help="The miniature pair, on this CPU.")] = False,
    profile: Profile = "paced",
    speculation: Annotated[
        str, typer.Option(help="Token-level speculation under the miniature pair: none, ngram, draft_model.")
    ] = "none",
    other: Annotated[
        bool, typer.Option("--small-other", help="Start the small model of another vocabulary as well.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file and print the commands only.")] = False,
    log_dir: Annotated[Path | None, typer.Option(help="Where to keep the servers' logs.")] = None,
    json: Json = False,
) -> None:
    """
    Start the vLLM servers of a pair, print their base URLs, and stop them on Ctrl-C.

    What cannot work is refused before anything is downloaded or started, with what to change.
    """
    if use_testbed == (pair is not None):
        raise ConfigurationError("name a pair's file, as in recipes/, or pass --testbed for the miniature pair")
    if pair is not None:
        described = bringing.checked(pair, stderr)
        if dry_run:
            stdout.print(bringing.commands(described), markup=False, highlight=False, soft_wrap=True)
        else:
            _wait(bringing.up(described, stderr, json_output=json, log_dir=log_dir))
        return
    roles = ("large", "small", "small-other") if other else ("large", "small")
    chosen = speculating(speculation)
    if dry_run:
        commands = map(shown, miniature_servers(profile, roles, speculation=chosen))
        stdout.print("\n".join(commands), markup=False, highlight=False, soft_wrap=True)
        return
    _wait(testbed.up(profile, roles, json_output=json, log_dir=log_dir, speculation=chosen))


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
