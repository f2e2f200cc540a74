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
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
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
    LENGTHS,
    MANY_STEPS,
    ROOM,
    ROUNDS,
    SHAPE,
    STEP_TOKENS,
    STEPS,
    Figure,
    Run,
    crowds,
    grown,
    lengths,
    solver_at,
    table_of,
)
from stepspec.cli.program import script
from stepspec.evals.progress import progress_bars
from stepspec.evals.results import Interval
from stepspec.orchestrator.chain import Chain
from tests.stand_in import StandIn, stand_in_process

JSON = {"Content-Type": "application/json"}
TOKEN_MS = 20.0
MAX_OF_AIOHTTP = 1.5
MAX_LONGER = 1.3
"""
The bars.

The first limits the CPU time over that of bare aiohttp. The second limits the CPU time of a step of
a long chain over that of a short chain.
"""
OURS = "stepspec"
BARE = "aiohttp"
SDK = "openai"
CONTENDERS = (OURS, BARE, SDK)

Sent = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting of the measurement."""

    chains: int
    """Chains at once."""
    tokens: int
    """Tokens of each chain before the measurement."""
    steps: int = 3
    """Steps that are measured."""


BY_CHAINS = (
    Cell(1, 2000, 6),
    Cell(16, 2000),
    Cell(64, 2000),
    Cell(256, 2000, 1),
)
BY_TOKENS = (Cell(16, 500), Cell(16, 16_000))
CELLS = (*BY_CHAINS, *BY_TOKENS)
AT_64 = BY_CHAINS[2]
SHORT = BY_CHAINS[1]
LONG = BY_TOKENS[1]


@dataclass(frozen=True, slots=True)
class Round:
    """One contender in one cell and round."""

    number: int
    """The number of the round; 0 warms up."""
    cell: Cell
    """The setting."""
    contender: str
    """Who sent the requests."""
    cpu: float
    """Milliseconds of CPU time per step."""
    wall: float
    """Milliseconds of wall time per step."""
    server: float
    """The share of a core that the server took."""


class RecordingStandIn(StandIn):
    """A stand-in that keeps the completion requests that it receives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.received: list[Sent] = []

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.received.append((request.path, orjson.loads(await request.read())))
        return await super().complete(request)


async def recorded(chain: Chain, steps: int) -> list[Sent]:
    """Return the requests of a run for *steps* steps, after a first step that extends *chain*."""
    server = RecordingStandIn(
        steps=MANY_STEPS,
        step_tokens=STEP_TOKENS,
        room=ROOM,
    )
    async with server.listening() as url, solver_at(url) as solver:
        run = Run(solver, chain)
        await run.think(1)
        server.received.clear()
        await run.think(steps)
    return server.received


async def replay_bare(http: aiohttp.ClientSession, base: str, requests: Sequence[Sent]) -> str:
    """Send *requests* one after the other by aiohttp and orjson alone. Return the text."""
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
    """Send *requests* one after the other by the openai SDK. Return the text."""
    written: list[str] = []
    create = cast("Callable[..., Awaitable[object]]", client.completions.create)
    for _, body in requests:
        known: dict[str, Any] = {name: body.get(name) for name in ("model", "prompt", "stream")}
        made = await create(**known, extra_body=body)
        if isinstance(made, Completion):
            written.append(made.choices[0].text)
            continue
        async for event in cast("AsyncStream[Completion]", made):
            written.extend(choice.text for choice in event.choices)
    return "".join(written)


async def bare_step(tokens: int) -> Figure:
    """Measure the requests of a step after a chain of so many *tokens*, by bare aiohttp."""
    async with aiohttp.ClientSession(headers=JSON) as http:
        with stand_in_process(*SHAPE) as url:
            async with solver_at(url) as solver:
                chain = grown(tokens, solver.small.vocabulary)
            requests = await recorded(chain, STEPS)
            rounds: list[float] = []
            for _ in range(ROUNDS):
                began = time.process_time()
                await replay_bare(http, url, requests)
                rounds.append(time.process_time() - began)
    name = f"the same requests by bare aiohttp at {tokens:,} tokens"
    return Figure(name, 1000 * min(rounds) / STEPS, "ms")


async def server_seconds(http: aiohttp.ClientSession, base: str) -> float:
    """Read the CPU time of the server in seconds."""
    async with http.get(f"{base}/metrics") as reply:
        text = await reply.text()
    return float(
        re.findall(
            r"^process_cpu_seconds_total\S* (\S+)",
            text,
            re.MULTILINE,
        )[0]
    )


