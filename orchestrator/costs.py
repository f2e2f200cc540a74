"""
What a step takes by a method and by the large model alone, and how likely drafts are accepted.

Nothing here knows a run or a server: values, and what is measured of them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import fmean

WINDOW_STEPS = 64
"""Steps of a kind whose mean counts: one each of 64 runs that began together."""
MIN_STEPS = 3
"""Steps without which a method is not used: the first request of a server may take twice as long."""
FRESH_STEPS = 128
"""Steps of each run at once for which a measurement counts: an easy logged run has 100 steps."""
DISCOUNT_PER_DRAFT = 0.85
"""The weight that verdicts keep at each new one: bursts of rejections last 2 to 7 logged steps."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One step."""

    seconds: float
    """Seconds since the step before it."""
    tokens: float
    """Tokens that it added to the chain."""


@dataclass(frozen=True, slots=True)
class Costs:
    """A draft of a method that is not in use, and the step that the large model writes instead."""

    draft: float
    """Seconds of the draft."""
    verdict: float
    """Seconds from the draft to its verdict."""
    tokens: float
    """Tokens of the draft."""
    token_seconds: float
    """Seconds of a token of the large model alone."""

    def accepted(self, ahead: int) -> Sample:
        """
        Return the step if its draft is accepted, *ahead* drafts ahead.

        ahead + 1 are drafted or judged at a time; the small model writes one after the other.
        """
        seconds = max(self.draft, (self.draft + self.verdict) / (ahead + 1))
        return Sample(seconds, self.tokens)

    def rejected(self) -> Sample:
        """Return the step if its draft is rejected: nothing overlaps with its repair."""
        repair = self.tokens * self.token_seconds
        return Sample(self.draft + self.verdict + repair, self.tokens)


@dataclass(eq=False, slots=True)
class Evidence:
    """Verdicts as a Beta distribution of the accept rate."""

    accepted: float
    """The weight of the accepted drafts, of assumed ones too."""
    rejected: float
    """The weight of the rejected drafts, of assumed ones too."""

    @classmethod
    def assume(cls, rate: float, drafts: float) -> Evidence:
        """Begin with an assumed accept rate that counts for so many drafts."""
        return cls(rate * drafts, (1 - rate) * drafts)

    @property
    def rate(self) -> float:
        """The expected accept rate."""
        return self.accepted / (self.accepted + self.rejected)

    def add(self, accepted: bool, weight: float, keep: float) -> None:
        """Add a verdict of this *weight*; those before it *keep* a share of theirs."""
        self.accepted = keep * self.accepted + weight * accepted
        self.rejected = keep * self.rejected + weight * (not accepted)


@dataclass(eq=False, slots=True)
class Steps:
    """The latest steps of a kind."""

    samples: deque[Sample] = field(default_factory=lambda: deque[Sample](maxlen=WINDOW_STEPS))
    """The steps, the newest last."""
    newest: int = 0
    """How many steps all runs had committed at the newest one."""

    @property
    def mean(self) -> Sample:
        """The mean step."""
        seconds = fmean(sample.seconds for sample in self.samples)
        return Sample(seconds, fmean(sample.tokens for sample in self.samples))


@dataclass(eq=False, slots=True)
class ByCrowd:
    """The latest steps of a kind by the number of runs at once, in powers of two."""

    sizes: defaultdict[int, Steps] = field(default_factory=lambda: defaultdict(Steps))
    """The steps, by the bit length of the number of runs."""

    def add(self, sample: Sample, runs: int, now: int) -> None:
        """Add a step of one of so many *runs* when all runs have committed *now* steps."""
        steps = self.sizes[runs.bit_length()]
        steps.samples.append(sample)
        steps.newest = now

    def known(self, size: int, now: int) -> bool:
        """Return whether a crowd has measured enough lately: a step for each of its runs."""
        runs = 1 << size >> 1
        steps = self.sizes[size]
        wanted = min(WINDOW_STEPS, max(MIN_STEPS, runs))
        return len(steps.samples) >= wanted and now - steps.newest <= FRESH_STEPS * runs

    def largest(self, runs: int, now: int) -> int:
        """Return the size of the largest crowd of at most so many *runs* that is known, or 1."""
        sizes = range(runs.bit_length(), 1, -1)
        return next((size for size in sizes if self.known(size, now)), 1)

    def mean(self, runs: int, now: int) -> Sample | None:
        """Return the mean step of the largest crowd that is known; None if nothing is."""
        steps = self.sizes[self.largest(runs, now)]
        return steps.mean if steps.samples else None
