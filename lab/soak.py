"""
Keep a real ``stepspec serve`` busy while its servers fail at random, and look for what grows.

The servers are the stand-ins of `faults`, because the service is measured and not a model. The
first and the last minutes are without faults. Their latencies and resources are compared. All the
time, bodies of up to 4 MiB come that are made to keep the service busy. ``/health`` has to answer
nevertheless.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

import aiohttp
import typer
from rich.console import Console
from rich.table import Table

from stepspec.cli.program import script
from stepspec.evals.progress import progress_bars
from stepspec.orchestrator.concurrency import background

from .faults import NAMED_PLACES, PLACES, Deployment, Fate, deployed
from .service_program import queued, resident, settled
from .tables import Sheet, exit_with

EXAMPLES = """
Examples:

  python -m lab.soak --output results/soak

  python -m lab.soak --minutes 3 --calm 0.5 --concurrency 16
"""
SAMPLE_EVERY = 1.0  # seconds
FAULT_EVERY = (4.0, 12.0)  # seconds from one fault to the next, at random
FAULTS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("kill small", ()),
    ("kill large", ()),
    ("kill other", ()),
    ("small: reset", ("reset:3",) * 8),
    ("large: reset", ("reset:3",) * 8),
    ("small: 503", ("503:1",) * 8),
    ("large: 500", ("500",) * 8),
    ("small: garbage", ("garbage",) * 8),
    ("large: cut", ("cut",) * 8),
    ("small: stall", ("stall:2",) * 4),
    ("large: slow", ("slow:4",) * 16),
)
"""The faults that are drawn: the name of each, and what is queued at the server; (): a kill."""

_MANY = 100_000
_CHAT = "/v1/chat/completions"
_TURN = {"role": "user", "content": "x"}
_SAID = {"role": "assistant", "content": "x" * 900}
_CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "f", "arguments": "[" + "[]," * 1_300_000 + "1]"},
}


def _hostile(path: str = _CHAT, /, **fields: Any) -> tuple[str, bytes]:
    """Return *path* and a body with a model and these *fields*."""
    return path, json.dumps({"model": "auto", **fields}).encode()


HOSTILE: Sequence[tuple[str, bytes]] = (
    _hostile(problem="x", stepspec=[{}] * _MANY),
    _hostile(messages=[{"role": "user", "content": [{"type": "text"}] * _MANY}]),
    _hostile(messages=[_TURN], tools=[1] * _MANY),
    _hostile(messages=[_TURN], **dict.fromkeys(map(str, range(_MANY)), 1)),
    _hostile(messages=[_TURN], **{"a" * 3_000_000: 1}),
    _hostile(model="specreason" * 300_000, messages=[_TURN]),
    (_CHAT, b'{"model":"auto","x":' + b"[" * 1000 + b"]" * 1000 + b"}"),
    (_CHAT, b'{"model":"auto","x":[' + b"[]," * 1_300_000 + b"1]}"),
    _hostile(messages=[_TURN, {"role": "assistant", "tool_calls": [_CALL]}]),
    _hostile(messages=[{"role": "user", "content": "bada " * 800_000}]),
    _hostile("/v1/responses", input=[_TURN, *[_SAID] * 4000]),
    _hostile("/v1/responses", input=[{"type": "x"}] * _MANY),
    _hostile("/v1/messages", max_tokens=9, messages=[1] * _MANY),
    _hostile("/live", problem="x", stepspec=[{}] * _MANY),
)
"""Paths and bodies that would take long if all of a body were read. Each has to be refused."""
HOSTILE_EVERY = 0.5  # seconds from one answer to the next body
REFUSAL_BYTES = 5000
HEALTH_EVERY = 0.1  # seconds
HEALTH_WITHIN = 0.5  # seconds

Part: TypeAlias = Literal["before", "faults", "after"]


@dataclass(frozen=True, slots=True)
class Sample:
    """The resources of the service at one time."""

    second: float
    """Seconds since the beginning."""
    part: Part
    """The part of the soak."""
    memory: int
    """Resident memory in KiB."""
    descriptors: int
    """Open file descriptors."""
    tasks: int
    """Tasks of the event loop."""
    upstream: int
    """Requests that the servers work on."""


@dataclass
class Soak:
    """What was measured."""

    samples: list[Sample] = field(default_factory=list[Sample])
    """The resources, in their order."""
    seconds: dict[Part, list[float]] = field(
        default_factory=lambda: {part: [] for part in get_args(Part)},
    )
    """The latencies of answered requests in seconds."""
    fates: dict[Part, Counter[Fate]] = field(
        default_factory=lambda: {part: Counter() for part in get_args(Part)},
    )
    """What became of the requests."""
    notes: list[str] = field(default_factory=list[str])
    """What is wrong with single requests."""
    faults: Counter[str] = field(default_factory=Counter[str])
    """How often each fault was drawn."""
    left_open: int = 0
    """Requests that are open at the end."""
    hostile: int = 0
    """Bodies that were refused."""
    health: list[float] = field(default_factory=list[float])
    """The latencies of ``/health`` in seconds."""

    def of(self, part: Part) -> list[Sample]:
        """Return the samples of one *part*."""
        return [sample for sample in self.samples if sample.part == part]

    def median(self, part: Part, name: str) -> float:
        """Return the median of the resource *name* in one *part*."""
        return statistics.median(float(getattr(sample, name)) for sample in self.of(part))


class Load:
    """Keeps requests running at a deployment. The attribute ``part`` has the part of the soak."""

    def __init__(self, deployment: Deployment, soak: Soak) -> None:
        self._deployment = deployment
        self._http = deployment.http
        self._base = deployment.program.base
        self._soak = soak
        self.part: Part = "before"

    async def client(self, number: int) -> None:
        """Send one request after the other, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            part = self.part
            began = loop.time()
            outcome = await self._deployment.ask(number)
            if self.part != part:
                continue  # It belongs to both.
            self._soak.fates[part][outcome.fate] += 1
            if outcome.fate in ("answered", "degraded"):
                self._soak.seconds[part].append(loop.time() - began)
            elif outcome.fate in ("lost", "wrong"):
                self._soak.notes.append(f"{part}: {outcome.fate}: {outcome.note}")
            else:
                await asyncio.sleep(0.2)  # as a client that comes back later

    async def attack(self) -> None:
        """
        Send one body of `HOSTILE` after the other, until cancelled.

        Each part begins with the first body, so that the memory of two parts is comparable.
        """
        while True:
            part = self.part
            for path, body in HOSTILE:
                await self.strike(path, body)
                await asyncio.sleep(HOSTILE_EVERY)
                if self.part != part:
                    break

    async def strike(self, path: str, body: bytes) -> None:
        """Send a hostile *body*, which has to be refused."""
        part = self.part
        async with self._http.post(self._base + path, data=io.BytesIO(body)) as reply:
            answer = await reply.read()
        self._soak.hostile += 1
        if not refused(
            reply.status,
            len(answer),
            failing="faults" in (part, self.part),
        ):
            self._soak.notes.append(
                f"{self.part}: HTTP {reply.status}, {len(answer)} bytes for {body[:80]!r}",
            )

    async def look(self) -> None:
        """Note how long /health takes, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await self._get("/health")
            self._soak.health.append(loop.time() - began)
            await asyncio.sleep(HEALTH_EVERY)

    async def sample(self) -> None:
        """Note the resources now and then, until cancelled."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pid = self._deployment.program.child.pid
        while True:
            await asyncio.sleep(SAMPLE_EVERY)
            shown = await self._get("/metrics")
            tasks = int(float(re.findall(r"^stepspec_tasks (\S+)", shown, re.MULTILINE)[0]))
            second = loop.time() - began
            memory = resident(pid)
            upstream = await self._upstream()
            files = len(os.listdir(f"/proc/{pid}/fd"))
            self._soak.samples.append(
                Sample(
                    second,
                    self.part,
                    memory,
                    files,
                    tasks,
                    upstream,
                )
            )

    async def _upstream(self) -> int:
        """Count the requests that the servers work on; one that is down has none."""
        running = 0
        for place in PLACES:
            with suppress(aiohttp.ClientError, TimeoutError):
                running += await queued(self._http, self._deployment.url(place))
        return running

    async def _get(self, path: str) -> str:
        async with self._http.get(self._base + path) as reply:
            return await reply.text()


