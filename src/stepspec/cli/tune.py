"""The command ``profile``, which derives settings from runs."""

from __future__ import annotations

import dataclasses
import datetime
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import typer

from stepspec.evals.calibration import cue_profile as profiling
from stepspec.evals.command_line import only_without_testbed, progress_bars, writable
from stepspec.evals.flags import BUDGET, PAIR, SAMPLING, with_settings
from stepspec.evals.testbed.solving_pair import pair_solver
from stepspec.orchestrator.errors import ConfigurationError

from ..api import Solver
from .terminal import (
    Json,
    print_json,
    stderr,
    stdout,
    wait,
)

PROFILE_EXAMPLES = """
Examples:

  stepspec profile problems.txt --small http://localhost:8001/v1 \\
      --large http://localhost:8002/v1

  stepspec profile --testbed --limit 200 --output relay.toml

  stepspec solve "What is 6 x 7?" --config relay.toml --small ... --large ...
"""


@with_settings("profile", PAIR, SAMPLING, BUDGET)
def profile_pair(
    problems: Annotated[
        Path | None, typer.Argument(help="A file of problems, one a line: a text, or JSON with its problem.")
    ] = None,
    testbed: Annotated[
        bool, typer.Option("--testbed", help="Use the miniature pair, on problems of its training half.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of problems.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed that selects the testbed's problems.")] = 0,
    least: Annotated[
        int, typer.Option(min=2, help="Minimum number of sentences in which a cue must occur.")
    ] = profiling.LEAST,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the settings for `solve`.", metavar="FILE")
    ] = Path("relay.toml"),
    json: Json = False,
) -> None:
    """
    Find the cues of a pair for the method relay: words after which the small model may finish the sentence.

    The large model solves the problems alone, and the small one scores its text. Use other problems than those of your
    evaluation.
    """
    if testbed == (problems is not None):
        raise ConfigurationError("name a file of problems, or pass --testbed")
    writable("--output", output)
    texts = profiling.load_problems(problems, limit) if problems else profiling.training_problems(limit, seed)
    if testbed:
        only_without_testbed()
    pair = pair_solver("off", stderr, (), seed, problems=0) if testbed else Solver()
    result, origin = wait(_profile(pair, texts, least))
    if json:
        print_json(dataclasses.asdict(result))
    else:
        stdout.print(profiling.table(result))
        stdout.print(profiling.caption(result), style="dim", highlight=False)
    if not result.cues:
        raise typer.Exit(1)
    _write_settings(output, profiling.snippet(result, origin))


async def _profile(
    pair: AbstractAsyncContextManager[Solver], problems: list[str], least: int
) -> tuple[profiling.PairProfile, str]:
    async with pair as solver:
        solver.require_both()
        with progress_bars(stderr) as progress:
            bar = progress.add_task("solving and reading", total=len(problems))
            result = await profiling.profile(solver, problems, least=least, on_problem=lambda: progress.advance(bar))
        names = f"{solver.large.name} with {solver.small.name}"
        return result, f"Found by `stepspec profile` on {datetime.date.today()} for {names}."


def _write_settings(output: Path, settings: str) -> None:
    output.write_text(settings, encoding="utf-8")
    stderr.print(f"wrote {output}: name it with --config, or make it stepspec.toml", highlight=False)
