"""
Measure what stepspec adds to the HTTP requests that it sends: CPU time, wall time and memory.

A stand-in server (`tests.stand_in`) in a process of its own writes tokens at a set pace. The steps
of a SpecReason run and the same requests without stepspec, by bare aiohttp and by the openai SDK,
are timed in turns in one process. How the cost grows with lengths and crowds is measured by
`lab.chain_costs`.
"""

from __future__ import annotations

import asyncio
import datetime
import gc
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from statistics import median
from typing import Annotated, Any, Literal, cast

import aiohttp
import orjson
import typer
from aiohttp import web
from openai import AsyncOpenAI, AsyncStream, DefaultAioHttpClient
from openai.types import Completion
from rich.console import Console
from rich.table import Table

from lab.chain_costs import (
    MANY_STEPS,
    ROOM,
    STEP_TOKENS,
    Run,
    crowds,
    grown,
    lengths,
    solver_at,
    table_of,
)
from stepspec.cli.program import script
from stepspec.evals.progress import progress_bars
from stepspec.orchestrator.chain import Chain
from tests.stand_in import StandIn, stand_in_process

TOKEN_MS = 20.0
OF_AIOHTTP, LONGER = 1.5, 1.3
"""
The bars: CPU time over that of bare aiohttp; CPU time of a step of a long chain over that of a
short one.
"""
OURS, BARE, SDK = CONTENDERS = ("stepspec", "aiohttp", "openai")

Sent = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Cell:
    """
    One setting: a number of *chains* at once, which have *tokens* tokens before the first of their
    *steps*.
    """

    chains: int
    tokens: int
    steps: int = 3


BY_CHAINS = (Cell(1, 2000, 6), Cell(16, 2000), Cell(64, 2000), Cell(256, 2000, 1))
BY_TOKENS = (Cell(16, 500), Cell(16, 16_000))
CELLS = (*BY_CHAINS, *BY_TOKENS)
AT_64, SHORT, LONG = BY_CHAINS[2], BY_CHAINS[1], BY_TOKENS[1]


@dataclass(frozen=True, slots=True)
class Round:
    """
    One contender's milliseconds per step in one cell and round; *server* is the share of a core
    that it took.
    """

    number: int
    cell: Cell
    contender: str
    cpu: float
    wall: float
    server: float


@dataclass(frozen=True, slots=True)
class Typical:
    """A median over rounds with its interval, the extremes of the rounds."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Typical:
        return cls(median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class RecordingStandIn(StandIn):
    """A stand-in that keeps the completion requests that it receives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.received: list[Sent] = []

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.received.append((request.path, orjson.loads(await request.read())))
        return await super().complete(request)


async def recorded(chain: Chain, steps: int) -> list[Sent]:
    """
    Return the requests of a run for a number of *steps*, after a first step that extends *chain*.
    """
    server = RecordingStandIn(steps=MANY_STEPS, step_tokens=STEP_TOKENS, room=ROOM)
    async with server.listening() as url, solver_at(url) as solver:
        run = Run(solver, chain)
        await run.think(1)
        server.received.clear()
        await run.think(steps)
    return server.received


async def replay_bare(http: aiohttp.ClientSession, base: str, requests: Sequence[Sent]) -> str:
    """
    Send *requests* one after the other and read the text of the replies, with nothing but aiohttp
    and orjson.
    """
    written: list[str] = []
    for path, body in requests:
        async with http.post(base + path, data=orjson.dumps(body)) as reply:
            if not body.get("stream"):
                written.append(orjson.loads(await reply.read())["choices"][0]["text"])
                continue
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    choices = orjson.loads(line[6:])["choices"]
                    written.extend(choice["text"] for choice in choices)
    return "".join(written)


async def replay_sdk(client: AsyncOpenAI, requests: Sequence[Sent]) -> str:
    """Send *requests* one after the other and read the text of the replies with the openai SDK."""
    written: list[str] = []
    create = cast("Callable[..., Awaitable[object]]", client.completions.create)
    for _, body in requests:
        named = {
            "model",
            "prompt",
            "max_tokens",
            "temperature",
            "top_p",
            "stop",
            "logprobs",
            "stream",
        }
        known: dict[str, Any] = {name: value for name, value in body.items() if name in named}
        more = {name: value for name, value in body.items() if name not in named}
        made = await create(**known, extra_body=more)
        if isinstance(made, Completion):
            written.append(made.choices[0].text)
            continue
        async for event in cast("AsyncStream[Completion]", made):
            written.extend(choice.text for choice in event.choices)
    return "".join(written)


