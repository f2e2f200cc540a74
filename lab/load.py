"""
Measure methods under load: a constant number of problems at the same time.

``python -m lab.load`` measures *cells*, one arm under one load each. The cells of a load are measured in
blocks that take turns, on the same problems. Within a block, other problems run before the counted ones and beside the
last of them, so that every counted problem meets the full load.
"""

from __future__ import annotations

import asyncio
import datetime
import math
import platform
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import orjson
import typer
from rich.console import Console
from rich.table import Table

from lab.crowd import (
    TWO_LARGE,
    Attempt,
    Block,
    BlockPlace,
    BlockStore,
    Deployment,
    Load,
    Workload,
    attempt,
    grade_equal,
    measure,
)
from stepspec.api import Solver
from stepspec.evals.arms import LARGE
from stepspec.evals.benchmarks import bare, own
from stepspec.evals.benchmarks import load as load_tasks
from stepspec.evals.cli import arm as parse_arm
from stepspec.evals.command_line import finite, numbers, progress_bars, script, writable
from stepspec.evals.estimate.measuring import unlimited, unlimited_endpoint
from stepspec.evals.grading.graders import SECONDS, Graders, require_graders
from stepspec.evals.plan import check_arm
from stepspec.evals.results import Interval, Z, bootstrap_ratio, wilson
from stepspec.evals.sample import Arm, Task
from stepspec.evals.testbed.servers import JUDGE, endpoint, miniature, read_pace, running, weights_digest
from stepspec.orchestrator.endpoints import GREEDY, Endpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.solution import Solution

from .worlds import SHORT, WORLDS, find_world, fresh_tasks, with_judge

OTHERS = 64  # problems that are not counted; they repeat
SEQUENCES = 64  # requests that each miniature server takes: more than a run has, times the highest load
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Cell:
    """
    The figures of one arm under one load, over *n* counted problems, of which *failed* have no solution.

    *latencies* has quantiles of the seconds from arrival to answer, None where *n* is too small for one. *first_step*
    and *first_answer* are medians. A failed problem is wrong, and has no latency. *to_large* and *to_two_large* divide
    the summed latency by that of the large model alone, on one and on two servers, over the problems that both solved;
    *throughput_to_large* divides the problems a second. *cpu* is a share of a core by program.
    """

    name: str
    load: str
    concurrency: int
    n: int
    failed: int
    problems_per_second: Interval
    tokens_per_second: float
    latencies: Mapping[str, Interval | None]
    first_step: float | None
    first_answer: float | None
    accuracy: Interval
    to_large: Interval | None
    to_two_large: Interval | None
    throughput_to_large: float | None
    cpu: Mapping[str, float]


def quantile(values: Sequence[float], share: float) -> Interval | None:
    """
    The *share* quantile of *values* by nearest rank, with a 95% interval from their order.

    None if so few *values* have no quantile beyond which one of them is expected.
    """
    n = len(values)
    if n * (1 - share) < 1 - 1e-9:
        return None
    ordered, half = sorted(values), Z * math.sqrt(n * share * (1 - share))
    ranks = (min(n, max(1, math.ceil(rank - 1e-9))) for rank in (n * share, n * share - half, n * share + half))
    return Interval(*(ordered[rank - 1] for rank in ranks))


def summarise(loads: Sequence[Load], arms: Sequence[Arm], blocks: int, done: Mapping[BlockPlace, Block]) -> list[Cell]:
    """The cells that are complete, load by load."""
    cells: list[Cell] = []
    for load in loads:
        by_arm = {
            arm.name: [done[place] for number in range(blocks) if (place := (load.name, arm.name, number)) in done]
            for arm in arms
        }
        complete = {name: measured for name, measured in by_arm.items() if len(measured) == blocks}
        cells += [_cell(load, name, measured, complete) for name, measured in complete.items()]
    return cells


def _cell(load: Load, name: str, measured: Sequence[Block], others: Mapping[str, Sequence[Block]]) -> Cell:
    timings = [timing for block in measured for timing in block.timings]
    solved = [timing for timing in timings if not timing.failure]
    seconds, large = [block.seconds for block in measured], others.get(LARGE.name)
    rate = _throughput(load, measured)
    return Cell(
        name=name,
        load=load.name,
        concurrency=load.concurrency,
        n=len(timings),
        failed=len(timings) - len(solved),
        problems_per_second=rate,
        tokens_per_second=sum(each.tokens for each in timings)
        / sum(each.latency / load.concurrency for each in timings),
        latencies={key: quantile([timing.latency for timing in solved], share) for key, share in QUANTILES.items()},
        first_step=_median([timing.first_step for timing in solved]),
        first_answer=_median([timing.first_answer for timing in solved]),
        accuracy=wilson(sum(timing.correct for timing in timings), len(timings)),
        to_large=latency_ratio(measured, large),
        to_two_large=latency_ratio(measured, others.get(TWO_LARGE.name)),
        throughput_to_large=None if large is None else rate.value / _throughput(load, large).value,
        cpu={
            program: sum(block.cpu[program] * block.seconds for block in measured) / sum(seconds)
            for program in measured[0].cpu
        },
    )


