"""
Measure what judging costs the large model's server, next to writing, at several loads: each way to read less.

``python -m stepspec.evals.experiments.judging_load`` serves the large miniature model and prints two tables: what was
measured, and where the costs of judging and of writing cross (`judging_crossing`). With ``--per-pass`` and
``--per-token`` it starts no server, and prints the second table for a server with these costs.

Nothing is decided here: every draft is committed, whatever the verdict. The judge of the miniature pair knows one of
the questions only, so that the others have costs here, and no quality.
"""

from __future__ import annotations

import asyncio
import datetime
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stepspec.orchestrator.chain import Chain, Rollback, Step
from stepspec.orchestrator.endpoints import Endpoint, VllmEndpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Called

from ..command_line import finite, script
from ..simulation.costs import ServerCosts
from ..testbed.problems import generate
from ..testbed.servers import SEQUENCES, endpoint, read_pace, running
from . import judging_crossing
from .judging_cost import SEED, fresh_steps
from .judging_crossing import GROUP, WAYS, Crossing, Way, crossings, even, judging, qwen3_reads, small_print, writing

EXAMPLES = """
Examples:

  python -m stepspec.evals.experiments.judging_load

  python -m stepspec.evals.experiments.judging_load --users 1,16,64 --profile slow

  python -m stepspec.evals.experiments.judging_load --per-pass 0.02 --per-token 0.000165 --step 40
"""
WRITTEN = 48  # tokens of one request that measures writing
COLUMNS = ("", "at once", "n", "read a step", "first verdict", "repair", "ms a step", "of writing", "by the pace")


@dataclass(frozen=True, slots=True)
class Measured:
    """
    One measurement of one way with *at_once* chains: of *steps* judged steps, each took *seconds* of the server's time.

    *read* are the tokens that were not cached, for each step; *first* those of the first verdict on a chain, of which
    nothing was cached, and *repair* those of a repair after the last verdict.
    """

    way: str
    at_once: int
    steps: int
    seconds: float
    read: float
    first: float
    repair: float


@dataclass(frozen=True, slots=True)
class Cell:
    """
    The medians of *n* measurements, the *least* and the *most* seconds among them, and the time next to writing.

    *of_writing* is the time of a verdict for each step, divided by that of writing the step at the same load;
    *expected* is the same by the costs of the server, without what clients and the server do besides.
    """

    way: str
    at_once: int
    n: int
    seconds: float
    least: float
    most: float
    read: float
    first: float
    repair: float
    of_writing: float
    expected: float | None


def paced(profile: str) -> ServerCosts | None:
    """The costs of the large miniature server with the pace of *profile*; None if it is without paces."""
    pace = read_pace(profile, "large")
    return None if pace is None else even(pace.seconds_per_pass, pace.seconds_per_token)


class ChainMaker:
    """Makes chains of about *tokens* tokens: each about a problem of its own, so that no two share a cached prefix."""

    def __init__(self, large: VllmEndpoint, tokens: int, seed: int = SEED) -> None:
        self._large, self._tokens = large, tokens
        self._problems = generate(seed, "test")
        self._texts = fresh_steps(seed)
        self._steps: tuple[Step, ...] = ()

    async def make(self) -> Chain:
        """Make a chain that ends with a step of the large model, so that the next draft is judged in any case."""
        chain = Chain.of(next(self._problems).text)
        if not self._steps:
            self._steps = await self._fill(chain)
        return Chain(chain.messages, (*self._steps[:-1], replace(self._steps[-1], author="large")))

    async def _fill(self, chain: Chain) -> tuple[Step, ...]:
        """Take steps until *chain* has as many tokens as wanted. They are the same for all chains."""
        length = len(await self._large.encoder.chain(chain))
        steps: list[Step] = []
        while length < self._tokens:
            steps.append(next(self._texts))
            length += len(await self._large.encoder.step(steps[-1]))
        return tuple(steps)


