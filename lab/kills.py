"""
Kill servers of the miniature pair with ``kill -9`` in the middle of solutions, with one replica to
spare.

Two real vLLM servers serve each model. For every solution, the server that works for it on one
model is killed at a random moment. The solution has to be that of an undisturbed run, word for
word, at temperature 0. A killed server is started again at its port, and the next solution begins
when it is used again.
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
from stepspec.evals.testbed.servers import PAIR, endpoint, miniature_servers
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.endpoints import GREEDY, Endpoint, ReplicatedEndpoint
from stepspec.orchestrator.errors import ServerDied
from stepspec.orchestrator.solution import Solution
from stepspec.servers.launcher import Served, ServerCommand, launch

from .faults import free_ports
from .tables import Sheet

EXAMPLES = """
Examples:

  python -m lab.kills                 # 50 solutions; a quarter of an hour

  python -m lab.kills --solutions 6
"""
ROLES: tuple[Role, Role] = ("small", "large")
PATIENCE = 180.0  # seconds for a killed server to be used again


@dataclass(eq=False)
class Immortal:
    """A server that is started again at its port whenever it ends; *up* is set while it answers."""

    server: ServerCommand
    folder: Path
    up: asyncio.Event = field(default_factory=asyncio.Event)
    served: Served | None = None

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


@dataclass(frozen=True, slots=True)
class Killed:
    """
    A solution during which the server of *role* at *url* was killed after *share* of the
    undisturbed time.
    """

    role: Role
    url: str
    share: float
    equal: bool
    in_use: bool
    why: str = ""


@asynccontextmanager
async def immortals(profile: str) -> AsyncGenerator[dict[Role, list[Immortal]]]:
    """Start two servers of each model."""
    described = miniature_servers(profile, (*PAIR, *PAIR))
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
    first, *others = [server.served for server in servers if server.served is not None]
    made = endpoint(first, role)
    return made.model_copy(
        update={
            "replicas": tuple(other.base_url.removesuffix("/v1") for other in others),
            "deadlines": made.deadlines.model_copy(update={"rest": 2.0}),
        }
    )


async def measure(
    solutions: int, profile: str, policy: str, seed: int, tick: Callable[[], object]
) -> list[Killed]:
    """Kill a server during each of so many *solutions*, one after the other."""
    rng, found = random.Random(seed), list[Killed]()
    tasks = fresh_tasks(min(solutions, 10), seed)
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(immortals(profile))
        small, large = (settings(role, servers[role]) for role in ("small", "large"))
        solver = await stack.enter_async_context(
            Solver(small, large, sampling=GREEDY, policy=policy)
        )
        await solver.warm_up()
        loop = asyncio.get_running_loop()
        undisturbed = list[tuple[Solution, float]]()
        for task in tasks:
            began = loop.time()
            undisturbed.append((await solver.solve(task.problem), loop.time() - began))
        for number in range(solutions):
            task = tasks[number % len(tasks)]
            (plain, seconds) = undisturbed[number % len(tasks)]
            role: Role = rng.choice(ROLES)
            found.append(
                await _one(
                    solver,
                    task.problem,
                    plain,
                    seconds,
                    role,
                    servers[role],
                    rng.uniform(0.05, 0.9),
                )
            )
            tick()
            async with asyncio.timeout(PATIENCE):
                everything = [each for both in servers.values() for each in both]
                while solver.down or not all(each.up.is_set() for each in everything):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)  # processes, which set no event
    return found


async def _one(
    solver: Solver,
    problem: str,
    plain: Solution,
    seconds: float,
    role: Role,
    servers: Sequence[Immortal],
    share: float,
) -> Killed:
    """Solve *problem*, and kill the server of *role* that the run is at."""
    model = solver.small if role == "small" else solver.large
    assert isinstance(model, ReplicatedEndpoint)
    solving = asyncio.create_task(solver.solve(problem))
    await asyncio.wait([solving], timeout=share * seconds)
    runs = model.runs
    victim = max(
        servers,
        key=lambda each: runs.get(str(each.served and each.served.base_url.removesuffix("/v1")), 0),
    )
    in_use = not solving.done()
    victim.kill()
    solution = await solving
    equal = (solution.thinking, solution.answer) == (plain.thinking, plain.answer)
    why = (
        ""
        if equal
        else f"{solution.finish_reason}, degraded: {', '.join(solution.degraded) or 'no'}"
    )
    url = victim.served.base_url if victim.served else ""
    return Killed(role, url, share, equal, in_use, why)


def table(found: Sequence[Killed]) -> Table:
    """Return how many solutions were the same, by the model whose server was killed."""
    rows: list[tuple[str, ...]] = []
    for role in (*ROLES, None):
        of = [each for each in found if role in (each.role, None)]
        middle = sum(each.in_use for each in of)
        equal = sum(each.equal for each in of)
        rows.append((role or "all", str(len(of)), str(middle), str(equal)))
    return Sheet(
        ("killed (kill -9)", "solutions", "in the middle of one", "the same, word for word"), rows
    ).table()


def main(
    solutions: Annotated[
        int, typer.Option(min=1, help="Number of solutions, each with a kill.")
    ] = 50,
    profile: Annotated[str, typer.Option(help="Pacing profile of the servers.")] = "paced",
    policy: Annotated[str, typer.Option("--policy", "-p", help="The method.")] = "specreason",
    seed: Annotated[
        int, typer.Option(help="Seed of the problems, the victims and the moments.")
    ] = 0,
) -> None:
    """Kill a server during every solution; exit with 1 if one is not that of an undisturbed run."""
    console = Console()
    with progress_bars(Console(stderr=True)) as progress:
        bar = progress.add_task("solutions with a kill", total=solutions)
        found = asyncio.run(
            measure(solutions, profile, policy, seed, lambda: progress.advance(bar))
        )
    console.print(table(found))
    for each in (different := [each for each in found if not each.equal]):
        console.print(
            f"{each.role} at {each.url}, after {each.share:.0%}: {each.why}", style="bold red"
        )
    if different:
        raise typer.Exit(1)


if __name__ == "__main__":
    script(main, EXAMPLES)
