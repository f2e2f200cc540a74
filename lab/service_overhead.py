"""Measure what the service adds to the time of a step, and how soon the first step reaches a client."""

from __future__ import annotations

import asyncio
import datetime
import platform
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Annotated, Any

import aiohttp
import orjson
import typer
from rich.console import Console
from rich.table import Table

from stepspec.evals.command_line import progress_bars, script
from stepspec.evals.testbed.solving_pair import pair_solver
from stepspec.orchestrator.chain import Accept, Message
from stepspec.orchestrator.events import Called, Committed, Event, Judged, Repaired
from stepspec.orchestrator.service.http.app import Service, ServiceServer, listen
from stepspec.orchestrator.service.offer import Engine, Offer
from stepspec.orchestrator.service.settings import ServiceSettings
from stepspec.orchestrator.service.watch.records import RequestArrived, RunEvent, ServiceEvent, ServiceObserver
from stepspec.service_factory import offer

from .mock_engine import InstantEngine
from .worlds import fresh_tasks

BAR = 1.3
SEED = 2027
Serving = Callable[[Offer, Sequence[ServiceObserver]], AbstractAsyncContextManager[str]]


@dataclass(frozen=True, slots=True)
class Arrival:
    """
    The times of one stream, in seconds: from the request to the *first* step at the client, and *gaps* between steps.

    *upstream* is the time of the first step on the servers, until its verdict or repair; *commits* are the gaps between
    commits.
    """

    first: float
    upstream: float
    gaps: tuple[float, ...]
    commits: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return self.first / self.upstream


class RunTimes:
    """A `ServiceObserver` that records the time of each event of the current run."""

    def __init__(self) -> None:
        self.times: list[tuple[float, Event]] = []

    def __call__(self, event: ServiceEvent) -> None:
        match event:
            case RequestArrived():
                self.times.clear()
            case RunEvent(event=run_event):
                self.times.append((time.perf_counter(), run_event))
            case _:
                pass

    @property
    def upstream(self) -> float:
        """Seconds from the first request to a served model until the first step was verified, or repaired."""
        started = min(call.started for _, call in self.times if isinstance(call, Called))
        began = self.times[0][0] + started
        return next(at for at, event in self.times if _verified(event)) - began

    @property
    def commits(self) -> list[float]:
        return [at for at, event in self.times if isinstance(event, Committed)]


def _verified(event: Event) -> bool:
    match event:
        case Judged(index=0, verdict=Accept()) | Repaired(index=0):
            return True
        case Judged(index=0, verdict=rollback):
            return bool(getattr(rollback, "keep", 0))
        case _:
            return False


async def arrivals(problems: int, console: Console, serving: Serving) -> list[Arrival]:
    """Stream solutions of fresh *problems* from the paced pair, one at a time."""
    watch, measured = RunTimes(), list[Arrival]()
    async with (
        pair_solver("paced", console, (), SEED, problems=0) as solver,
        serving(offer(solver), [watch]) as base,
        aiohttp.ClientSession(base) as http,
    ):
        with progress_bars(console) as progress:
            bar = progress.add_task("arrivals", total=problems)
            for number, task in enumerate(fresh_tasks(problems + 2, SEED)):
                arrival = await _stream(http, task.problem, watch)
                if number >= 2:  # The first two warm up.
                    measured.append(arrival)
                    progress.advance(bar)
    return measured


async def _stream(http: aiohttp.ClientSession, problem: str, watch: RunTimes) -> Arrival:
    body = {"model": "auto", "messages": [{"role": "user", "content": problem}], "stream": True, "temperature": 0}
    began, steps = time.perf_counter(), list[float]()
    async with http.post("/v1/chat/completions", json=body, raise_for_status=True) as reply:
        async for line in reply.content:
            if line.startswith(b"data: {") and _is_step(orjson.loads(line[6:])):
                steps.append(time.perf_counter())
    return Arrival(steps[0] - began, watch.upstream, tuple(_gaps(steps)), tuple(_gaps(watch.commits)))


def _is_step(chunk: dict[str, list[dict[str, object]]]) -> bool:
    return any("stepspec" in choice for choice in chunk["choices"])


def _gaps(times: Sequence[float]) -> Iterable[float]:
    return (later - earlier for earlier, later in pairwise(times))