def _throughput(load: Load, measured: Sequence[Block]) -> Interval:
    """Problems solved a second, from the latencies (Little's law): where a block begins and ends does not matter."""
    timings = [timing for block in measured for timing in block.timings]
    spent = [timing.latency / load.concurrency for timing in timings]
    return bootstrap_ratio([float(not timing.failure) for timing in timings], spent)


def _median(values: Sequence[float | None]) -> float | None:
    middle = quantile([value for value in values if value is not None], 0.5)
    return None if middle is None else middle.value


def latency_ratio(measured: Sequence[Block], large: Sequence[Block] | None) -> Interval | None:
    """The summed latency over that of *large*, problem by problem; None without a problem that both solved."""
    if large is None:
        return None
    pairs = [
        (ours.latency, theirs.latency)
        for block, other in zip(measured, large, strict=True)
        for ours, theirs in zip(block.timings, other.timings, strict=True)
        if not (ours.failure or theirs.failure)
    ]
    return bootstrap_ratio([ours for ours, _ in pairs], [theirs for _, theirs in pairs]) if pairs else None


COLUMNS = (
    *("", "n", "failed", "problems/s", "tokens/s", "p50", "p95", "p99", "first step", "answer at"),
    *("accuracy", "latency vs large", "vs two large", "problems/s vs large", "CPU"),
)


