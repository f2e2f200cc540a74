"""
Measure the miniature pair: the large model alone, the small one alone, SpecReason without and with lookahead.

``python -m stepspec.evals.bench`` prints a table and writes ``build/bench.json``; it exits with 1 if a bar is missed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .arms import LARGE, SEQUENTIAL, SHIPPED, SMALL, Result, measure, summarise
from .tables import SMALL_PRINT, table
from .testbed.solving_pair import pair_solver
from .testbed.tasks import fresh

ARMS = (LARGE, SMALL, SEQUENTIAL, SHIPPED)
POINTS_LOST, OF_LARGE, OF_SEQUENTIAL = 0.02, 0.45, 0.8
SEED = 2026  # of the problems; none of them is trained on, whatever it is


def missed(results: Sequence[Result]) -> list[str]:
    """Which of the bars SpecReason as shipped misses, in words."""
    by_name = {result.name: result for result in results}
    large, sequential, shipped = (by_name[arm.name] for arm in (LARGE, SEQUENTIAL, SHIPPED))
    bars = (
        ("accuracy lost against the large model alone", large.accuracy - shipped.accuracy, POINTS_LOST),
        ("wall time over the large model alone", shipped.ratio_to_large, OF_LARGE),
        ("wall time over sequential", shipped.seconds / sequential.seconds, OF_SEQUENTIAL),
    )
    return [f"{what}: {value:.3f}, bar {bar}" for what, value, bar in bars if value > bar + 1e-9]


async def bench(problems: int, profile: str, console: Console) -> list[Result]:
    """Run every arm on the same fresh problems, one at a time, interleaved."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    async with pair_solver(profile, console, ARMS, SEED + 1, problems=2) as solver:
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task("measuring", total=problems * len(ARMS))
            tasks = fresh(problems, SEED)
            samples = await measure(solver, ARMS, tasks, on_sample=lambda _: progress.advance(bar))
    return summarise(samples, ARMS)


def main(
    problems: Annotated[int, typer.Option(min=2, help="How many fresh problems.")] = 200,
    profile: Annotated[str, typer.Option(help="How the models' passes are paced.")] = "paced",
    output: Annotated[Path, typer.Option(help="Where to write the figures.")] = Path("build/bench.json"),
) -> None:
    """Measure the miniature pair and compare with the bars."""
    results = asyncio.run(bench(problems, profile, Console(stderr=True)))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(orjson.dumps(_report(results, profile), option=orjson.OPT_INDENT_2))
    console = Console(width=140)
    console.print(table(results))
    by_name = {result.name: result for result in results}
    console.print(
        f"SpecReason over sequential: {by_name[SHIPPED.name].seconds / by_name[SEQUENTIAL.name].seconds:.2f}"
        f"   {datetime.date.today()}   {platform.machine()}, {output}"
    )
    console.print(SMALL_PRINT, style="dim")
    for bar in missed(results):
        console.print(f"missed: {bar}", style="red")
    if missed(results):
        sys.exit(1)


def _report(results: Sequence[Result], profile: str) -> list[dict[str, Any]]:
    """A list of arms; each carries what it was measured on, so that no figure stands alone."""
    about = {"date": str(datetime.date.today()), "profile": profile, "seed": SEED, "note": SMALL_PRINT}
    return [{**dataclasses.asdict(result), **about} for result in results]


if __name__ == "__main__":
    typer.run(main)
