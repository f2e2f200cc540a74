"""
What a step takes by a method and by the large model alone, and how likely its draft is accepted.

Nothing here knows a run or a server.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["alone", "beside", "accepted", "rejected"]
"""
What a measured step was: written by the large model while no run used a method, or while others
did; or a draft of a method that was accepted or rejected.
"""
WINDOW_STEPS = 64
"""Steps of a kind whose mean counts: one each of 64 runs that began together."""
MIN_STEPS = 3
"""Steps before a method is used: the first request of a server may take twice as long."""
FRESH_STEPS = 128
"""Steps of each run for which a measurement counts: an easy logged run has 100 steps."""

ANY_SIZE = 0  # the place of the steps of all crowds


def accepted_seconds(draft: float, verdict: float, ahead: int) -> float:
    """
    Return the seconds of a step whose draft is accepted, *ahead* drafts ahead.

    ahead + 1 drafts are written or judged at a time. The small model writes one after the other.
    """
    return max(draft, (draft + verdict) / (ahead + 1))


def rejected_seconds(draft: float, verdict: float, repair: float) -> float:
    """Return the seconds of a step whose draft is rejected: nothing overlaps with its repair."""
    return draft + verdict + repair


@dataclass(eq=False, slots=True)
class Evidence:
    """The verdicts on drafts, of which the older ones weigh less."""

    accepted: float = 0.0
    """The weight of the accepted drafts."""
    rejected: float = 0.0
    """The weight of the rejected drafts."""

    def add(self, accepted: bool, weight: float = 1.0) -> None:
        """Add a verdict of this *weight*."""
        self.accepted += weight * accepted
        self.rejected += weight * (not accepted)

    def fade(self, keep: float) -> None:
        """Let all verdicts *keep* this share of their weights."""
        self.accepted *= keep
        self.rejected *= keep

    def rate(self, assumed: float, drafts: float) -> float:
        """Return the expected accept rate, if an *assumed* one counts for so many *drafts*."""
        return (assumed * drafts + self.accepted) / (drafts + self.accepted + self.rejected)


@dataclass(eq=False, slots=True)
class Steps:
    """The mean of the latest steps of a kind."""

    seconds: float = 0.0
    """Mean seconds of a step."""
    tokens: float = 0.0
    """Mean tokens that a step adds to the chain."""
    count: int = 0
    """Steps that the mean has."""
    newest: float = 0.0
    """The time of the newest one, in steps of each run."""

    @property
    def pace(self) -> float:
        """Seconds of a token; of a step without tokens its own."""
        return self.seconds / max(1, self.tokens)

    def fresh(self, now: float) -> bool:
        """Return whether the mean counts: whether its newest step is recent."""
        return now - self.newest <= FRESH_STEPS

    def add(self, seconds: float, tokens: float, now: float) -> None:
        """Add a step. Steps that do not count any more are forgotten."""
        self.count = self.count + 1 if self.fresh(now) else 1
        share = 1 / min(self.count, WINDOW_STEPS)
        self.seconds += share * (seconds - self.seconds)
        self.tokens += share * (tokens - self.tokens)
        self.newest = now


@dataclass(eq=False, slots=True)
class Timings:
    """The latest steps by their kind, and by the number of runs at once in powers of two."""

    means: defaultdict[tuple[Kind, int], Steps] = field(default_factory=lambda: defaultdict(Steps))
    """The steps by their kind and by the bit length of the number of runs at once."""

    def add(self, kind: Kind, runs: int, seconds: float, tokens: float, now: float) -> None:
        """Add a step of one of so many *runs*."""
        for size in (ANY_SIZE, runs.bit_length()):
            self.means[kind, size].add(seconds, tokens, now)

    def forget(self, *kinds: Kind) -> None:
        """Forget all steps of these *kinds*."""
        for kind, size in list(self.means):
            if kind in kinds:
                del self.means[kind, size]

    def mean(self, kind: Kind, size: int) -> Steps | None:
        """
        Return the mean step at the pace of the largest crowd up to this *size*; None if unknown.

        Its tokens are those of all crowds: a few steps of one may be long by chance.
        """
        crowds = (self.means[kind, each] for each in range(size, 0, -1))
        crowd = next((steps for steps in crowds if steps.count), None)
        if crowd is None:
            return None
        tokens = self.means[kind, ANY_SIZE].tokens
        return Steps(crowd.pace * tokens, tokens)

    def largest(self, runs: int, now: float) -> int:
        """
        Return the size of the largest crowd of at most so many *runs* that is known; 0 if none is.

        A crowd is known if it measured a step for each of its runs lately.
        """
        for size in range(runs.bit_length(), 0, -1):
            crowd = [steps for (_, each), steps in self.means.items() if each == size]
            count = sum(steps.count for steps in crowd if steps.fresh(now))
            if count >= min(WINDOW_STEPS, max(MIN_STEPS, 2 ** (size - 1))):
                return size
        return 0
