"""Statistics of counts: an interval for a share, and counters of tokens drafted by a server. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z = 1.96  # standard deviations; 95% of a normal distribution lie within


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Wilson's score interval (1927) at 95% for a share, of which *successes* in *n* trials were observed."""
    share = successes / n
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """
    The token-level speculation within one model's server, since the server was started.

    *drafts* counts the passes that verified drafted tokens, *drafted* the tokens in them, and *accepted* the tokens
    that the model would have written itself. The difference of two readings is what happened between them.
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float | None:
        """The share of the drafted tokens that was accepted; None if none was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def length(self) -> float | None:
        """The mean number of tokens per pass with a draft, including the model's own; None if there was none."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(self.drafts + other.drafts, self.drafted + other.drafted, self.accepted + other.accepted)

    def __sub__(self, earlier: Acceptance) -> Acceptance:
        return Acceptance(
            self.drafts - earlier.drafts, self.drafted - earlier.drafted, self.accepted - earlier.accepted
        )

    def __str__(self) -> str:
        return "nothing drafted" if self.rate is None else f"{self.rate:.0%}, {self.length:.2f} a pass"
