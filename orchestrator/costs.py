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
The least number of steps with which a crowd counts as measured.

One step is not enough, because the first request of a server may take twice as long as later ones.
"""
FRESH_STEPS = 128
"""
A measurement counts until each run has committed this many more steps.

A logged run of an easy problem has 100 steps.
"""

ALL_CROWDS = 0
"""The key of the steps of all crowds together. No crowd has the bit length 0."""


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

    def add(self, accepted: bool, weight: float = 1.0) -> None:
        """Add a verdict of this *weight*."""
        self.drafts += weight
        if accepted:
            self.accepted += weight

    def fade(self, factor: float) -> None:
        """Multiply the weights of all verdicts by *factor*."""
        self.accepted *= factor
        self.drafts *= factor

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
    """The number of measured steps since the mean began. 0: nothing is measured."""
    measured_at: float = 0.0
    """The time of the newest step, counted in steps that each run has committed."""
    window: int = WINDOW_STEPS
    """The number of steps that the mean contains."""

    @property
    def pace(self) -> float:
        """Seconds per token. A step without tokens counts as one token."""
        return self.seconds / max(1, self.tokens)

    def fresh(self, now: float) -> bool:
        """Return whether the mean still counts at the time *now*, counted as `measured_at`."""
        return now - self.measured_at <= FRESH_STEPS

    def add(self, seconds: float, tokens: float, now: float) -> None:
        """Add a step. Begin a new mean if the old one is not fresh."""
        if not self.fresh(now):
            self.count = 0
        self.count += 1
        share = 1 / min(self.count, self.window)
        self.seconds += share * (seconds - self.seconds)
        self.tokens += share * (tokens - self.tokens)
        self.measured_at = now


@dataclass(eq=False, slots=True)
class Timings:
    """The mean steps of each kind and each crowd."""

    means: defaultdict[tuple[Kind, int], MeanStep] = field(
        default_factory=lambda: defaultdict(MeanStep)
    )
    """The mean steps by their kind and the bit length of their crowd (or `ALL_CROWDS`)."""

    def add(self, kind: Kind, runs: int, seconds: float, tokens: float, now: float) -> None:
        """Add a step of one of *runs* runs at once."""
        for crowd in (ALL_CROWDS, runs.bit_length()):
            self.means[kind, crowd].add(seconds, tokens, now)

    def mean(self, kind: Kind, runs: int) -> MeanStep | None:
        """
        Return the mean step of *runs* runs at once. None: nothing is measured.

        The pace is the pace of the largest measured crowd that is not larger. The tokens are the
        mean over all crowds, because the few steps of one crowd can be long by chance.
        """
        for crowd in range(runs.bit_length(), 0, -1):
            mean = self.means[kind, crowd]
            if mean.count:
                tokens = self.means[kind, ALL_CROWDS].tokens
                return MeanStep(mean.pace * tokens, tokens)
        return None

    def measured_runs(self, runs: int, now: float) -> int:
        """
        Return up to how many runs at once the time is measured, such as 7 for 4 to 7 runs. 0: none.

        Crowds that are larger than *runs* do not count. A crowd counts as measured if the fresh
        means have a step for each of its runs, and at least `MIN_STEPS` steps.
        """
        for crowd in range(runs.bit_length(), 0, -1):
            count = sum(
                mean.count
                for (_, length), mean in self.means.items()
                if length == crowd and mean.fresh(now)
            )
            fewest_runs: int = 2 ** (crowd - 1)
            if count >= min(WINDOW_STEPS, max(MIN_STEPS, fewest_runs)):
                return 2 * fewest_runs - 1
        return 0
