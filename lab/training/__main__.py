"""``python -m lab.training``: train the miniature models, measure them, print their problems."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.console import Console

from stepspec.evals.testbed.problems import DEFAULT, Difficulty, final_answer, generate, worked_steps
from stepspec.orchestrator.errors import ConfigurationError

from ..worlds import LONG, SHORT, TOOLS, accounts, find_world, tool_problems

if TYPE_CHECKING:
    from .model_card import Figure  # which imports torch

app = typer.Typer(no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False, rich_markup_mode=None)
console = Console()
Measure: TypeAlias = "Callable[[Callable[[str], object], Path], list[Figure]]"
Describe: TypeAlias = "Callable[[Sequence[Figure]], str]"
World = Annotated[str, typer.Option(help="Kind of problems, with their models: short, long, tools.")]


@app.command()
def problems(
    limit: Annotated[int, typer.Option("--limit", "-n", help="Number of problems.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="Seed that selects the problems.")] = 0,
    least: Annotated[
        int, typer.Option(help="Least number of operations, of short ones.", min=1, max=7)
    ] = DEFAULT.steps[0],
    most: Annotated[int, typer.Option(help="Largest number of operations, likewise.", min=1, max=7)] = DEFAULT.steps[1],
    world: World = SHORT,
) -> None:
    """Print problems of the test split with their worked reasoning."""
    find_world(world)
    if world == LONG:
        for long in islice(accounts.generate(seed, "test"), limit):
            show(long.text, accounts.worked_steps(long), long.answer)
        return
    if world == TOOLS:
        for asked in islice(tool_problems.generate(seed, "test"), limit):
            show_loop(asked)
        return
    for problem in islice(generate(seed, "test", Difficulty(steps=(least, most))), limit):
        show(problem.text, worked_steps(problem), problem.answer)


def show(text: str, steps: Sequence[str], answer: int) -> None:
    """Print one problem."""
    reasoning = "".join(steps) + final_answer(answer)
    console.print(f"{text}\n\n{reasoning}\n", markup=False, highlight=False, soft_wrap=True)


def show_loop(problem: tool_problems.Problem) -> None:
    """Print one problem with the turns of its worked loop and what the tools answer."""
    lines = [problem.text]
    for turn in problem.turns:
        lines.append("".join(turn.steps) + turn.reply)
        lines += [tool_problems.run_tool(problem.catalogue, call.name, call.arguments) for call in turn.calls]
    console.print("\n\n".join(lines) + "\n", markup=False, highlight=False, soft_wrap=True)


@app.command()
def report(
    folder: Annotated[
        Path | None, typer.Option(help="The folder with the models; default: the shipped models.")
    ] = None,
    world: World = SHORT,
    write: Annotated[bool, typer.Option(help="Also write the model card, README.md in the folder.")] = True,
) -> None:
    """Measure the models; exit with status 1 if a figure misses its bar."""
    from . import model_card

    cards: dict[str, tuple[Measure, Describe]] = {
        SHORT: (model_card.measure, model_card.card),
        LONG: (model_card.measure_long, model_card.long_card),
    }
    folder = folder or find_world(world).folders[0]
    if world not in cards:
        raise ConfigurationError(f"--world {world}: only {SHORT} and {LONG} are measured here")
    measure, describe = cards[world]
    figures = measure(Console(stderr=True).log, folder)
    for figure in figures:
        mark = "ok    " if figure.met else "MISSED"
        console.print(f"{mark} {figure.name}: {figure.value:,.3f} ({figure.detail})", highlight=False, soft_wrap=True)
    if write:
        (folder / "README.md").write_text(describe(figures), encoding="utf-8")
    if not all(figure.met for figure in figures):
        sys.exit(1)


@app.command()
def train(
    folder: Annotated[
        Path | None, typer.Option(help="The folder for the models; default: that of the models here, lab/models.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Train only this model. large needs small and small-other, or solver if long.")
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 2,
    work: Annotated[Path, typer.Option(help="The folder for the results of finished phases.")] = Path("build/training"),
    world: World = SHORT,
    fresh: Annotated[bool, typer.Option(help="Delete the results of an earlier training.")] = False,
) -> None:
    """
    Train the models of a world, in at most two hours on two cores; the losses are logged every 50 steps.

    Of long, the small model and the solver that its judges grew from: lab/training of commit 0e0dfbf trains the judges.

    After an interruption, the same command continues after the last finished phase; --fresh starts again.
    """
    from . import train as training

    if world == TOOLS:
        raise ConfigurationError("the models of tools are trained by lab/training of commit 0e0dfbf")
    if fresh:
        shutil.rmtree(work, ignore_errors=True)
    folder = folder or find_world(world).folders[-1]
    training.train_all(folder, work / world, console.log, only=only, threads=threads, long=world == LONG)


if __name__ == "__main__":
    app()
