"""The deadline of the loop: the steps that it keeps, the requests that it awaits, and invalid ones."""

import asyncio

import pytest

from stepspec.orchestrator import reason
from stepspec.orchestrator.chain import THINK_END, Step
from stepspec.policies import Led, SpecReason

from ..fakes import run
from .arms import PROBLEM, pair


@pytest.mark.parametrize(("ahead", "steps"), [(0, 3), (1, 6)])
def test_the_deadline_ends_the_run_to_the_second_with_the_steps_committed_by_then(ahead: int, steps: int) -> None:
    (chain, end), seconds = run(reason(SpecReason(*pair()), PROBLEM, ahead=ahead, deadline=7.5))
    assert (len(chain.steps), end, seconds) == (steps, "time", 7.5)


def test_the_deadline_is_a_time_on_the_loops_clock_and_not_a_span() -> None:
    async def main() -> int:
        await asyncio.sleep(100)
        chain, _ = await reason(SpecReason(*pair()), PROBLEM, deadline=107.5)
        return len(chain.steps)

    assert run(main()) == (3, 107.5)


def test_a_finished_chain_is_left_as_it_is_even_after_the_deadline() -> None:
    small, large = pair()
    chain = PROBLEM.extend(Step(f"Yes.\n{THINK_END}", "small", "end"))
    assert run(reason(SpecReason(small, large), chain, deadline=0.0))[0] == (chain, "finished")
    assert small.log == []


def test_a_timeout_that_a_model_raises_is_a_failure_and_not_the_deadline() -> None:
    small, large = pair()
    large.fails = lambda verb, chain: TimeoutError("slow") if len(chain.steps) == 3 else None
    with pytest.raises(TimeoutError, match="slow"):
        run(reason(SpecReason(small, large), PROBLEM, ahead=1, deadline=100.0))


def test_a_deadline_during_the_closing_of_lost_bets_waits_until_they_are_gone() -> None:
    small, large = pair(wrong=tuple(range(10)))
    small.closing = 5.0
    small.latency = lambda chain: 1.0 + len(chain.steps)
    # The draft is refused at 2 s, and the bet on it takes until 7 s to go away.
    (chain, end), seconds = run(reason(SpecReason(small, large), PROBLEM, ahead=1, deadline=3.0))
    assert (chain, end, seconds) == (PROBLEM, "time", 7.0)
    assert small.log[-1] == "small write 1 cancelled"


def test_a_cancellation_during_the_closing_of_lost_bets_waits_until_they_are_gone() -> None:
    small, large = pair(wrong=tuple(range(10)))
    small.closing = 5.0
    small.latency = lambda chain: 1.0 + len(chain.steps)

    async def main() -> None:
        running = asyncio.create_task(reason(SpecReason(small, large), PROBLEM, ahead=1))
        for _ in range(3):
            await asyncio.sleep(1.5)
            running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        assert small.open == large.open == 0

    assert run(main())[1] == 6.5  # cancelled at 1.5 s, and gone 5 s later


def test_a_run_that_finished_before_the_deadline_is_finished_though_closing_takes_longer() -> None:
    small, large = pair(length=2)
    large.sticky, large.closing = True, 5.0  # The first step is the large model's, whose request is left open.
    (chain, end), seconds = run(reason(Led(SpecReason(small, large), large, first=1), PROBLEM, ahead=1, deadline=4.0))
    assert (end, seconds) == ("finished", 8.0)
    assert chain.finished
