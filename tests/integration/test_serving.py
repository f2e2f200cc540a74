"""Real servers: they start, answer, keep their pace and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from rich.console import Console

from stepspec.evals.testbed.servers import running
from stepspec.orchestrator.errors import ServerDied
from stepspec.orchestrator.serving import Served

from ..orchestrator.serving.running import gone, members
from .conftest import Pair

pytestmark = pytest.mark.servers
TOKENS = 24
UP = "import asyncio; from stepspec.evals.testbed.up import up; asyncio.run(up('off', ['small'], json_output=True))"


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


async def test_up_prints_where_it_is_and_leaves_nothing_behind(tmp_path: Path) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", UP), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert program.stdout is not None
    told = json.loads(await program.stdout.readline())["small"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", told["base_url"])
    assert len(members(told["pid"])) >= 2
    program.send_signal(signal.SIGTERM)
    out, err = await program.communicate()
    assert (program.returncode, out) == (0, b"")
    assert b"small is ready after" in err
    assert await gone(told["pid"])


async def test_a_killed_parent_takes_the_engine_along() -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", UP), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert program.stdout is not None
    told = json.loads(await program.stdout.readline())["small"]
    assert len(members(told["pid"])) >= 2
    program.kill()
    await program.wait()
    assert await gone(told["pid"])


async def test_a_dead_engine_ends_the_block(tmp_path: Path) -> None:
    async def run() -> None:
        async with running("off", ["small"], console=Console(quiet=True), log_dir=tmp_path) as served:
            leader = served["small"].pid
            os.kill(max(set(members(leader)) - {leader}), signal.SIGKILL)
            await asyncio.Event().wait()

    with pytest.raises(ServerDied, match="the small server ended while it was in use"):
        await run()
