"""
Does it pay? Measure methods and `auto` in every world, with every judge, under every load, on the miniature pair.

``python -m lab.matrix`` prints three tables: the methods by judge, the loads, and `auto` against
the better of the large model alone and the best fixed method. `matrix_plan` says what fits into the time.
"""

from __future__ import annotations

import asyncio
import datetime
import platform
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import TaskID

from lab.crowd import TWO_LARGE, Block, BlockStore, Crowd, Deployment, attempt, grade_equal, run_block
from stepspec.evals.arms import SHIPPED
from stepspec.evals.command_line import numbers, progress_bars, script, writable
from stepspec.evals.plan import turns
from stepspec.evals.sample import CACHES, Arm, Task
from stepspec.evals.testbed.servers import JUDGE, describe_pace, weights_digest
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import ConfigurationError

from . import load as load_module
from .arms import AUTO, BILD, REFLECTIVE
from .figures_file import MATRIX, write_rows
from .matrix_plan import (
    LOADS,
    STEPS,
    Condition,
    Expected,
    Plan,
    Progress,
    Round,
    conditions,
    expected_seconds,
    make_plan,
)
from .matrix_tables import (
    SMALL_PRINT,
    Measured,
    auto_rows,
    auto_sheet,
    cells_under,
    json_rows,
    judged_drafts,
    method_rows,
    method_sheet,
    verdict,
)
from .worlds import LONG, SHORT, find_world, fresh_tasks, is_trained, long_tasks

ARMS = (SHIPPED, BILD, REFLECTIVE, AUTO)
SEED = 2026
OTHERS = 64  # problems that are not counted
DEADLINE = 900.0  # seconds
FIGURES = Path("build/bench.json")
EXAMPLES = """
Examples:

  python -m lab.matrix --plan             # what is going to be measured, and how long it takes

  python -m lab.matrix                    # 90 minutes; the same command goes on after a stop

  python -m lab.matrix --minutes 240 --profile slow --judge large --concurrency 1,4

  python -m lab.matrix --world short --minutes 15 --output build/short.json
"""
stderr = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Conduct:
    """How rounds are measured: with the paces of *profile*, and what is *expected* of blocks."""

    profile: str
    expected: Expected
    problems: dict[Condition, list[Task]] = field(default_factory=dict[Condition, list[Task]])

    def tasks(self, condition: Condition, number: int) -> list[Task]:
        """The problems of round *number*: the same for all judges, others for every load."""
        n, seed = condition.problems, SEED + condition.concurrency
        made = self.problems.get(condition, [])
        if len(made) < n * (number + 1):
            count = n * (number + 4)
            short = condition.world != LONG
            made = fresh_tasks(count, seed) if short else long_tasks(count, seed, STEPS)
            self.problems[condition] = made
        return made[n * number : n * (number + 1)]

    def crowd(self, deployment: Deployment, arm: Arm, condition: Condition, number: int) -> Crowd:
        """The block of *arm* in a round."""
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
            judged=judged_drafts if long and arm.name == SHIPPED.name else lambda solution, task: (),
        )
        tasks = self.tasks(condition, number)
        return Crowd(condition.load, tasks, others, solving, SEED, number, warm_up=condition.warm_up)


async def measure(
    plan: Plan,
    stores: Mapping[tuple[str, str], BlockStore],
    conduct: Conduct,
    console: Console,
    on_block: Callable[[str, float], object] = lambda name, seconds: None,
) -> list[Round]:
    """
    Measure the rounds of *plan* that the *stores* lack, and return those that were left out for lack of time.

    *on_block* is called before a block with its name and 0, and after it with its expected seconds.
    """
    left_out, began = list[Round](), time.monotonic()
    earlier = sum(block.took for store in stores.values() for block in store.done.values())
    for pairing, rounds in plan.pairings():
        async with AsyncExitStack() as stack:
            deployment: Deployment | None = None
            for each in rounds:
                done = [(other, took) for other in plan.rounds if (took := _took(other, stores)) is not None]
                rest = [other for other in plan.rounds if _took(other, stores) is None]
                if each not in rest:
                    continue
                if Progress(earlier + time.monotonic() - began, done).left_out(each, rest, plan.minutes):
                    left_out.append(each)
                    continue
                if deployment is None:
                    deployment = await stack.enter_async_context(_deployed(rounds, conduct.profile, console))
                await _measure_round(each, deployment, stores[pairing], conduct, on_block)
    return left_out


