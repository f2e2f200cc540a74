"""What was measured of a pair of servers in a few minutes. Values, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from stepspec.orchestrator.chain import Role

from ..sample import Arm
from ..script import Script
from ..simulation import ServerCosts

NOTHING = 2**30  # tokens, a block of a prefix cache that keeps nothing
UNLIMITED = 1024  # sequences, of a server that served all streams at once that were sent


@dataclass(frozen=True, slots=True)
class ServerMeasurement:
    """
    The times of the server of one *role*, in seconds; each was measured several times.

    *between* has, by the number of streams at the same time, the time between two tokens of a stream. *prompt_token* is
    the time for each prompt token that is not in the prefix cache. *cached* is the time to the first token after a
    prompt of *prompt* tokens that the server has read before, *uncached* that after a new one. *sequences* is how many
    streams it served at the same time, None if these were all. *block* is that of its prefix cache, in tokens;
    *prefix_cache* is None if it is not known whether there is one.
    """

    role: Role
    url: str
    model: str
    between: Mapping[int, tuple[float, ...]]
    prompt_token: tuple[float, ...]
    cached: tuple[float, ...]
    uncached: tuple[float, ...]
    prompt: int
    sequences: int | None = None
    block: int = 16
    prefix_cache: bool | None = True
    suffix_scoring: bool = False

    @property
    def token(self) -> float:
        """Median seconds between two tokens of a stream that has the server to itself."""
        return median(self.between[1])

    def costs(self) -> ServerCosts:
        """The costs of a pass, by a line through the medians over the number of streams, and those of a request."""
        per_pass, per_sequence = fit_line({streams: median(times) for streams, times in self.between.items()})
        per_prompt_token = max(0.0, median(self.prompt_token))
        read = self.block / 2 if self.prefix_cache else self.prompt  # a cached prompt ends anywhere in a block
        first = median(self.cached) - per_pass - per_sequence - per_prompt_token * read
        return ServerCosts(
            per_pass=per_pass,
            per_sequence=per_sequence,
            per_prompt_token=per_prompt_token,
            per_request=max(0.0, first),
            sequences=self.sequences or UNLIMITED,
            tokens=max(8192, self.sequences or UNLIMITED),
            block=self.block if self.prefix_cache is not False else NOTHING,
        )

    def at_pace(self, factor: float) -> ServerMeasurement:
        """The same server, if it took *factor* times as long for every token that it writes."""
        slower = {streams: tuple(time * factor for time in times) for streams, times in self.between.items()}
        return replace(self, between=slower)


def fit_line(points: Mapping[int, float]) -> tuple[float, float]:
    """
    Fit *points* by y = a + b x with least squares of the relative errors; return a and b, neither below 0.

    A single point is a constant.
    """
    weights = {x: 1 / y**2 for x, y in points.items()}
    total = sum(weights.values())
    middle = sum(weight * x for x, weight in weights.items()) / total
    level = sum(weights[x] * y for x, y in points.items()) / total
    spread = sum(weight * (x - middle) ** 2 for x, weight in weights.items())
    slope = sum(weights[x] * (x - middle) * (y - level) for x, y in points.items()) / spread if spread else 0.0
    if slope <= 0:
        return level, 0.0
    if level < slope * middle:
        return 0.0, sum(weights[x] * x * y for x, y in points.items()) / sum(weights[x] * x * x for x in points)
    return level - slope * middle, slope


@dataclass(frozen=True, slots=True)
class VerdictMeasurement:
    """
    One-token questions about a step after a chain that the large model's server has read before.

    *seconds* and *read*, the prompt tokens that were not in its cache (none if it does not report them), have an entry
    for each question; *chain* is the length of the chain in tokens. *understood* is the share of its probability that
    the judge puts on the grades.
    """

    seconds: tuple[float, ...]
    read: tuple[int, ...]
    chain: int
    understood: float


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """
    A run of an arm on a *problem*, by its number: its *script*, and the *seconds* that it took.

    *alone* says whether nothing else ran then, so that the seconds count. A run that was *cut* had used up its tokens;
    its script and its seconds end there, without an answer.
    """

    problem: int
    seconds: float
    script: Script
    alone: bool
    cut: bool


@dataclass(frozen=True, slots=True)
class Measurements:
    """
    All that was measured of a pair, in *seconds*.

    *runs* are by the name of the arm, of the same problems for all *arms*, at least one. None has more than *limit*
    tokens. At a *temperature* above 0 every step is a request of its own. *skipped* says by the name of a method why it
    was not measured.
    """

    small: ServerMeasurement
    large: ServerMeasurement
    verdict: VerdictMeasurement
    arms: tuple[Arm, ...]
    runs: Mapping[str, tuple[RecordedRun, ...]]
    limit: int
    seconds: float
    temperature: float = 0.0
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