def refused(status: int, size: int, *, failing: bool) -> bool:
    """
    Whether an answer of *size* bytes refuses a request in few words.

    While servers are *failing*, an answer may also say that they are.
    """
    if size > REFUSAL_BYTES:
        return False
    return 400 <= status < 500 or (failing and status in (503, 529))


async def trouble(deployment: Deployment, soak: Soak, rng: random.Random) -> None:
    """Do one fault after the other, until cancelled. A killed server is started again at once."""
    while True:
        await asyncio.sleep(rng.uniform(*FAULT_EVERY))
        name, queued = rng.choice(FAULTS)
        soak.faults[name] += 1
        if queued:
            await deployment.befall(NAMED_PLACES[name.partition(":")[0]], *queued)
        else:
            await deployment.restart(NAMED_PLACES[name.removeprefix("kill ")])


async def measure(
    minutes: float,
    calm: float,
    concurrency: int,
    seed: int,
    tick: Callable[[float], object],
) -> Soak:
    """Soak for *minutes* minutes. The first and the last *calm* minutes are without faults."""
    soak = Soak()
    async with deployed(
        "--max-running",
        str(concurrency),
        force_close=False,
    ) as deployment:
        load = Load(deployment, soak)
        for path, body in HOSTILE:  # Memory that the first of each takes for good is no growth.
            await load.strike(path, body)
        clients = [load.client(number) for number in range(concurrency)]
        async with background(
            *clients,
            load.sample(),
            load.attack(),
            load.look(),
        ):
            await _pass(60 * calm, tick)
            load.part = "faults"
            async with background(trouble(deployment, soak, random.Random(seed))):
                await _pass(60 * (minutes - 2 * calm), tick)
            for place in PLACES:  # One after the other: faults that are still queued are gone.
                await deployment.restart(place)
                await asyncio.sleep(4)  # for the probes
            load.part = "after"
            await _pass(60 * calm, tick)
        servers = {str(place): deployment.url(place) for place in PLACES}
        still_open = await settled(
            deployment.http,
            deployment.program.base,
            servers,
        )
        soak.left_open = sum(still_open.values())
    return soak


