"""What was measured of a pair of servers in a few minutes. Values, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median

from stepspec.orchestrator.chain import Role

from ..sample import Arm


@dataclass(frozen=True, slots=True)
class ServerMeasurement:
    """
    The times of the server of one *role*, in seconds.

    *between* has, by the number of streams at the same time, the times between two tokens of a stream, and *first*
    those from a request to its first token. *sequences* is how many streams it served at the same time, None if these
    were all. *prefix_cache* is None if it is not known whether there is one.
    """

    role: Role
    url: str
    model: str
    between: Mapping[int, tuple[float, ...]]
    first: tuple[float, ...]
    sequences: int | None = None
    prefix_cache: bool | None = None
    suffix_scoring: bool = False

    @property
    def token(self) -> float:
        """Median seconds between two tokens of a stream that has the server to itself."""
        return median(self.between[1])

    def slower(self, streams: float) -> float:
        """How many times as long a token takes with so many *streams* at once: a line through the medians, from 1."""
        level, slope = fit_line({number: median(times) for number, times in self.between.items()})
        most = self.sequences or streams
        busy = level + slope * max(1.0, min(streams, most))
        return max(1.0, busy / (level + slope) * max(1.0, streams / most))


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
class DraftTrial:
    """
    A draft after a prefix of the large model's own chain, and the method's verdict on it.

    Of the tokens that were *drafted*, as many were *kept*; the repair of a rejected draft has the tokens *repaired*.
    *own* are the tokens of the large model's own step in this place, None if it is not known. *seconds* are those of
    the draft and of the verdict, None if other requests were under way.
    """

    accepted: bool
    drafted: int
    kept: int
    repaired: int
    own: int | None = None
    seconds: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class SeenChain:
    """The *steps* of the large model's own chain, in tokens, and those of its *answer*: None if the chain was cut."""

    steps: tuple[int, ...]
    answer: int | None = None

    @property
    def tokens(self) -> int:
        return sum(self.steps) + (self.answer or 0)


@dataclass(frozen=True, slots=True)
class Measurements:
    """
    All that was measured of a pair, in *seconds*.

    *plain* are the seconds between two tokens of the large model as one ordinary request. *trials* are by the name of
    the arm, for all *arms*. *skipped* says by the name of a method why it was not measured.
    """

    small: ServerMeasurement
    large: ServerMeasurement
    plain: tuple[float, ...]
    arms: tuple[Arm, ...]
    chains: tuple[SeenChain, ...]
    trials: Mapping[str, tuple[DraftTrial, ...]]
    seconds: float
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def step(self) -> float:
        """Mean tokens of a step of the large model's own."""
        steps = [tokens for chain in self.chains for tokens in chain.steps]
        drafted = [trial.drafted for trials in self.trials.values() for trial in trials]
        return max(1.0, fmean(steps or drafted or [32]))

    @property
    def cut(self) -> int:
        """How many chains were cut."""
        return sum(chain.answer is None for chain in self.chains)

    @property
    def length(self) -> tuple[float, float]:
        """Mean tokens of a chain as far as it was seen, with the answer, and of the answers of those that ended."""
        answers = [chain.answer for chain in self.chains if chain.answer is not None]
        return fmean([chain.tokens for chain in self.chains] or [0]), fmean(answers or [0])
