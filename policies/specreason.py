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

GRADE_PROMPT = load("specreason.grade")
DIGITS = "0123456789"


@dataclass(frozen=True, slots=True)
class SpecReason(Drafting):
    """
    Accept a step of the small model if its grade, 0 to 9, is at least *threshold*.

    The paper's threshold is 7 (section 4.1).

    The large model is the judge. It gives each digit a probability. *read* says how the grade is
    computed from the probabilities: "greedy" takes the likeliest digit, which is the default of the
    authors' code; "expected" takes the mean digit, which is an option of that code. The mean costs
    the same, and also shows the judge's doubt. If all digits together have a probability below
    *sure*, the judge has not understood the question, and the step is rejected.

    As in the authors' code, the small model cannot end the thinking: the wrapper `Ending` removes
    the end marker from its drafts. To let the large model write the first steps (section 5.3), wrap
    any policy in `Led`.
    """

    repair_may_start_early: ClassVar[bool] = True
    """The repair depends neither on the draft nor on its grade. It may start before the verdict."""
    ending: ClassVar[EndedBy] = "large"  # Only the large model may end the thinking.
    answer: ClassVar[AnsweredBy] = "method"  # The answer is drafted, graded and repaired, too.

    threshold: Grade = 7
    """The lowest grade of an accepted step."""
    read: Literal["greedy", "expected"] = "expected"
    """The digit that is the grade: the likeliest ("greedy"), or the mean ("expected")."""
    sure: Share = 0.05
    """The step is rejected if the probabilities of all digits sum to less than this."""

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        probabilities = await self.large.ask(
            chain.extend(draft),
            GRADE_PROMPT.text,
            DIGITS,
            opening=GRADE_PROMPT.opening,
        )
        total = sum(probabilities.values())
        # With sure = 0, a total of 0 would divide by zero in the mean.
        if total == 0 or total < self.sure:
            return Rollback(reason="no grade")
        grade = self.grade(probabilities)
        if grade >= self.threshold:
            return Accept(grade)
        return Rollback(reason="grade", score=grade)

    def grade(self, probabilities: Mapping[str, float]) -> float:
        """Compute the grade, 0 to 9, from the *probabilities* of the digits."""
        if self.read == "greedy":
            return likeliest(probabilities)
        return expected(probabilities)


def likeliest(probabilities: Mapping[str, float]) -> float:
    """Return the digit with the highest probability. A greedy judge writes this digit."""
    return float(max(probabilities, key=lambda digit: probabilities[digit]))


def expected(probabilities: Mapping[str, float]) -> float:
    """Return the mean digit, weighted by the *probabilities*."""
    total = sum(probabilities.values())
    return sum(int(digit) * share for digit, share in probabilities.items()) / total
