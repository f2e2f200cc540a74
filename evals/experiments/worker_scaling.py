"""Measure how many requests per second the service takes with one worker and with several."""

from __future__ import annotations

import asyncio
import datetime
import os
import platform
import random
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import aiohttp
import orjson
import typer
from rich.console import Console
from rich.table import Table

from stepspec.orchestrator.errors import ServerDied, ServerNotReady
from stepspec.orchestrator.launcher.process import Child, child, failure_lines

from ..command_line import progress_bars, script
from ..results import bootstrap_ratio
from ..testbed.stand_in import stand_in_process

EXAMPLES = """
Examples:

  python -m stepspec.evals.experiments.worker_scaling

  python -m stepspec.evals.experiments.worker_scaling --users 8 --requests 400

  python -m stepspec.evals.experiments.worker_scaling --workers 4 --json > workers.json
"""
START_SECONDS = 300.0  # mostly imports, on a machine that may be busy
GRACE = 10.0
TICKS = os.sysconf("SC_CLK_TCK")  # per second of CPU time in /proc
MODELS = {"pass-through": "huge", "specreason": "specreason"}
DIRECT = "no service"
PROBLEM = [{"role": "user", "content": "What is 6 x 7?"}]


@dataclass(frozen=True, slots=True)
class Target:
    """What requests of a *kind* are sent to: *workers* processes under *url*, the parent among *processes*."""

    kind: str
    workers: int
    url: str
    processes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rate:
    """
    One round: so many *requests* of a *kind* in *seconds*, over all *workers*.

    *busy* is the CPU time of the processes that serve, in milliseconds per request, and *parent* that of the parent.
    """

    kind: str
    workers: int
    requests: int
    seconds: float
    busy: float
    parent: float

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def started_by(pid: int) -> tuple[int, ...]:
    return tuple(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@asynccontextmanager
async def service(small: str, large: str, workers: int, folder: Path) -> AsyncGenerator[tuple[str, tuple[int, ...]]]:
    """Run ``stepspec serve`` in processes of its own; yield its URL and its processes, the parent first."""
    flags = ("--small", small, "--large", large, "--port", "0", "--workers", str(workers))
    quiet = {"STEPSPEC_SERVICE__HEALTH_EVERY": "3600"}
    log = folder / f"{workers}.log"
    command = (sys.executable, "-m", "stepspec", "serve", *flags, "--log-format", "json", "--max-running", "512")
    async with child(command, env={**os.environ, **quiet}, log=log, grace=GRACE) as running:
        url = await _address(running, log)
        yield url, (running.pid, *started_by(running.pid))


async def _address(running: Child, log: Path) -> str:
    """Wait until the service serves. Raise `ServerDied` or `ServerNotReady`."""
    try:
        async with asyncio.timeout(START_SECONDS):
            while not running.ended.done():
                if url := _logged_address(log):
                    return url
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise ServerNotReady(f"the service does not serve after {START_SECONDS:g} s; see {log}") from None
    raise ServerDied("the service ended: " + "\n".join(_failure(log)))


def _logged_address(log: Path) -> str:
    for line in log.read_bytes().splitlines():
        if line.startswith(b"{") and line.endswith(b"}") and b'"serving"' in line:
            return str(orjson.loads(line)["url"])
    return ""


def _failure(log: Path) -> list[str]:
    return failure_lines(log.read_text())


async def measure(target: Target, users: int, requests: int) -> Rate:
    """Send *requests* to *target*, those of each of the *users* one after the other on a connection of its own."""
    body = orjson.dumps({"model": MODELS.get(target.kind, "huge"), "messages": PROBLEM, "max_tokens": 64})
    before = [cpu_seconds(pid) for pid in target.processes]
    left = iter(range(requests))
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=users), headers=headers) as http:

        async def user() -> None:
            for _ in left:
                async with http.post(f"{target.url}/chat/completions", data=body) as reply:
                    text = await reply.read()
                if reply.status != 200:
                    raise RuntimeError(f"HTTP {reply.status}: {text[-500:]!r}")

        began = time.perf_counter()
        await asyncio.gather(*(user() for _ in range(users)))
        seconds = time.perf_counter() - began
    spent = [1000 * (cpu_seconds(pid) - first) for pid, first in zip(target.processes, before, strict=True)]
    parent = spent[0] if len(spent) > 1 else 0.0
    return Rate(target.kind, target.workers, requests, seconds, sum(spent) / requests, parent / requests)


