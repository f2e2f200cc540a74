"""How fast a server writes: the seconds between two tokens of streams that run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from statistics import median

from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.endpoints import GREEDY, ReplicatedEndpoint, Sampling
from stepspec.orchestrator.endpoints.interfaces import RunModel

STREAM_TOKENS = 48
ONE_PIECE_SECONDS = 0.0005  # between two arrivals; tokens that are closer came in one piece
MAX_RATIO = 0.8  # of the seconds per token, small to large model; above it, no method can pay


@dataclass(frozen=True, slots=True)
class Arrival:
    """A moment at which tokens of a stream arrived."""

    seconds: float
    """The time on the clock of the event loop."""
    tokens: int
    """Tokens of the stream that had arrived by then; 0 for the request."""


@dataclass(frozen=True, slots=True)
class ServerPace:
    """How fast one server writes."""

    tokens: tuple[float, ...]
    """Seconds between two tokens, one value for each stream; no other streams ran beside it."""
    first: float
    """Seconds from a request to its first token, while nothing else runs."""

    @property
    def token(self) -> float:
        """The median of `tokens`."""
        return median(self.tokens)


@dataclass(frozen=True, slots=True)
class PairPaces:
    """How fast both servers write."""

    small: ServerPace
    """The small model's server."""
    large: ServerPace
    """The large model's server."""
    loaded: float
    """Seconds between two tokens of each of several streams of the large model."""
    users: int
    """The number of these streams."""
    ahead: int
    """Drafts that a run makes ahead."""

    @property
    def ratio(self) -> float:
        """The small model's seconds per token over those of the large one."""
        return self.small.token / self.large.token

    @property
    def hopeless(self) -> bool:
        """Whether no method can pay, because the small model is hardly faster."""
        return self.ratio > MAX_RATIO


@asynccontextmanager
async def at_most(seconds: float) -> AsyncGenerator[None]:
    """Leave the block after so many *seconds*."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            yield


@asynccontextmanager
async def opened(
    endpoint: ReplicatedEndpoint, sampling: Sampling = GREEDY
) -> AsyncGenerator[RunModel]:
    """Yield a model of *endpoint*, at one of its replicas."""
    model = endpoint.model(sampling)
    try:
        yield model
    finally:
        model.leave()


async def write_streams(
    endpoint: ReplicatedEndpoint,
    problems: Sequence[str],
    streams: list[list[Arrival]],
) -> None:
    """
    Let the model begin to reason about all *problems* at the same time.

    A list of arrivals for each problem is appended to *streams*; the first one is the request. The
    text is the model's own, so that token-level speculation accepts as many tokens as in a run.
    """
    clock = asyncio.get_running_loop().time

    async def stream(problem: str) -> None:
        arrivals = [Arrival(clock(), 0)]
        streams.append(arrivals)

        def until(step: Step) -> bool:
            arrivals.append(Arrival(clock(), len(step.tokens)))
            return False

        async with opened(endpoint) as model:
            await model.write(
                Chain.of(problem),
                stop=(),
                limit=STREAM_TOKENS,
                until=until,
            )

    await at_once(map(stream, problems))


def seconds_per_token(arrivals: Sequence[Arrival]) -> float | None:
    """
    Seconds between two tokens of a stream, from its first tokens to its last.

    Tokens that arrived together came in one piece, and the time counts from this piece. None if
    all tokens came in one piece.
    """
    tokens = arrivals[1:]
    later = [each for each in tokens if each.seconds > tokens[0].seconds + ONE_PIECE_SECONDS]
    if not later:
        return None
    begun = tokens[len(tokens) - len(later) - 1]
    return (later[-1].seconds - begun.seconds) / (later[-1].tokens - begun.tokens)


def paces_of(streams: Sequence[Sequence[Arrival]]) -> tuple[float, ...]:
    """The seconds between two tokens of each of *streams* that has enough tokens to tell."""
    return tuple(pace for arrivals in streams if (pace := seconds_per_token(arrivals)) is not None)
