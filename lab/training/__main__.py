"""``python -m lab.training``: train the miniature models and measure them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..worlds import SHORT, find_world

app = typer.Typer(
    no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False, rich_markup_mode=None
)
console = Console()


@app.command()
def report(
    folder: Annotated[
        Path | None, typer.Option(help="The folder with the models; default: the shipped models.")
    ] = None,
    write: Annotated[
        bool, typer.Option(help="Also write the model card, README.md in the folder.")
    ] = True,
) -> None:
    """Measure the models; exit with status 1 if a figure misses its bar."""
    from . import model_card

    folder = folder or find_world(SHORT).folders[0]
    figures = model_card.measure(Console(stderr=True).log, folder)
    for figure in figures:
        mark = "ok    " if figure.met else "MISSED"
        console.print(
            f"{mark} {figure.name}: {figure.value:,.3f} ({figure.detail})",
            highlight=False,
            soft_wrap=True,
        )
    if write:
        (folder / "README.md").write_text(model_card.card(figures), encoding="utf-8")
    if not all(figure.met for figure in figures):
        sys.exit(1)


@app.command()
def train(
    folder: Annotated[
        Path | None,
        typer.Option(
            help="The folder for the models; default: that of the models here, lab/models."
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Train only this model. large needs small and small-other.")
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 2,
    work: Annotated[
        Path, typer.Option(help="The folder for the results of finished phases.")
    ] = Path("build/training"),
    fresh: Annotated[bool, typer.Option(help="Delete the results of an earlier training.")] = False,
) -> None:
    """
    Train the models of the short problems, in at most two hours on two cores; the losses are logged
    every 50 steps.

    After an interruption, the same command continues after the last finished phase; --fresh starts
    again.
    """
    from . import train as training

    if fresh:
        shutil.rmtree(work, ignore_errors=True)
    folder = folder or find_world(SHORT).folders[-1]
    training.train_all(folder, work / SHORT, console.log, only=only, threads=threads)


if __name__ == "__main__":
    app()