def drifts(arrivals: Iterable[Arrival]) -> list[float]:
    """The difference of each gap at the client from the gap between the commits, in seconds."""
    return [
        abs(gap - commit) for arrival in arrivals for gap, commit in zip(arrival.gaps, arrival.commits, strict=True)
    ]


EXAMPLES = """
Examples:

  python -m lab.service_overhead                        # starts the miniature pair: some minutes

  python -m lab.service_overhead --problems 0   # the time per step alone, no server

  python -m lab.service_overhead --requests 400 --json > overhead.json
"""
STEPS = 32
CONCURRENT = (1, 16, 64)
FIGURES = ("library", "service", "added", "alone", "waited")
PROBLEM = "What is 6 x 7?"


@dataclass(frozen=True, slots=True)
class OverheadRound:
    """
    The cost of requests of *steps* steps, a number of them *concurrent*; all times are milliseconds per step.

    *library* and *service* are processor time of the process that solves, without and with the service; *waited* is the
    median wall time of a client, *alone* that of the library without a service.
    """

    concurrent: int
    requests: int
    steps: int
    library: float
    service: float
    alone: float
    waited: float

    @property
    def added(self) -> float:
        return self.service - self.library


@dataclass(frozen=True, slots=True)
class Typical:
    """Medians over a number of *rounds*; *least* and *most* are the extremes of *added*."""

    concurrent: int
    requests: int
    rounds: int
    library: float
    service: float
    added: float
    alone: float
    waited: float
    least: float
    most: float


@asynccontextmanager
async def serving(offer: Offer, observers: Sequence[ServiceObserver] = ()) -> AsyncGenerator[str]:
    """Serve *offer* at a free port; yield the base URL."""
    settings = ServiceSettings(port=0, max_running=256, health_every=3600)
    service = Service(offer, settings, observers)
    server = ServiceServer(service, settings, lambda message: None)
    with listen(settings.host, settings.port) as listening:
        host, port = listening.getsockname()[:2]
        running = asyncio.create_task(server.serve([listening]))
        try:
            yield f"http://{host}:{port}"
        finally:
            server.should_exit = True
            await running


async def cost(engine: InstantEngine, base: str, concurrent: int, requests: int, steps: int) -> OverheadRound:
    """Solve *requests* problems without and then with the service."""
    alone: list[float] = []
    free = asyncio.Semaphore(concurrent)

    async def solve() -> None:
        async with free:
            began = time.perf_counter()
            await engine.solve([Message("user", PROBLEM)])
            alone.append(time.perf_counter() - began)

    before = time.process_time()
    await asyncio.gather(*(solve() for _ in range(requests)))
    library = time.process_time() - before
    before = time.process_time()
    waited = await _clients(base, concurrent, requests)
    service = time.process_time() - before
    per_step = 1000 / steps
    return OverheadRound(
        concurrent,
        requests,
        steps,
        library / requests * per_step,
        service / requests * per_step,
        median(alone) * per_step,
        median(waited) * per_step,
    )


async def _clients(base: str, concurrent: int, requests: int) -> list[float]:
    """Run clients in a process of their own; return the seconds of each stream."""
    program = f"from {run_clients.__module__} import run_clients; run_clients({base!r}, {concurrent}, {requests})"
    command = (sys.executable, "-c", program.replace("__main__", "lab.service_overhead"))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the clients failed with exit code {process.returncode}")
    seconds: list[float] = orjson.loads(printed)
    return seconds


def run_clients(base: str, concurrent: int, requests: int) -> None:
    """Print the seconds of *requests* streams, at most *concurrent* at a time, as JSON; for a process of its own."""
    print(orjson.dumps(asyncio.run(_stream_all(base, concurrent, requests))).decode())


async def _stream_all(base: str, concurrent: int, requests: int) -> list[float]:
    free, seconds = asyncio.Semaphore(concurrent), list[float]()
    body = orjson.dumps({"model": "auto", "messages": [{"role": "user", "content": PROBLEM}], "stream": True})
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(base, connector=aiohttp.TCPConnector(limit=0), headers=headers) as http:

        async def one() -> None:
            async with free:
                began = time.perf_counter()
                async with http.post("/v1/chat/completions", data=body) as reply:
                    text = await reply.read()
                if reply.status != 200 or not text.endswith(b"data: [DONE]\n\n") or b'"error"' in text:
                    raise RuntimeError(f"HTTP {reply.status}: {text[-500:]!r}")
                seconds.append(time.perf_counter() - began)

        await asyncio.gather(*(one() for _ in range(requests)))
    return seconds


