"""
The time of a step by a method and by the large model alone, and the rate of accepted drafts.

This module knows no run and no server. A crowd is a number of runs at once. Crowds of the same bit
length are measured together: 1 run, 2 to 3 runs, 4 to 7 runs and so on.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["alone", "beside", "accepted", "rejected"]
"""
The kind of a measured step.

The large model wrote the step ``alone`` (no run used a method) or ``beside`` runs that used a
method. The draft of a method's step was ``accepted`` or ``rejected``.
"""
ASSUMED_DRAFTS = 2.5
"""
The weight of an assumed accept rate, in drafts.

With a weight of 4, the worst logged run takes 1.08 times as long as the large model alone.
"""
WINDOW_STEPS = 64
"""
The number of the latest steps that a mean contains.

If 64 runs begin together, the mean contains one step of each run.
"""
MIN_STEPS = 3
"""
The least number of steps with which a crowd of a method counts as measured.

One step is not enough, because the first request of a server may take twice as long as later ones.
"""


def accepted_seconds(draft: float, verdict: float, ahead: int) -> float:
    """
    Return the seconds of a step whose draft is accepted, in a run that works *ahead* drafts ahead.

    *draft* and *verdict* are the seconds of the draft and of the verdict on it. The run drafts or
    judges ahead + 1 steps at the same time. The small model writes one draft after the other.
    """
    return max(draft, (draft + verdict) / (ahead + 1))


def rejected_seconds(draft: float, verdict: float, repair: float) -> float:
    """Return the seconds of a step whose draft is rejected. Nothing overlaps with its repair."""
    return draft + verdict + repair


@dataclass(eq=False, slots=True)
class Evidence:
    """The verdicts on drafts. Older verdicts have less weight."""

    accepted: float = 0.0
    """The weight of the accepted drafts."""
    drafts: float = 0.0
    """The weight of all drafts."""

    def add(self, accepted: bool, kept_share: float) -> None:
        """Add a verdict. Multiply the weights of the older verdicts by *kept_share*."""
        self.accepted *= kept_share
        self.drafts = kept_share * self.drafts + 1
        if accepted:
            self.accepted += 1

    def rate(self, assumed: float) -> float:
        """Return the expected accept rate. The *assumed* rate weighs `ASSUMED_DRAFTS` drafts."""
        return (assumed * ASSUMED_DRAFTS + self.accepted) / (ASSUMED_DRAFTS + self.drafts)


@dataclass(eq=False, slots=True)
class MeanStep:
    """The mean seconds and tokens of the latest steps."""

    seconds: float = 0.0
    """Mean seconds of a step."""
    tokens: float = 0.0
    """Mean tokens that a step adds to the chain."""
    count: int = 0
    """The number of measured steps. 0: nothing is measured."""

    @property
    def pace(self) -> float:
        """Seconds per token. A step without tokens counts as one token."""
        return self.seconds / max(1, self.tokens)

    def add(self, seconds: float, tokens: float) -> None:
        """Add a step."""
        self.count += 1
        share = 1 / min(self.count, WINDOW_STEPS)
        self.seconds += share * (seconds - self.seconds)
        self.tokens += share * (tokens - self.tokens)


@dataclass(eq=False, slots=True)
class Timings:
    """The mean steps of each kind and each crowd."""

    means: defaultdict[tuple[Kind, int], MeanStep] = field(
        default_factory=lambda: defaultdict(MeanStep)
    )
    """The mean steps by their kind and the bit length of their crowd."""

    def add(self, kind: Kind, runs: int, seconds: float, tokens: float) -> None:
        """Add a step of one of *runs* runs at once."""
        self.means[kind, runs.bit_length()].add(seconds, tokens)

    def mean(self, kind: Kind, runs: int, min_steps: int) -> MeanStep | None:
        """
        Return the mean step of *runs* runs at once. None: too little is measured.

        It is the mean of the largest crowd that is not larger and has *min_steps* steps.
        """
        for crowd in range(runs.bit_length(), 0, -1):
            mean = self.means[kind, crowd]
            if mean.count >= min_steps:
                return mean
        return None