async def server_seconds(http: aiohttp.ClientSession, base: str) -> float:
    """Read the CPU time of the server."""
    async with http.get(f"{base}/metrics") as reply:
        line = next(
            line
            for line in (await reply.text()).splitlines()
            if line.startswith("process_cpu_seconds_total")
        )
    return float(line.split()[-1])


async def measure(base: str, cells: Sequence[Cell], rounds: int, console: Console) -> list[Round]:
    """
    Measure every contender in each of the *cells*, *rounds* times, in turns; the SDK, which is
    slow, in every other.

    If that is interrupted, return the complete rounds.
    """
    measured: list[Round] = []
    async with AsyncExitStack() as stack:
        solver = await stack.enter_async_context(solver_at(base))
        connector = aiohttp.TCPConnector(limit=0)
        headers = {"Content-Type": "application/json"}
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, headers=headers)
        )
        sdk = AsyncOpenAI(
            base_url=f"{base}/v1",
            api_key="none",
            max_retries=0,
            timeout=None,
            http_client=DefaultAioHttpClient(),
        )
        await stack.enter_async_context(sdk)
        chains = {cell: grown(cell.tokens, solver.small.vocabulary) for cell in cells}
        requests = {cell: await recorded(chains[cell], cell.steps) for cell in cells}

        async def works(name: str, cell: Cell) -> list[Callable[[], Awaitable[object]]]:
            """
            The work of each chain. Ours has its first step behind it: only a chain that begins is
            encoded whole.
            """
            if name == BARE:
                return [partial(replay_bare, http, base, requests[cell])] * cell.chains
            if name == SDK:
                return [partial(replay_sdk, sdk, requests[cell])] * cell.chains
            runs = [Run(solver, chains[cell]) for _ in range(cell.chains)]
            await asyncio.gather(*(run.think(1) for run in runs))
            return [partial(run.think, cell.steps) for run in runs]

        async def once(number: int, name: str, cell: Cell) -> Round:
            each = await works(name, cell)
            before = await server_seconds(http, base)
            gc.collect()
            cpu, wall = time.process_time(), time.perf_counter()
            await asyncio.gather(*(work() for work in each))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            server = (await server_seconds(http, base) - before) / wall
            return Round(
                number,
                cell,
                name,
                1000 * cpu / (cell.chains * cell.steps),
                1000 * wall / cell.steps,
                server,
            )

        turns = [
            (number, name, cell)
            for number in range(rounds + 1)
            for cell in cells
            for name in in_turn(number)
        ]
        with progress_bars(console) as progress, suppress(asyncio.CancelledError):
            bar = progress.add_task("overhead", total=len(turns))
            for _, group in groupby(turns, key=itemgetter(0)):
                complete: list[Round] = []
                for number, name, cell in group:
                    complete.append(await once(number, name, cell))
                    progress.advance(bar)
                if complete[0].number:  # The first round warms up.
                    measured += complete
                    for name, value, _ in verdicts(complete):
                        progress.console.print(f"round {complete[0].number}: {name}: {value:.2f}")
    return measured


def in_turn(number: int) -> tuple[str, ...]:
    """The contenders of a round, in their order: each goes first in some rounds."""
    names = CONTENDERS if number % 2 else (OURS, BARE)
    first = number // 2 % len(names)
    return names[first:] + names[:first]


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one cell: times in milliseconds per step, and ratios of the same rounds."""

    cell: Cell
    cpu: Mapping[str, float]
    wall: Mapping[str, float]
    cpu_of_bare: Typical
    cpu_of_sdk: Typical
    wall_of_bare: Typical
    server: float


def rows(measured: Sequence[Round]) -> list[Row]:
    """Summarise the rounds, cell by cell."""
    summaries: list[Row] = []
    for cell in dict.fromkeys(each.cell for each in measured):
        by_name = {
            name: [r for r in measured if (r.cell, r.contender) == (cell, name)]
            for name in CONTENDERS
        }
        summaries.append(
            Row(
                cell,
                {name: median(r.cpu for r in each) for name, each in by_name.items()},
                {name: median(r.wall for r in each) for name, each in by_name.items()},
                ratio(measured, (cell, OURS), (cell, BARE)),
                ratio(measured, (cell, OURS), (cell, SDK)),
                ratio(measured, (cell, OURS), (cell, BARE), "wall"),
                max(median(r.server for r in each) for each in by_name.values()),
            )
        )
    return summaries


def ratio(
    measured: Sequence[Round],
    one: tuple[Cell, str],
    other: tuple[Cell, str],
    figure: Literal["cpu", "wall"] = "cpu",
) -> Typical:
    """
    The time of *one* cell and contender over that of the *other*, in the rounds that have both.
    """
    ours, floor = (
        {
            r.number: r.cpu if figure == "cpu" else r.wall
            for r in measured
            if (r.cell, r.contender) == key
        }
        for key in (one, other)
    )
    return Typical.of([ours[number] / floor[number] for number in ours if number in floor])


def growth(measured: Sequence[Round], contender: str = OURS) -> Typical:
    """
    CPU time of a step of a chain of `LONG` tokens over that of one of `SHORT` tokens, in the same
    rounds.
    """
    return ratio(measured, (LONG, contender), (SHORT, contender))


def verdicts(measured: Sequence[Round]) -> list[tuple[str, float, float]]:
    """What is compared with a bar: its name, the median, and the bar; only what was measured."""
    compared = (
        (
            f"CPU time over bare aiohttp at {AT_64.chains} chains",
            (AT_64, OURS),
            (AT_64, BARE),
            OF_AIOHTTP,
        ),
        (
            f"CPU time of a step at {LONG.tokens:,} tokens over {SHORT.tokens:,}",
            (LONG, OURS),
            (SHORT, OURS),
            LONGER,
        ),
    )
    known = {(r.cell, r.contender) for r in measured}
    return [
        (name, ratio(measured, one, other).value, bar)
        for name, one, other, bar in compared
        if {one, other} <= known
    ]


EXAMPLES = """
Examples:

  python -m lab.overhead               # about six minutes; Ctrl-C: what is measured so far

  python -m lab.overhead --rounds 3

  python -m lab.overhead --growth      # lengths and crowds alone, two minutes
