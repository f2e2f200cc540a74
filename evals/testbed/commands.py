"""The commands ``stepspec up --testbed`` and ``stepspec demo``, on the miniature pair."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stepspec.orchestrator.events import Observer
from stepspec.orchestrator.launcher import Served, TokenSpeculation
from stepspec.orchestrator.launcher.launch import RunningServer
from stepspec.orchestrator.launcher.up import Deaths, as_json, as_text, until_signalled

from ..arms import LARGE, SHIPPED, SMALL, measure
from ..results import Result, summarise
from ..sample import Sample, Task
from .servers import NO_SPECULATION, PAIR, SCORERS, SHORT, World, running
from .solving_pair import fresh_tasks, pair_solver


async def up(
    profile: str = "paced",
    roles: Sequence[str] = PAIR,
    *,
    json_output: bool = False,
    world: World = SHORT,
    log_dir: Path | None = None,
    speculation: Mapping[str, TokenSpeculation] = NO_SPECULATION,
    keep_going: bool = False,
) -> None:
    """
    Start the servers of *roles*, print their URLs when all are ready, and return when a signal has stopped them.

    *speculation* is by role. Progress goes to standard error. With
    *json_output*, standard output is one line: a JSON object by role. Raise ServerError if a server does not start, or
    ends by itself, as `Deaths` says.
    """
    console = Console(stderr=True)

    async def serve() -> None:
        deaths = Deaths(console, len(roles), keep_going=keep_going)
        starting = running(
            profile,
            roles,
            console=console,
            world=world,
            log_dir=log_dir,
            speculation=speculation,
            on_death=deaths,
        )
        async with starting as served:
            deaths.all_ready = True
            pairs = {name: _describe(server, speculation.get(name)) for name, server in served.items()}
            print(as_json(pairs) if json_output else as_text(pairs), flush=True)
            for name in SCORERS & served.keys():
                console.print(f"{name} can score suffixes: suffix_scoring = true in its settings.", style="dim")
            console.print("Ctrl-C stops them.", style="dim")
            await asyncio.Event().wait()

    await until_signalled(serve())


def _describe(served: Served, speculation: TokenSpeculation | None) -> RunningServer:
    return RunningServer(
        base_url=served.base_url,
        model=served.served_name,
        suffix_scoring=served.name in SCORERS,
        speculation=(speculation or TokenSpeculation()).method,
        pid=served.pid,
        log=str(served.log),
    )


ARMS = (LARGE, SMALL, SHIPPED)


async def demo(
    problems: int, seed: int, profile: str, console: Console, printer: Callable[[Console], Observer]
) -> list[Result]:
    """
    Start the pair, solve *problems* with every arm, and return the results.

    The observer that *printer* makes shows each run of SpecReason on *console*.
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
