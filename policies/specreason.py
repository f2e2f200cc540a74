"""
SpecReason: the large model grades each small step and rewrites the weak ones.

Pan et al. 2025, arXiv:2504.07891.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from stepspec.orchestrator import Accept, Chain, Model, Rollback, Step, Verdict
from stepspec.orchestrator.interfaces import AnsweredBy, EndedBy

from .grading import ask_grade, draft_several, expected, judge_several, likeliest
from .option_types import Few, Grade, Share


@dataclass(frozen=True, slots=True)
class SpecReason:
    """
    Accept a step of the small model if its grade, 0 to 9, is at least *threshold* (7 in the paper, section 4.1).

    The grade is *read* as the mean of the digits, weighted by their probabilities ("expected", an option of the
    authors' code), or as the likeliest digit ("greedy", their default). The mean costs the same and also reflects a
    judge's doubt. A judge that puts less than *sure* of its probability on digits has not understood the question: the
    step is rejected. As in the authors' code, a small step does not end the thinking (`Ending` in `wrappers`). `Led`
    there reserves first steps for the large model (section 5.3).

    With *judge_every* above 1, which is not in the paper, the small model writes that many steps as one draft, and one
    question asks for the first wrong one: the draft is cut there. The grade of a step is then the probability that
    neither it nor an earlier one is wrong, times 9. This is for servers on which every verdict reads much of the chain
    again, and for judges that find an error among several steps. Budgets and traces count such a draft as one step.
    """

    foreseeable: ClassVar[bool] = True
    ending: ClassVar[EndedBy] = "large"
    answer: ClassVar[AnsweredBy] = "method"

    small: Model
    large: Model
    threshold: Grade = 7
    read: Literal["greedy", "expected"] = "expected"
    sure: Share = 0.05
    judge_every: Few = 1

    @property
    def answerer(self) -> Model:
        return self.large

    async def draft(self, chain: Chain) -> Step:
        return await draft_several(self.small, chain, self.judge_every)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        if self.judge_every > 1 and (verdict := await self._judge_all(chain, draft)):
            return verdict
        grades = await ask_grade(self.large, chain.extend(draft))
        total = sum(grades.values())
        if total == 0 or total < self.sure:
            return Rollback(reason="no grade")
        grade = likeliest(grades) if self.read == "greedy" else expected(grades)
        return Accept(grade) if grade >= self.threshold else Rollback(reason="grade", score=grade)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.large.write(chain)

    async def _judge_all(self, chain: Chain, draft: Step) -> Verdict | None:
        """Judge all steps of *draft* at once; None if it is a single one."""
        greedy = self.read == "greedy"
        return await judge_several(self.large, chain, draft, threshold=self.threshold, greedy=greedy, sure=self.sure)