def drafts(way: Way, seed: int = SEED + 1) -> Iterator[Step]:
    """Yield drafts, each of as many steps as *way* wants."""
    steps = fresh_steps(seed)
    while group := list(islice(steps, way.draft)):
        yield Step("".join(step.text for step in group), "small")


class ChainJudge:
    """One chain that is judged by one way: it grows by every draft, and counts what its verdicts read."""

    def __init__(self, way: Way, large: VllmEndpoint, chain: Chain) -> None:
        self.calls: list[Called] = []
        self._policy = way.make(large.model(observe=self._observe))
        self._chain, self._drafts = chain, drafts(way)

    def _observe(self, event: object) -> None:
        if isinstance(event, Called):
            self.calls.append(event)

    async def judge(self, count: int) -> int:
        """Judge *count* drafts, one after the other; return the tokens that were read."""
        self.calls.clear()
        for draft in islice(self._drafts, count):
            await self._policy.verify(self._chain, draft)
            self._chain = self._chain.extend(draft)
        return self._read()

    async def repair(self) -> int:
        """Have one more draft repaired; return the tokens that were read."""
        self.calls.clear()
        await self._policy.repair(self._chain, next(self._drafts), Rollback())
        return self._read()

    def _read(self) -> int:
        return sum(call.prompt - call.cached for call in self.calls)