def rows(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """A row of the table for each of the *cells*."""
    return [
        (
            cell.name,
            str(cell.n),
            str(cell.failed or ""),
            _interval(cell.problems_per_second, 3),
            f"{cell.tokens_per_second:.1f}",
            *(_interval(cell.latencies[key], 2) for key in QUANTILES),
            *("" if value is None else f"{value:.2f}" for value in (cell.first_step, cell.first_answer)),
            f"{cell.accuracy.value:.0%} [{cell.accuracy.low:.0%}, {cell.accuracy.high:.0%}]",
            *(_interval(ratio, 2) for ratio in (cell.to_large, cell.to_two_large)),
            "" if cell.throughput_to_large is None else f"{cell.throughput_to_large:.2f}",
            ", ".join(f"{program} {share:.0%}" for program, share in cell.cpu.items()),
        )
        for cell in cells
    ]


def _interval(interval: Interval | None, digits: int) -> str:
    if interval is None:
        return ""
    return f"{interval.value:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def table(cells: Sequence[Cell]) -> Table:
    """The *cells* of one load as a table for the terminal."""
    rendered = Table(box=None, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        rendered.add_column(column, justify="right" if column else "left", no_wrap=column in ("", "n", "failed"))
    for row in rows(cells):
        rendered.add_row(*row)
    return rendered


def markdown(cells: Sequence[Cell]) -> str:
    """The same table for a document."""
    rule = ["---", *("--:" for _ in COLUMNS[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (COLUMNS, rule, *rows(cells)))


SMALL_PRINT = (
    "A load of N at once is a closed loop. Problems and kept tokens a second: from the latencies, by Little's law. "
    "Seconds from a problem's arrival to "
    "its answer (p50, p95, p99), to its first verified step and to the first text of its answer (medians). Latency vs "
    "large: summed over the same problems, divided by that of the large model alone under this load; two large: by "
    "that on two servers, the hardware of a pair. Failed problems count as wrong. CPU: the share of a core that each "
    "program used. Brackets are 95% intervals: of problems a second and of ratios by bootstrap over problems, "
    "of quantiles by order, of accuracy Wilson's."
)
PACED = "The miniature pair, served by real vLLM on this CPU; its pace is simulated ({pace}), as the profile sets it."
EXAMPLES = """
Examples:

  python -m lab.load                             # the miniature pair; an hour

  python -m lab.load --concurrency 1,8 --problems 16 --blocks 2 --policy specreason --markdown

  python -m lab.load --small http://gpu:8001/v1 --large http://gpu:8002/v1 --data problems.jsonl

  python -m lab.load --small URL --large URL --second-large URL --data problems.jsonl   # equal hardware
"""
POLICIES = ("specreason", "bild", "reflective")
stderr = Console(stderr=True)


def main(
    concurrency: Annotated[
        str, typer.Option(help="Numbers of problems at the same time, with commas between them.", metavar="N,...")
    ] = "1,4,16,32",
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            "-p",
            help="A method with its options, or a policy file; default: specreason, bild, reflective. The large model "
            "alone is always measured.",
            metavar="NAME[:OPTION=VALUE,...]",
        ),
    ] = None,
    small: Annotated[
        str | None, typer.Option(help="Base URL of the small model's server; by default the miniature pair is started.")
    ] = None,
    large: Annotated[str | None, typer.Option(help="Base URL of the large model's server.")] = None,
    second_large: Annotated[
        str | None,
        typer.Option(help="Another server of the large model, for the large model alone on as many servers as a pair."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="JSONL or Parquet file with the columns problem and answer, for your servers.")
    ] = None,
    world: Annotated[
        str, typer.Option(help=f"Problems and models of the miniature pair: {', '.join(WORLDS)}.")
    ] = SHORT,
    judge: Annotated[
        str, typer.Option(help="Weights of the large miniature model, which is the judge: a name of the world's.")
    ] = JUDGE,
    profile: Annotated[str, typer.Option(help="Pace of the miniature models.")] = "slow",
    equal_hardware: Annotated[
        bool, typer.Option(help="Start a second large server, for the large model alone on two.")
    ] = True,
    problems: Annotated[int, typer.Option(min=2, help="Counted problems of each arm under each load.")] = 48,
    blocks: Annotated[int, typer.Option(min=1, help="Number of parts in which the arms take turns.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of problems and samples.")] = 0,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="0 is greedy, the default with the miniature pair.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Token budget of a run.")] = None,
    deadline: Annotated[float, typer.Option(min=0.1, help="Seconds after which a problem has failed.")] = 600.0,
    output: Annotated[Path, typer.Option(help="File for the figures; the samples are next to it.")] = Path(
        "build/load.json"
    ),
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard what an earlier run measured.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown too.")] = False,
) -> None:
    """
    Measure throughput and latency of methods under load, next to the large model alone on one and on two servers.

    The same command goes on where an interrupted run stopped.
    """
    loads = [Load(concurrency=number) for number in numbers("--concurrency", concurrency, int)]
    if not loads:
        raise ConfigurationError("no load: name one with --concurrency")
    if blocks > problems:
        raise ConfigurationError(f"--blocks {blocks}: every block needs a problem, and there are {problems}")
    with_judge(world, judge)
    own_servers = small is not None or large is not None
    if own_servers and data is None:
        raise ConfigurationError("name the problems for your servers: --data FILE")
    if not own_servers and (data is not None or second_large is not None):
        raise ConfigurationError("--data and --second-large are for your own servers: name --small and --large")
    finite("--deadline", deadline)
    writable("--output", output)
    arms = (LARGE, *map(parse_arm, policy or POLICIES))
    if len({each.name for each in (*arms, TWO_LARGE)}) <= len(arms):
        raise ConfigurationError("an arm is there twice")
    if second_large or (equal_hardware and not own_servers):
        arms = (LARGE, TWO_LARGE, *arms[1:])

    async def work() -> tuple[list[Cell], str]:
        async with AsyncExitStack() as stack:
            if own_servers:
                assert data is not None
                deployment = await stack.enter_async_context(_connected(small, large, second_large))
                benchmark = own(data)
                graders = await stack.enter_async_context(Graders(2, SECONDS))
                tasks: Sequence[Task] = load_tasks(benchmark, data, seed=seed)
                require_graders(task.gold for task in tasks)
                if miniature(deployment.pair.models.values()):
                    tasks = bare(tasks)
                workload = Workload(tasks, tasks[::-1], problems, blocks, seed)

                async def grade(solution: Solution, task: Task) -> bool:
                    return await task.gold.grade(solution.text, graders) == "right"
            else:
                deployment = await stack.enter_async_context(
                    miniature_deployment(profile, world, judge, two=TWO_LARGE in arms, console=stderr)
                )
                grade, made = grade_equal, fresh_tasks(len(loads) * problems, seed, world=world)
                workload = Workload(made, fresh_tasks(OTHERS, seed + 1, world=world), problems, blocks, seed)
            solver = deployment.pair
            for each in arms:
                check_arm(each, solver.settings)
            sampling, limits = solver.settings.sampling, solver.settings.budget
            if temperature is not None:
                sampling = sampling.model_copy(update={"temperature": temperature})
            if max_tokens is not None:
                limits = limits.model_copy(update={"tokens": max_tokens})
            budget = limits.budget()
            about = {
                "world": str(data) if data else world,
                "judge": solver.large.name,
                "small": solver.models["small"],
                "profile": None if own_servers else profile,
                "weights": None if own_servers else weights_digest(judge, "small", world=find_world(world)),
                "problems": problems,
                "blocks": blocks,
                "seed": seed,
                "sampling": sampling.model_dump(exclude={"seed"}),
                "tokens": budget.tokens,
                "deadline": deadline,
            }
            store = BlockStore(output.with_suffix(".blocks.jsonl"), about, arms, fresh=fresh)
            places = [(load.name, each.name, block) for load in loads for each in arms for block in range(blocks)]

            def attempts(chosen: Arm) -> Attempt:
                return partial(attempt, deployment.solver(chosen), chosen, grade, deadline, sampling, budget)

            with store, progress_bars(stderr) as progress:
                done = sum(place in store.done for place in places)
                bar = progress.add_task("blocks", total=len(places), completed=done)
                if done < len(places):
                    await deployment.pair.warm_up()
                    if deployment.two_large is not None:
                        await deployment.two_large.warm_up()
                advance = partial(progress.advance, bar)
                await measure(deployment, workload, loads, arms, store, attempts, advance)
            return summarise(loads, arms, blocks, store.done), solver.large.name

    try:
        cells, judged_by = asyncio.run(work())
    except KeyboardInterrupt:
        stderr.print("interrupted: the same command goes on from here", style="yellow")
        raise typer.Exit(130) from None
    note = SMALL_PRINT if own_servers else f"{PACED.format(pace=_pace(profile))} {SMALL_PRINT}"
    about = {
        "date": str(datetime.date.today()),
        "world": str(data) if data else world,
        "judge": judged_by,
        "profile": None if own_servers else profile,
        "seed": seed,
        "note": note,
    }
    output.write_bytes(orjson.dumps([{**asdict(cell), **about} for cell in cells], option=orjson.OPT_INDENT_2))
    console = Console(width=max(Console().width, 220))
    for load in loads:
        mine = [cell for cell in cells if cell.load == load.name]
        console.print(load.name, style="bold")
        console.print(table(mine))
        if as_markdown:
            print(f"\n{load.name}:\n\n{markdown(mine)}\n")
    console.print(f"{about['date']}   {platform.machine()}, {output}")
    console.print(note, style="dim")