async def measure(
    base: str,
    cells: Sequence[Cell],
    rounds: int,
    console: Console,
) -> list[Round]:
    """
    Measure every contender in each of the *cells*, *rounds* times, in turns.

    The SDK is slow and is measured in every other round. After an interruption return the complete
    rounds.
    """
    measured: list[Round] = []
    async with AsyncExitStack() as stack:
        solver = await stack.enter_async_context(solver_at(base))
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, headers=JSON),
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
            """Return the work of each chain. The first step of ours encodes the whole chain."""
            if name == BARE:
                return [partial(replay_bare, http, base, requests[cell])] * cell.chains
            if name == SDK:
                return [partial(replay_sdk, sdk, requests[cell])] * cell.chains
            runs = [Run(solver, chains[cell]) for _ in range(cell.chains)]
            await asyncio.gather(*(run.think(1) for run in runs))
            return [partial(run.think, cell.steps) for run in runs]

        async def once(number: int, name: str, cell: Cell) -> Round:
            work_of_chains = await works(name, cell)
            server_before = await server_seconds(http, base)
            gc.collect()
            cpu_began = time.process_time()
            wall_began = time.perf_counter()
            await asyncio.gather(*(work() for work in work_of_chains))
            cpu = time.process_time() - cpu_began
            wall = time.perf_counter() - wall_began
            return Round(
                number=number,
                cell=cell,
                contender=name,
                cpu=1000 * cpu / (cell.chains * cell.steps),
                wall=1000 * wall / cell.steps,
                server=(await server_seconds(http, base) - server_before) / wall,
            )

        with progress_bars(console) as progress, suppress(asyncio.CancelledError):
            turns = [in_turn(number) for number in range(rounds + 1)]
            bar = progress.add_task("overhead", total=len(cells) * sum(map(len, turns)))
            for number, names in enumerate(turns):
                complete: list[Round] = []
                for cell, name in product(cells, names):
                    complete.append(await once(number, name, cell))
                    progress.advance(bar)
                if number == 0:  # It warms up.
                    continue
                measured += complete
                for name, value, _ in verdicts(complete):
                    progress.console.print(f"round {number}: {name}: {value:.2f}")
    return measured


