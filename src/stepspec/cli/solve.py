"""The command ``solve``."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stepspec.orchestrator.endpoints import ReplicatedEndpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Event, Observer
from stepspec.orchestrator.nesting import leaves
from stepspec.orchestrator.solution import Solution

from ..api import Solver
from .run_flags import with_run_flags
from .terminal import (
    CriticUrl,
    Json,
    LargeUrl,
    RunPrinter,
    SmallUrl,
    nested_lines,
    print_json,
    speculation_line,
    stderr,
    stdout,
    summary,
    wait,
)

EXAMPLES = """
Examples:

  stepspec solve "What is 6 x 7?" --small http://localhost:8001/v1 --large http://localhost:8002/v1

  stepspec solve - --policy bild -o scale=step < problem.txt     # both servers are in stepspec.toml

  stepspec solve "..." --max-tokens 4096 --max-seconds 60 --trace run.jsonl

  stepspec solve "..." --json | jq .ledger
"""


@with_run_flags("solve", before="temperature")
def solve(
    problem: Annotated[str, typer.Argument(help="The problem, or - to read it from standard input.")],
    small: SmallUrl = None,
    large: LargeUrl = None,
    critic: CriticUrl = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling; the same seed writes the same chain.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Budget of tokens, for thinking and answer together.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Budget of thinking steps.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Budget of wall time, in seconds.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write every event to this file, one JSON object per line.")
    ] = None,
    json: Json = False,
    **overrides: Any,
) -> None:
    """
    Solve one problem, showing every step as it is committed.

    Endpoints and all other settings may also come from STEPSPEC_* variables and from stepspec.toml.
    """
    text = sys.stdin.read().strip() if problem == "-" else problem.strip()
    if not text:
        raise ConfigurationError("the problem is empty")
    budget = {
        k: v for k, v in (("tokens", max_tokens), ("steps", max_steps), ("seconds", max_seconds)) if v is not None
    }
    solver = Solver(
        small,
        large,
        critic=critic,
        sampling=None if temperature is None else {"temperature": temperature},
        seed=seed,
        budget=budget or None,
        **overrides,
    )
    solution = wait(_solve(solver, text, trace, quiet=json))
    if json:
        print_json(dataclasses.asdict(solution))
    else:
        _print_solution(solution)


async def _solve(solver: Solver, problem: str, trace: Path | None, *, quiet: bool) -> Solution:
    async with solver:
        for endpoint in (*leaves(solver.small), solver.large):
            if isinstance(endpoint, ReplicatedEndpoint) and not quiet:
                for url, cause in endpoint.down.items():
                    stderr.print(
                        f"the {endpoint.role} model at {url} is down, continuing without it: {cause}", style="yellow"
                    )
        observe: Observer = _ignore if quiet else RunPrinter(stderr)
        return await solver.solve(problem, observe=observe, trace_to=trace)


def _ignore(event: Event) -> None:
    pass


def _print_solution(solution: Solution) -> None:
    stderr.print(summary(solution))
    for line in nested_lines(solution.ledger):
        stderr.print(line, soft_wrap=True)
    for speculation in solution.ledger.speculation:
        stderr.print(speculation_line(speculation), soft_wrap=True)
    stdout.print(solution.answer, markup=False, highlight=False, soft_wrap=True)
