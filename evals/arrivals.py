"""When steps reach a client of the service, against when they were written and judged upstream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import pairwise

import aiohttp
import orjson
from rich.console import Console

from ..orchestrator.chain import Accept, Role
from ..orchestrator.events import Called, Committed, Event, Judged, Repaired
from ..orchestrator.service.interfaces import Offer
from ..orchestrator.service.visit import Visit
from ..orchestrator.service.witness import Witness
from ..orchestrator.solution import Solution
from ..serving import offer
from .testbed.progress import counting
from .testbed.solving_pair import pair_solver
from .testbed.tasks import fresh

BAR = 1.3
SEED = 2027
Serving = Callable[[Offer, Sequence[Witness]], AbstractAsyncContextManager[str]]


@dataclass(frozen=True, slots=True)
class Arrival:
    """
    One stream. Seconds since its request was sent: *first* step at the client, and *gaps* between steps there.

    *upstream* is what the first step took on the servers, until its verdict or its repair; *commits* are the gaps
    between commits.
    """

    first: float
    upstream: float
    gaps: tuple[float, ...]
    commits: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return self.first / self.upstream


class Watch:
    """A witness that notes when things happened in the run that is going on."""

    def __init__(self) -> None:
        self.happened: list[tuple[float, Event]] = []

    def begins(self, visit: Visit) -> None:
        self.happened.clear()

    def sees(self, visit: Visit, index: int, event: Event) -> None:
        self.happened.append((time.perf_counter(), event))

    def solved(self, visit: Visit, index: int, solution: Solution) -> None:
        pass

    def failed(self, visit: Visit, exc: Exception) -> None:
        pass

    def ends(self, visit: Visit) -> None:
        pass

    def looked(self, role: Role, up: bool) -> None:
        pass

    @property
    def upstream(self) -> float:
        """Seconds from the first request to a served model until the first step was verified, or repaired."""
        started = min(call.started for _, call in self.happened if isinstance(call, Called))
        began = self.happened[0][0] + started
        return next(at for at, event in self.happened if _verified(event)) - began

    @property
    def commits(self) -> list[float]:
        return [at for at, event in self.happened if isinstance(event, Committed)]


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
    watch, found = Watch(), list[Arrival]()
    async with (
        pair_solver("paced", console, (), SEED, problems=0) as solver,
        serving(offer(solver), [watch]) as base,
        aiohttp.ClientSession(base) as http,
    ):
        with counting(console) as progress:
            bar = progress.add_task("arrivals", total=problems)
            for number, task in enumerate(fresh(problems + 2, SEED)):
                arrival = await _stream(http, task.problem, watch)
                if number >= 2:  # The first two warm up.
                    found.append(arrival)
                    progress.advance(bar)
    return found


async def _stream(http: aiohttp.ClientSession, problem: str, watch: Watch) -> Arrival:
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


def drifts(arrived: Iterable[Arrival]) -> list[float]:
    """How far each gap at the client is from the gap between the commits."""
    return [abs(gap - commit) for one in arrived for gap, commit in zip(one.gaps, one.commits, strict=True)]