def in_turn(number: int) -> tuple[str, ...]:
    """Return the contenders of a round in their order. Each is the first in some rounds."""
    names = CONTENDERS if number % 2 else (OURS, BARE)
    first = number // 2 % len(names)
    return names[first:] + names[:first]


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one cell."""

    cell: Cell
    """The setting."""
    cpu: Mapping[str, float]
    """Milliseconds of CPU time per step, by contender."""
    wall: float
    """Milliseconds of wall time per step of stepspec."""
    cpu_of_bare: Interval
    """CPU time of stepspec over that of bare aiohttp."""
    cpu_of_sdk: Interval
    """CPU time of stepspec over that of the openai SDK."""
    wall_of_bare: Interval
    """Wall time of stepspec over that of bare aiohttp."""
    server: float
    """The largest share of a core that the server took."""


def rows(measured: Sequence[Round]) -> list[Row]:
    """Summarise the rounds, cell by cell."""
    summaries: list[Row] = []
    for cell in dict.fromkeys(each.cell for each in measured):
        by_name = {
            name: [r for r in measured if (r.cell, r.contender) == (cell, name)]
            for name in CONTENDERS
        }
        ours = (cell, OURS)
        row = Row(
            cell=cell,
            cpu={name: median(r.cpu for r in rounds) for name, rounds in by_name.items()},
            wall=median(r.wall for r in by_name[OURS]),
            cpu_of_bare=ratio(measured, ours, (cell, BARE)),
            cpu_of_sdk=ratio(measured, ours, (cell, SDK)),
            wall_of_bare=ratio(measured, ours, (cell, BARE), "wall"),
            server=max(median(r.server for r in rounds) for rounds in by_name.values()),
        )
        summaries.append(row)
    return summaries


def ratio(
    measured: Sequence[Round],
    one: tuple[Cell, str],
    other: tuple[Cell, str],
    figure: Literal["cpu", "wall"] = "cpu",
) -> Interval:
    """
    Return the median time of *one* cell and contender over that of the *other*, and its extremes.

    Only rounds that have both count.
    """
    times: dict[tuple[Cell, str], dict[int, float]] = {one: {}, other: {}}
    for r in measured:
        key = (r.cell, r.contender)
        if key in times:
            times[key][r.number] = getattr(r, figure)
    floor = times[other]
    ours = times[one].items()
    ratios = [value / floor[number] for number, value in ours if number in floor]
    return Interval(median(ratios), min(ratios), max(ratios))


def growth(measured: Sequence[Round], contender: str = OURS) -> Interval:
    """Return the CPU time of a step at the `LONG` cell over that at the `SHORT` cell."""
    return ratio(measured, (LONG, contender), (SHORT, contender))


def verdicts(measured: Sequence[Round]) -> list[tuple[str, float, float]]:
    """Return what is compared with a bar: its name, the median, and the bar, if it was measured."""
    compared = (
        (
            f"CPU time over bare aiohttp at {AT_64.chains} chains",
            (AT_64, OURS),
            (AT_64, BARE),
            MAX_OF_AIOHTTP,
        ),
        (
            f"CPU time of a step at {LONG.tokens:,} tokens over {SHORT.tokens:,}",
            (LONG, OURS),
            (SHORT, OURS),
            MAX_LONGER,
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
        int,
        typer.Option(min=1, help="Number of measurements of each, in turns."),
    ] = 5,
    token_ms: Annotated[
        float,
        typer.Option(min=0, help="Milliseconds per token of the server."),
    ] = TOKEN_MS,
    only_growth: Annotated[
        bool,
        typer.Option("--growth", help="Measure nothing but lengths and crowds."),
    ] = False,
) -> None:
    """
    Measure CPU time, wall time and memory that stepspec adds to its HTTP requests, and compare with
    the bars. Then measure how they grow with the length and with the number of chains.
    """
    console = Console(width=140)
    measured: list[Round] = [] if only_growth else _measured(rounds, token_ms)
    if measured:
        _print(console, measured, token_ms)
    bare = [asyncio.run(bare_step(tokens)) for tokens in LENGTHS]
    console.print(table_of([*lengths(), *bare, *crowds()]))
    command = "python -m lab.overhead --growth" if only_growth else "python -m lab.overhead"
    console.print(f"{datetime.date.today()}: {command}", style="dim")
    if any(value > bar for _, value, bar in verdicts(measured)):
        sys.exit(1)


def _measured(rounds: int, token_ms: float) -> list[Round]:
    """Measure all cells against a server of its own. Exit if no round is complete."""
    with stand_in_process(
        *SHAPE,
        "--block",
        "0",
        "--token-ms",
        str(token_ms),
    ) as base:
        measured = asyncio.run(measure(base, CELLS, rounds, Console(stderr=True)))
    if not measured:
        sys.exit(130)
    return measured


HEADINGS = (
    "chains",
    "tokens",
    "cpu",
    "aiohttp",
    "openai",
    "cpu vs aiohttp",
    "vs openai",
    "wall",
    "wall vs aiohttp",
    "server cpu",
)


def _print(console: Console, measured: Sequence[Round], token_ms: float) -> None:
    summaries = rows(measured)
    count = len({each.number for each in measured})
    unit = f"milliseconds per step of {STEP_TOKENS} tokens and one verdict"
    table = Table(
        title=f"{unit}, medians of {count} rounds",
        caption=f"a stand-in server, {token_ms:g} ms per token; brackets: extremes of the rounds",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for row in summaries:
        table.add_row(
            str(row.cell.chains),
            f"{row.cell.tokens:,}",
            *(f"{row.cpu[name]:.2f}" for name in CONTENDERS),
            f"{row.cpu_of_bare:.2f}",
            f"{row.cpu_of_sdk:.2f}",
            f"{row.wall:.0f}",
            f"{row.wall_of_bare:.2f}",
            f"{row.server:.0%}",
        )
    console.print(table)
    grown_by = ", ".join(f"{name} {growth(measured, name):.2f}" for name in CONTENDERS)
    console.print(f"CPU time of a step at {LONG.tokens:,} tokens over {SHORT.tokens:,}: {grown_by}")
    for name, value, bar in verdicts(measured):
        console.print(f"{'met' if value <= bar else 'missed'}: {name}: {value:.2f}, bar {bar}")


if __name__ == "__main__":
    script(main, EXAMPLES)
