"""What was measured of a pair of servers in a few minutes. Values, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median

from stepspec.orchestrator.chain import Role

from ..sample import Arm

AHEAD = 1  # depth of the runs under load
# share of a verdict in which a server stands still, above which both probably share a card
SHARED = 0.2


@dataclass(frozen=True, slots=True)
class ServerMeasurement:
    """
    The times of the server of one *role*, in seconds.

    *between* has, by the number of streams at the same time, the times between two tokens of a
    stream, and *first* those from a request to its first token. *contended* are times between
    tokens while the other server reads prompts: longer ones if both share a card. *sequences* is
    how many streams it served at the same time, None if these were all. *prefix_cache* is None if
    it is not known whether there is one.
    """

    role: Role
    url: str
    model: str
    between: Mapping[int, tuple[float, ...]]
    first: tuple[float, ...]
    sequences: int | None = None
    prefix_cache: bool | None = None
    suffix_scoring: bool = False
    contended: tuple[float, ...] = ()

    @property
    def stalled(self) -> float:
        """
        The share of the time in which this server stands still while the other one reads prompts.
        """
        return max(0.0, 1 - self.token / min(self.contended)) if self.contended else 0.0

    @property
    def token(self) -> float:
        """Median seconds between two tokens of a stream that has the server to itself."""
        return median(self.between[1])

    def under(self, streams: int) -> float | None:
        """
        Median seconds between two tokens of each of so many *streams*, a wait for a full server
        included.
        """
        served = min(streams, self.sequences or streams)
        return median(self.between[served]) * streams / served if served in self.between else None


@dataclass(frozen=True, slots=True)
class DraftTrial:
    """
    A draft after a prefix of the large model's own chain, and the method's verdict on it.

    Of the tokens that were *drafted*, as many were *kept*; the repair of a rejected draft has the
    tokens *repaired*. *own* are the tokens of the large model's own step in this place, None if it
    is not known. *seconds* are those of the draft and of the verdict, None if other requests were
    under way.
    """

    accepted: bool
    drafted: int
    kept: int
    repaired: int
    own: int | None = None
    seconds: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class SeenChain:
    """
    The *steps* of the large model's own chain, in tokens, and those of its *answer*: None if the
    chain was cut.
    """

    steps: tuple[int, ...]
    answer: int | None = None

    @property
    def tokens(self) -> int:
        return sum(self.steps) + (self.answer or 0)


@dataclass(frozen=True, slots=True)
class Measurements:
    """
    All that was measured of a pair, in *seconds*.

    *plain* are the seconds between two tokens of the large model as one ordinary request. *trials*
    are by the name of the arm, for all *arms*. *runs* are seconds per token of its chain, by the
    name of the arm and the number of runs at the same time. *skipped* says by the name of a method
    why it was not measured.
    """

    small: ServerMeasurement
    large: ServerMeasurement
    plain: tuple[float, ...]
    arms: tuple[Arm, ...]
    chains: tuple[SeenChain, ...]
    trials: Mapping[str, tuple[DraftTrial, ...]]
    seconds: float
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
    runs: Mapping[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])

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
        """
        Mean tokens of a chain as far as it was seen, with the answer, and of the answers of those
        that ended.
        """
        answers = [chain.answer for chain in self.chains if chain.answer is not None]
        return fmean([chain.tokens for chain in self.chains] or [0]), fmean(answers or [0])