def _pace(profile: str) -> str:
    paces = [(role, pace) for role in ("large", "small") if (pace := read_pace(profile, role)) is not None]
    return ", ".join(f"{role} {pace.seconds_per_pass * 1e3:g} ms a pass" for role, pace in paces) or "not paced"


@asynccontextmanager
async def miniature_deployment(
    profile: str, world: str, judge: str = JUDGE, *, two: bool, console: Console
) -> AsyncGenerator[Deployment]:
    """Start the miniature pair with the large weights of *judge*, with *two* large servers if asked for."""
    roles = ("large", "small", *(("large",) if two else ()))
    async with AsyncExitStack() as stack:
        judging = replace(with_judge(world, judge), sequences=SEQUENCES)
        starting = running(profile, roles, console=console, world=judging)
        served = await stack.enter_async_context(starting)
        groups = {name: server.pid for name, server in served.items()}
        ends = {name: unlimited_endpoint(endpoint(served[name], cast("Any", name))) for name in ("small", "large")}
        pair = await stack.enter_async_context(Solver(ends["small"], ends["large"], sampling=GREEDY))
        if not two:
            yield Deployment(pair, groups=groups)
            return
        both = ends["large"].model_copy(update={"replicas": (endpoint(served["large-2"], "large").url,)})
        yield Deployment(pair, await stack.enter_async_context(Solver(ends["small"], both, sampling=GREEDY)), groups)


@asynccontextmanager
async def _connected(small: str | None, large: str | None, second: str | None) -> AsyncGenerator[Deployment]:
    """Connect to the user's own servers."""
    settings = unlimited(Solver(small, large).settings)
    wide = settings.large
    assert wide is not None
    async with AsyncExitStack() as stack:
        pair = await stack.enter_async_context(Solver(settings))
        if second is None:
            yield Deployment(pair)
            return
        replicas = (*wide.replicas, Endpoint(role="large", url=second).url)
        both = settings.model_copy(update={"large": wide.model_copy(update={"replicas": replicas})})
        yield Deployment(pair, await stack.enter_async_context(Solver(both)))


if __name__ == "__main__":
    script(main, EXAMPLES)