async def _measure_round(
    each: Round, deployment: Deployment, store: BlockStore, conduct: Conduct, on_block: Callable[[str, float], object]
) -> None:
    for arm in turns(each.arms, each.number):
        place, name = (each.condition.load.name, arm.name, each.number), f"{each.condition}: {arm.name}"
        if place not in store.done:
            on_block(name, 0.0)
            crowd = conduct.crowd(deployment, arm, each.condition, each.number)
            store.add(place, await run_block(crowd, name, deployment))
            on_block(name, conduct.expected(each.condition, arm))


@asynccontextmanager
async def _deployed(rounds: Sequence[Round], profile: str, console: Console) -> AsyncGenerator[Deployment]:
    """Start the servers of these *rounds*, with a second large one if an arm needs it, and warm them up."""
    two = any(arm.name == TWO_LARGE.name for each in rounds for arm in each.arms)
    pairing = rounds[0].condition.pairing
    async with load_module.miniature_deployment(profile, *pairing, two=two, console=console) as deployment:
        await deployment.pair.warm_up()
        if deployment.two_large is not None:
            await deployment.two_large.warm_up()
        yield deployment


def _took(each: Round, stores: Mapping[tuple[str, str], BlockStore]) -> float | None:
    """The seconds of a round that is complete."""
    done = stores[each.condition.pairing].done
    return sum(done[place].took for place in each.places) if all(place in done for place in each.places) else None


def complete(plan: Plan, stores: Mapping[tuple[str, str], BlockStore]) -> Measured:
    """The blocks of the rounds that are complete, by condition and arm."""
    measured: dict[Condition, dict[str, list[Block]]] = {}
    for each in sorted(plan.rounds, key=lambda each: each.number):
        if _took(each, stores) is not None:
            blocks = measured.setdefault(each.condition, {arm.name: [] for arm in each.arms})
            for (_, name, _), place in zip(each.places, each.places, strict=True):
                blocks[name].append(stores[each.condition.pairing].done[place])
    order = {each.condition: place for place, each in reversed(list(enumerate(plan.rounds)))}
    return dict(sorted(measured.items(), key=lambda item: order[item[0]]))


def open_stores(plan: Plan, profile: str, output: Path, *, fresh: bool) -> dict[tuple[str, str], BlockStore]:
    """
    A store for the blocks of each world and judge, beside *output*.

    Raise `ConfigurationError` for a missing model, and for blocks of another measurement.
    """
    stores: dict[tuple[str, str], BlockStore] = {}
    for (world, judge), rounds in plan.pairings():
        about = {
            "world": world,
            "judge": judge,
            "profile": profile,
            "weights": weights_digest(*weights(rounds[0].condition), world=find_world(world)),
            "seed": SEED,
            "steps": STEPS.steps if world == LONG else None,
            **CACHES,
        }
        arms = list({arm.name: arm for each in rounds for arm in each.arms}.values())
        path = output.with_name(f"{output.stem}.{world}-{judge}.blocks.jsonl")
        stores[world, judge] = BlockStore(path, about, arms, fresh=fresh)
    return stores


def weights(condition: Condition) -> tuple[str, str]:
    """The models that a condition needs."""
    return condition.judge, "small"


