"""Arithmetic on probabilities, shared by the policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log

from stepspec.orchestrator import Token

DIGITS = "0123456789"


def likeliest(grades: Mapping[str, float]) -> float:
    """The digit that the judge would have written."""
    return float(max(grades, key=lambda digit: grades[digit]))


def expected(grades: Mapping[str, float]) -> float:
    """The mean digit under the judge's probabilities, 0 to 9."""
    return sum(int(digit) * p for digit, p in grades.items()) / sum(grades.values())


def surest(token: Token) -> float:
    """The highest probability at the place of *token*, 0 to 1: its own, unless a rival that is known has more."""
    return exp(max(rival.logprob for rival in (token, *token.top)))


def entropy(rivals: Sequence[Token]) -> float:
    """The entropy in nats of the choice between *rivals*, their probabilities taken to sum to 1; 0 for none."""
    chances = [exp(rival.logprob) for rival in rivals]
    return sum(-p / sum(chances) * log(p / sum(chances)) for p in chances if p)
