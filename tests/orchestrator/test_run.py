"""One run from the problem to its answer: how it ends, what it tells, and what it survives."""

import pytest

from stepspec.orchestrator import Budget
from stepspec.orchestrator.budget import Budgeted
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.errors import ContextTooLong, EndpointRejected, EndpointUnavailable
from stepspec.orchestrator.events import Answered, Committed, Degraded, Event, Finished
from stepspec.orchestrator.run import Outcome
from stepspec.orchestrator.run import run as solve
from stepspec.policies import make

from ..fakes import ScriptedModel, counting, run
from .arms import PROBLEM

GONE = EndpointUnavailable("no connection", role="small", url="http://here:8001", verb="write")


class Case:
    """A pair that thinks in four steps, and the events of its run."""

    def __init__(self, budget: Budget | None = None) -> None:
        self.small = ScriptedModel("small", counting("small", 4))
        self.large = ScriptedModel("large", counting("large", 4), log=self.small.log)
        self.budget = budget or Budget()
        self.events: list[Event] = []

    def run(self, *, fallback: bool = True, thinks: bool = True) -> tuple[Outcome, float]:
        models = [Budgeted(model, self.budget.left) for model in (self.small, self.large)]
        policy, alone = (make(name, *models) for name in ("specreason", "large"))
        return run(
            solve(
                policy,
                PROBLEM,
                budget=self.budget,
                ahead=1,
                observe=self.events.append,
                fallback=alone if fallback else None,
                thinks=thinks,
            )
        )


def test_a_run_thinks_and_answers_and_tells_so() -> None:
    case = Case()
    outcome, seconds = case.run()
    assert (outcome.answer, outcome.text, outcome.reason) == ("42", "So it is \\boxed{42}.", "stop")
    assert outcome.chain.finished
    assert seconds == 6.0  # a draft, four judgements, the answer
    assert isinstance(case.events[-2], Answered)
    assert case.events[-1] == Finished("stop", "42", 6.0)


def test_a_spent_budget_still_leaves_room_for_an_answer() -> None:
    case = Case(Budget(tokens=30, answer=10))
    outcome, _ = case.run()
    assert (outcome.chain.tokens, outcome.answer, outcome.reason) == (20, "42", "length")


def test_an_answer_that_is_cut_is_told_from_a_whole_one() -> None:
    outcome, _ = Case(Budget(answer=3)).run()
    assert (outcome.text, outcome.reason) == ("So it", "length")


def test_seconds_are_kept_for_the_answer_of_a_run_that_thinks_too_long() -> None:
    outcome, seconds = Case(Budget(seconds=6.0)).run()
    assert (len(outcome.chain.steps), outcome.answer, outcome.reason, seconds) == (3, "42", "time", 5.5)


def test_no_time_for_an_answer_leaves_it_empty() -> None:
    case = Case(Budget(seconds=8.0))
    case.large.latency = lambda chain: 100.0
    outcome, seconds = case.run()
    assert (len(outcome.chain.steps), outcome.text, outcome.reason, seconds) == (4, "", "time", 8.0)


def test_a_large_model_that_goes_round_in_circles_is_asked_for_the_answer_at_once() -> None:
    case = Case()
    case.small.script = case.large.script = lambda said: "Again.\n\n"
    outcome, _ = case.run()
    assert (outcome.chain.text, outcome.answer, outcome.reason) == ("Again.\n\n" * 2, "42", "repetition")


@pytest.mark.parametrize("at", [0, 2])
def test_without_the_small_model_the_large_one_goes_on_from_what_is_committed(at: int) -> None:
    case = Case()
    case.small.fails = lambda verb, chain: GONE if len(chain.steps) >= at else None
    outcome, _ = case.run()
    assert [step.author for step in outcome.chain.steps] == ["small"] * at + ["large"] * (4 - at)
    assert (outcome.answer, outcome.reason) == ("42", "stop")
    assert [event for event in case.events if isinstance(event, Degraded)] == [Degraded("small", str(GONE))]
    assert [event.index for event in case.events if isinstance(event, Committed)] == [0, 1, 2, 3]


def test_without_a_fallback_the_small_models_failure_is_raised() -> None:
    case = Case()
    case.small.fails = lambda verb, chain: GONE
    with pytest.raises(EndpointUnavailable, match="no connection"):
        case.run(fallback=False)


@pytest.mark.parametrize(
    "failure",
    [
        EndpointUnavailable("no connection", role="large"),
        EndpointRejected("HTTP 401", role="small"),
        TimeoutError("of its own"),
    ],
)
def test_any_other_failure_is_raised(failure: Exception) -> None:
    case = Case(Budget(seconds=1000))
    case.small.fails = case.large.fails = lambda verb, chain: failure if len(chain.steps) == 2 else None
    with pytest.raises(type(failure)):
        case.run()
    assert not [event for event in case.events if isinstance(event, Degraded)]


def test_a_timeout_of_the_answers_request_is_a_failure_and_not_the_deadline() -> None:
    case = Case(Budget(seconds=1000))
    case.large.fails = lambda verb, chain: TimeoutError("of its own") if chain.finished and verb == "write" else None
    with pytest.raises(TimeoutError, match="of its own"):
        case.run()


def test_a_context_that_is_full_while_thinking_ends_the_thinking() -> None:
    case = Case()
    case.small.fails = lambda verb, chain: ContextTooLong("full", role="small") if len(chain.steps) == 2 else None
    outcome, _ = case.run()
    assert (outcome.answer, outcome.reason, len(outcome.chain.steps)) == ("42", "context", 2)


@pytest.mark.parametrize("seconds", [None, 600.0])
def test_a_context_that_is_full_when_the_answer_is_due_leaves_it_empty(seconds: float | None) -> None:
    case = Case(Budget(seconds=seconds))
    case.large.fails = lambda verb, chain: ContextTooLong("full") if chain.finished and verb == "write" else None
    outcome, _ = case.run()
    assert (outcome.text, outcome.reason, len(outcome.chain.steps)) == ("", "context", 4)


def test_models_without_a_thinking_block_have_answered_when_they_end() -> None:
    case = Case()
    case.small.script = lambda said: "First.\n\n" if not said else "So it is \\boxed{7}."
    outcome, _ = case.run(thinks=False)
    assert (outcome.text, outcome.answer, outcome.reason) == ("First.\n\nSo it is \\boxed{7}.", "7", "stop")
    assert not [event for event in case.events if isinstance(event, Answered)]


def test_the_end_of_thinking_is_no_part_of_the_text() -> None:
    case = Case()
    case.large.answer = f"\n\n{THINK_END}So it is \\boxed{{7}}."
    outcome, _ = case.run()
    assert THINK_END not in outcome.text
