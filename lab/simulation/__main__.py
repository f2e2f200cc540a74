"""``python -m lab.simulation``: simulate what cannot be measured here."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

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
from ..tables import Sheet, exit_with
from .choosing import choose
from .grid import GPUS, Chains, Pair, break_even, crossing, find_pair, plain, simulate_cell
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
console = Console()
stderr = Console(stderr=True)
H200 = "qwen3-32b-h200"
MAX_TUNED_ERROR = 0.15  # of a gain that `tune` says
TUNED = (
    "specreason",
    "reading",
    "reading:tokens=formulas,threshold=2,draft_tokens=null,repair_tokens=null",
)
SHARES = "0.2,0.5,0.8,0.95"
Accepted = Annotated[
    str,
    typer.Option(metavar="SHARE,...", help="Shares of drafts that are accepted."),
]
Gpus = Annotated[Path, typer.Option(help="File with the costs of servers, and their pairs.")]
Pairs = Annotated[
    list[str] | None,
    typer.Option(help="Pairs of gpus.toml; default: one H200, and two."),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        "-p",
        help="A method with its options; default: specreason.",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the steps that are good.")]
Users = Annotated[str, typer.Option(metavar="N,...", help="Problems at the same time.")]
Steps = Annotated[int, typer.Option(min=1, help="Steps of a chain.")]
StepTokens = Annotated[
    int,
    typer.Option(min=1, max=512, help="Mean tokens of a step."),
]
Problems = Annotated[int, typer.Option(min=2, help="Counted problems of a cell.")]
Output = Annotated[Path, typer.Option(help="File for the figures; the plot is next to it.")]

T = TypeVar("T")
Dots: TypeAlias = dict[str, list[tuple[float, float, str]]]
"""The dots of each curve."""


@app.command()
def grid(
    pair: Annotated[str, typer.Option(help="Pair of models of gpus.toml.")] = "qwen3-32b",
    users: Users = "1,4,16,64,256",
    accepted: Accepted = "0.8",
    policy: Methods = None,
    auto: Annotated[
        bool,
        typer.Option("--auto", help="Simulate each method also with `auto`."),
    ] = False,
    steps: Steps = 40,
    tokens: StepTokens = 100,
    problems: Problems = 16,
    seed: Seed = 0,
    gpus: Gpus = GPUS,
    output: Output = Path("build/simulated-grid.json"),
) -> None:
    """
    Simulate a pair on GPUs of published figures, next to its large model alone. Figures are by
    card.
    """
    writable("--output", output)
    known = find_pair(gpus, pair)
    chains = Chains(steps, tokens, seed=seed)
    crowds = _numbers("--users", users, int)
    arms = [parse_arm(text) for text in policy or ("specreason",)]
    if auto:
        arms += [
            replace(
                arm,
                name=f"{arm.name}, auto",
                run=arm.run.with_overrides({"auto": True}),
            )
            for arm in arms
        ]
    work = [(LARGE, 1.0, number) for number in crowds]
    work += product(arms, _shares(accepted), crowds)
    found = [
        simulate_cell(known, arm, number, chains, share, problems)
        for arm, share, number in _tracked(work)
    ]
    rows = [plain(cell) for cell in found]
    _write(output, {"pair": asdict(known), "chains": asdict(chains), "cells": rows})
    dots: Dots = {}
    for cell in found:
        name = cell.name if cell.name == LARGE.name else f"{cell.name}, {cell.accepted:.0%}"
        dot = (cell.hourly, cell.figures.seconds["p50"], f"{cell.users} at once")
        dots.setdefault(name, []).append(dot)
    _draw(
        output,
        dots,
        "problems an hour and card",
        "median seconds of a problem, simulated",
    )
    _print(rows)


@app.command("break-even")
def break_even_command(
    speed: Annotated[
        str,
        typer.Option(metavar="TIMES,...", help="How much faster the small model is."),
    ] = "2,4,8",
    users: Users = "1,4,16,64",
    pair: Annotated[
        str,
        typer.Option(help="Pair of gpus.toml whose large model is simulated."),
    ] = "qwen3-32b",
    policy: Annotated[
        str,
        typer.Option("--policy", "-p", help="A method with its options."),
    ] = "specreason",
    steps: Steps = 20,
    tokens: StepTokens = 100,
    problems: Problems = 12,
    seed: Seed = 0,
    gpus: Gpus = GPUS,
    output: Output = Path("build/break-even.json"),
) -> None:
    """
    Find the share of accepted drafts from which on a method is faster than the large model alone.
    """
    writable("--output", output)
    known = find_pair(gpus, pair)
    arm = parse_arm(policy)
    chains = Chains(steps, tokens, seed=seed)
    loads = _numbers("--users", users, int)
    rows: list[dict[str, Any]] = []
    dots: Dots = {}
    for times, number in _tracked(
        product(
            _numbers("--speed", speed, float),
            loads,
        )
    ):
        ratios = break_even(known, arm, times, number, chains, problems)
        least = crossing(ratios)
        shown = {f"time at {share:.0%}": ratio for share, ratio in ratios.items()}
        rows.append({"speed": times, "users": number, "break_even": least, **shown})
        if least is not None:
            dot = (times, least, f"{times:g} times")
            dots.setdefault(f"{number} at once", []).append(dot)
    about = {"pair": asdict(known), "chains": asdict(chains), "policy": policy}
    _write(output, {**about, "cells": rows})
    _draw(
        output,
        dots,
        "times as fast as the large model",
        "share of drafts to accept, simulated",
    )
    _print(rows)


@app.command()
def measured(
    policy: Methods = None,
    pair: Annotated[
        str,
        typer.Option(help="Pair of gpus.toml: on one card, as measured, or on two."),
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
    accepted: Accepted = SHARES,
    users: Annotated[int, typer.Option(min=2, help="Problems at the same time, besides one.")] = 8,
    pair: Pairs = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="Methods with their options."),
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
    found: list[dict[str, Any]] = []
    for known, share in product(_pairs(pair), _shares(accepted)):
        found.extend(compared(known, arms, chains, share, users))
    _write(output, {"cells": found})
    _print(found)
    missed = [
        f"missed: {row['method']}, {row['users']} users: {row['over'] - 1:+.0%}"
        for row in found
        if row["over"] and abs(row["over"] - 1) > MAX_TUNED_ERROR
    ]
    exit_with(missed, console)


@app.command()
def choosing(
    pair: Pairs = None,
    users: Users = "1,8,32",
    accepted: Accepted = SHARES,
    steps: Steps = 20,
    tokens: StepTokens = 100,
    problems: Problems = 64,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the problems.")] = 3,
    output: Output = Path("build/choosing.json"),
) -> None:
    """Print the time of `auto` over that of the better of SpecReason and the large model alone."""
    writable("--output", output)
    chains = Chains(steps=steps, tokens=tokens)
    work = product(
        _pairs(pair),
        _numbers("--users", users, int),
        _shares(accepted),
    )
    rows = [
        choose(
            known,
            number,
            share,
            chains,
            max(problems, number),
            seeds,
        ).row()
        for known, number, share in _tracked(work)
    ]
    _write(output, {"chains": asdict(chains), "seeds": seeds, "cells": rows})
    _print(rows)


def _pairs(names: Sequence[str] | None) -> list[Pair]:
    return [find_pair(GPUS, name) for name in names or (H200, "qwen3-32b-two-h200")]


def _tracked(work: Iterable[T]) -> Iterator[T]:
    """Yield the *work* while a progress bar is shown."""
    with progress_bars(stderr) as progress:
        yield from progress.track([*work], description="cells")


def _numbers(flag: str, text: str, kind: Callable[[str], Any]) -> list[Any]:
    found = numbers(flag, text, kind)
    if not found:
        raise ConfigurationError(f"{flag} {text!r}: a number is needed")
    if min(found) <= 0:
        raise ConfigurationError(f"{flag} {text!r}: every number has to be above 0")
    return found


def _shares(text: str) -> list[float]:
    found = numbers("--accepted", text, float)
    if not found or not 0 <= min(found) <= max(found) <= 1:
        raise ConfigurationError(f"--accepted {text!r}: shares from 0 to 1 are needed")
    return found


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    texts = [[_shown(value) for value in row.values()] for row in rows]
    sheet = Sheet(
        tuple(name.replace("_", " ") for name in rows[0]),
        texts,
        left=0,
    )
    Console(width=max(console.width, 200)).print(sheet.table())


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _write(output: Path, figures: Mapping[str, Any]) -> None:
    about = {"date": str(datetime.date.today()), "note": "simulated: no number here was measured"}
    output.write_bytes(orjson.dumps({**about, **figures}, option=orjson.OPT_INDENT_2))


def _draw(output: Path, dots: Dots, across: str, up: str) -> None:
    curves = [Curve(name, some) for name, some in dots.items()]
    if curves:
        output.with_suffix(".svg").write_text(
            load_curves(curves, across, up),
            encoding="utf-8",
        )


if __name__ == "__main__":
    run(app)
