"""
How much speculation the large model's server can bear: additive increase, multiplicative decrease.

Bets and hedges cost the other users of a busy server. Every process sees its own requests only. A process that halves
its share when requests get slow, and raises it a little when they do not, shares fairly with others of its kind (Chiu
and Jain 1989, the argument for TCP's congestion control). Pure: the same observations give the same decisions.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf
from statistics import median_low

from ..events import Called, Event, Verb

STEP = 1 / 8  # of the lookahead that a run wants


@dataclass(eq=False)
class Load:
    """
    What one process may add to the large model's load, for all of its runs together.

    *share* is the part of the wanted lookahead that is granted, 0 to 1. It is halved when the large model's requests
    take *heavy* times as long as the fastest of their kind, or wait in a queue, and grows by an eighth when they take
    at most *light* times as long. Each decision uses the median of *batch* requests, so that decisions come faster the
    more requests there are. The fastest is that of the last *window* requests of the kind: the same verb, and as many
    tokens to read to within a factor of two. A failed request counts as infinitely slow.
    """

    heavy: float = 3.0
    light: float = 2.0
    batch: int = 4
    window: int = 1024
    share: float = 1.0
    _recent: dict[tuple[Verb, int], deque[float]] = field(default_factory=dict[tuple[Verb, int], deque[float]])
    _ratios: list[float] = field(default_factory=list[float])

    def depth(self, most: int) -> int:
        """How many drafts may be made ahead now, for a user who wants *most*."""
        return int(most * self.share)

    @property
    def calm(self) -> bool:
        """Whether there is room for hedges as well: they cost the large model's own tokens."""
        return self.share == 1

    def observe(self, event: Event) -> None:
        """Learn from a request of the large model that ended, unless it was cancelled. Other events are ignored."""
        if not isinstance(event, Called) or event.role != "large" or event.fate == "cancelled":
            return
        waited = event.first if event.verb == "write" else event.seconds
        if event.fate == "failed":
            self._add(inf)
        elif waited is not None and waited > 0:
            self._add(waited / self._fastest(event.verb, event.prompt - event.cached, waited))

    def queue(self, running: int, waiting: int) -> None:
        """Learn from the server's gauges. Even on an idle server, a request that has just arrived waits briefly."""
        if waiting > max(1, running // 4):
            self._shrink()

    def _fastest(self, verb: Verb, tokens: int, waited: float) -> float:
        recent = self._recent.setdefault((verb, tokens.bit_length()), deque(maxlen=self.window))
        recent.append(waited)
        return min(recent)

    def _add(self, ratio: float) -> None:
        self._ratios.append(ratio)
        if len(self._ratios) < self.batch:
            return
        typical = median_low(self._ratios)
        self._ratios.clear()
        if typical >= self.heavy:
            self._shrink()
        elif typical <= self.light:
            self.share = min(1.0, self.share + STEP)

    def _shrink(self) -> None:
        self.share /= 2
        self._ratios.clear()
