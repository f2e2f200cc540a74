"""
SpecReason: the large model grades each small step and rewrites the weak ones.

Pan et al. 2025, arXiv:2504.07891.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..orchestrator import Accept, Chain, Model, Rollback, Step, Verdict
from ..prompts import load
from .scores import DIGITS, expected, likeliest

GRADE = load("specreason.grade")


@dataclass(frozen=True, slots=True)
class SpecReason:
    """
    Accept a small step when its grade, 0 to 9, reaches *threshold*.

    The defaults are the paper's: threshold 7 (section 4.1) and the grade that the judge would write ("greedy";
    "expected" is the mean over its probabilities). A judge that puts less than *sure* of its probability on digits has
    not understood, which is no approval. First steps reserved for the large model (section 5.3) are `Led`'s.
    """

    foreseeable: ClassVar[bool] = True

    small: Model
    large: Model
    threshold: float = 7
    read: Literal["greedy", "expected"] = "greedy"
    sure: float = 0.05

    @property
    def answerer(self) -> Model:
        return self.large

    async def draft(self, chain: Chain) -> Step:
        return await self.small.write(chain)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        grades = await self.large.ask(chain.extend(draft), GRADE.text, DIGITS, opening=GRADE.opening)
        said = sum(grades.values())
        if said == 0 or said < self.sure:
            return Rollback(reason="no grade")
        grade = likeliest(grades) if self.read == "greedy" else expected(grades)
        return Accept(grade) if grade >= self.threshold else Rollback(reason="grade", score=grade)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.large.write(chain)