def main(
    minutes: Annotated[
        float, typer.Option(min=1, help="Time for everything, with what an interrupted run took: it sets n.")
    ] = 90.0,
    show_plan: Annotated[bool, typer.Option("--plan", help="Print what would be measured, and stop.")] = False,
    world: Annotated[list[str] | None, typer.Option(help="long, short; both by default.")] = None,
    judge: Annotated[
        list[str] | None, typer.Option(help="Weights of the large model; by default all of each world.")
    ] = None,
    concurrency: Annotated[
        str, typer.Option(help="Numbers of problems at the same time, with commas between them.", metavar="N,...")
    ] = ",".join(map(str, LOADS)),
    profile: Annotated[str, typer.Option(help="Pace of the miniature models.")] = "paced",
    output: Annotated[
        Path, typer.Option(help="File for the figures, beside those of other benchmarks; the blocks are next to it.")
    ] = FIGURES,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard what an earlier run measured.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown too.")] = False,
) -> None:
    """Measure methods and auto in every world, with every judge, under every load, within --minutes."""
    loads = numbers("--concurrency", concurrency, int)
    wanted = conditions(world or [LONG, SHORT], judge or [], sorted(loads))
    expected, console = expected_seconds(profile), Console(width=max(Console().width, 180))
    trained = [
        condition for condition in wanted if all(is_trained(name, condition.world) for name in weights(condition))
    ]
    plan = make_plan(minutes, wanted if show_plan or judge else trained or wanted, ARMS, expected)
    console.print(plan.table())
    console.print(str(plan), highlight=False)
    missing = dict.fromkeys(condition.pairing for condition in wanted if condition not in trained)
    if missing and not judge:
        named = "; ".join(", ".join(pairing) for pairing in missing)
        console.print(f"left out while there are no weights: {named}", style="yellow", highlight=False)
    if show_plan:
        return
    if not plan.fits:
        raise ConfigurationError(
            f"--minutes {minutes:g}: one round under each condition takes {plan.seconds / 60:.0f}; leave out loads, "
            "judges or a world, or give it more time"
        )
    writable("--output", output)
    stores = open_stores(plan, profile, output, fresh=fresh)
    try:
        left_out = asyncio.run(_measure(plan, stores, Conduct(profile, expected)))
    except KeyboardInterrupt:
        stderr.print("interrupted: the same command goes on from here", style="yellow")
        raise typer.Exit(130) from None
    _print(complete(plan, stores), profile, output, console, as_markdown=as_markdown)
    for each in left_out:
        console.print(f"left out for lack of time: round {each.number + 1} of {each.condition}", style="yellow")


async def _measure(plan: Plan, stores: Mapping[tuple[str, str], BlockStore], conduct: Conduct) -> list[Round]:
    with progress_bars(stderr) as progress:
        bar: TaskID = progress.add_task("seconds", total=round(plan.seconds))

        def on_block(name: str, seconds: float) -> None:
            progress.update(bar, description=name, advance=round(seconds))

        async with AsyncExitStack() as stack:
            for pairing, store in stores.items():
                stack.enter_context(store)
                rounds = dict(plan.pairings())[pairing]
                for each in rounds:
                    for place, arm in zip(each.places, each.arms, strict=True):
                        if place in store.done:
                            on_block("seconds", conduct.expected(each.condition, arm))
            return await measure(plan, stores, conduct, stderr, on_block)


def _print(measured: Measured, profile: str, output: Path, console: Console, *, as_markdown: bool) -> None:
    """Write the figures and print the tables."""
    note = f"The miniature pair, served by real vLLM on this CPU: {describe_pace(profile, 'large', 'small')}."
    about = {
        "date": str(datetime.date.today()),
        "profile": profile,
        "seed": SEED,
        "sampling": GREEDY.model_dump(include={"temperature", "top_p"}),
        "note": f"{note} {SMALL_PRINT}",
    }
    write_rows(output, MATRIX, json_rows(measured, ARMS, about))
    rows = auto_rows(measured)
    for sheet in (method_sheet(method_rows(measured)), auto_sheet(rows)):
        console.print(sheet.table())
        if as_markdown:
            print(f"\n{sheet.markdown()}")
    for condition, blocks in measured.items():
        if condition.judge != JUDGE:
            continue
        cells = cells_under(condition, blocks, ARMS)
        console.print(str(condition), style="bold")
        console.print(load_module.table(cells))
        if as_markdown:
            print(f"\n{condition}:\n\n{load_module.markdown(cells)}\n")
    console.print(f"{about['date']}   {platform.machine()}, {output}")
    console.print(f"{note} {SMALL_PRINT} {load_module.SMALL_PRINT}", style="dim")
    console.print(verdict(rows), style="bold", highlight=False)


if __name__ == "__main__":
    script(main, EXAMPLES)
