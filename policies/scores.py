"""Arithmetic on probabilities, shared by the policies."""

from __future__ import annotations

from collections.abc import Mapping

DIGITS = "0123456789"


def likeliest(grades: Mapping[str, float]) -> float:
    """The digit that the judge would have written."""
    return float(max(grades, key=lambda digit: grades[digit]))


def expected(grades: Mapping[str, float]) -> float:
    """The mean digit under the judge's probabilities, 0 to 9."""
    return sum(int(digit) * p for digit, p in grades.items()) / sum(grades.values())
