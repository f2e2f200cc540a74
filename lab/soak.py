"""
Keep a real ``stepspec serve`` busy for half an hour while its servers fail at random, and look for
what grows.

The servers are the stand-ins of `faults`, so that this measures the service and not a model. The
first and the last minutes are without faults: latencies and resources of both are compared. All the
time, bodies of up to 4 MiB come that are made to keep the service busy, and ``/health`` has to
answer nevertheless.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import aiohttp
import typer
from rich.console import Console
from rich.table import Table

from stepspec.cli.program import script
from stepspec.evals.progress import progress_bars
from stepspec.orchestrator.concurrency import background

from .faults import LARGE, OTHER, PLACES, SMALL, Deployment, Fate, deployed
from .service_program import queued, resident, settled
from .tables import Sheet

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
"""The faults that are drawn from: what they are called, and what is queued at the server."""

_MANY = 100_000
_CHAT = "/v1/chat/completions"
_TURN = {"role": "user", "content": "x"}
_SAID = {"role": "assistant", "content": "x" * 900}
_CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "f", "arguments": "[" + "[]," * 1_300_000 + "1]"},
}
HOSTILE: Sequence[tuple[str, bytes]] = (
    (_CHAT, json.dumps({"model": "auto", "problem": "x", "stepspec": [{}] * _MANY}).encode()),
    (
        _CHAT,
        json.dumps(
            {"model": "auto", "messages": [{"role": "user", "content": [{"type": "text"}] * _MANY}]}
        ).encode(),
    ),
    (_CHAT, json.dumps({"model": "auto", "messages": [_TURN], "tools": [1] * _MANY}).encode()),
    (
        _CHAT,
        json.dumps(
            {"model": "auto", "messages": [_TURN], **dict.fromkeys(map(str, range(_MANY)), 1)}
        ).encode(),
    ),
    (_CHAT, json.dumps({"model": "auto", "messages": [_TURN], "a" * 3_000_000: 1}).encode()),
    (_CHAT, json.dumps({"model": "specreason" * 300_000, "messages": [_TURN]}).encode()),
    (_CHAT, b'{"model":"auto","x":' + b"[" * 1000 + b"]" * 1000 + b"}"),
    (_CHAT, b'{"model":"auto","x":[' + b"[]," * 1_300_000 + b"1]}"),
    (
        _CHAT,
        json.dumps(
            {"model": "auto", "messages": [_TURN, {"role": "assistant", "tool_calls": [_CALL]}]}
        ).encode(),
    ),
    (
        _CHAT,
        json.dumps(
            {"model": "auto", "messages": [{"role": "user", "content": "bada " * 800_000}]}
        ).encode(),
    ),
    ("/v1/responses", json.dumps({"model": "auto", "input": [_TURN, *[_SAID] * 4000]}).encode()),
    ("/v1/responses", json.dumps({"model": "auto", "input": [{"type": "x"}] * _MANY}).encode()),
    (
        "/v1/messages",
        json.dumps({"model": "auto", "max_tokens": 9, "messages": [1] * _MANY}).encode(),
    ),
    ("/live", json.dumps({"model": "auto", "problem": "x", "stepspec": [{}] * _MANY}).encode()),
)
"""
Paths and bodies, each of which would take long if all of it were read: wrong, too long, or without
a question.
"""
HOSTILE_EVERY = 0.5  # seconds from one answer to the next body
SHORT = 5000  # bytes of a refusal
HEALTH_EVERY = 0.1  # seconds
HEALTH_WITHIN = 0.5  # seconds

Part: TypeAlias = Literal["before", "faults", "after"]


@dataclass(frozen=True, slots=True)
class Sample:
    """
    The resources of the service at a second: KiB of memory, file descriptors, tasks, and open
    upstream requests.
    """

    second: float
    part: Part
    memory: int
    descriptors: int
    tasks: int
    upstream: int


@dataclass
class Soak:
    """
    What was measured: *samples*, the latencies of answered requests by part, and what became of all
    requests.
    """

    samples: list[Sample] = field(default_factory=list[Sample])
    seconds: dict[Part, list[float]] = field(
        default_factory=lambda: {"before": [], "faults": [], "after": []}
    )
    fates: dict[Part, Counter[Fate]] = field(
        default_factory=lambda: {"before": Counter(), "faults": Counter(), "after": Counter()}
    )
    notes: list[str] = field(default_factory=list[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    left_open: int = 0
    hostile: int = 0  # bodies that were refused
    health: list[float] = field(default_factory=list[float])  # seconds until /health answered

    def of(self, part: Part) -> list[Sample]:
        return [sample for sample in self.samples if sample.part == part]


class Load:
    """Keeps so many requests running at a deployment; *part* says where their results belong."""

    def __init__(self, deployment: Deployment, soak: Soak) -> None:
        self._deployment = deployment
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
        Send one body of `HOSTILE` after the other, until cancelled; each has to be refused.

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
        async with self._deployment.http.post(
            self._deployment.program.base + path, data=io.BytesIO(body)
        ) as reply:
            answer = await reply.read()
        self._soak.hostile += 1
        if not refused(reply.status, len(answer), failing="faults" in (part, self.part)):
            self._soak.notes.append(
                f"{self.part}: HTTP {reply.status}, {len(answer)} bytes for {body[:80]!r}"
            )

    async def look(self) -> None:
        """Note how long /health takes, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            async with self._deployment.http.get(
                f"{self._deployment.program.base}/health"
            ) as reply:
                await reply.read()
            self._soak.health.append(loop.time() - began)
            await asyncio.sleep(HEALTH_EVERY)

    async def sample(self) -> None:
        """Note the resources now and then, until cancelled."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pid = self._deployment.program.child.pid
        while True:
            await asyncio.sleep(SAMPLE_EVERY)
            shown = await self._metrics(self._deployment.program.base)
            tasks = int(float(re.findall(r"^stepspec_tasks (\S+)", shown, re.MULTILINE)[0]))
            self._soak.samples.append(
                Sample(
                    loop.time() - began,
                    self.part,
                    resident(pid),
                    descriptors(pid),
                    tasks,
                    await self._upstream(),
                )
            )

    async def _upstream(self) -> int:
        """Count the requests that the servers work on; one that is down has none."""
        running = 0
        for place in PLACES:
            with suppress(aiohttp.ClientError, TimeoutError):
                running += await queued(self._deployment.http, self._deployment.url(place))
        return running

    async def _metrics(self, url: str) -> str:
        async with self._deployment.http.get(
            f"{url}/metrics", timeout=aiohttp.ClientTimeout(total=10)
        ) as reply:
            return await reply.text()


def refused(status: int, size: int, *, failing: bool) -> bool:
    """
    Whether an answer of so many bytes refuses a request; *failing* servers are a reason too, but
    for a while.
    """
    return (400 <= status < 500 or (failing and status in (503, 529))) and size <= SHORT


def descriptors(pid: int) -> int:
    """Return the number of open file descriptors of a process."""
    return len([*Path(f"/proc/{pid}/fd").iterdir()])


async def trouble(deployment: Deployment, soak: Soak, rng: random.Random) -> None:
    """
    Do one fault after the other, until cancelled; a server that was killed is started again at
    once.
    """
    while True:
        await asyncio.sleep(rng.uniform(*FAULT_EVERY))
        name, queued = rng.choice(FAULTS)
        place = {"small": SMALL, "large": LARGE, "other": OTHER}[
            name.split()[-1] if not queued else name.split(":")[0]
        ]
        soak.faults[name] += 1
        if queued:
            await deployment.befall(place, *queued)
        else:
            await deployment.restart(place)


async def measure(
    minutes: float, calm: float, concurrency: int, seed: int, tick: Callable[[float], object]
) -> Soak:
    """
    Soak for so many *minutes*, of which *calm* ones at each end are without faults. Raise if a
    client fails.
    """
    soak = Soak()
    async with deployed("--max-running", str(concurrency), force_close=False) as deployment:
        load = Load(deployment, soak)
        for path, body in HOSTILE:  # Memory that the first of each takes for good is no growth.
            await load.strike(path, body)
        clients = [load.client(number) for number in range(concurrency)]
        async with background(*clients, load.sample(), load.attack(), load.look()):
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
        soak.left_open = sum(
            (await settled(deployment.http, deployment.program.base, servers)).values()
        )
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
    rows: list[tuple[str, ...]] = []
    for part, fates in soak.fates.items():
        seconds = soak.seconds[part]
        samples = soak.of(part)
        latencies = (
            f"{quantile(seconds, share):.2f}" if len(seconds) > 1 else "-" for share in (0.5, 0.99)
        )
        resources = (
            (
                f"{statistics.median(getattr(each, name) for each in samples) / unit:.0f}"
                if samples
                else "-"
            )
            for name, unit in (("memory", 1024), ("descriptors", 1), ("tasks", 1), ("upstream", 1))
        )
        counts = (str(fates[fate]) for fate in fates_shown)
        rows.append((part, str(fates.total()), *counts, *latencies, *resources))
    return Sheet(columns, rows, "medians of the samples; seconds of answered requests").table()


def complaints(soak: Soak) -> list[str]:
    """
    Say what is not flat: what was lost, is wrong or is open, and what is larger after the faults
    than before.
    """
    found = soak.notes[:20]
    if soak.left_open:
        found.append(f"{soak.left_open} requests are open at the end")
    before = soak.of("before")
    after = soak.of("after")
    for name, share, more in (
        ("memory", 1.1, 32 * 1024),  # garbage collections are rare: see `warmed`
        ("descriptors", 1.1, 8),
        ("tasks", 1.1, 16),
    ):
        was, now = (
            statistics.median(getattr(each, name) for each in part) for part in (before, after)
        )
        if now > share * was + more:
            found.append(f"{name}: {was:.0f} before the faults, {now:.0f} after")
    return found


def stalls(soak: Soak) -> list[str]:
    """Say whether /health was late."""
    late = [each for each in soak.health if each > HEALTH_WITHIN]
    return (
        [f"/health took more than {HEALTH_WITHIN:g} s {len(late)} times, at most {max(late):.2f} s"]
        if late
        else []
    )


def main(
    minutes: Annotated[float, typer.Option(min=1, help="Minutes in all.")] = 30.0,
    calm: Annotated[
        float, typer.Option(min=0.2, help="Minutes without faults, at each end.")
    ] = 3.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Chains at once.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the faults.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Write the samples to FILE.json.", metavar="FILE")
    ] = None,
) -> None:
    """
    Soak a service; exit with 1 if a request is lost or wrong, one stays open, /health is late, or
    resources grow.
    """
    console = Console(width=160)
    if minutes <= 2 * calm:
        raise typer.BadParameter("more than twice --calm", param_hint="--minutes")
    with progress_bars(Console(stderr=True)) as progress:
        bar = progress.add_task(f"{concurrency} chains at once", total=60 * minutes)
        soak = asyncio.run(
            measure(
                minutes, calm, concurrency, seed, lambda seconds: progress.advance(bar, seconds)
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
            f" (median {statistics.median(soak.health):.3f} s of {len(soak.health)})"
        )
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.with_suffix(".json").write_text(
            json.dumps([asdict(each) for each in soak.samples]), encoding="utf-8"
        )
    for complaint in (found := complaints(soak) + stalls(soak)):
        console.print(complaint, style="bold red", highlight=False, markup=False)
    if found:
        raise typer.Exit(1)


if __name__ == "__main__":
    script(main, EXAMPLES)
