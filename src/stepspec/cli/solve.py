"""The command ``solve``."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from stepspec.orchestrator.endpoints import ReplicatedEndpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Event, Observer
from stepspec.orchestrator.nesting import leaves
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.step_ends import REGEX

from ..api import Solver
from .display import Narrator, summary, underneath, within
from .terminal import (
    Ahead,
    CriticUrl,
    Json,
    LargeUrl,
    Option,
    SmallUrl,
    options_of,
    print_json,
    stderr,
    stdout,
    wait,
)

EXAMPLES = """
Examples:

  stepspec solve "What is 6 x 7?" --small http://localhost:8001/v1 --large http://localhost:8002/v1

  stepspec solve - --policy bild -o scale=step < problem.txt     # both servers are in stepspec.toml

  stepspec solve "..." --max-tokens 4096 --max-seconds 60 --trace run.jsonl

  stepspec solve "..." --json | jq .ledger
"""


def solve(
    problem: Annotated[str, typer.Argument(help="The problem, or - to read it from standard input.")],
    small: SmallUrl = None,
    large: LargeUrl = None,
    critic: CriticUrl = None,
    policy: Annotated[
        str | None, typer.Option("--policy", "-p", help="The method; `stepspec policies` lists them.")
    ] = None,
    option: Option = None,
    ahead: Ahead = None,
    hedge: Annotated[
        float | None,
        typer.Option(help="Repair drafts of at most this confidence while they are judged; 1: all.", min=0, max=1),
    ] = None,
    load: Annotated[
        str | None, typer.Option(help="adapt: work less ahead while the large model is busy; ignore: do not.")
    ] = None,
    lead: Annotated[int | None, typer.Option(help="First steps that the large model writes.")] = None,
    ending: Annotated[
        str | None,
        typer.Option(
            help="Who may end the thinking: large, judge (it is asked) or small; unless given, as in the paper."
        ),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            help="Who answers: large, small or method (drafts and verdicts go on); unless given, as in the paper."
        ),
    ] = None,
    early_exit: Annotated[
        bool | None, typer.Option("--early-exit/--no-early-exit", help="Answer once a trial answer is sure.")
    ] = None,
    sure_bets: Annotated[
        bool | None, typer.Option("--sure-bets/--no-sure-bets", help="Work ahead only of drafts that look safe.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(help="Of this run among others at a server that schedules by priority; lower is first."),
    ] = None,
    delimiter: Annotated[
        list[str] | None,
        typer.Option(
            help=r"What ends a step, by default \n\n; may be repeated. regex:EXPRESSION is looked for in lines."
        ),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampling; the same seed writes the same chain.")] = None,
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
    budget = {
        k: v for k, v in (("tokens", max_tokens), ("steps", max_steps), ("seconds", max_seconds)) if v is not None
    }
    solver = Solver(
        small,
        large,
        critic=critic,
        policy=policy,
        options=options_of(option),
        ahead=ahead,
        hedge=hedge,
        load=load,  # type: ignore[arg-type]  # the settings check the word
        lead=lead,
        ending=ending,  # type: ignore[arg-type]  # the settings check the word
        answer=answer,  # type: ignore[arg-type]
        early_exit=early_exit,
        sure_bets=sure_bets,
        delimiter=[_unescaped(text) for text in delimiter] if delimiter else None,
        priority=priority,
        sampling=None if temperature is None else {"temperature": temperature},
        seed=seed,
        budget=budget or None,
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
                        f"the {endpoint.role} model at {url} is down, going on without: {cause}", style="yellow"
                    )
        observe: Observer = _ignore if quiet else Narrator(stderr)
        return await solver.solve(problem, observe=observe, trace_to=trace)


def _unescaped(text: str) -> str:
    """Let a line break be typed as a backslash and an n, but for regular expressions, which have it of their own."""
    return text if text.startswith(REGEX) else text.replace("\\n", "\n").replace("\\t", "\t")


def _ignore(event: Event) -> None:
    pass


def _print_solution(solution: Solution) -> None:
    stderr.print(summary(solution))
    for each in within(solution.ledger):
        stderr.print(each, soft_wrap=True)
    for one in solution.ledger.speculation:
        stderr.print(underneath(one), soft_wrap=True)
    stdout.print(solution.answer, markup=False, highlight=False, soft_wrap=True)
