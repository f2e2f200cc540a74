"""
Kill servers of the miniature pair with ``kill -9`` in the middle of solutions.

Two real vLLM servers serve each model. For every solution, the server that works for it on one
model is killed at a random moment. The solution has to be that of an undisturbed run, word for
word, at temperature 0. A killed server is started again at its port, and the next solution begins
when the server is used again.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from stepspec.api import Solver
from stepspec.cli.program import script
from stepspec.evals.progress import progress_bars
from stepspec.evals.testbed import Profile
from stepspec.evals.testbed.servers import endpoint, miniature_servers
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.endpoints import GREEDY, Endpoint
from stepspec.orchestrator.errors import ServerDied
from stepspec.orchestrator.solution import Solution
from stepspec.servers.launcher import Served, ServerCommand, launch

from .faults import free_ports
from .tables import Sheet, exit_with

EXAMPLES = """
Examples:

  python -m lab.kills                 # 50 solutions; a quarter of an hour

  python -m lab.kills --solutions 6
"""
ROLES: tuple[Role, Role] = ("small", "large")
PATIENCE = 180.0  # seconds for a killed server to be used again


@dataclass(eq=False)
class Immortal:
    """A server that is started again at its port whenever it ends."""

    server: ServerCommand
    """The server."""
    folder: Path
    """The folder of its logs."""
    up: asyncio.Event = field(default_factory=asyncio.Event)
    """Is set while the server answers."""
    served: Served | None = None
    """Where the server is reached; None until it answers for the first time."""

    async def run(self) -> None:
        """Keep it running, until cancelled."""
        while True:
            try:
                async with launch([self.server], log_dir=self.folder) as served:
                    self.served = served[self.server.name]
                    self.up.set()
                    await asyncio.Event().wait()
            except ServerDied:
                if not self.up.is_set():
                    raise
                self.up.clear()

    def kill(self) -> None:
        """Kill its whole process group with SIGKILL."""
        assert self.served is not None
        os.killpg(self.served.pid, signal.SIGKILL)

    @property
    def url(self) -> str:
        """The URL of the server, without ``/v1``."""
        assert self.served is not None
        return self.served.base_url.removesuffix("/v1")


@dataclass(frozen=True, slots=True)
class Killed:
    """A solution during which a server was killed."""

    role: Role
    """The model whose server was killed."""
    url: str
    """The server that was killed."""
    share: float
    """When it was killed, as a share of the time of the undisturbed run."""
    equal: bool
    """Whether the solution is that of the undisturbed run."""
    in_use: bool
    """Whether the solution was not complete yet."""
    why: str = ""
    """What differs."""


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """A problem and its solution without a kill."""

    problem: str
    """The problem."""
    solution: Solution
    """The solution."""
    seconds: float
    """Seconds that the solution took."""


@asynccontextmanager
async def immortals(profile: Profile) -> AsyncGenerator[dict[Role, list[Immortal]]]:
    """Start two servers of each model."""
    pair = miniature_servers(profile)
    described = (*pair, *(replace(server, name=f"{server.name}-2") for server in pair))
    with TemporaryDirectory(prefix="stepspec-kills-") as name:
        ports = free_ports(len(described))
        servers = [
            Immortal(replace(server, port=port), Path(name))
            for server, port in zip(described, ports, strict=True)
        ]
        async with background(*(server.run() for server in servers)):
            await asyncio.gather(*(server.up.wait() for server in servers))
            yield {
                role: [each for each in servers if each.server.name.removesuffix("-2") == role]
                for role in ROLES
            }


def settings(role: Role, servers: Sequence[Immortal]) -> Endpoint:
    """Return the settings of one model with all of its *servers*."""
    first = servers[0]
    assert first.served is not None
    made = endpoint(first.served, role)
    urls = ",".join(server.url for server in servers)
    deadlines = made.deadlines.model_copy(update={"rest": 2.0})
    return made.model_copy(update={"url": urls, "deadlines": deadlines})


async def measure(
    solutions: int,
    profile: Profile,
    policy: str,
    seed: int,
    tick: Callable[[], object],
) -> list[Killed]:
    """Kill a server during each of so many *solutions*, one after the other."""
    rng = random.Random(seed)
    found: list[Killed] = []
    tasks = fresh_tasks(min(solutions, 10), seed)
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(immortals(profile))
        small, large = (settings(role, servers[role]) for role in ROLES)
        solver = await stack.enter_async_context(
            Solver(small, large, sampling=GREEDY, policy=policy),
        )
        await solver.warm_up()
        undisturbed = [await _undisturbed(solver, task.problem) for task in tasks]
        for number in range(solutions):
            plain = undisturbed[number % len(tasks)]
            role: Role = rng.choice(ROLES)
            share = rng.uniform(0.05, 0.9)
            found.append(
                await _kill_during(
                    solver,
                    plain,
                    role,
                    servers[role],
                    share,
                )
            )
            tick()
            async with asyncio.timeout(PATIENCE):
                await _all_used(solver, [*servers["small"], *servers["large"]])
    return found


async def _undisturbed(solver: Solver, problem: str) -> Undisturbed:
    clock = asyncio.get_running_loop().time
    began = clock()
    return Undisturbed(problem, await solver.solve(problem), clock() - began)


async def _all_used(solver: Solver, servers: Sequence[Immortal]) -> None:
    """Wait until all *servers* answer and are used. Processes set no event."""
    while solver.down or not all(server.up.is_set() for server in servers):  # noqa: ASYNC110
        await asyncio.sleep(0.2)


async def _kill_during(
    solver: Solver,
    plain: Undisturbed,
    role: Role,
    servers: Sequence[Immortal],
    share: float,
) -> Killed:
    """Solve the problem of *plain*, and kill the server of *role* that the run is at."""
    model = solver.small if role == "small" else solver.large
    solving = asyncio.create_task(solver.solve(plain.problem))
    await asyncio.wait([solving], timeout=share * plain.seconds)
    runs = model.runs
    victim = max(servers, key=lambda server: runs.get(server.url, 0))
    in_use = not solving.done()
    victim.kill()
    url = f"{victim.url}/v1"
    solution = await solving
    usual = plain.solution
    equal = (solution.thinking, solution.answer) == (usual.thinking, usual.answer)
    why = ""
    if not equal:
        why = f"{solution.finish_reason}, degraded: {', '.join(solution.degraded) or 'no'}"
    return Killed(role, url, share, equal, in_use, why)


def table(found: Sequence[Killed]) -> Table:
    """Return how many solutions were the same, by the model whose server was killed."""
    rows: list[tuple[str, ...]] = []
    for role in (*ROLES, None):
        kills = [kill for kill in found if role in (kill.role, None)]
        middle = sum(kill.in_use for kill in kills)
        equal = sum(kill.equal for kill in kills)
        rows.append((role or "all", str(len(kills)), str(middle), str(equal)))
    columns = ("killed (kill -9)", "solutions", "in the middle of one", "the same, word for word")
    return Sheet(columns, rows).table()


def main(
    solutions: Annotated[
        int,
        typer.Option(min=1, help="Number of solutions, each with a kill."),
    ] = 50,
    profile: Annotated[Profile, typer.Option(help="Pacing profile of the servers.")] = "paced",
    policy: Annotated[
        str,
        typer.Option("--policy", "-p", help="The method."),
    ] = "specreason",
    seed: Annotated[
        int,
        typer.Option(help="Seed of the problems, the victims and the moments."),
    ] = 0,
) -> None:
    """Kill a server during every solution. Exit with 1 if one is not that of an undisturbed run."""
    console = Console()
    with progress_bars(Console(stderr=True)) as progress:
        bar = progress.add_task("solutions with a kill", total=solutions)
        found = asyncio.run(
            measure(
                solutions,
                profile,
                policy,
                seed,
                lambda: progress.advance(bar),
            ),
        )
    console.print(table(found))
    different = [
        f"{kill.role} at {kill.url}, after {kill.share:.0%}: {kill.why}"
        for kill in found
        if not kill.equal
    ]
    exit_with(different, console)


if __name__ == "__main__":
    script(main, EXAMPLES)
