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
GRADES = "0123456789"


@dataclass(frozen=True, slots=True)
class SpecReason(Drafting):
    """
    Accept a step of the small model if its grade, 0 to 9, is at least *threshold* (7 in the paper,
    section 4.1).

    The grade is *read* as the mean of the digits, weighted by their probabilities ("expected", an
    option of the authors' code), or as the likeliest digit ("greedy", their default). The mean
    costs the same, and also shows the judge's doubt. A judge that puts less than *sure* of its
    probability on digits has not understood the question, and the step is rejected.

    As in the authors' code, a small step does not end the thinking (`Ending` in `wrappers`). First
    steps by the large model (section 5.3) are the wrapper `Led`, for any policy.
    """

    foreseeable: ClassVar[bool] = True
    ending: ClassVar[EndedBy] = "large"
    answer: ClassVar[AnsweredBy] = "method"

    threshold: Grade = 7
    read: Literal["greedy", "expected"] = "expected"
    sure: Share = 0.05

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        probabilities = await self.large.ask(
            chain.extend(draft),
            GRADE.text,
            GRADES,
            opening=GRADE.opening,
        )
        total = sum(probabilities.values())
        if total == 0 or total < self.sure:
            return Rollback(reason="no grade")
        grade = self.grade(probabilities)
        if grade >= self.threshold:
            return Accept(grade)
        return Rollback(reason="grade", score=grade)

    def grade(self, probabilities: Mapping[str, float]) -> float:
        """Return the grade, 0 to 9, that the judge gave by the *probabilities* of the digits."""
        if self.read == "greedy":
            return likeliest(probabilities)
        return expected(probabilities)


def likeliest(probabilities: Mapping[str, float]) -> float:
    """Return the digit with the highest probability, which a greedy judge writes."""
    return float(max(probabilities, key=lambda digit: probabilities[digit]))


def expected(probabilities: Mapping[str, float]) -> float:
    """Return the mean digit, weighted by the *probabilities*."""
    weighted = sum(int(digit) * share for digit, share in probabilities.items())
    return weighted / sum(probabilities.values())
