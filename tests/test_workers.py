"""`stepspec serve --workers`: real processes on one port, as a user starts and ends them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from stepspec.evals.testbed.stand_in import StandIn
from stepspec.orchestrator.errors import ServerDied

from .orchestrator.service.served import until
from .program import Program, logged, serve

SAMPLE = re.compile(rb"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


@dataclass
class GatedServer(StandIn):
    """A server whose answers to chats wait until *opened* is set; *most* is how many it ever had at the same time."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    inside: int = 0
    most: int = 0

    async def chat(self, request: web.Request) -> web.Response:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.opened.wait()
            return await super().chat(request)
        finally:
            self.inside -= 1


@dataclass
class Served:
    """A service of two workers over a server with a gate."""

    program: Program
    large: GatedServer
    http: aiohttp.ClientSession

    @property
    def workers(self) -> list[int]:
        return children(self.program.child.pid)

    async def chat(self, model: str = "huge") -> tuple[int, Any]:
        """Send a chat on a connection of its own; return status and body, (0, None) if the connection breaks."""
        body = {"model": model, "messages": [{"role": "user", "content": "What is 6 x 7?"}], "max_tokens": 200}
        with suppress(aiohttp.ClientError):
            async with self.http.post(f"{self.program.base}/v1/chat/completions", json=body) as reply:
                return reply.status, await reply.json()
        return 0, None

    def chats(self, count: int) -> list[asyncio.Task[tuple[int, Any]]]:
        return [asyncio.create_task(self.chat()) for _ in range(count)]

    async def metrics(self) -> Mapping[str, float]:
        """Return the sums of all samples by name, in a scrape of any worker."""
        async with self.http.get(f"{self.program.base}/metrics") as reply:
            text = await reply.read()
        sums = defaultdict[str, float](float)
        for name, _, value in SAMPLE.findall(text):
            sums[name.decode()] += float(value)
        return sums

    async def admitted(self, running: int, waiting: int) -> None:
        """Wait until so many requests run and wait in the whole service."""
        async with asyncio.timeout(60):
            while True:
                sums = await self.metrics()
                if (sums["stepspec_requests_running"], sums["stepspec_requests_waiting"]) == (running, waiting):
                    return
                await asyncio.sleep(0.05)

    async def counted(self, name: str, count: int) -> Mapping[str, float]:
        """Wait until that many are counted, the last one shortly after its answer; return that scrape."""
        async with asyncio.timeout(60):
            while True:
                sums = await self.metrics()
                if sums[name] >= count:
                    return sums
                await asyncio.sleep(0.05)

    async def ended(self) -> int:
        async with asyncio.timeout(60):
            return await self.program.child.ended


def children(pid: int) -> list[int]:
    """The processes that *pid* has started and that still run."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    """Whether *pid* is a process that runs."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def command_line(pid: int) -> str:
    """The command line of *pid*, as every user of the machine sees it."""
    return Path(f"/proc/{pid}/cmdline").read_text()


def metrics_folders(folder: Path) -> list[Path]:
    return [*folder.glob("stepspec-metrics-*")]


@asynccontextmanager
async def serving(
    folder: Path, *flags: str, opened: bool = False, settings: Mapping[str, str] | None = None
) -> AsyncGenerator[Served]:
    small, large = StandIn(names=("tiny",), steps=3), GatedServer(names=("huge",), steps=3)
    if opened:
        large.opened.set()
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    environment = {"TMPDIR": str(folder), **(settings or {})}
    async with (
        small.listening() as one,
        large.listening() as other,
        serve(f"{one}/v1", f"{other}/v1", folder / "log", "--workers", "2", *flags, settings=environment) as program,
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as http,
    ):
        try:
            yield Served(program, large, http)
        finally:
            large.opened.set()


async def test_the_limits_are_those_of_the_whole_service_under_200_requests(tmp_path: Path) -> None:
    async with serving(tmp_path, "--max-running", "6", "--max-waiting", "150") as served:
        asking = served.chats(200)
        await served.admitted(6, 150)
        refused = await finished(asking, 44)
        assert (served.large.inside, served.large.most) == (6, 6)
        served.large.opened.set()
        replies = await asyncio.gather(*asking)
        sums = await served.counted("stepspec_request_seconds_count", 200)
    assert {(status, body["error"]["code"]) for status, body in refused} == {(429, "queue_full")}
    assert Counter(status for status, _ in replies) == {200: 156, 429: 44}
    assert served.large.most == 6
    assert sums["stepspec_queue_seconds_count"] == 156
    assert sums["stepspec_refusals_total"] == 44
    assert (sums["stepspec_requests_running"], sums["stepspec_requests_waiting"]) == (0, 0)
    lines = [line for line in logged(served.program.log) if line["event"] == "request"]
    assert {line["worker"] for line in lines if line["path"] == "/v1/chat/completions"} == {1, 2}


async def finished(tasks: list[asyncio.Task[Any]], count: int) -> list[Any]:
    """Wait until *count* of the *tasks* are done; return their results."""
    async with asyncio.timeout(60):
        while sum(task.done() for task in tasks) < count:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0.05)
    return [task.result() for task in tasks if task.done()]


