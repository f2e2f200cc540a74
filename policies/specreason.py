"""
SpecReason: the large model grades each small step and rewrites the weak ones.

Pan et al. 2025, arXiv:2504.07891.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from stepspec.orchestrator import Accept, Chain, Rollback, Step, Verdict
from stepspec.orchestrator.interfaces import AnsweredBy, EndedBy
from stepspec.prompts import load

from .method import Drafting, Grade, Share

GRADE = load("specreason.grade")
DIGITS = "0123456789"


@dataclass(frozen=True, slots=True)
class SpecReason(Drafting):
    """
    Accept a step of the small model if its grade, 0 to 9, is at least *threshold* (7 in the paper,
    section 4.1).

    The grade is *read* as the mean of the digits, weighted by their probabilities ("expected", an
    option of the authors' code), or as the likeliest digit ("greedy", their default). The mean
    costs the same and also reflects a judge's doubt. A judge that puts less than *sure* of its
    probability on digits has not understood the question: the step is rejected. As in the authors'
    code, a small step does not end the thinking (`Ending` in `wrappers`). `Led` there reserves
    first steps for the large model (section 5.3).
    """

    foreseeable: ClassVar[bool] = True
    ending: ClassVar[EndedBy] = "large"
    answer: ClassVar[AnsweredBy] = "method"

    threshold: Grade = 7
    read: Literal["greedy", "expected"] = "expected"
    sure: Share = 0.05

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        grades = await self.large.ask(
            chain.extend(draft), GRADE.text, DIGITS, opening=GRADE.opening
        )
        total = sum(grades.values())
        if total == 0 or total < self.sure:
            return Rollback(reason="no grade")
        grade = likeliest(grades) if self.read == "greedy" else expected(grades)
        return Accept(grade) if grade >= self.threshold else Rollback(reason="grade", score=grade)


def likeliest(grades: Mapping[str, float]) -> float:
    """The digit with the highest probability: the one that a greedy judge writes."""
    return float(max(grades, key=lambda digit: grades[digit]))


def expected(grades: Mapping[str, float]) -> float:
    """The mean digit under the judge's probabilities, 0 to 9."""
    return sum(int(digit) * p for digit, p in grades.items()) / sum(grades.values())
