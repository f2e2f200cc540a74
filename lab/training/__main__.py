"""``python -m lab.training``: train the miniature models and measure them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.console import Console

from stepspec.orchestrator.errors import ConfigurationError

from ..worlds import LONG, SHORT, TOOLS, find_world

if TYPE_CHECKING:
    from .model_card import Figure  # which imports torch

app = typer.Typer(no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False, rich_markup_mode=None)
console = Console()
Measure: TypeAlias = "Callable[[Callable[[str], object], Path], list[Figure]]"
Describe: TypeAlias = "Callable[[Sequence[Figure]], str]"
World = Annotated[str, typer.Option(help="Kind of problems, with their models: short, long.")]


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