async def measure(way: Way, large: VllmEndpoint, chains: Sequence[Chain], steps: int) -> Measured:
    """Judge *steps* steps of each of *chains*, all at the same time, by *way*; *steps* is a multiple of `GROUP`."""
    judges = [ChainJudge(way, large, chain) for chain in chains]
    first = await asyncio.gather(*(judge.judge(1) for judge in judges))
    began = time.perf_counter()
    read = await asyncio.gather(*(judge.judge(steps // way.draft) for judge in judges))
    seconds = time.perf_counter() - began
    repair = await asyncio.gather(*(judge.repair() for judge in judges))
    count = steps * len(chains)
    return Measured(way.name, len(chains), count, seconds / count, sum(read) / count, fmean(first), fmean(repair))


async def measure_writing(large: VllmEndpoint, chains: Sequence[Chain], requests: int) -> float:
    """
    Solve the problems of *chains*, all at the same time; return the seconds of the server's time for each token.

    The steps of the chains are left out: after steps of other problems, the model ends at once.
    """
    model = large.model()

    async def write(chain: Chain, count: int) -> int:
        problem = replace(chain, steps=())
        return sum([len((await model.write(problem, stop=(), limit=WRITTEN)).tokens) for _ in range(count)])

    await asyncio.gather(*(write(chain, 1) for chain in chains))
    began = time.perf_counter()
    written = await asyncio.gather(*(write(chain, requests) for chain in chains))
    return (time.perf_counter() - began) / sum(written)


@dataclass(frozen=True, slots=True)
class Measurements:
    """All measurements: of *ways*, of *writing* in seconds per token by load, and the mean *tokens* of a step."""

    ways: Sequence[Measured]
    writing: Mapping[int, Sequence[float]]
    tokens: float


async def measure_all(
    large: VllmEndpoint,
    loads: Sequence[int],
    *,
    tokens: int,
    steps: int,
    repeats: int,
    ways: Sequence[Way] = WAYS,
    on_measured: Callable[[], object] = lambda: None,
) -> Measurements:
    """Measure all *ways* at all *loads*, in turns, and writing with them; every measurement has new chains."""
    maker = ChainMaker(large, tokens)
    found: list[Measured] = []
    pace: dict[int, list[float]] = {load: [] for load in loads}
    texts = list(islice(drafts(WAYS[0]), steps + GROUP))
    length = fmean([len(await large.encoder.step(draft)) for draft in texts])
    for number in range(repeats):
        turn = number % len(ways)
        for load in loads:
            pace[load].append(await measure_writing(large, [await maker.make() for _ in range(load)], 2))
            for way in (*ways[turn:], *ways[:turn]):
                found.append(await measure(way, large, [await maker.make() for _ in range(load)], steps))
                on_measured()
    return Measurements(found, pace, length)


def summarise(measured: Measurements, costs: ServerCosts | None, ways: Sequence[Way] = WAYS) -> list[Cell]:
    """The medians of the measurements of each way at each load, next to writing a step of the mean length."""
    cells: list[Cell] = []
    for load, way in ((load, way) for load in measured.writing for way in ways):
        found = [one for one in measured.ways if (one.way, one.at_once) == (way.name, load)]
        seconds, read = sorted(one.seconds for one in found), median(one.read for one in found)
        step = median(measured.writing[load]) * measured.tokens
        expected = None
        if costs is not None:
            expected = judging(costs, read, way.group, load) / writing(costs, measured.tokens, load)
        first, repair = median(one.first for one in found), median(one.repair for one in found)
        cells.append(
            Cell(
                way.name, load, len(found), median(seconds), seconds[0], seconds[-1], read, first, repair,
                median(seconds) / step, expected,
            )
        )  # fmt: skip
    return cells


def measured_crossing(cells: Sequence[Cell]) -> float | None:
    """
    From how many chains at once on judging takes as long as writing, by the *cells* of one way, the lowest load first.

    Between two loads, the ratio is taken to change evenly with the logarithm of the load. None: at no measured load.
    """
    before: Cell | None = None
    for cell in cells:
        if cell.of_writing >= 1:
            if before is None:
                return cell.at_once
            share = (1 - before.of_writing) / (cell.of_writing - before.of_writing)
            return float(before.at_once * (cell.at_once / before.at_once) ** share)
        before = cell
    return None


def crossing_lines(cells: Sequence[Cell]) -> Iterator[str]:
    """Say for each way from which load on judging took as long as writing."""
    most = max(cell.at_once for cell in cells)
    for name in dict.fromkeys(cell.way for cell in cells):
        load = measured_crossing([cell for cell in cells if cell.way == name])
        yield f"{name}: as much as writing from {load:.0f} at once" if load else f"{name}: less up to {most} at once"


def table(cells: Sequence[Cell], measured: Measurements) -> Table:
    """A table with one row for each way and load, and one for writing; `SMALL_PRINT` explains the columns."""
    rendered = Table(box=None, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        rendered.add_column(column, justify="right" if column else "left", no_wrap=True)
    for load, paces in measured.writing.items():
        step = median(paces) * measured.tokens
        rendered.add_row(
            "writing the step", str(load), str(len(paces)), *[""] * 3, f"{1000 * step:.1f}", "1.00", "1.00"
        )
        for cell in (cell for cell in cells if cell.at_once == load):
            counts = (f"{value:.0f}" for value in (cell.read, cell.first, cell.repair))
            ratios = (f"{cell.of_writing:.2f}", "" if cell.expected is None else f"{cell.expected:.2f}")
            rendered.add_row(cell.way, str(load), str(cell.n), *counts, f"{1000 * cell.seconds:.1f}", *ratios)
    return rendered


SMALL_PRINT = (
    "The large miniature model, served by real vLLM on this CPU at the pace of the profile. As many chains as named "
    "are judged at the same time, one draft after the other each. Read a step: prompt tokens that were in no prefix "
    "cache, for each step, judged or not; first verdict: those of the first one on a chain, of which nothing is "
    "cached; repair: those of a repair after the last verdict. Ms a step: the server's time, elapsed time divided by "
    "all steps. Of writing: divided by the time in which the server writes a step of as many tokens at this load; by "
    "the pace: the same, calculated. The judge has learnt one of the questions: nothing here tells how well the others "
    "judge."
)


async def _measure(
    profile: str, loads: Sequence[int], tokens: int, steps: int, repeats: int, console: Console
) -> Measurements:
    sequences = max(SEQUENCES, *loads)
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(running(profile, ["large"], console=console, sequences=sequences))
        settings: Endpoint = endpoint(served["large"], "large")
        large = await stack.enter_async_context(VllmEndpoint(settings))
        await large.capabilities()
        with Progress(console=console) as progress:
            bar = progress.add_task("measuring", total=repeats * len(loads) * len(WAYS))
            return await measure_all(
                large, loads, tokens=tokens, steps=steps, repeats=repeats, on_measured=lambda: progress.advance(bar)
            )


def main(
    users: Annotated[str, typer.Option(help="Chains judged at the same time, with commas between.")] = "1,4,16",
    steps: Annotated[int, typer.Option(min=GROUP, max=48, help=f"Steps of each chain; a multiple of {GROUP}.")] = 24,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each way at each load.")] = 5,
    tokens: Annotated[int, typer.Option(min=100, max=1200, help="Length of the chains; the context is 2048.")] = 1000,
    profile: Annotated[str, typer.Option(help="Pace of the model.")] = "paced",
    per_pass: Annotated[float | None, typer.Option(help="Calculate only: seconds of a pass.")] = None,
    per_token: Annotated[
        float | None, typer.Option(help="Calculate only: seconds of a token, read or written.")
    ] = None,
    step: Annotated[float, typer.Option(min=1, help="Calculate only: tokens of a step.")] = 40,
    output: Annotated[Path, typer.Option(help="Where to write the figures.")] = Path("build/judging_load.json"),
) -> None:
    """Measure verdicts and writing at several loads, or calculate where their costs cross."""
    console = Console(width=120)
    if per_pass is not None or per_token is not None:
        if per_pass is None or per_token is None:
            raise ConfigurationError("--per-pass and --per-token belong together")
        finite("--per-pass", per_pass, per_token)
        costs = even(per_pass, per_token)
        console.print(judging_crossing.table(crossings(costs, step, qwen3_reads(step))))
        console.print(f"{small_print(costs, step)} Questions: in the vocabulary of Qwen3.", style="dim")
        return
    loads = _loads(users)
    if steps % GROUP:
        raise ConfigurationError(f"--steps {steps}: has to be a multiple of {GROUP}")
    measured = asyncio.run(_measure(profile, loads, tokens, steps, repeats, Console(stderr=True)))
    known = paced(profile)
    cells = summarise(measured, known)
    console.print(table(cells, measured))
    console.print("; ".join(crossing_lines(cells)), highlight=False)
    console.print(f"{datetime.date.today()}   {platform.machine()}, {output}")
    console.print(SMALL_PRINT, style="dim")
    found: list[Crossing] = []
    if known is not None:
        read = {cell.way: cell.read for cell in cells if cell.at_once == max(loads)}
        found = crossings(known, measured.tokens, read)
        console.print(judging_crossing.table(found))
        console.print(small_print(known, measured.tokens), style="dim")
    output.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "date": str(datetime.date.today()),
        "profile": profile,
        "step_tokens": measured.tokens,
        "note": SMALL_PRINT,
    }
    report = {**about, "cells": [asdict(cell) for cell in cells], "crossings": [asdict(one) for one in found]}
    output.write_bytes(orjson.dumps({**report, "writing": _by_load(measured)}, option=orjson.OPT_INDENT_2))


def _by_load(measured: Measurements) -> list[dict[str, Any]]:
    return [{"at_once": load, "seconds_per_token": list(paces)} for load, paces in measured.writing.items()]


def _loads(users: str) -> list[int]:
    try:
        loads = sorted({int(load) for load in users.split(",")})
    except ValueError as exc:
        raise ConfigurationError(f"--users {users!r}: write numbers with commas between them, as in 1,4,16") from exc
    if loads[0] < 1:
        raise ConfigurationError(f"--users {users!r}: 1 is the least")
    return loads


if __name__ == "__main__":
    script(main, EXAMPLES)
