"""
Does it pay? Measure methods and `auto` in every world, with every judge, under every load, on the
miniature pair.

``python -m lab.matrix`` prints three tables: the methods by judge, the loads, and `auto` against
the better of the large model alone and the best fixed method. In a round, every arm solves the same
problems under one condition.
"""

from __future__ import annotations

import asyncio
import datetime
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console

from lab.crowd import (
    TWO_LARGE,
    BlockStore,
    Crowd,
    Deployment,
    Timing,
    attempt,
    grade_equal,
    run_block,
)
from stepspec.cli.command_line import numbers, writable
from stepspec.cli.program import script
from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.evals.plan import turns
from stepspec.evals.progress import progress_bars
from stepspec.evals.sample import Arm, Task
from stepspec.evals.testbed.servers import JUDGE, weights_digest
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import GREEDY

from . import load as load_module
from .arms import AUTO, BILD, REFLECTIVE
from .matrix_tables import (
    SMALL_PRINT,
    Condition,
    Measured,
    arms_under,
    auto_rows,
    auto_sheet,
    conditions,
    method_rows,
    method_sheet,
    verdict,
)
from .worlds import LONG, SHORT, accounts, describe_pace, find_world, fresh_tasks, long_tasks

ARMS = (SHIPPED, BILD, REFLECTIVE, AUTO)
# so that the problems of a round end at nearly the same time
STEPS = accounts.Difficulty(steps=(36, 52))
SEED = 2026
OTHERS = 64  # problems that are not counted
DEADLINE = 900.0  # seconds
EXAMPLES = """
Examples:

  python -m lab.matrix                    # 75 minutes; the same command goes on after a stop

  python -m lab.matrix --rounds 4 --profile slow --judge large --concurrency 1,4

  python -m lab.matrix --world short --output build/short.json
"""
stderr = Console(stderr=True)
Stores = Mapping[tuple[str, str], BlockStore]


def tasks(condition: Condition, number: int) -> list[Task]:
    """The problems of round *number*: the same for all judges, others for every load."""
    n = condition.problems
    seed = SEED + condition.concurrency
    count = n * (number + 1)
    made = long_tasks(count, seed, STEPS) if condition.world == LONG else fresh_tasks(count, seed)
    return made[n * number :]


