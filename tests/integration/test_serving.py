"""Real servers: they start, answer, keep their pace and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

import aiohttp
import pytest
from rich.console import Console

from stepspec import NestedPair, Solver
from stepspec.evals.testbed.servers import running
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import ServerDied
from stepspec.orchestrator.events import Called, Event
from stepspec.orchestrator.launcher import Served
from stepspec.orchestrator.launcher.process import child

from ..orchestrator.launcher.running import children, gone, members
from .conftest import Pair

pytestmark = pytest.mark.servers
TOKENS = 24
THREE = Path(__file__).parents[2] / "recipes" / "miniature-three.toml"
UP = """import asyncio
from stepspec.evals.testbed.commands import up
asyncio.run(up('off', ['small'], json_output=True))"""


async def complete(served: Served, prompt: str = "Once upon a time") -> dict[str, Any]:
    body = {"model": served.served_name, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    async with (
        aiohttp.ClientSession(raise_for_status=True) as http,
        http.post(f"{served.base_url}/completions", json=body) as reply,
    ):
        answer: dict[str, Any] = await reply.json()
        return answer


async def seconds(served: Served) -> float:
    """Time a completion of *TOKENS* tokens, the best of three."""
    times: list[float] = []
    for _ in range(3):
        start = time.perf_counter()
        await complete(served)
        times.append(time.perf_counter() - start)
    return min(times)


async def test_both_servers_answer_under_their_names(pair: Pair) -> None:
    for served in (pair.large, pair.small):
        answer = await complete(served)
        assert answer["model"] == served.served_name
        assert answer["usage"]["completion_tokens"] == TOKENS


async def test_prompts_are_cached_in_small_blocks(pair: Pair) -> None:
    prompt = "A prompt that nobody else sends. " * 8
    first, second = [(await complete(pair.small, prompt))["usage"] for _ in range(2)]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens"] - second["prompt_tokens_details"]["cached_tokens"] <= 32


async def test_a_paced_pass_takes_its_time(paced_pair: Pair) -> None:
    assert await seconds(paced_pair.large) >= TOKENS * 0.030
    assert await seconds(paced_pair.small) >= TOKENS * 0.006


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[IO[bytes]]:
    """The settings file of the working directory, which is empty."""
    monkeypatch.chdir(tmp_path)
    with Path("stepspec.toml").open("wb") as file:
        yield file


async def test_up_starts_three_models_and_prints_their_settings(settings: IO[bytes]) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stepspec", "up", str(THREE)), stdout=settings, stderr=asyncio.subprocess.PIPE
    )
    try:
        output = await up_to(program, b"Ctrl-C stops them.")
        assert all(f"{path} is ready after".encode() in output for path in ("large", "small.large", "small.small"))
        leaders = [leader for guard in children(program.pid) for leader in children(guard)]
        assert len(leaders) == 3
        assert all(len(members(leader)) >= 2 for leader in leaders)
        await solve_with_three()
    finally:
        program.send_signal(signal.SIGTERM)
        await program.communicate()
    assert program.returncode == 0
    assert all([await gone(leader) for leader in leaders])


async def test_a_printed_command_serves_the_model_in_a_shell(tmp_path: Path) -> None:
    printing = ("up", "--testbed", "--profile", "off", "--dry-run")
    dry = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stepspec", *printing), stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await dry.communicate()
    *lines, then = printed.decode().splitlines()
    assert len(lines) == 2
    assert then.startswith("# then: ")
    words = shlex.split(lines[1])
    port, name = (words[words.index(flag) + 1] for flag in ("--port", "--served-model-name"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ("/bin/sh", "-c", lines[1])
    async with child(command, env=environment, log=tmp_path / "log", grace=5.0) as shell:
        served = Served("small", f"http://127.0.0.1:{port}/v1", name, shell.pid, tmp_path / "log")
        async with asyncio.timeout(120):
            while not await _healthy(served):
                assert not shell.ended.done(), (tmp_path / "log").read_text()
                await asyncio.sleep(0.5)
        answer = await complete(served)
    assert answer["usage"]["completion_tokens"] == TOKENS


async def _healthy(served: Served) -> bool:
    try:
        async with aiohttp.ClientSession() as http, http.get(f"{served.base_url}/models") as reply:
            return reply.status == 200
    except aiohttp.ClientError:
        return False


async def up_to(program: asyncio.subprocess.Process, last: bytes) -> bytes:
    """Return what *program* says on standard error up to *last*."""
    assert program.stderr is not None
    try:
        return await program.stderr.readuntil(last)
    except asyncio.IncompleteReadError as exc:
        pytest.fail(f"it ended: {exc.partial.decode()}")


async def solve_with_three() -> None:
    """Solve two problems by the settings in the working directory, which are a nested pair's."""
    events: list[Event] = []
    tasks = fresh_tasks(2, seed=66)
    async with Solver(sampling=GREEDY, auto=False) as solver:
        assert isinstance(solver.settings.small, NestedPair)
        assert solver.settings.small.policy == "bild"
        solutions = [await solver.solve(task.problem, observe=events.append) for task in tasks]
    assert any(one.answer == str(task.gold) for one, task in zip(solutions, tasks, strict=True))
    for solution in solutions:
        accounts = {account.path: account for account in solution.ledger.nested}
        assert set(accounts) == {"small.small", "small.large"}
        assert accounts["small.large"].judging > 0
        assert solution.degraded == ()
    assert all(call.fate != "failed" for call in events if isinstance(call, Called))


async def test_a_killed_parent_takes_the_engine_along() -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", UP), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert program.stdout is not None
    report = json.loads(await program.stdout.readline())["small"]
    assert len(members(report["pid"])) >= 2
    program.kill()
    await program.wait()
    assert await gone(report["pid"])


async def test_a_dead_engine_ends_the_block(tmp_path: Path) -> None:
    async def run() -> None:
        async with running("off", ["small"], console=Console(quiet=True), log_dir=tmp_path) as served:
            leader = served["small"].pid
            os.kill(max(set(members(leader)) - {leader}), signal.SIGKILL)
            await asyncio.Event().wait()

    with pytest.raises(ServerDied, match="the small server ended while it was in use"):
        await run()
