"""How well a share is known that was counted. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z = 1.96  # of a normal distribution 95% lie within


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Wilson's score interval (1927) at 95%: between which two values the share lies of which *successes* were seen."""
    share = successes / n
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """
    What became of the tokens that were drafted for a model within its server.

    *drafts* are passes that verified some, *drafted* the tokens in them, *accepted* those that the model would have
    written itself. Servers count since they were started: the difference of two looks is what happened in between.
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
        """The tokens that a pass with a draft gave in the mean, the model's own included; None if there was none."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(self.drafts + other.drafts, self.drafted + other.drafted, self.accepted + other.accepted)

    def __sub__(self, earlier: Acceptance) -> Acceptance:
        return Acceptance(
            self.drafts - earlier.drafts, self.drafted - earlier.drafted, self.accepted - earlier.accepted
        )

    def __str__(self) -> str:
        return "nothing drafted" if self.rate is None else f"{self.rate:.0%}, {self.length:.2f} a pass"
