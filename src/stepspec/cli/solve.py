"""The command ``solve``: one problem, or a file of many."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated

import orjson
import typer
from typer import Argument, Option

from stepspec.orchestrator.errors import ConfigurationError, StepspecError
from stepspec.orchestrator.events import Event
from stepspec.orchestrator.solution import Solution

from ..api import Solver
from .command_line import writable, write_file
from .flags import BUDGET, RUN, SAMPLING, SEED, Concurrency, Fresh, Json, Limit, with_settings
from .many import solve_all
from .problems import read_problems, read_text
from .program import STDOUT, stderr, stdout, wait
from .terminal import RunPrinter, summary

SOLVE_EXAMPLES = """
Examples:

  stepspec solve "What is 6 x 7?" --small http://localhost:8001/v1 \\
      --large http://localhost:8002/v1

  # both servers are in stepspec.toml
  stepspec solve - --policy bild -O scale=step < problem.txt

  stepspec solve "..." --max-tokens 4096 --max-seconds 60 --trace run.jsonl

  stepspec solve "..." --json | jq .ledger

  stepspec solve --problems problems.jsonl --concurrency 8 -o solved.jsonl
"""


@with_settings(*RUN, *SAMPLING, *SEED, *BUDGET)
def solve(
    problem: Annotated[
        str | None,
        Argument(help="The problem, or - to read it from standard input.", show_default=False),
    ] = None,
    problems: Annotated[
        Path | None,
        Option(
            help=(
                "A file of problems, one a line: a text, or JSON with its problem and perhaps its"
                " id; - is standard input."
            ),
        ),
    ] = None,
    limit: Limit = None,
    concurrency: Concurrency = 1,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            help=(
                "Write the answer to this file; with --problems a line of JSON for each. An"
                " interrupted command continues there."
            ),
        ),
    ] = None,
    fresh: Fresh = False,
    trace: Annotated[
        Path | None,
        Option(
            help=(
                "Write every event to this file, one JSON object per line; with --problems to a"
                " file for each in this folder."
            ),
            metavar="PATH",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """
    Solve one problem, showing every step as it is committed; or all problems of a file, several at
    a time.

    With --problems, the solutions are lines of JSON. A problem that fails has its error in its
    line, the others go on, and the exit code is 1. The same command goes on where it was
    interrupted, and tries failed problems again. Endpoints and all other settings may also come
    from STEPSPEC_* variables and from stepspec.toml.
    """
    if (problem is None) == (problems is None):
        raise ConfigurationError(
            "name one problem, - for standard input, or a file of them with --problems"
        )
    output = None if output == STDOUT else output
    if output is not None:
        writable("--output", output)
    if problems is not None:
        _solve_many(problems, limit, concurrency, output, trace, fresh=fresh)
        return
    if limit is not None or concurrency > 1 or fresh:
        raise ConfigurationError(
            "--limit, --concurrency and --fresh are only for a file of problems: name it with"
            " --problems"
        )
    _solve_one(problem or "", output, trace, json=json)


def _solve_one(
    problem: str,
    output: Path | None,
    trace: Path | None,
    *,
    json: bool,
) -> None:
    text = problem.strip()
    if problem == "-":
        text = read_text(Path(problem)).strip()
    if not text:
        raise ConfigurationError("the problem is empty")
    if os.path.isfile(text):  # False for a text that cannot be a name. A Path raises an error.
        raise ConfigurationError(
            f"{text} is a file: write --problems {text} for the problems in it, or - < {text} for"
            " it as one problem"
        )
    if trace is not None:
        writable("--trace", trace)
    solver = Solver()

    async def solving() -> Solution:
        async with solver:
            observe = nothing if json else RunPrinter(stderr)
            return await solver.solve(text, observe=observe, trace_to=trace)

    solution = wait(solving())
    if json:
        answer = orjson.dumps(dataclasses.asdict(solution)).decode()
    else:
        answer = solution.answer
        stderr.print(summary(solution))
    if output is None:
        stdout.out(answer)
        return
    try:
        write_file(output, f"{answer}\n")
    except StepspecError:
        stdout.out(answer)  # The answer may have taken long.
        raise


def _solve_many(
    file: Path,
    limit: int | None,
    concurrency: int,
    output: Path | None,
    traces: Path | None,
    *,
    fresh: bool,
) -> None:
    if fresh and output is None:
        raise ConfigurationError("--fresh discards what is in the file of --output: name it")
    problems = read_problems(file, limit)
    if output is not None and output.exists() and file != STDOUT and output.samefile(file):
        raise ConfigurationError(f"--output {output} is the file of the problems: name another")
    solver = Solver()
    if traces is not None:
        writable("--trace", traces / "0.jsonl")
    solving = solve_all(solver, problems, concurrency, output, traces, fresh=fresh)
    failed = wait(solving, resumable=output is not None)
    if failed:
        stderr.print(
            f"{failed} of {len(problems)} problems failed; their lines have the errors",
            style="yellow",
        )
        raise typer.Exit(1)


def nothing(_: Event) -> None:
    """Observe an event without a word."""
