"""
Measure how the cost of a chain grows: with its length, and with the number of chains at once.

Every figure has a goal. Times are CPU time of this process; the stand-in server has a process of
its own. Of several rounds the least counts, because other programs on the machine only add to it.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any
from unittest.mock import patch

from rich.table import Table

from stepspec.api import Solver
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Chain, Step, Token, Tokens
from stepspec.orchestrator.endpoints import Endpoint, Sampling
from stepspec.orchestrator.events import Event
from stepspec.orchestrator.reason import reason
from stepspec.orchestrator.trace import Recorder, Stopwatch
from stepspec.service_factory import warmed
from tests.stand_in import PIECES, StandIn, logprob, stand_in_process

PROBLEM = "What is 6 x 7?"
STEP_TOKENS = 20
MANY_STEPS = 100_000
ROOM = 300_000  # tokens
SHAPE = (
    "--steps",
    str(MANY_STEPS),
    "--step-tokens",
    str(STEP_TOKENS),
    "--room",
    str(ROOM),
)
"""Flags of a stand-in server that writes long chains."""
SERVER = (*SHAPE, "--scale-out")

LENGTHS = (1_000, 8_000, 64_000)
STEPS = 10  # of one round at one length
ROUNDS = 5
MEMORY_LENGTHS = (2_000, 8_000)
CROWD = 128
CROWD_LENGTH = 16_000
CROWD_STEPS = 3
CROWD_TOKEN_MS = "20"

GOAL_STEP_MS = 2.5
GOAL_TOKEN_BYTES = 60.0
GOAL_TOKEN_US = 60.0
GOAL_CALLBACK_MS = 50.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure."""

    name: str
    """What was measured."""
    value: float
    """The figure, in *unit*."""
    unit: str
    """The unit of the figure and of its goal."""
    goal: float | None = None
    """The largest value that is right; None: there is no goal."""

    @property
    def outcome(self) -> str:
        if self.goal is None:
            return ""
        return "met" if self.value <= self.goal else "missed"


@asynccontextmanager
async def solver_at(url: str, *, suffix_scoring: bool = False) -> AsyncGenerator[Solver]:
    """Yield a solver with both models at *url*. Garbage is collected as in the service."""
    small = Endpoint(role="small", url=url, max_concurrency=4096)
    large = small.model_copy(update={"role": "large", "suffix_scoring": suffix_scoring})
    before = gc.get_threshold()
    async with Solver(small, large, sampling=Sampling(seed=1)) as solver:
        await warmed(solver)
        try:
            yield solver
        finally:
            gc.unfreeze()
            gc.set_threshold(*before)


def grown(tokens: int, vocabulary: str) -> Chain:
    """Return a chain of at least *tokens* tokens, as a stand-in writes it."""
    server = StandIn(steps=MANY_STEPS, step_tokens=STEP_TOKENS)
    chain = Chain.of(PROBLEM)
    steps: list[Step] = []
    for first in range(0, tokens, STEP_TOKENS):
        ids = [server.token(place) for place in range(first, first + STEP_TOKENS)]
        written = Tokens.of(
            [Token(PIECES[number].decode(), logprob(number), id=number) for number in ids],
        )
        steps.append(
            Step(
                written.text,
                "small",
                "delimiter",
                written,
                vocabulary,
            )
        )
    return Chain(chain.messages, tuple(steps), chain.ends)


