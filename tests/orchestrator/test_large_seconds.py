"""The limit on the seconds of the large model: kept exactly, on a clock that jumps, and reported with the solution."""

from __future__ import annotations

import asyncio

import pytest

from stepspec.orchestrator import Budget, Step
from stepspec.orchestrator.budget import Budgeted
from stepspec.orchestrator.errors import LargeSecondsSpent
from stepspec.orchestrator.events import Answering, Capped, Committed, Event
from stepspec.orchestrator.large_seconds import LargeSeconds, Metered
from stepspec.orchestrator.run import Outcome
from stepspec.orchestrator.run import run as solve
from stepspec.orchestrator.solution import Spending
from stepspec.policies import make

from ..fakes import ScriptedModel, counting, run
from .arms import PROBLEM


class Case:
    """A pair that thinks in six steps, each request of a second, and a run that may spend *most* seconds."""

    def __init__(self, most: float, *, pace: float = 0.0, ahead: int = 0) -> None:
        self.small = ScriptedModel("small", counting("small", 6), answer="\n\nThe small one answers.")
        self.large = ScriptedModel(
            "large", counting("large", 6), answer="\n\nThe large one answers.", log=self.small.log, pace=pace
        )
        self.meter, self.ahead = LargeSeconds(most), ahead
        self.events: list[Event] = []

    def run(self, name: str = "specreason", *, alone: bool = True) -> tuple[Outcome, float]:
        async def main() -> Outcome:
            budget = Budget()
            small, large = (Budgeted(each, budget.left) for each in (self.small, Metered(self.large, self.meter)))
            policy, only = (make(method, small, large) for method in (name, "small"))
            return await solve(
                policy,
                PROBLEM,
                budget=budget,
                ahead=self.ahead,
                observe=self.events.append,
                alone=only if alone else None,
                answerer=large,
            )

        return run(main())

    @property
    def authors(self) -> list[str]:
        return [event.step.author for event in self.events if isinstance(event, Committed)]

    @property
    def capped(self) -> list[Capped]:
        return [event for event in self.events if isinstance(event, Capped)]


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_small_model_goes_on_alone_and_the_solution_says_so(ahead: int) -> None:
    case = Case(2.5, ahead=ahead)
    outcome, _ = case.run()
    assert outcome.text.strip() == "The small one answers."
    assert outcome.reason == "stop"
    assert case.large.open == case.small.open == 0
    assert len(case.capped) == 1
    (capped,) = case.capped
    assert (capped.seconds, capped.answering) == (2.5, False)
    assert capped.index <= 2
    assert len(outcome.chain.steps) == 6
    spending = Spending.of(case.events)
    assert spending is not None
    assert (spending.capped_after, spending.capped_at) == (2.5, capped.index)


def test_requests_that_are_open_together_spend_together() -> None:
    async def main() -> tuple[float, list[str]]:
        meter, ends = LargeSeconds(6.0), list[str]()

        async def wait(seconds: float) -> None:
            try:
                await meter.call(lambda: asyncio.sleep(seconds))
                ends.append(f"{seconds:g} done")
            except LargeSecondsSpent:
                ends.append(f"{seconds:g} spent at {asyncio.get_running_loop().time():g}")

        await asyncio.gather(wait(1), wait(10), wait(20))  # three for a second, then two for one and a half
        await wait(1)
        return meter.used, sorted(ends)

    assert run(main())[0] == (6.0, ["1 done", "1 spent at 2.5", "10 spent at 2.5", "20 spent at 2.5"])


def test_a_run_within_its_seconds_is_not_touched() -> None:
    case, free = Case(100), Case(1e9)
    assert case.run() == free.run()
    assert not case.capped
    assert Spending.of(case.events) is None


def test_seconds_that_end_before_the_answer_let_the_small_model_answer() -> None:
    case = Case(6.5)  # six verdicts, then half a second of the answer
    outcome, seconds = case.run()
    assert outcome.text.strip() == "The small one answers."
    assert [(capped.seconds, capped.answering) for capped in case.capped] == [(6.5, True)]
    assert seconds == pytest.approx(6 + 6.5 + 1)


def test_what_is_emitted_of_an_answer_counts() -> None:
    case = Case(6 + 1 + 3.5, pace=1.0)  # the answer's first token comes after two seconds
    outcome, _ = case.run()
    emitted = "".join(event.text for event in case.events if isinstance(event, Answering))
    assert outcome.reason == "time"
    assert outcome.text.strip() == emitted.strip()
    assert outcome.text.strip() == "The large"
    assert "small" not in outcome.text
    assert case.capped[0].answering


def test_the_large_model_alone_is_limited_too() -> None:
    case = Case(3.5)
    outcome, _ = case.run("large")
    assert case.authors == ["large"] * 3 + ["small"] * 3
    assert outcome.text.strip() == "The small one answers."


def test_without_a_model_that_goes_on_the_run_fails() -> None:
    case = Case(2.5)
    with pytest.raises(LargeSecondsSpent, match="raise max_large_seconds"):
        case.run(alone=False)
    assert case.large.open == case.small.open == 0


def test_a_step_is_a_step() -> None:
    async def main() -> Step:
        model = ScriptedModel("large", counting("large", 2))
        return await Metered(model, LargeSeconds(5)).write(PROBLEM)

    assert run(main())[0].text == "The large one says 0.\n\n"
