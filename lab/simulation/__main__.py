"""``python -m lab.simulation``: simulate what cannot be measured here."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from stepspec.cli.command_line import numbers, writable
from stepspec.cli.eval import arm as parse_arm
from stepspec.cli.program import new_app, run, verbatim
from stepspec.evals.arms import LARGE
from stepspec.evals.progress import progress_bars
from stepspec.orchestrator.errors import ConfigurationError

from ..charts import Curve, load_curves
from ..tables import Sheet
from .choosing import choose
from .grid import GPUS, Chains, break_even, find_pair, plain, simulate_cell
from .measured import rows
from .tuned import compared

EXAMPLES = """
Examples:

  python -m lab.simulation grid --pair qwen3-32b --users 1,16,64 --accepted 0.6,0.8

  python -m lab.simulation break-even --speed 2,4,8 --users 1,16,64

  python -m lab.simulation measured                  # beside the seconds of a real GPU

  python -m lab.simulation tuned --users 8           # is `stepspec tune` right on such servers?

  python -m lab.simulation choosing --users 8,32     # does `auto` choose well?

"""
app = new_app(no_args_is_help=True, help=__doc__, epilog=verbatim(EXAMPLES))
console, stderr = Console(), Console(stderr=True)
H200 = "qwen3-32b-h200"
TUNED_BAR = 0.15  # by which a gain that `tune` says may be off
TUNED = (
    "specreason",
    "reading",
    "reading:tokens=formulas,threshold=2,draft_tokens=null,repair_tokens=null",
)
Steps = Annotated[int, typer.Option(min=1, help="Steps of a chain.")]
StepTokens = Annotated[int, typer.Option(min=1, max=512, help="Mean tokens of a step.")]
Problems = Annotated[int, typer.Option(min=2, help="Counted problems of a cell.")]
Output = Annotated[Path, typer.Option(help="File for the figures; the plot is next to it.")]


@app.command()
def grid(
    pair: Annotated[str, typer.Option(help="Pair of models of gpus.toml.")] = "qwen3-32b",
    users: Annotated[
        str, typer.Option(metavar="N,...", help="Problems at the same time.")
    ] = "1,4,16,64,256",
    accepted: Annotated[
        str, typer.Option(metavar="SHARE,...", help="Shares of drafts that are accepted.")
    ] = "0.8",
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="A method with its options; default: specreason."),
    ] = None,
    auto: Annotated[
        bool, typer.Option("--auto", help="Simulate each method also with `auto`.")
    ] = False,
    steps: Steps = 40,
    tokens: StepTokens = 100,
    problems: Problems = 16,
    seed: Annotated[int, typer.Option(help="Seed of the steps that are good.")] = 0,
    gpus: Annotated[
        Path, typer.Option(help="File with the costs of servers, and their pairs.")
    ] = GPUS,
    output: Output = Path("build/simulated-grid.json"),
) -> None:
    """
    Simulate a pair on GPUs of published figures, next to its large model alone; figures are by
    card.
    """
    writable("--output", output)
    known = find_pair(gpus, pair)
    chains, crowds, shares = (
        Chains(steps, tokens, seed=seed),
        _numbers("--users", users, int),
        _shares(accepted),
    )
    arms = [parse_arm(text) for text in policy or ("specreason",)]
    arms += [
        replace(arm, name=f"{arm.name}, auto", run=arm.run.with_overrides({"auto": auto}))
        for arm in arms
        if auto
    ]
    work = [(LARGE, number, 1.0) for number in crowds]
    work += [(arm, number, share) for arm in arms for share in shares for number in crowds]
    with progress_bars(stderr) as progress:
        cells = progress.track(work, description="cells")
        found = [
            simulate_cell(known, arm, number, chains, share, problems)
            for arm, number, share in cells
        ]
    _write(
        output,
        {"pair": asdict(known), "chains": asdict(chains), "cells": [plain(cell) for cell in found]},
    )
    dots: dict[str, list[tuple[float, float, str]]] = {}
    for cell in found:
        name = cell.name if cell.name == LARGE.name else f"{cell.name}, {cell.accepted:.0%}"
        dots.setdefault(name, []).append(
            (cell.hourly, cell.figures.seconds["p50"], f"{cell.users} at once")
        )
    _draw(output, dots, "problems an hour and card", "median seconds of a problem, simulated")
    _print([plain(cell) for cell in found])


@app.command("break-even")
def break_even_command(
    speed: Annotated[
        str, typer.Option(metavar="TIMES,...", help="How much faster the small model is.")
    ] = "2,4,8",
    users: Annotated[
        str, typer.Option(metavar="N,...", help="Problems at the same time.")
    ] = "1,4,16,64",
    pair: Annotated[
        str, typer.Option(help="Pair of gpus.toml whose large model is simulated.")
    ] = "qwen3-32b",
    policy: Annotated[
        str, typer.Option("--policy", "-p", help="A method with its options.")
    ] = "specreason",
    steps: Steps = 20,
    tokens: StepTokens = 100,
    problems: Problems = 12,
    seed: Annotated[int, typer.Option(help="Seed of the steps that are good.")] = 0,
    gpus: Annotated[
        Path, typer.Option(help="File with the costs of servers, and their pairs.")
    ] = GPUS,
    output: Output = Path("build/break-even.json"),
) -> None:
    """
    Find the share of accepted drafts from which on a method is faster than the large model alone.
    """
    writable("--output", output)
    known, arm, chains = find_pair(gpus, pair), parse_arm(policy), Chains(steps, tokens, seed=seed)
    loads = _numbers("--users", users, int)
    work = [(times, number) for times in _numbers("--speed", speed, float) for number in loads]
    with progress_bars(stderr) as progress:
        cells = progress.track(work, description="cells")
        found = [break_even(known, arm, times, number, chains, problems) for times, number in cells]
    rows = [
        {"speed": each.speed, "users": each.users, "break_even": each.share}
        | {f"time at {share:.0%}": ratio for share, ratio in each.ratios.items()}
        for each in found
    ]
    _write(
        output, {"pair": asdict(known), "chains": asdict(chains), "policy": policy, "cells": rows}
    )
    dots: dict[str, list[tuple[float, float, str]]] = {}
    for each in found:
        if each.share is not None:
            load = f"{each.users} at once"
            dots.setdefault(load, []).append((each.speed, each.share, f"{each.speed:g} times"))
    _draw(output, dots, "times as fast as the large model", "share of drafts to accept, simulated")
    _print(rows)


@app.command()
def measured(
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="A method with its options; default: specreason."),
    ] = None,
    pair: Annotated[
        str, typer.Option(help="Pair of gpus.toml: on one card, as measured, or on two.")
    ] = H200,
    output: Output = Path("build/simulated-measured.json"),
) -> None:
    """Simulate what was measured on an H200, and print both."""
    writable("--output", output)
    found = rows([(text, parse_arm(text)) for text in policy or ("specreason",)], pair)
    _write(output, {"pair": pair, "cells": found})
    _print(found)


@app.command()
def tuned(
    accepted: Annotated[
        str, typer.Option(metavar="SHARE,...", help="Shares of drafts that are accepted.")
    ] = "0.2,0.5,0.8,0.95",
    users: Annotated[int, typer.Option(min=2, help="Problems at the same time, besides one.")] = 8,
    pair: Annotated[
        list[str] | None, typer.Option(help="Pairs of gpus.toml; default: one H200, and two.")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", "-p", help="Methods with their options.")
    ] = None,
    steps: Steps = 40,
    tokens: StepTokens = 50,
    output: Output = Path("build/tuned.json"),
) -> None:
    """
    Print what `stepspec tune` says of simulated servers beside the simulated gain.

    The exit code is 1 if a gain is off by more than 15%.
    """
    writable("--output", output)
    chains = Chains(steps=steps, tokens=tokens)
    arms = [parse_arm(text) for text in policy or TUNED]
    pairs = [find_pair(GPUS, name) for name in pair or (H200, "qwen3-32b-two-h200")]
    found = [
        row
        for each in pairs
        for share in _shares(accepted)
        for row in compared(each, arms, chains, share, users)
    ]
    _write(output, {"cells": found})
    _print(found)
    off = [row for row in found if row["over"] and abs(row["over"] - 1) > TUNED_BAR]
    for row in off:
        console.print(f"missed: {row['method']}, {row['users']} users: {row['over'] - 1:+.0%}")
    if off:
        raise typer.Exit(1)


@app.command()
def choosing(
    pair: Annotated[
        list[str] | None, typer.Option(help="Pairs of gpus.toml; default: one H200, and two.")
    ] = None,
    users: Annotated[
        str, typer.Option(metavar="N,...", help="Problems at the same time.")
    ] = "1,8,32",
    accepted: Annotated[
        str, typer.Option(metavar="SHARE,...", help="Shares of drafts that are accepted.")
    ] = "0.2,0.5,0.8,0.95",
    steps: Steps = 20,
    tokens: StepTokens = 100,
    problems: Problems = 64,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the problems.")] = 3,
    output: Output = Path("build/choosing.json"),
) -> None:
    """Print the time of `auto` over that of the better of SpecReason and the large model alone."""
    writable("--output", output)
    chains = Chains(steps=steps, tokens=tokens)
    work = [
        (find_pair(GPUS, name), number, share)
        for name in pair or (H200, "qwen3-32b-two-h200")
        for number in _numbers("--users", users, int)
        for share in _shares(accepted)
    ]
    with progress_bars(stderr) as progress:
        cells = progress.track(work, description="cells")
        found = [
            choose(known, number, share, chains, max(problems, number), seeds)
            for known, number, share in cells
        ]
    rows = [each.row() for each in found]
    _write(output, {"chains": asdict(chains), "seeds": seeds, "cells": rows})
    _print(rows)


def _numbers(flag: str, text: str, kind: Callable[[str], Any]) -> list[Any]:
    if not (found := numbers(flag, text, kind)):
        raise ConfigurationError(f"{flag} {text!r}: a number is needed")
    return found


def _shares(text: str) -> list[float]:
    found = numbers("--accepted", text, float, positive=False)
    if not found or not 0 <= min(found) <= max(found) <= 1:
        raise ConfigurationError(f"--accepted {text!r}: shares from 0 to 1 are needed")
    return found


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    texts = [
        ["" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()]
        for row in rows
    ]
    sheet = Sheet(tuple(name.replace("_", " ") for name in rows[0]), texts, left=0)
    Console(width=max(console.width, 200)).print(sheet.table())


def _write(output: Path, figures: Mapping[str, Any]) -> None:
    about = {"date": str(datetime.date.today()), "note": "simulated: no number here was measured"}
    output.write_bytes(
        orjson.dumps({**about, **figures}, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
    )


def _draw(
    output: Path, dots: Mapping[str, Sequence[tuple[float, float, str]]], across: str, up: str
) -> None:
    curves = [Curve(name, some) for name, some in dots.items()]
    if curves:
        output.with_suffix(".svg").write_text(load_curves(curves, across, up), encoding="utf-8")


if __name__ == "__main__":
    run(app)
