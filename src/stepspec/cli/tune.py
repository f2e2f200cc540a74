"""The commands that make settings of what runs tell: ``profile`` and ``adapt``."""

from __future__ import annotations

import dataclasses
import datetime
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import typer

from stepspec.evals.calibration import cue_profile as profiling
from stepspec.evals.command_line import only_without_testbed, writable
from stepspec.evals.testbed.servers import counting
from stepspec.evals.testbed.solving_pair import pair_solver
from stepspec.orchestrator.errors import ConfigurationError

from .. import policies
from .. import settings as configuration
from ..api import Solver
from ..learning import from_traces
from .terminal import (
    Json,
    LargeUrl,
    SmallUrl,
    options_of,
    print_json,
    stderr,
    stdout,
    wait,
)

PROFILE_EXAMPLES = """
Examples:

  stepspec profile problems.txt --small http://localhost:8001/v1 --large http://localhost:8002/v1

  stepspec profile --testbed --count 200 --output relay.toml

  STEPSPEC_CONFIG=relay.toml stepspec solve "What is 6 x 7?" --small ... --large ...
"""


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
    writable("--output", output)
    texts = profiling.load_problems(problems, count) if problems else profiling.training_problems(count, seed)
    if use_testbed:
        only_without_testbed(small=small, large=large)
    pair = pair_solver("off", stderr, (), seed, problems=0) if use_testbed else Solver(small, large)
    found, about = wait(_profile(pair, texts, least))
    if json:
        print_json(dataclasses.asdict(found))
    else:
        stdout.print(profiling.table(found))
        stdout.print(profiling.caption(found), style="dim", highlight=False)
    if not found.cues:
        raise typer.Exit(1)
    _keep(output, profiling.snippet(found, about))


async def _profile(
    pair: AbstractAsyncContextManager[Solver], problems: list[str], least: int
) -> tuple[profiling.PairProfile, str]:
    async with pair as solver:
        with counting(stderr) as progress:
            bar = progress.add_task("solving and reading", total=len(problems))
            found = await profiling.profile(solver, problems, least=least, on_problem=lambda: progress.advance(bar))
        names = f"{solver.large.name} with {solver.small.name}"
        return found, f"Found by `stepspec profile` on {datetime.date.today()} for {names}."


ADAPT_EXAMPLES = """
Examples:

  stepspec adapt runs/gsm8k/traces/*specreason*.jsonl --share 0.05 --output learnt.toml

  STEPSPEC_CONFIG=learnt.toml stepspec serve --small ... --large ...
"""


def adapt(
    traces: Annotated[list[Path], typer.Argument(help="Traces, as --trace and --traces write them, in their order.")],
    share: Annotated[
        float | None, typer.Option(help="The largest share of the accepted steps that may be bad.", min=0, max=1)
    ] = None,
    policy: Annotated[str | None, typer.Option("--policy", "-p", help="The method; other ones' are skipped.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="What it began with.", metavar="NAME=VALUE")
    ] = None,
    ahead: Annotated[int | None, typer.Option(help="The largest depth.")] = None,
    output: Annotated[Path | None, typer.Option(help="The file to write; standard output unless given.")] = None,
) -> None:
    """
    Print what was learnt from recorded runs as a settings file: a threshold and a depth that stay as they are.

    The same traces in the same order lead to the same decisions as they did while they were recorded.
    """
    settings = configuration.load(policy=policy, options=options_of(option), ahead=ahead, adapt=share)
    policies.check(settings.policy, settings.options)
    learnt = from_traces(settings, traces).toml()
    if output is None:
        stdout.print(learnt, end="", markup=False, highlight=False, soft_wrap=True)
        return
    _keep(output, learnt)


def _keep(output: Path, settings: str) -> None:
    output.write_text(settings, encoding="utf-8")
    stderr.print(f"wrote {output}: set STEPSPEC_CONFIG to it, or make it stepspec.toml", highlight=False)