@dataclass
class Run:
    """One run of *method* by *solver* that goes on from *chain*, with a recorder."""

    solver: Solver
    """Whose models write."""
    chain: Chain
    """The chain so far."""
    method: str = "specreason"
    """The method."""

    def __post_init__(self) -> None:
        self.recorder = Recorder(Stopwatch())
        run = self.solver.resolve(policy=self.method)
        models = self.solver.connections.models(
            Budget(tokens=ROOM // 2),
            run.sampling.seeded(),
            self.recorder,
            self.recorder.clock,
        )
        self.policy = models.policy_of(run)

    async def think(self, steps: int) -> Chain:
        """Extend the chain by a number of *steps*, one after the other."""
        last = len(self.chain.steps) + steps
        self.chain, _ = await reason(
            self.policy,
            self.chain,
            spent=lambda chain: len(chain.steps) >= last,
            observe=self.recorder,
        )
        return self.chain


async def step_ms(url: str, method: str, tokens: int) -> float:
    """Return the milliseconds of a step of *method* after a chain of so many *tokens*."""
    async with solver_at(url, suffix_scoring=method == "reading") as solver:
        run = Run(solver, grown(tokens, solver.small.vocabulary), method)
        await run.think(1)
        rounds = [await cpu_seconds([run], STEPS) for _ in range(ROUNDS)]
    return 1000 * min(rounds) / STEPS


async def cpu_seconds(runs: Sequence[Run], steps: int) -> float:
    """Return the CPU time in which each of *runs* thinks a number of *steps*."""
    gc.collect()
    began = time.process_time()
    await asyncio.gather(*(run.think(steps) for run in runs))
    return time.process_time() - began


async def peak_bytes(url: str, tokens: int) -> int:
    """Return the most memory that one run of *tokens* tokens holds at a time."""
    async with solver_at(url) as solver:
        await Run(solver, Chain.of(PROBLEM)).think(4)
        gc.collect()
        tracemalloc.start()
        try:
            run = Run(solver, Chain.of(PROBLEM))
            await run.think(tokens // STEP_TOKENS)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def token_bytes(tokens: int) -> float:
    """Return the bytes of a token in the large model's steps, without log-probabilities."""
    known = [
        [Token(token.text, id=token.id) for token in step.tokens]
        for step in grown(tokens, "").steps
    ]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        steps = [written_step(written) for written in known]
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    return held / sum(len(step.tokens) for step in steps)


def written_step(tokens: Sequence[Token]) -> Step:
    """Return a step of *tokens*, made as a stream makes it."""
    text = "".join([token.text for token in tokens])
    return Step(text, "large", "delimiter", Tokens.of(tokens, text))


async def token_us(url: str, chains: int) -> float:
    """Return the microseconds of a kept token in that many *chains* at once."""
    rounds: list[float] = []
    async with solver_at(url) as solver:
        for _ in range(ROUNDS):
            runs = [Run(solver, Chain.of(PROBLEM)) for _ in range(chains)]
            await asyncio.gather(*(run.think(1) for run in runs))
            rounds.append(await cpu_seconds(runs, CROWD_STEPS))
    return 1e6 * min(rounds) / (chains * CROWD_STEPS * STEP_TOKENS)


@contextmanager
def callbacks_timed() -> Generator[Callable[[], float]]:
    """Yield what returns the milliseconds of the longest callback of the loop in the block."""
    run = asyncio.Handle._run  # pyright: ignore[reportPrivateUsage]
    longest = 0.0

    def timed(handle: asyncio.Handle) -> None:
        nonlocal longest
        began = time.thread_time()
        run(handle)
        longest = max(longest, time.thread_time() - began)

    with patch.object(asyncio.Handle, "_run", timed):
        yield lambda: 1000 * longest


def long_run(solver: Solver, chain: Chain, events: Sequence[Event]) -> Run:
    """Return a run with *chain* behind it; each of its steps had these *events*."""
    run = Run(solver, chain)
    for step, event in product(chain.steps, events):
        changed: Any = {
            name: step
            for name in ("draft", "step")
            if isinstance(
                getattr(event, name, 0),
                Step,
            )
        }
        run.recorder(replace(event, **changed))
    return run


async def crowd(url: str, chains: int, tokens: int) -> list[Figure]:
    """
    Measure *chains* of *tokens* tokens each that go on.

    A full garbage collection may befall any callback.
    """
    async with solver_at(url) as solver:
        first = Run(solver, Chain.of(PROBLEM))
        await first.think(1)
        before = len(first.recorder.events)
        await first.think(1)
        events = first.recorder.events[before:]
        vocabulary = solver.small.vocabulary
        runs = [long_run(solver, grown(tokens, vocabulary), events) for _ in range(chains)]
        await asyncio.gather(*(run.think(1) for run in runs))
        with callbacks_timed() as longest:
            await asyncio.gather(*(run.think(2) for run in runs))
            callback = longest()
        collection = min(collection_ms() for _ in range(ROUNDS))
    where = f"{chains} chains of {tokens:,} tokens"
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return [
        Figure(
            f"the longest callback, {where}",
            callback,
            "ms",
            GOAL_CALLBACK_MS,
        ),
        Figure(
            f"a full garbage collection, {where}",
            collection,
            "ms",
            GOAL_CALLBACK_MS,
        ),
        Figure(f"most resident memory, {where}", resident, "MiB"),
    ]


def collection_ms() -> float:
    """Return the milliseconds of a full garbage collection."""
    began = time.thread_time()
    gc.collect()
    return 1000 * (time.thread_time() - began)


def lengths() -> list[Figure]:
    """Measure a chain at several lengths."""
    figures: list[Figure] = []
    for method in ("specreason", "reading"):
        for tokens in LENGTHS:
            # A server that knows the text would have the whole prompt in its cache.
            with stand_in_process(*SERVER) as url:
                value = asyncio.run(step_ms(url, method, tokens))
            goal = GOAL_STEP_MS if tokens == LENGTHS[-1] else None
            name = f"a step of {method} at {tokens:,} tokens"
            figures.append(Figure(name, value, "ms", goal))
    for tokens in MEMORY_LENGTHS:
        with stand_in_process(*SERVER) as url:
            held = asyncio.run(peak_bytes(url, tokens))
        figures.append(
            Figure(
                f"most memory of a chain of {tokens:,}",
                held / 2**10,
                "KiB",
            )
        )
    value = token_bytes(LENGTHS[-1])
    figures.append(
        Figure(
            "memory of a live token",
            value,
            "bytes",
            GOAL_TOKEN_BYTES,
        )
    )
    return figures


def crowds() -> list[Figure]:
    """Measure many chains at once."""
    with stand_in_process(*SERVER, "--token-ms", CROWD_TOKEN_MS) as url:
        kept = asyncio.run(token_us(url, CROWD))
    figures = [
        Figure(
            f"a kept token of {CROWD} chains",
            kept,
            "us",
            GOAL_TOKEN_US,
        )
    ]
    with stand_in_process(*SERVER) as url:
        return [*figures, *asyncio.run(crowd(url, CROWD, CROWD_LENGTH))]


def table_of(figures: Sequence[Figure]) -> Table:
    """Return *figures* with their goals as a table."""
    made = Table("what", title="CPU time and memory of long chains and of many")
    made.add_column("figure", justify="right")
    made.add_column("goal", justify="right")
    made.add_column("")
    for figure in figures:
        goal = "" if figure.goal is None else f"{figure.goal:g} {figure.unit}"
        made.add_row(
            figure.name,
            f"{figure.value:,.1f} {figure.unit}",
            goal,
            figure.outcome,
        )
    return made