async def rates(workers: Sequence[int], users: int, requests: int, rounds: int, console: Console) -> list[Rate]:
    """Measure every target once in each of *rounds*, in another order each time."""
    measured, order = list[Rate](), random.Random(0)
    flags = ("--steps", "3", "--step-tokens", "8")
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        small = stack.enter_context(stand_in_process("--model", "tiny", *flags))
        large = stack.enter_context(stand_in_process("--model", MODELS["pass-through"], *flags))
        targets = [Target(DIRECT, 0, f"{large}/v1")]
        for count in workers:
            url, processes = await stack.enter_async_context(service(f"{small}/v1", f"{large}/v1", count, folder))
            targets += [Target(kind, count, url, processes) for kind in MODELS]
        with progress_bars(console) as progress:
            bar = progress.add_task("requests", total=len(targets) * (rounds + 1))
            for number in range(rounds + 1):
                order.shuffle(targets)
                for target in targets:
                    rate = await measure(target, users, requests)
                    if number:  # The first round warms up.
                        measured.append(rate)
                    progress.advance(bar)
    return measured


def main(
    workers: Annotated[int, typer.Option(min=2, help="Number of workers to compare with one.")] = 2,
    users: Annotated[int, typer.Option(min=1, help="Requests at the same time.")] = 16,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each measurement.")] = 400,
    rounds: Annotated[int, typer.Option(min=2, help="Number of measurements of each, in turns.")] = 9,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Measure the requests per second of the service at one worker and at several, over servers without a model."""
    measured = asyncio.run(rates((1, workers), users, requests, rounds, Console(stderr=True)))
    if json:
        about = {"date": str(datetime.date.today()), "machine": platform.machine(), "cores": os.cpu_count()}
        print(orjson.dumps(about | {"users": users, "rounds": [asdict(rate) for rate in measured]}).decode())
    else:
        show(Console(width=120), measured, users)


def show(console: Console, measured: Sequence[Rate], users: int) -> None:
    """Print the medians, and the ratio to one worker with its 95% interval over the rounds."""
    by_target: Mapping[tuple[str, int], list[Rate]] = {
        target: [rate for rate in measured if (rate.kind, rate.workers) == target]
        for target in sorted({(rate.kind, rate.workers) for rate in measured})
    }
    requests = measured[0].requests
    table = Table(title=f"Requests per second: {users} at the same time, medians of rounds of {requests} requests")
    for heading in ("requests", "workers", "per second", "of one worker", "CPU ms each", "of the parent"):
        table.add_column(heading, justify="left" if heading == "requests" else "right")
    for (kind, workers), rounds in by_target.items():
        ratio = ""
        if workers > 1:
            one = [rate.seconds for rate in by_target[kind, 1]]
            change = bootstrap_ratio(one, [rate.seconds for rate in rounds])
            ratio = f"{change.value:.2f} [{change.low:.2f}, {change.high:.2f}]"
        served = workers > 0
        table.add_row(
            kind,
            str(workers) if served else "",
            f"{median(rate.per_second for rate in rounds):.0f}",
            ratio,
            f"{median(rate.busy for rate in rounds):.2f}" if served else "",
            f"{median(rate.parent for rate in rounds):.2f}" if workers > 1 else "",
        )
    console.print(table)
    console.print(
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, which the clients and the servers "
        "without a model use too: python -m stepspec.evals.experiments.worker_scaling",
        style="dim",
    )


if __name__ == "__main__":
    script(main, EXAMPLES)
