"""
Real servers that stepspec starts itself: they solve, and whoever dies, nothing is left behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import IO

import pytest

from stepspec import Solver
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.events import Called, Event

from ..servers.launcher.running import children, gone, members
from .deployed import title

pytestmark = pytest.mark.servers
PAIR = Path(__file__).parents[2] / "recipes" / "miniature.toml"
UP_FORKED = """import sys
from dataclasses import replace
from stepspec.cli import main
from stepspec.servers.launcher import ServerCommand
command, program = ServerCommand.command, tuple(sys.argv[2:])
ServerCommand.command = lambda server, port: command(replace(server, program=program), port)
sys.argv = ["stepspec", "up", sys.argv[1]]
main()"""
UP = """import asyncio
from rich.console import Console
from stepspec.evals.testbed.servers import running, solver_settings
from stepspec.servers.launcher.up import up
console = Console(stderr=True)
starting = running("off", console=console)
asyncio.run(up(starting, solver_settings, console, json_output=True))"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[IO[bytes]]:
    """The settings file of the working directory, which is empty."""
    monkeypatch.chdir(tmp_path)
    with Path("stepspec.toml").open("wb") as file:
        yield file


async def test_up_starts_models_that_solve_by_its_settings_and_ends_when_an_engine_dies(
    settings: IO[bytes], forked: tuple[str, ...]
) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", UP_FORKED, str(PAIR), *forked),
        stdout=settings,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output = await up_to(program, b"Ctrl-C stops the servers.")
        assert all(f"{role} is ready".encode() in output for role in ("large", "small"))
        leaders = [leader for guard in children(program.pid) for leader in children(guard)]
        assert len(leaders) == 2
        assert all(forked[-1] in title(leader) for leader in leaders)
        await solve_with_the_pair()
        os.kill(leaders[0], signal.SIGUSR1)  # which kills a forked server's engine
        _, errors = await program.communicate()
    finally:
        if program.returncode is None:
            program.terminate()
            await program.communicate()
    assert program.returncode == 1
    assert b"server ended while it was in use" in errors
    assert all([await gone(leader) for leader in leaders])


async def up_to(program: asyncio.subprocess.Process, last: bytes) -> bytes:
    """Return what *program* says on standard error up to *last*."""
    assert program.stderr is not None
    try:
        return await program.stderr.readuntil(last)
    except asyncio.IncompleteReadError as exc:
        pytest.fail(f"it ended: {exc.partial.decode()}")


async def solve_with_the_pair() -> None:
    """Solve two problems by the settings in the working directory."""
    events: list[Event] = []
    tasks = fresh_tasks(2, seed=66)
    async with Solver(sampling=GREEDY, auto=False) as solver:
        solutions = [await solver.solve(task.problem, observe=events.append) for task in tasks]
    assert any(one.answer == str(task.gold) for one, task in zip(solutions, tasks, strict=True))
    for solution in solutions:
        assert solution.ledger.large.judging > 0
        assert solution.degraded == ()
    assert all(call.fate != "failed" for call in events if isinstance(call, Called))


async def test_a_killed_parent_takes_vllms_own_processes_along() -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", UP),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert program.stdout is not None
    report = json.loads(await program.stdout.readline())["small"]
    assert len(members(report["pid"])) >= 2
    program.kill()
    await program.wait()
    assert await gone(report["pid"])
