"""
What a step takes by a method and by the large model alone, and the timings and verdicts behind it.

Nothing here knows a run or a server: values, and what is added to them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median_low

WINDOW_TIMINGS = 64
"""Timings of a kind that are kept: the runs of a crowd of 64 contribute one each."""
MIN_TIMINGS = 3
"""Drafts and verdicts without which a method is not used: one outlier does not move their median."""
STALE_STEPS = 128
"""
Steps of each run at once after which a timing is out of date.

On the virtual clock a large model that becomes ten times faster is noticed within 300 steps.
"""
DISCOUNT_PER_DRAFT = 0.85
"""
The weight that older verdicts keep at each new one.

Replayed logs of SpecReason, where rejections come in bursts: 0.85 is within 1% of 0.8 and 0.9.
"""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds and tokens of one draft of a method, as one run should expect them now."""

    draft: float
    """Seconds of a draft."""
    verdict: float
    """Seconds from a draft to its verdict."""
    repair: float
    """Seconds of the repair of a rejected draft."""
    accepted_tokens: float
    """Tokens of a step whose draft was accepted."""
    rejected_tokens: float
    """Tokens of a step whose draft was rejected: what was kept of it, and the repair."""

    def method(self, accept_rate: float, ahead: int) -> float:
        """
        Return the seconds of a step of the method, *ahead* drafts ahead.

        Where drafts are accepted, ahead + 1 are drafted or judged at a time, and the small model
        writes one after the other. Nothing overlaps with a rejected draft.
        """
        accepted = max(self.draft, (self.draft + self.verdict) / (ahead + 1))
        rejected = self.draft + self.verdict + self.repair
        return accept_rate * accepted + (1 - accept_rate) * rejected

    def alone(self, accept_rate: float, token_seconds: float) -> float:
        """Return the seconds of the same step by the large model alone, at *token_seconds*."""
        rejected_tokens = (1 - accept_rate) * self.rejected_tokens
        return token_seconds * (accept_rate * self.accepted_tokens + rejected_tokens)


@dataclass(eq=False, slots=True)
class Evidence:
    """Verdicts as a Beta distribution of the accept rate: each verdict has a weight."""

    accepted: float
    """The weight of the accepted drafts, of assumed ones too."""
    rejected: float
    """The weight of the rejected drafts, of assumed ones too."""

    @classmethod
    def assume(cls, accept_rate: float, drafts: float) -> Evidence:
        """Begin with an assumed rate that counts for so many drafts."""
        return cls(accept_rate * drafts, (1 - accept_rate) * drafts)

    @property
    def weight(self) -> float:
        """The weight of all verdicts."""
        return self.accepted + self.rejected

    @property
    def rate(self) -> float:
        """The expected accept rate."""
        return self.accepted / self.weight

    def add(self, accepted: bool, weight: float = 1.0, keep: float = DISCOUNT_PER_DRAFT) -> None:
        """Add a verdict; older ones *keep* this share of their weight."""
        self.accepted = keep * self.accepted + weight * accepted
        self.rejected = keep * self.rejected + weight * (not accepted)


@dataclass(eq=False, slots=True)
class Timings:
    """The latest values of one kind."""

    values: deque[float] = field(default_factory=lambda: deque[float](maxlen=WINDOW_TIMINGS))
    """The values, the newest last."""
    newest: int = 0
    """How many steps all runs had committed at the newest value."""

    def add(self, value: float, step: int) -> None:
        """Add a value that was measured when all runs had committed *step* steps."""
        self.values.append(value)
        self.newest = step

    def __len__(self) -> int:
        return len(self.values)

    @property
    def typical(self) -> float:
        """The median."""
        return median_low(self.values)


@dataclass(eq=False, slots=True)
class ByCrowd:
    """Timings of one kind by the number of runs at once, in powers of two."""

    timings: defaultdict[int, Timings] = field(default_factory=lambda: defaultdict(Timings))
    """The timings, by the bit length of the number of runs."""

    def add(self, value: float, runs: int, step: int) -> None:
        """Add a value measured with so many runs at once."""
        self.timings[runs.bit_length()].add(value, step)

    def at(self, runs: int) -> Timings:
        """Return the timings with so many runs at once."""
        return self.timings[runs.bit_length()]

    def known(self, runs: int) -> bool:
        """Return whether a crowd of this size has contributed enough timings."""
        wanted = min(WINDOW_TIMINGS, max(MIN_TIMINGS, runs))
        return len(self.timings[runs.bit_length()]) >= wanted

    def fresh(self, runs: int, step: int) -> bool:
        """Return whether timings of a crowd of this size are known that are not out of date."""
        timings = self.timings[runs.bit_length()]
        return len(timings) > 0 and step - timings.newest <= STALE_STEPS * max(1, runs)

    def forget(self, step: int) -> None:
        """Drop the timings of larger crowds that are out of date, so that they are tried again."""
        for size in [size for size in self.timings if size > 2]:
            if not self.fresh(1 << (size - 1), step):
                del self.timings[size]

    @property
    def count(self) -> int:
        """How many timings there are, of crowds of any size."""
        return sum(len(timings) for timings in self.timings.values())

    @property
    def largest(self) -> int:
        """The bit length of the largest crowd that is known, 1 if none is."""
        return max((size for size in self.timings if self.known(1 << size >> 1)), default=1)

    def expect(self, runs: int) -> float | None:
        """
        Return what to expect with so many runs at once; None if nothing was measured.

        Beyond the largest crowd that is known, each doubling takes longer by the factor of the last
        one, between 1 and 2.
        """
        size = runs.bit_length()
        tried = sorted(each for each in self.timings if len(self.timings[each]))
        smaller = [each for each in tried if each <= size and self.known(1 << each >> 1)]
        if not smaller:
            return self.timings[tried[0]].typical if tried else None
        last = smaller[-1]
        found = self.timings[last].typical
        if last == size or len(smaller) < 2:
            return found
        growth = found / max(1e-9, self.timings[smaller[-2]].typical)
        return found * min(2.0, max(1.0, growth)) ** (size - last)


def mean_of(*choices: Sequence[float]) -> float | None:
    """Return the mean of the first of *choices* that has a value."""
    return next((fmean(values) for values in choices if values), None)