async def test_every_scrape_counts_the_requests_of_all_workers(tmp_path: Path) -> None:
    async with serving(tmp_path, opened=True, settings={"STEPSPEC_SERVICE__HEALTH_EVERY": "0.2"}) as served:
        replies = await asyncio.gather(*(served.chat("specreason" if each % 2 else "huge") for each in range(40)))
        assert {status for status, _ in replies} == {200}
        await served.counted("stepspec_request_seconds_count", 40)
        scrapes = [await served.metrics() for _ in range(8)]
        lines = [line for line in logged(served.program.log) if line["event"] == "request"]
    assert {line["worker"] for line in lines} == {1, 2}
    for name, count in (
        ("stepspec_queue_seconds_count", 40),
        ("stepspec_request_seconds_count", 40),
        ("stepspec_runs_total", 20),
        ("stepspec_steps_total", sum(len(body["steps"]) for _, body in replies if "steps" in body)),
        ("stepspec_info", 1),
        ("stepspec_upstream_up", 2),
    ):
        assert [sums[name] for sums in scrapes] == [count] * 8, name


async def test_a_signal_finishes_the_requests_of_all_workers_and_refuses_new_ones(tmp_path: Path) -> None:
    async with serving(tmp_path, "--max-running", "8") as served:
        workers = served.workers
        asking = served.chats(12)
        await served.admitted(8, 4)
        os.kill(workers[0], signal.SIGINT)  # as a terminal and systemd do; it is the parent that decides
        os.kill(workers[1], signal.SIGTERM)
        assert (await served.http.get(f"{served.program.base}/health/readiness")).status == 200
        served.program.terminate()
        await until(lambda: any("12 requests may finish" in line["event"] for line in logged(served.program.log)))
        refused = [await served.chat() for _ in range(6)]
        ready = [(await served.http.get(f"{served.program.base}/health/readiness")).status for _ in range(6)]
        served.large.opened.set()
        replies = await asyncio.gather(*asking)
        assert await served.ended() == 0
        with pytest.raises(aiohttp.ClientConnectionError):
            await served.http.get(f"{served.program.base}/health")
    assert {(status, body["error"]["code"]) for status, body in refused} == {(503, "draining")}
    assert set(ready) == {503}
    assert {status for status, _ in replies} == {200}
    assert not any(map(alive, workers))
    assert not metrics_folders(tmp_path)


async def test_no_key_stands_in_the_command_line_of_a_worker(tmp_path: Path) -> None:
    keys = {
        "STEPSPEC_SERVICE__KEYS": "secret",
        "STEPSPEC_LARGE__API_KEY": "secret",
        "STEPSPEC_SMALL__API_KEY": "secret",
    }
    async with serving(tmp_path, settings=keys) as served:
        assert len(served.workers) == 2
        for pid in (served.program.child.pid, *served.workers):
            assert "stepspec" in command_line(pid)
            assert "secret" not in command_line(pid)


async def test_a_second_signal_ends_all_workers_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        asking = served.chats(6)
        await served.admitted(6, 0)
        for _ in range(2):
            served.program.terminate()
            await until(lambda: any("6 requests may finish" in line["event"] for line in logged(served.program.log)))
        assert await served.ended() == 0
        replies = await asyncio.gather(*asking)
    assert {(status, body["error"]["code"]) for status, body in replies} == {(503, "shut_down")}


async def test_a_killed_worker_is_replaced_and_gives_its_slots_to_others(tmp_path: Path) -> None:
    async with serving(tmp_path, "--max-running", "8", "--max-waiting", "40") as served:
        before = served.workers
        asking = served.chats(24)
        await served.admitted(8, 16)
        os.kill(before[0], signal.SIGKILL)
        await until(lambda: len([each for each in served.workers if alive(each)]) == 2)
        broken = await finished(asking, 12)
        await served.admitted(8, 4)
        served.large.opened.set()
        replies = await asyncio.gather(*asking)
        after = served.workers
        late = await asyncio.gather(*served.chats(30))
        await served.admitted(0, 0)
        (died,) = [line for line in logged(served.program.log) if line["event"] == "worker_died"]
    assert {status for status, _ in broken} == {0}
    assert Counter(status for status, _ in replies) == {0: 12, 200: 12}  # They were shared fairly.
    assert {status for status, _ in late} == {200}
    assert before[1] in after
    assert before[0] not in after
    assert died["cause"] == "SIGKILL"
    assert served.large.most == 8


async def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        workers = served.workers
        asking = served.chats(6)
        await served.admitted(6, 0)
        assert metrics_folders(tmp_path)
        os.kill(served.program.child.pid, signal.SIGKILL)
        replies = await asyncio.gather(*asking)
        await until(lambda: not any(map(alive, workers)))
        with pytest.raises(aiohttp.ClientConnectionError):
            await served.http.get(f"{served.program.base}/health")
    assert len(workers) == 2
    assert {(status, body["error"]["code"]) for status, body in replies} == {(503, "shut_down")}
    assert not metrics_folders(tmp_path)


@dataclass
class OnceServer(StandIn):
    """A server that refuses whoever connects after the first program."""

    connected: int = 0

    async def models(self, request: web.Request) -> web.Response:
        self.connected += 1
        if self.connected > 1:
            return web.json_response({"error": "no such key"}, status=401)
        return await super().models(request)


async def test_a_service_whose_workers_cannot_start_ends_with_their_error(tmp_path: Path) -> None:
    small, large = StandIn(names=("tiny",)), OnceServer(names=("huge",))
    async with small.listening() as one, large.listening() as other:
        with pytest.raises(ServerDied, match="the service ended by itself") as ended:
            async with serve(f"{one}/v1", f"{other}/v1", tmp_path / "log", "--workers", "2"):
                pass
    printed = " ".join(str(ended.value).split())
    assert f"error: the large model at {other}" in printed
    assert "Traceback" not in printed
    assert "worker_died" not in printed
