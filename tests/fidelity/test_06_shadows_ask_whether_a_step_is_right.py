"""With `shadow`, `adapt` shut down on realistic pairs: a step that the large model put differently counted as bad."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import pytest

from stepspec.api import SHADOW_QUESTIONS
from stepspec.orchestrator import Accept, Chain, Rollback, Step
from stepspec.orchestrator.endpoints import ModelEndpoint, Sampling
from stepspec.orchestrator.events import Committed, Drafted, Event, Judged, Repaired, Started
from stepspec.orchestrator.feedback.adaptation import Adaptable
from stepspec.orchestrator.feedback.learning import Learning, start_learning
from stepspec.orchestrator.feedback.load import Load
from stepspec.orchestrator.feedback.shadow import Shadowing, ShadowJudge, ShadowRecord, Shadows
from stepspec.orchestrator.trace import Moment
from stepspec.policies import adaptable

from ..fakes import ScriptedModel, run
from ..orchestrator.arms import PROBLEM, taste

LIMIT = 0.05
GRADE = 8.9  # of 9: the judge has hardly a doubt about any step
DIFFERENT, OWN_DIFFERENT = 0.5, 0.3  # of the steps: small against large, and large against itself
STEPS, RUNS = 24, 45


@dataclass
class Pair:
    """
    A small model that puts half of its steps in another way than the large one, of which a share of *wrong* are wrong.

    Asked whether a step is correct, the large model overlooks a tenth of the wrong ones, and calls a share of *alarms*
    of the fine ones wrong, whoever wrote them.
    """

    wrong: float = 0.0
    alarms: float = 0.0
    seed: int = 0
    questions: list[str] = field(default_factory=list[str])

    def step(self, problem: int, index: int) -> Step:
        if taste("wrong", self.seed, problem, index) < self.wrong:
            return Step(f"{index}: a mistake.\n\n", "small")
        way = "another" if taste("way", self.seed, problem, index) < DIFFERENT else "a"
        return Step(f"{index}: {way} good way.\n\n", "small")

    def model(self, sampling: Sampling, **_: Any) -> ScriptedModel:
        """Serve the large model; every seed but the usual one has it sometimes go on in a third way."""

        def script(previous: object) -> str:
            place = len(cast("tuple[str, ...]", previous))
            varied = sampling.temperature > 0 and sampling.seed == 1
            other = varied and taste("own", self.seed, repr(previous)) < OWN_DIFFERENT
            return f"{place}: {'a third' if other else 'a'} good way.\n\n"

        return ScriptedModel("large", script, judge=self.judge)

    def judge(self, chain: Chain, question: str) -> Mapping[str, float]:
        self.questions.append(question)
        last = chain.steps[-1].text
        if "the same" in question:
            yes = last.strip() in question
        elif "mistake" in last:
            yes = taste("overlooked", self.seed, chain) < 0.1
        else:
            yes = taste("alarm", self.seed, chain) >= self.alarms
        return {"Yes": 0.9, "No": 0.1} if yes else {"Yes": 0.1, "No": 0.9}


def adapted(pair: Pair, runs: int = RUNS) -> tuple[list[float], Learning, ShadowRecord]:
    """The threshold after every run of a solver with `adapt` and `shadow`, what it learnt, and what shadows found."""
    learnt = start_learning("specreason", {}, 2, LIMIT, adaptable("specreason", {}) or Adaptable())
    shadows = Shadows(1.0, most=1000)
    check = ShadowJudge(cast("ModelEndpoint", pair), *SHADOW_QUESTIONS, Sampling(), shadows.observe, nullcontext)

    async def solve(problem: int) -> None:
        begun = Chain.of(f"Problem {problem}")
        chain, adaptation, moments = begun, learnt.begin(), list[Moment]()
        shadowing = Shadowing(shadows, chain, partial(check.teaching, learnt), Load())

        def tell(event: Event) -> None:
            moments.append(Moment(float(len(moments)), event))
            shadowing(event)

        for event in (Started(PROBLEM.messages, "specreason"), adaptation):
            tell(event)
        for index in range(STEPS):
            draft = pair.step(problem, index)
            verdict = Accept(GRADE) if (adaptation.value or 0) <= GRADE else Rollback(reason="grade", score=GRADE)
            tell(Drafted(index, draft))
            tell(Judged(index, draft, verdict))
            step = draft if isinstance(verdict, Accept) else replace(draft, author="large")
            if isinstance(verdict, Rollback):
                tell(Repaired(index, step, verdict))
            tell(Committed(index, step, GRADE))
            chain = chain.extend(step)
        await shadows.settled()
        learnt.learn(moments)

    async def main() -> list[float]:
        thresholds: list[float] = []
        for problem in range(runs):
            await solve(problem)
            thresholds.append(learnt.adaptation.choice.threshold or 0)
        return thresholds

    return run(main())[0], learnt, shadows.record


@pytest.mark.parametrize("alarms", [0.0, 0.08])
@pytest.mark.parametrize("seed", range(4))
def test_a_pair_that_puts_half_of_its_steps_differently_and_well_is_not_shut_down(seed: int, alarms: float) -> None:
    """Not even where the check itself calls 8% of fine steps wrong, which is more than may be bad."""
    thresholds, learnt, record = adapted(Pair(seed=seed, alarms=alarms))
    assert record.checked > 1000
    assert max(thresholds) <= 7
    assert not learnt.adaptation.hopeless


@pytest.mark.parametrize(("wrong", "alarms"), [(0.15, 0.0), (0.15, 0.08), (0.3, 0.0)])
@pytest.mark.parametrize("seed", range(4))
def test_a_pair_with_wrong_steps_that_its_judge_does_not_see_is_caught(seed: int, wrong: float, alarms: float) -> None:
    thresholds, learnt, _ = adapted(Pair(wrong, alarms, seed))
    assert thresholds[-1] == 9, "nothing is accepted"
    assert learnt.adaptation.hopeless


def test_a_step_that_is_the_large_models_own_is_right_without_asking() -> None:
    pair = Pair()
    _, _, record = adapted(pair, runs=4)
    assert record.checked == 4 * STEPS
    assert len(pair.questions) == pytest.approx(2 * (DIFFERENT + OWN_DIFFERENT) * record.checked, rel=0.3)


def test_the_questions_are_about_the_step_alone_and_with_the_large_models_own_step() -> None:
    pair = Pair()
    adapted(pair, runs=2)
    assert pair.questions
    assert 2 * sum("a good way." in question for question in pair.questions) == len(pair.questions)
    assert all("Is the last step of your reasoning so far correct" in question for question in pair.questions)


@dataclass
class Disputing(Pair):
    """One of the two questions gets a No, or no answer."""

    with_own_step: bool = False
    answer: float = 0.9

    def judge(self, chain: Chain, question: str) -> Mapping[str, float]:
        self.questions.append(question)
        return (
            {"Yes": 0.05, "No": self.answer}
            if ("a good way." in question) is self.with_own_step
            else {"Yes": 1, "No": 0}
        )


@pytest.mark.parametrize("with_own_step", [False, True])
def test_a_step_has_to_pass_both_questions(with_own_step: bool) -> None:
    _, _, record = adapted(Disputing(with_own_step=with_own_step), runs=4)
    assert record.disputed == pytest.approx(DIFFERENT * record.checked, rel=0.3)
    assert record.own_disputed == pytest.approx(OWN_DIFFERENT * record.checked, rel=0.4)


def test_a_question_that_is_not_understood_gives_no_result() -> None:
    _, _, record = adapted(Disputing(answer=-0.03), runs=4)
    assert record.failed > 0
    assert (record.disputed, record.own_disputed) == (0, 0)
