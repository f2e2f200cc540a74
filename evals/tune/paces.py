"""How fast a server writes: the seconds between two tokens of streams that run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import fmean, median

from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.endpoints import GREEDY, ModelEndpoint, ReplicatedModel, Sampling
from stepspec.orchestrator.interfaces import Model

STREAM_TOKENS = 48
ONE_PIECE_SECONDS = 0.0005  # tokens that arrive closer together came in one piece


@dataclass(frozen=True, slots=True)
class Arrival:
    """A moment at which tokens of a stream arrived."""

    seconds: float
    """The time on the clock of the event loop."""
    tokens: int
    """Tokens of the stream that had arrived by then."""


@dataclass(frozen=True, slots=True)
class ServerPace:
    """How fast one server writes."""

    tokens: tuple[float, ...]
    """Seconds between two tokens of a stream that is alone, one value a measurement."""
    first: float
    """Seconds from a request to its first token, while nothing else runs."""
    loaded: float | None = None
    """Seconds between two tokens of each of several streams; None if that was not measured."""

    @property
    def token(self) -> float:
        """The median of `tokens`."""
        return median(self.tokens)


@asynccontextmanager
async def opened(endpoint: ModelEndpoint, sampling: Sampling = GREEDY) -> AsyncGenerator[Model]:
    """Yield a model of *endpoint*, at one of its replicas."""
    model = endpoint.model(sampling)
    try:
        yield model
    finally:
        if isinstance(model, ReplicatedModel):
            model.leave()


async def write_streams(
    endpoint: ModelEndpoint,
    problems: Sequence[str],
    arrived: Sequence[list[Arrival]],
    over: Callable[[], bool] = lambda: False,
) -> None:
    """
    Let the model begin to reason about all *problems* at the same time.

    *arrived* has a list for each problem, which gets the arrivals of its stream. A stream with two
    arrivals ends if the time is *over*. The text is the model's own, so that token-level
    speculation accepts as many tokens as in a run.
    """
    clock = asyncio.get_running_loop().time

    async def stream(problem: str, arrivals: list[Arrival]) -> None:
        def until(step: Step) -> bool:
            arrivals.append(Arrival(clock(), len(step.tokens)))
            return len(arrivals) > 1 and over()

        async with opened(endpoint) as model:
            await model.write(Chain.of(problem), stop=(), limit=STREAM_TOKENS, until=until)

    await at_once(map(stream, problems, arrived))


def seconds_per_token(streams: Sequence[Sequence[Arrival]]) -> float | None:
    """
    Mean seconds between two tokens of *streams*, from the first arrival of each to its last.

    Tokens that arrive together came in one piece, and count from there. None if no stream has
    tokens at two times.
    """
    paces: list[float] = []
    for arrivals in streams:
        later = [
            each for each in arrivals if each.seconds > arrivals[0].seconds + ONE_PIECE_SECONDS
        ]
        if not later:
            continue
        begun = arrivals[len(arrivals) - len(later) - 1]
        last = later[-1]
        if last.tokens > begun.tokens:
            paces.append((last.seconds - begun.seconds) / (last.tokens - begun.tokens))
    return fmean(paces) if paces else None
