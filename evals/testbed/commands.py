"""The commands ``stepspec up --testbed`` and ``stepspec demo``, on the miniature pair."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.events import Observer
from stepspec.orchestrator.launcher import TokenSpeculation
from stepspec.orchestrator.launcher.up import until_signalled

from ..arms import LARGE, PLAIN, SHIPPED, SMALL, measure
from ..results import Result, summarise
from ..sample import Arm, Sample, Task
from .servers import NO_SPECULATION, PAIR, SCORERS, SHORT, World, describe_pace, running
from .solving_pair import fresh_tasks, pair_solver

ROLES: tuple[Role, ...] = ("large", "small")
COLUMNS = ("", "n", "accuracy", "seconds", "vs {}", "vs floor", "by large", "accepted", "waste", "judging")


def table(results: Sequence[Result], *, intervals: bool = True) -> Table:
    """A table with one row per arm; `small_print` explains the columns."""
    rendered = Table(box=None, padding=(0, 1, 0, 0))
    speculating = _speculating(results)
    for column in _columns(results, speculating):
        rendered.add_column(column, justify="right" if column else "left", no_wrap=True)
    for result in results:
        rendered.add_row(*_row(result, speculating, intervals=intervals))
    return rendered


def markdown(results: Sequence[Result]) -> str:
    """The same table for a document."""
    speculating = _speculating(results)
    columns = _columns(results, speculating)
    rule = tuple("---" if not column else "--:" for column in columns)
    rows = (columns, rule, *(_row(result, speculating) for result in results))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _speculating(results: Sequence[Result]) -> tuple[Role, ...]:
    """The roles whose servers drafted tokens for some arm: a column for each."""
    return tuple(role for role in ROLES if any(role in result.speculation for result in results))


def _columns(results: Sequence[Result], speculating: Sequence[Role]) -> tuple[str, ...]:
    baseline = PLAIN.name if any(result.name == PLAIN.name for result in results) else "large"
    return (*(column.format(baseline) for column in COLUMNS), *(f"tokens of {role}" for role in speculating))


def _row(r: Result, speculating: Sequence[Role], *, intervals: bool = True) -> tuple[str, ...]:
    (low, high), (least, most) = r.accuracy_interval, r.ratio_interval
    return (
        r.name,
        str(r.n),
        f"{r.accuracy:.1%}" + (f" [{low:.1%}, {high:.1%}]" if intervals else ""),
        f"{r.seconds:.2f}",
        f"{r.ratio:.2f}" + (f" [{least:.2f}, {most:.2f}]" if intervals else ""),
        "" if r.ratio_to_floor is None else f"{r.ratio_to_floor:.2f}",
        f"{r.share_large_tokens:.0%}",
        "" if r.accept_rate is None else f"{r.accept_rate:.0%}",
        f"{r.waste:.0%}",
        f"{r.judge_tokens:.0f}" if r.judge_tokens else "",
        *(str(r.speculation[role]) if role in r.speculation else "" for role in speculating),
    )


def small_print(profile: str, *more: str, world: World = SHORT, baseline: str = LARGE.name) -> str:
    """The explanation of the table: models of *world*, *profile* and columns; *more* names further models."""
    whose = {
        PLAIN.name: "Plain: the large model as one ordinary request. Vs plain: wall time divided by that of plain.",
        LARGE.name: "Vs large: wall time divided by that of the large model alone.",
    }
    sizes, pace = world.sizes, describe_pace(profile, "large", "small", *more)
    return (
        f"The miniature pair: two models of {sizes} parameters, trained on arithmetic, served by real vLLM on this "
        f"CPU; {pace}. Seconds are the mean of one problem. "
        f"{whose[baseline]} Vs floor: divided by the time to write every "
        "kept token on the model that wrote it. Brackets are 95% intervals. By large: the large model's share of the "
        "kept tokens. Accepted: share of the judged drafts. Waste: share of the written tokens that were not kept. "
        "Judging: tokens read or written to judge one problem, without those in a prefix cache."
    )


async def up(
    profile: str = "paced",
    roles: Sequence[str] = PAIR,
    *,
    json_output: bool = False,
    world: World = SHORT,
    log_dir: Path | None = None,
    speculation: Mapping[str, TokenSpeculation] = NO_SPECULATION,
) -> None:
    """
    Start the servers of *roles*, print their URLs when all are ready, and return when a signal has stopped them.

    *speculation* is by role. Progress goes to standard error. With *json_output*, standard output is one line: a JSON
    object by role. Raise ServerError if a server does not start, or ends by itself.
    """
    console = Console(stderr=True)

    async def serve() -> None:
        starting = running(profile, roles, console=console, world=world, log_dir=log_dir, speculation=speculation)
        async with starting as served:
            none, width = TokenSpeculation(), max(map(len, served))
            found = {
                name: server.running(name in SCORERS, speculation.get(name, none).method)
                for name, server in served.items()
            }
            text = "\n".join(f"{name:<{width}}  {server.base_url}" for name, server in found.items())
            print(json.dumps({name: asdict(each) for name, each in found.items()}) if json_output else text, flush=True)
            for name in SCORERS & served.keys():
                console.print(f"{name} can score suffixes: suffix_scoring = true in its settings.", style="dim")
            console.print("Ctrl-C stops them.", style="dim")
            await asyncio.Event().wait()

    await until_signalled(serve())


ARMS = (PLAIN, SMALL, Arm.of(SHIPPED.name, "specreason", auto=True))


async def demo(
    problems: int, seed: int, profile: str, console: Console, printer: Callable[[Console], Observer]
) -> list[Result]:
    """
    Start the pair, solve *problems* with every arm, and return the results.

    SpecReason runs with `auto`, as by default. The observer that *printer* makes shows each of its runs on *console*.
    """
    async with pair_solver(profile, console, ARMS, seed + 1, problems=1) as solver:
        samples = await measure(
            solver,
            ARMS,
            fresh_tasks(problems, seed),
            on_sample=_print_outcome(console),
            observers={SHIPPED.name: lambda task: _print_run(task, printer, console)},
        )
    return summarise(samples, ARMS)


def _print_run(task: Task, printer: Callable[[Console], Observer], console: Console) -> Observer:
    console.print()
    console.print(Text(task.problem, "bold"), soft_wrap=True)
    return printer(console)


def _print_outcome(console: Console) -> Callable[[int, Sample], None]:
    def on_sample(_: int, sample: Sample) -> None:
        mark = ("right", "green") if sample.correct else ("wrong", "red")
        console.print(Text.assemble((f"{sample.seconds:6.2f} s  {sample.arm}: ", "dim"), mark))

    return on_sample