async def costs(requests: int, rounds: int, console: Console) -> list[OverheadRound]:
    """Measure each number of concurrent requests in turn, *rounds* times."""
    engine = InstantEngine(STEPS)
    _: Engine = engine
    measured: list[OverheadRound] = []
    async with serving(engine.offer()) as base:
        with progress_bars(console) as progress:
            bar = progress.add_task("service time", total=rounds * len(CONCURRENT) + 1)
            await cost(engine, base, 4, 16, STEPS)  # warms up
            progress.advance(bar)
            for concurrent in CONCURRENT * rounds:
                measured.append(await cost(engine, base, concurrent, max(requests, 4 * concurrent), STEPS))
                progress.advance(bar)
    return measured


def typical(measured: Sequence[OverheadRound]) -> list[Typical]:
    """The medians for each number of concurrent requests, and how much the rounds differ."""
    medians: list[Typical] = []
    for concurrent in dict.fromkeys(cost.concurrent for cost in measured):
        rounds = [cost for cost in measured if cost.concurrent == concurrent]
        figures = {name: median(getattr(cost, name) for cost in rounds) for name in FIGURES}
        added = sorted(cost.added for cost in rounds)
        medians.append(Typical(concurrent, rounds[0].requests, len(rounds), **figures, least=added[0], most=added[-1]))
    return medians


def main(
    requests: Annotated[int, typer.Option(min=8, help="Requests for each number of concurrent requests.")] = 60,
    rounds: Annotated[int, typer.Option(min=1, help="Number of measurements of each, in turns.")] = 9,
    problems: Annotated[int, typer.Option(min=0, help="Problems on the paced pair; 0: leave it out.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Measure what the service adds to a step, and how soon the first one arrives."""
    console, errors = Console(width=120), Console(stderr=True)
    measured = typical(asyncio.run(costs(requests, rounds, errors)))
    arrived = asyncio.run(arrivals(problems, errors, serving)) if problems else []
    if json:
        print(orjson.dumps(_report(measured, arrived)).decode())
    else:
        _print(console, measured, arrived)
    if arrived and median(arrival.ratio for arrival in arrived) > BAR:
        raise typer.Exit(1)


def _report(measured: Sequence[Typical], arrived: Sequence[Arrival]) -> dict[str, Any]:
    return {
        "date": str(datetime.date.today()),
        "machine": platform.machine(),
        "costs": [asdict(medians) for medians in measured],
        "arrivals": [asdict(arrival) | {"ratio": arrival.ratio} for arrival in arrived],
    }


def _print(console: Console, measured: Sequence[Typical], arrived: Sequence[Arrival]) -> None:
    what = f"milliseconds per step, requests of {STEPS} steps, models that answer at once"
    table = Table(title=f"{what}: medians of {measured[0].rounds} rounds")
    headings = (
        "at once",
        "requests",
        "library cpu",
        "with service",
        "added",
        "least, most",
        "library wall",
        "client wall",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for one in measured:
        spread = f"{one.least:.2f}, {one.most:.2f}"
        cpu, wall = ([f"{getattr(one, name):.2f}" for name in names] for names in (FIGURES[:3], FIGURES[3:]))
        table.add_row(str(one.concurrent), str(one.requests), *cpu, spread, *wall)
    console.print(table)
    if arrived:
        ratios = sorted(arrival.ratio for arrival in arrived)
        gaps = sorted(drifts(arrived))
        console.print(
            f"first verified step at the client over its draft and grade upstream, {len(arrived)} problems on the "
            f"paced miniature pair: median {median(ratios):.2f}, worst {ratios[-1]:.2f} (bar {BAR})"
        )
        console.print(
            f"gaps between chunks against gaps between commits, {len(gaps)} of them: median difference "
            f"{median(gaps) * 1000:.1f} ms, 95th percentile {gaps[int(len(gaps) * 0.95)] * 1000:.1f} ms"
        )
    console.print(
        f"{datetime.date.today()}, {platform.machine()}: python -m lab.service_overhead",
        style="dim",
    )


if __name__ == "__main__":
    script(main, EXAMPLES)