async def _pass(seconds: float, tick: Callable[[float], object]) -> None:
    while seconds > 0:
        step = min(1.0, seconds)
        await asyncio.sleep(step)
        tick(step)
        seconds -= step


def quantile(values: Sequence[float], share: float) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[round(100 * share) - 1]


def table(soak: Soak) -> Table:
    """Return requests, latencies and resources of each part."""
    fates_shown: tuple[Fate, ...] = ("answered", "degraded", "refused", "lost", "wrong")
    columns = (
        "part",
        "requests",
        *fates_shown,
        "p50, s",
        "p99, s",
        "memory, MiB",
        "descriptors",
        "tasks",
        "upstream",
    )
    units = {"memory": 1024, "descriptors": 1, "tasks": 1, "upstream": 1}
    rows: list[tuple[str, ...]] = []
    for part, fates in soak.fates.items():
        seconds = soak.seconds[part]
        latencies = ["-", "-"]
        if len(seconds) > 1:
            latencies = [f"{quantile(seconds, share):.2f}" for share in (0.5, 0.99)]
        resources = ["-"] * len(units)
        if soak.of(part):
            resources = [f"{soak.median(part, name) / unit:.0f}" for name, unit in units.items()]
        counts = (str(fates[fate]) for fate in fates_shown)
        rows.append((part, str(fates.total()), *counts, *latencies, *resources))
    return Sheet(
        columns,
        rows,
        "medians of the samples; seconds of answered requests",
    ).table()


def complaints(soak: Soak) -> list[str]:
    """Say what was lost, wrong or left open, and what is larger after the faults than before."""
    found = soak.notes[:20]
    if soak.left_open:
        found.append(f"{soak.left_open} requests are open at the end")
    for name, share, more in (
        ("memory", 1.1, 32 * 1024),  # garbage collections are rare: see `warmed`
        ("descriptors", 1.1, 8),
        ("tasks", 1.1, 16),
    ):
        was = soak.median("before", name)
        now = soak.median("after", name)
        if now > share * was + more:
            found.append(f"{name}: {was:.0f} before the faults, {now:.0f} after")
    return found


def stalls(soak: Soak) -> list[str]:
    """Say whether /health was late."""
    late = [seconds for seconds in soak.health if seconds > HEALTH_WITHIN]
    if not late:
        return []
    return [
        f"/health took more than {HEALTH_WITHIN:g} s {len(late)} times, at most {max(late):.2f} s",
    ]


def main(
    minutes: Annotated[float, typer.Option(min=1, help="Minutes in all.")] = 30.0,
    calm: Annotated[
        float,
        typer.Option(min=0.2, help="Minutes without faults, at each end."),
    ] = 3.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Chains at once.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the faults.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the samples to FILE.json.", metavar="FILE"),
    ] = None,
) -> None:
    """
    Soak a service. Exit with 1 if a request is lost or wrong, one stays open, /health is late, or
    resources grow.
    """
    console = Console(width=160)
    if minutes <= 2 * calm:
        raise typer.BadParameter("more than twice --calm", param_hint="--minutes")
    with progress_bars(Console(stderr=True)) as progress:
        bar = progress.add_task(f"{concurrency} chains at once", total=60 * minutes)
        advance = partial(progress.advance, bar)
        soak = asyncio.run(
            measure(
                minutes,
                calm,
                concurrency,
                seed,
                advance,
            )
        )
    console.print(table(soak))
    first, last = (quantile(soak.seconds[part], 0.99) for part in ("before", "after"))
    console.print(f"p99 after the faults over p99 before: {last / first:.2f}")
    faults = ", ".join(f"{count} x {name}" for name, count in sorted(soak.faults.items()))
    console.print(f"{soak.faults.total()} faults: {faults}", highlight=False)
    if soak.health:
        console.print(
            f"{soak.hostile} hostile bodies refused; /health took at most {max(soak.health):.2f} s"
            f" (median {statistics.median(soak.health):.3f} s of {len(soak.health)})",
        )
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.with_suffix(".json").write_text(
            json.dumps([asdict(each) for each in soak.samples]),
            encoding="utf-8",
        )
    exit_with(complaints(soak) + stalls(soak), console)


if __name__ == "__main__":
    script(main, EXAMPLES)
