"""How well a share is known that was counted. No I/O."""

from __future__ import annotations

import math

Z = 1.96  # of a normal distribution 95% lie within


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Wilson's score interval (1927) at 95%: between which two values the share lies of which *successes* were seen."""
    share = successes / n
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)