"""


def main(
    rounds: Annotated[
        int, typer.Option(min=1, help="Number of measurements of each, in turns.")
    ] = 5,
    token_ms: Annotated[
        float, typer.Option(min=0, help="Milliseconds per token of the server.")
    ] = TOKEN_MS,
    only_growth: Annotated[
        bool, typer.Option("--growth", help="Measure nothing but lengths and crowds.")
    ] = False,
) -> None:
    """
    Measure CPU time, wall time and memory that stepspec adds to its HTTP requests, and compare with
    the bars; then how they grow with the length and with the number of chains.
    """
    console = Console(width=140)
    measured: list[Round] = [] if only_growth else _measured(rounds, token_ms)
    if measured:
        _print(console, measured, token_ms)
    console.print(table_of([*lengths(), *crowds()]))
    command = "python -m lab.overhead --growth" if only_growth else "python -m lab.overhead"
    console.print(f"{datetime.date.today()}, {platform.machine()}: {command}", style="dim")
    if any(value > bar for _, value, bar in verdicts(measured)):
        sys.exit(1)


def _measured(rounds: int, token_ms: float) -> list[Round]:
    """Measure all cells against a server of its own. Exit if no round is complete."""
    shape = ("--steps", str(MANY_STEPS), "--step-tokens", str(STEP_TOKENS), "--room", str(ROOM))
    with stand_in_process(*shape, "--block", "0", "--token-ms", str(token_ms)) as base:
        measured = asyncio.run(measure(base, CELLS, rounds, Console(stderr=True)))
    if not measured:
        sys.exit(130)
    return measured


def _print(console: Console, measured: Sequence[Round], token_ms: float) -> None:
    summaries = rows(measured)
    count = len({each.number for each in measured})
    table = Table(
        title=(
            f"milliseconds per step of {STEP_TOKENS} tokens and one verdict, medians of {count}"
            " rounds"
        ),
        caption=f"a stand-in server, {token_ms:g} ms per token; brackets: extremes of the rounds",
    )
    headings = (
        *("chains", "tokens", "cpu", "aiohttp", "openai", "cpu vs aiohttp", "vs openai"),
        *("wall", "wall vs aiohttp", "server cpu"),
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in summaries:
        cpu = [f"{row.cpu[name]:.2f}" for name in (OURS, BARE, SDK)]
        table.add_row(
            *(
                str(row.cell.chains),
                f"{row.cell.tokens:,}",
                *cpu,
                str(row.cpu_of_bare),
                str(row.cpu_of_sdk),
            ),
            *(f"{row.wall[OURS]:.0f}", str(row.wall_of_bare), f"{row.server:.0%}"),
        )
    console.print(table)
    grown_by = ", ".join(f"{name} {growth(measured, name)}" for name in (OURS, BARE, SDK))
    console.print(f"CPU time of a step at {LONG.tokens:,} tokens over {SHORT.tokens:,}: {grown_by}")
    for name, value, bar in verdicts(measured):
        console.print(f"{'met' if value <= bar else 'missed'}: {name}: {value:.2f}, bar {bar}")


if __name__ == "__main__":
    script(main, EXAMPLES)
