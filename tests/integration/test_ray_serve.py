"""
The service on Ray, as docker/ray/stepspec.yaml deploys it: two replicas over the real pair, one of
which dies.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import pytest
from anyio.from_thread import start_blocking_portal

from stepspec.evals.testbed.solving_pair import fresh_tasks

from .conftest import Pair
from .deployed import Answer, Deployed, deploying
from .test_service import CHAT, asking, until, works

# The first test waits for both servers and for Ray.
pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]

# seconds between two steps that ought not to come together; Ray Serve LLM collects tokens for half
# of it
LONG = 0.1


@pytest.fixture(scope="module")
def deployed(paced_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployed]:
    """The application, in an event loop of its own, so that tests in any loop can use it."""
    starting = deploying(paced_pair, tmp_path_factory.mktemp("ray"))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(starting) as deployed:
        yield deployed


@pytest.fixture
async def http(deployed: Deployed) -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        deployed.base, connector=aiohttp.TCPConnector(limit=0)
    ) as http:
        yield http


async def ask(http: aiohttp.ClientSession, problem: str, answer: Answer) -> Answer:
    async with http.post(CHAT, json=asking(problem, stream=answer.stream)) as reply:
        answer.status = reply.status
        async for piece in reply.content.iter_any():
            answer.chunks.append((time.perf_counter(), piece))
    return answer


async def true(value: object) -> bool:
    return bool(value)


async def test_every_step_is_streamed_separately(http: aiohttp.ClientSession) -> None:
    """What a proxy collects before it sends it would arrive together."""
    gaps = list[tuple[float, float]]()
    for task in fresh_tasks(4, 71):
        answer = await ask(http, task.problem, Answer(stream=True))
        assert answer.complete, answer.text
        came, final = steps_of(answer)
        at = [step["at"] for step in final["steps"] if step["fate"] == "kept"]
        gaps += [
            (b - a, d - c) for (a, b), (c, d) in zip(pairwise(came), pairwise(at), strict=False)
        ]
    apart = [abs(came - at) for came, at in gaps]
    typical = f"{median(apart) * 1000:.1f} ms, at most {max(apart) * 1000:.1f} ms"
    print(f"{len(gaps)} gaps between steps differ from those between commits by {typical}")
    slow = [came > 0 for came, at in gaps if at > LONG]
    assert sum(slow) >= len(slow) / 2  # on a busy machine, some come together


def steps_of(answer: Answer) -> tuple[list[float], dict[str, Any]]:
    """Return when each step came, and the last chunk but for the end."""
    came = list[float]()
    final = dict[str, Any]()
    for at, piece in answer.chunks:
        for line in piece.decode().split("\n\n"):
            if line.startswith("data: {"):
                final = json.loads(line.removeprefix("data: "))
                came += [
                    at
                    for choice in final["choices"]
                    if "stepspec" in choice and choice["finish_reason"] is None
                ]
    return came, final


async def test_a_killed_replica_is_replaced_and_the_others_go_on(
    http: aiohttp.ClientSession, deployed: Deployed, paced_pair: Pair
) -> None:
    answers = [Answer(stream=index % 2 == 0) for index in range(24)]
    requests = [
        asyncio.create_task(ask(http, task.problem, answer))
        for task, answer in zip(fresh_tasks(24, 72), answers, strict=True)
    ]
    await until(lambda: true(sum(bool(answer.chunks) for answer in answers) >= 4), 60)
    before = deployed.replicas()
    os.kill(min(before), signal.SIGKILL)
    async with asyncio.timeout(180):
        broken = await asyncio.gather(*requests, return_exceptions=True)

    for answer, failure in zip(answers, broken, strict=True):
        lost = (
            isinstance(failure, aiohttp.ClientError)
            or answer.status >= 500
            or not answer.text.endswith("[DONE]\n\n")
        )
        assert answer.complete or lost, answer.text
    complete = sum(answer.complete for answer in answers)
    print(f"{complete} of 24 requests were answered")
    assert 0 < complete < 24
    for server in (paced_pair.small, paced_pair.large):
        await until(works(server, busy=False), 10)
    await until(lambda: true(len(deployed.replicas() - before) == 1), 120)
    await until(lambda: both_answer(http), 120)


async def both_answer(http: aiohttp.ClientSession) -> bool:
    await asyncio.sleep(0.2)
    return len(await scraped(http, "stepspec_info{")) == 2


async def working(http: aiohttp.ClientSession, count: int) -> bool:
    """Ask the replicas whether they work on so many requests."""
    running = await scraped(http, "stepspec_requests_running{")
    return len(running) == 2 and sum(running.values()) == count


async def scraped(http: aiohttp.ClientSession, name: str) -> Mapping[str, float]:
    async with http.get("/metrics") as reply:
        lines = (await reply.text()).splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(name)
    }


async def test_clients_that_leave_leave_nothing_running(
    http: aiohttp.ClientSession, paced_pair: Pair
) -> None:
    clients = [
        asyncio.create_task(ask(http, task.problem, Answer(stream=index % 2 == 0)))
        for index, task in enumerate(fresh_tasks(8, 73))
    ]
    await until(lambda: working(http, len(clients)), 20)
    for client in clients:
        client.cancel()
    await asyncio.wait(clients)
    for server in (paced_pair.small, paced_pair.large):
        await until(works(server, busy=False), 10)
    await until(lambda: working(http, 0), 10)
    counted = await scraped(http, "stepspec_requests_total{")
    assert sum(count for name, count in counted.items() if 'status="499"' in name) == len(clients)


async def test_running_requests_finish_when_the_application_is_deleted(
    http: aiohttp.ClientSession, deployed: Deployed
) -> None:
    answers = [Answer(stream=index % 2 == 0) for index in range(8)]
    requests = [
        asyncio.create_task(ask(http, task.problem, answer))
        for task, answer in zip(fresh_tasks(8, 74), answers, strict=True)
    ]
    await until(lambda: true(any(answer.chunks for answer in answers)), 60)
    os.kill(deployed.cluster.pid, signal.SIGUSR1)
    async with asyncio.timeout(120):
        await asyncio.gather(*requests)
    assert all(answer.complete for answer in answers), [
        answer.text for answer in answers if not answer.complete
    ]


async def test_without_its_head_it_answers_until_ray_ends_it_and_leaves_nothing_running(
    paced_pair: Pair, tmp_path: Path
) -> None:
    """Ray ends all processes a minute after their head; here it waits for a shorter time."""
    counts = Counter[str]()
    problems = (task.problem for task in fresh_tasks(1000, 75))

    async def use(http: aiohttp.ClientSession, *, stream: bool) -> None:
        """Ask one problem after the other, until the service is gone."""
        for problem in problems:
            answer = Answer(stream=stream)
            try:
                await ask(http, problem, answer)
            except aiohttp.ClientConnectorError:
                return
            except aiohttp.ClientError:
                counts["broken off"] += 1
                assert "[DONE]" not in answer.text
                continue
            assert answer.complete or answer.error or answer.status >= 500, answer.text
            counts["answered" if answer.complete else "refused"] += 1

    waiting = {"RAY_gcs_rpc_server_reconnect_timeout_s": "8"}
    async with (
        deploying(paced_pair, tmp_path, **waiting) as deployed,
        aiohttp.ClientSession(deployed.base) as http,
    ):
        clients = [asyncio.create_task(use(http, stream=index % 2 == 0)) for index in range(4)]
        await until(lambda: true(counts["answered"] >= 4), 60)
        (head,) = deployed.processes("gcs_server")
        os.kill(head, signal.SIGKILL)
        before = counts["answered"]
        async with asyncio.timeout(120):
            await asyncio.gather(*clients)
    print(f"after {before} with the head: {dict(counts)}")
    assert counts["answered"] > before
    for server in (paced_pair.small, paced_pair.large):
        await until(works(server, busy=False), 10)