def crowd(deployment: Deployment, arm: Arm, condition: Condition, number: int) -> Crowd:
    """The block of *arm* in round *number*."""
    long = condition.world == LONG
    others = long_tasks(OTHERS, SEED + 1, STEPS) if long else fresh_tasks(OTHERS, SEED + 1)
    solving = partial(
        attempt,
        deployment.solver(arm),
        arm,
        grade_equal,
        DEADLINE,
        GREEDY,
        Budget(find_world(condition.world).context // 2),
    )
    counted = tasks(condition, number)
    warm_up = condition.warm_up
    return Crowd(condition.concurrency, counted, others, solving, SEED, number, warm_up=warm_up)


async def measure(
    wanted: Sequence[Condition],
    rounds: int,
    stores: Stores,
    profile: str,
    on_block: Callable[[str], object],
) -> None:
    """Measure the blocks that the *stores* lack, those of the same servers together."""
    for pairing, some in groupby(wanted, lambda each: each.pairing):
        store = stores[pairing]
        missing = [
            (condition, number, arm)
            for condition in some
            for number in range(rounds)
            for arm in turns(arms_under(condition, ARMS), number)
            if (condition.concurrency, arm.name, number) not in store.done
        ]
        if not missing:
            continue
        two = any(arm.name == TWO_LARGE.name for _, _, arm in missing)
        async with load_module.miniature_deployment(
            profile, *pairing, two=two, console=stderr
        ) as deployment:
            await deployment.pair.warm_up()
            if deployment.two_large is not None:
                await deployment.two_large.warm_up()
            for condition, number, arm in missing:
                name = f"{condition}: {arm.name}"
                block = await run_block(crowd(deployment, arm, condition, number), name)
                store.add((condition.concurrency, arm.name, number), block)
                on_block(name)


def open_stores(wanted: Sequence[Condition], profile: str, output: Path, *, fresh: bool) -> Stores:
    """
    A store for the blocks of each world and judge, beside *output*.

    Raise `ConfigurationError` for a missing model, and for blocks of another measurement.
    """
    stores: dict[tuple[str, str], BlockStore] = {}
    for world, judge in dict.fromkeys(condition.pairing for condition in wanted):
        about = {
            "world": world,
            "judge": judge,
            "profile": profile,
            "weights": weights_digest(judge, "small", world=find_world(world)),
            "seed": SEED,
            "steps": STEPS.steps if world == LONG else None,
        }
        path = output.with_name(f"{output.stem}.{world}-{judge}.blocks.jsonl")
        stores[world, judge] = BlockStore(path, about, (LARGE, TWO_LARGE, *ARMS), fresh=fresh)
    return stores


def complete(wanted: Sequence[Condition], rounds: int, stores: Stores) -> Measured:
    """What was measured, by condition and arm."""

    def timings(condition: Condition, arm: Arm) -> list[Timing]:
        done = stores[condition.pairing].done
        return [
            timing
            for number in range(rounds)
            for timing in done[condition.concurrency, arm.name, number]
        ]

    return {
        condition: {arm.name: timings(condition, arm) for arm in arms_under(condition, ARMS)}
        for condition in wanted
    }


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds under each condition.")] = 1,
    world: Annotated[list[str] | None, typer.Option(help="long, short; both by default.")] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(help="Weights of the large model; by default all of each world."),
    ] = None,
    concurrency: Annotated[
        str,
        typer.Option(
            help="Numbers of problems at the same time, with commas between them.", metavar="N,..."
        ),
    ] = "1,4,16,32",
    profile: Annotated[str, typer.Option(help="Pace of the miniature models.")] = "paced",
    output: Annotated[
        Path, typer.Option(help="File for the figures; the blocks are next to it.")
    ] = Path("build/matrix.json"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard what an earlier run measured.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables as Markdown too.")
    ] = False,
) -> None:
    """Measure methods and auto in every world, with every judge, under every load."""
    wanted = conditions(
        world or [LONG, SHORT], judge or [], sorted(numbers("--concurrency", concurrency, int))
    )
    note = (
        "The miniature pair, served by real vLLM on this CPU:"
        f" {describe_pace(profile, 'large', 'small')}."
    )
    writable("--output", output)
    stores = open_stores(wanted, profile, output, fresh=fresh)
    try:
        asyncio.run(_measure(wanted, rounds, stores, profile))
    except KeyboardInterrupt:
        stderr.print("interrupted: the same command goes on from here", style="yellow")
        raise typer.Exit(130) from None
    _print(
        complete(wanted, rounds, stores),
        f"{note} {SMALL_PRINT}",
        profile,
        output,
        as_markdown=as_markdown,
    )


async def _measure(wanted: Sequence[Condition], rounds: int, stores: Stores, profile: str) -> None:
    async with AsyncExitStack() as stack:
        progress = stack.enter_context(progress_bars(stderr))
        for store in stores.values():
            stack.enter_context(store)
        total = rounds * sum(len(arms_under(condition, ARMS)) for condition in wanted)
        bar = progress.add_task(
            "blocks", total=total, completed=sum(len(store.done) for store in stores.values())
        )
        await measure(
            wanted,
            rounds,
            stores,
            profile,
            lambda name: progress.update(bar, description=name, advance=1),
        )


def _print(measured: Measured, note: str, profile: str, output: Path, *, as_markdown: bool) -> None:
    """Write the figures and print the tables."""
    console = Console(width=max(Console().width, 180))
    date = str(datetime.date.today())
    methods = method_rows(measured)
    autos = auto_rows(measured)
    cells = {
        condition: load_module.summarise(condition.concurrency, each)
        for condition, each in measured.items()
    }
    figures = {
        "date": date,
        "profile": profile,
        "note": note,
        "methods": [asdict(row) for row in methods],
        "auto": [{**asdict(row), "above": row.above} for row in autos],
        "loads": [
            {**asdict(condition), "cells": list(map(asdict, some))}
            for condition, some in cells.items()
        ],
    }
    output.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    for sheet in (method_sheet(methods), auto_sheet(autos)):
        console.print(sheet.table())
        if as_markdown:
            print(f"\n{sheet.markdown()}")
    for condition, some in cells.items():
        if condition.judge == JUDGE:
            console.print(str(condition), style="bold")
            sheet = load_module.sheet(some)
            console.print(sheet.table())
            if as_markdown:
                print(f"\n{condition}:\n\n{sheet.markdown()}\n")
    console.print(f"{date}   {platform.machine()}, {output}")
    console.print(f"{note} {load_module.SMALL_PRINT}", style="dim")
    console.print(verdict(autos), style="bold", highlight=False)


if __name__ == "__main__":
    script(main, EXAMPLES)
