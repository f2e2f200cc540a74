"""A run steps aside where the method does not pay, and comes back: scripted models at set paces, on the virtual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from stepspec.orchestrator import Budget, Chain, Ledger, reason
from stepspec.orchestrator.budget import Budgeted
from stepspec.orchestrator.events import Committed, Decided, Drafted, Lost, Started
from stepspec.orchestrator.feedback.auto import ASIDE, Auto, Estimate, Mode, decide
from stepspec.orchestrator.feedback.adaptation import Costs
from stepspec.orchestrator.feedback.drift import GradeWatch, Histogram
from stepspec.orchestrator.lookahead import LookaheadControl
from stepspec.orchestrator.solution import stretches
from stepspec.orchestrator.trace import Moment, Recorder, Stopwatch, dump, parse, replay
from stepspec.policies import Solo, SpecReason

from ...fakes import ScriptedModel, counting, run
from ..arms import PROBLEM, taste

AHEAD = 2


@dataclass(frozen=True)
class World:
    """
    Seconds of a token of each model, of a verdict, and until a model's first token; a share of the drafts is *good*.

    A request of the large model waits for *queue* seconds more.
    """

    good: float = 0.9
    small: float = 0.1
    large: float = 0.5
    verdict: float = 0.5
    first: float = 0.1
    queue: float = 0.0
    steps: int = 20

    def models(self, problem: int) -> tuple[ScriptedModel, ScriptedModel]:
        def grade(chain: Chain, question: str) -> Mapping[str, float]:
            return {"9" if taste(problem, len(chain.steps)) < self.good else "0": 1.0}

        large = ScriptedModel("large", counting("large", self.steps), judge=grade, pace=self.large, sticky=True)
        large.latency = lambda chain: self.first + self.queue
        large.reading = lambda chain: self.verdict + self.queue
        small = ScriptedModel("small", counting("small", self.steps), pace=self.small, sticky=True, log=large.log)
        small.latency = lambda chain: self.first
        return small, large

    def solve(
        self, problem: int, arm: str = "auto", auto: Auto | None = None, budget: Budget | None = None
    ) -> list[Moment]:
        """Run one problem: by the "method", the "large" model alone, or with *auto*; return the trace."""
        small, large = self.models(problem)
        budget = budget or Budget(100_000)
        sides = Budgeted(small, budget.left), Budgeted(large, budget.left)
        method, aside = SpecReason(*sides), Solo(sides[1])

        async def main() -> list[Moment]:
            recorder = Recorder(Stopwatch())
            deciding = auto.run("specreason", {}, AHEAD, aside) if auto is not None else None

            def observe(event: object) -> None:
                recorder(event)  # type: ignore[arg-type]
                if deciding is not None:
                    deciding.read(recorder.moments[-1])

            small.observe = large.observe = observe
            observe(Started(PROBLEM.messages, "specreason"))
            control = LookaheadControl(AHEAD, auto=deciding)
            policy = aside if arm == "large" else method
            await reason(policy, PROBLEM, ahead=control, spent=budget.spent, observe=observe)
            return recorder.moments

        moments = run(main())[0]
        assert (small.open, large.open) == (0, 0)
        return moments

    def seconds(self, arm: str, problems: Sequence[int], auto: Auto | None = None) -> float:
        return sum(self.solve(problem, arm, auto)[-1].at for problem in problems)


PROBLEMS = range(40)
WORLDS = {
    "a good pair": World(),
    "a judge that accepts half": World(good=0.5),
    "a slow judge": World(verdict=6.0),
    "a very slow judge": World(verdict=20.0),
    "bad drafts": World(good=0.1),
    "a queue": World(queue=4.0, good=0.7),
    "a small model as slow as the large": World(small=0.5),
    "near": World(good=0.5, verdict=1.5),
}
