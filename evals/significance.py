"""Two arms on the same problems: what only one of them got right decides. Pure."""

from __future__ import annotations

import math

from stepspec.orchestrator.stats import Z

from .experiments.arms import Interval

ROUNDS = 60  # of halving an interval: more than a float has bits


def mcnemar(gained: int, lost: int) -> float:
    """
    The exact two-sided probability of so uneven a split, were gains and losses as likely as each other.

    McNemar 1947, with the binomial distribution in place of its approximation.
    """
    n = gained + lost
    tail = sum(math.comb(n, k) for k in range(min(gained, lost) + 1)) / (1 << n)
    return min(1.0, 2 * tail)


def difference(n: int, gained: float, lost: float) -> Interval:
    """
    The difference of two shares of the same *n* problems, with its 95% score interval (Tango 1998).

    It has a width even where the two agree on every problem, which the bootstrap's has not. Counts that are means over
    several samples of each problem make it wider than it need be.
    """
    value = (gained - lost) / n

    def edge(outer: float, sign: int) -> float:
        inner = value
        for _ in range(ROUNDS):
            middle = (inner + outer) / 2
            if sign * _statistic(n, gained, lost, middle) > -Z:
                inner = middle
            else:
                outer = middle
        return inner

    return Interval(value, edge(-1.0, -1), edge(1.0, 1))


def _statistic(n: int, gained: float, lost: float, true: float) -> float:
    """How many standard errors the observed difference is above the *true* one, were that the true one."""
    b = (2 * n - gained + lost) * true - gained - lost
    q = (math.sqrt(max(0.0, b * b + 8 * n * lost * true * (1 - true))) - b) / (4 * n)
    variance = n * (2 * q + true * (1 - true))
    above = gained - lost - n * true
    if variance <= 0:
        return math.copysign(math.inf, above) if above else 0.0
    return above / math.sqrt(variance)
