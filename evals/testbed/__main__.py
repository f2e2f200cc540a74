"""``python -m stepspec.evals.testbed``: train the miniature models, measure them, look at their problems."""

from __future__ import annotations

import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .problems import DEFAULT, Difficulty, final_answer, generate, worked_steps
from .servers import MODELS

app = typer.Typer(no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False, rich_markup_mode=None)
console = Console()


@app.command()
def problems(
    count: Annotated[int, typer.Option(min=1)] = 3,
    seed: int = 0,
    least: Annotated[int, typer.Option(help="Least number of operations.", min=1, max=7)] = DEFAULT.steps[0],
    most: Annotated[int, typer.Option(help="Greatest number of operations.", min=1, max=7)] = DEFAULT.steps[1],
) -> None:
    """Print fresh problems with their worked reasoning."""
    for problem in islice(generate(seed, "test", Difficulty(steps=(least, most))), count):
        reasoning = "".join(worked_steps(problem)) + final_answer(problem.answer)
        console.print(f"{problem.text}\n\n{reasoning}\n", markup=False, highlight=False)


@app.command()
def report(
    folder: Annotated[Path | None, typer.Option(help="Where the models are.")] = None,
    write: Annotated[bool, typer.Option(help="Also write the model card.")] = True,
) -> None:
    """Measure the models; exit with 1 if a figure misses its bar."""
    from . import model_card as measuring

    folder = folder or MODELS
    figures = measuring.measure(Console(stderr=True).log, folder)
    for figure in figures:
        mark = "ok    " if figure.met else "MISSED"
        console.print(f"{mark} {figure.name}: {figure.value:,.3f} ({figure.detail})", highlight=False, soft_wrap=True)
    if write:
        (folder / "README.md").write_text(measuring.card(figures), encoding="utf-8")
    if not all(figure.met for figure in figures):
        sys.exit(1)


@app.command()
def train(
    folder: Annotated[Path | None, typer.Option(help="Where to put the models.")] = None,
    only: Annotated[str | None, typer.Option(help="Train this model only (large needs small).")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 2,
    work: Annotated[Path, typer.Option(help="Keeps what finished phases came to.")] = Path("build/training"),
    fresh: Annotated[bool, typer.Option(help="Forget what an earlier run came to.")] = False,
) -> None:
    """
    Train all four models, two hours at most on two cores; logs every 50 steps.

    Started again after an interruption, it goes on after the last finished phase; --fresh begins anew.
    """
    from . import train as training

    if fresh:
        shutil.rmtree(work, ignore_errors=True)
    training.train_all(folder or MODELS, work, console.log, only=only, threads=threads)


if __name__ == "__main__":
    app()
