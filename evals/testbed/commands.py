"""The commands ``stepspec up --testbed`` and ``stepspec demo``, on the miniature pair."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stepspec.orchestrator.events import Observer
from stepspec.servers.launcher import TokenSpeculation
from stepspec.servers.launcher.up import until_signalled

from ..arms import PLAIN, SHIPPED, SMALL
from ..grading.graders import Graders
from ..plan import turns
from ..results import Result, compare_arms
from ..sample import Arm, Sample, derive_seed, sample_once
from ..store import Place
from .servers import NO_SPECULATION, PAIR, SCORERS, running
from .solving_pair import fresh_tasks, pair_solver

SMALL_PRINT = (
    "The miniature pair: two models of 0.1 and 1.3 million parameters, trained on arithmetic,"
    " served by real vLLM on this CPU; the profile {profile!r} sets the cost of a forward pass."
    " Plain: the large model as one ordinary request. docs/evals.md explains each column."
)
"""Explains the tables of `demo`."""


async def up(
    profile: str = "paced",
    roles: Sequence[str] = PAIR,
    *,
    json_output: bool = False,
    log_dir: Path | None = None,
    speculation: Mapping[str, TokenSpeculation] = NO_SPECULATION,
) -> None:
    """
    Start the servers of *roles*, print their URLs, and return when a signal has stopped them.

    *speculation* is by role. Progress goes to standard error. With *json_output* a JSON object of
    the servers is printed. Raise `ServerError` if a server does not start, or ends by itself.
    """
    console = Console(stderr=True)

    async def serve() -> None:
        starting = running(
            profile,
            roles,
            console=console,
            log_dir=log_dir,
            speculation=speculation,
        )
        async with starting as served:
            if json_output:
                text = json.dumps({name: server.record for name, server in served.items()})
            else:
                width = max(map(len, served))
                lines = [f"{name:<{width}}  {server.base_url}" for name, server in served.items()]
                text = "\n".join(lines)
            print(text, flush=True)
            for name in SCORERS & served.keys():
                console.print(f"{name} can score suffixes: suffix_scoring = true", style="dim")
            console.print("Ctrl-C stops them.", style="dim")
            await asyncio.Event().wait()

    await until_signalled(serve())


ARMS = (PLAIN, SMALL, Arm.of(SHIPPED.name, "specreason", auto=True))


async def demo(
    problems: int,
    seed: int,
    profile: str,
    console: Console,
    printer: Callable[[Console], Observer],
) -> list[Result]:
    """
    Start the pair, solve *problems* with every arm, and return the results.

    SpecReason runs with `auto`, as by default. The observer that *printer* makes shows each of its
    runs on *console*.
    """
    async with Graders() as graders, pair_solver(profile, console) as solver:
        for arm in ARMS:  # Warm up.
            await sample_once(solver, arm, fresh_tasks(1, seed + 1)[0], 0, graders)
        samples: dict[Place, Sample] = {}
        for number, task in enumerate(fresh_tasks(problems, seed)):
            console.print()
            console.print(Text(task.problem, "bold"), soft_wrap=True)
            for arm in turns(ARMS, number):
                is_shown = arm.name == SHIPPED.name
                observe: Observer = printer(console) if is_shown else lambda event: None
                sample = await sample_once(
                    solver,
                    arm,
                    task,
                    derive_seed(0, number, 0),
                    graders,
                    observe,
                )
                mark = ("right", "green") if sample.correct else ("wrong", "red")
                seconds = (f"{sample.seconds:6.2f} s  {arm.name}: ", "dim")
                console.print(Text.assemble(seconds, mark))
                samples[number, arm.name] = sample
    results = compare_arms(samples, [arm.name for arm in ARMS])
    return [result for result in results if result.kind != "bound"]
