"""One run from the problem to its answer: its end, its events, and its failures."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from stepspec.orchestrator import Budget
from stepspec.orchestrator.budget import Budgeted
from stepspec.orchestrator.chain import THINK_END, Role
from stepspec.orchestrator.errors import (
    ContextTooLong,
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    MalformedReply,
)
from stepspec.orchestrator.events import Answered, Answering, Committed, Degraded, Event, Finished
from stepspec.orchestrator.lookahead import LookaheadControl
from stepspec.orchestrator.run import Outcome, RunParts
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

    def run(self, **how: Any) -> tuple[Outcome, float]:
        found = run(self.solve(**how))
        assert self.small.open == self.large.open == 0
        return found

    async def solve(
        self,
        *,
        fallback: bool = True,
        ahead: int | LookaheadControl = 1,
        thinks: bool = True,
        **parts: Any,
    ) -> Outcome:
        models = [Budgeted(model, self.budget.left) for model in (self.small, self.large)]
        policy, alone = (make(name, *models) for name in ("specreason", "large"))
        made = RunParts(policy, self.budget, ahead, alone if fallback else None, **parts)
        return await solve(made, replace(PROBLEM, thinks=thinks), self.events.append)

    @property
    def emitted(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Answering)]


def test_a_run_reports_its_thinking_and_its_answer() -> None:
    case = Case()

    async def late() -> Outcome:
        await asyncio.sleep(7.0)
        return await case.solve()

    outcome, seconds = run(late())
    assert (outcome.answer, outcome.text, outcome.reason) == ("42", "So it is \\boxed{42}.", "stop")
    assert outcome.chain.finished
    assert seconds == 7.0 + 6.0  # a draft, four judgements, and the answer
    assert isinstance(case.events[-2], Answered)
    assert case.events[-1] == Finished("stop", "42", 6.0)


def test_a_spent_budget_still_leaves_room_for_an_answer() -> None:
    case = Case(Budget(tokens=30, answer=10))
    outcome, _ = case.run()
    assert (outcome.chain.tokens, outcome.answer, outcome.reason) == (20, "42", "length")


@pytest.mark.parametrize(
    ("more", "text", "reason"), [(3, "So it", "length"), (40, "So it is \\boxed{42}.", "stop")]
)
def test_an_answer_may_use_the_rest_of_the_budget_and_is_cut_where_that_ends(
    more: int, text: str, reason: str
) -> None:
    thought = Case().run()[0].chain.tokens
    outcome, _ = Case(Budget(tokens=thought + more, answer=3)).run()
    assert (outcome.chain.tokens, outcome.text, outcome.reason) == (thought, text, reason)


def test_an_answer_that_the_small_model_cannot_write_still_follows_thinking_that_was_cut() -> None:
    case = Case(Budget(tokens=40, answer=20))
    case.small.fails = lambda verb, chain: GONE if chain.closed else None
    outcome, _ = case.run(by_method=True)
    assert (outcome.answer, outcome.reason) == ("42", "length")


def test_seconds_are_kept_for_the_answer_of_a_run_that_thinks_too_long() -> None:
    outcome, seconds = Case(Budget(seconds=6.0)).run()
    assert (len(outcome.chain.steps), outcome.answer, outcome.reason, seconds) == (
        3,
        "42",
        "time",
        5.5,
    )


def test_no_time_for_an_answer_leaves_it_empty() -> None:
    case = Case(Budget(seconds=8.0))
    case.large.latency = lambda chain: 100.0
    outcome, seconds = case.run()
    assert (len(outcome.chain.steps), outcome.text, outcome.reason, seconds) == (4, "", "time", 8.0)


def test_a_looping_large_model_has_to_answer_at_once() -> None:
    case = Case()
    case.small.script = case.large.script = lambda previous: "Again and again.\n\n"
    outcome, _ = case.run()
    assert (outcome.answer, outcome.reason) == ("42", "repetition")
    assert 300 < outcome.chain.tokens < 600


def rejected(status: int, role: Role = "small") -> EndpointRejected:
    rejection = EndpointRejected(f"HTTP {status}: no", role=role, verb="write")
    rejection.status = status
    return rejection


FAILURES: list[EndpointError] = [
    GONE,
    *[rejected(status) for status in (400, 401, 403, 404, 405, 413, 422)],
    ContextTooLong("full", role="small"),
    MalformedReply("<html>", role="small"),
]


@pytest.mark.parametrize(
    ("failure", "at"), [*[(each, 2) for each in FAILURES], (GONE, 0), (FAILURES[1], 0)]
)
def test_without_the_small_model_the_large_one_continues_the_committed_chain(
    failure: EndpointError, at: int
) -> None:
    case = Case()
    case.small.fails = lambda verb, chain: failure if len(chain.steps) >= at else None
    outcome, _ = case.run()
    assert [step.author for step in outcome.chain.steps] == ["small"] * at + ["large"] * (4 - at)
    assert (outcome.answer, outcome.reason) == ("42", "stop")
    assert [event for event in case.events if isinstance(event, Degraded)] == [
        Degraded("small", str(failure))
    ]
    assert [event.index for event in case.events if isinstance(event, Committed)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "failure",
    [
        EndpointUnavailable("no connection", role="large"),
        rejected(400, "large"),
        rejected(401, "large"),
        TimeoutError("of its own"),
    ],
)
def test_any_other_failure_is_raised(failure: Exception) -> None:
    case = Case(Budget(seconds=1000))
    case.small.fails = case.large.fails = lambda verb, chain: (
        failure if len(chain.steps) == 2 else None
    )
    with pytest.raises(type(failure)):
        case.run()
    assert not [event for event in case.events if isinstance(event, Degraded)]


def test_a_timeout_of_the_answers_request_is_a_failure_and_not_the_deadline() -> None:
    case = Case(Budget(seconds=1000))
    case.large.fails = lambda verb, chain: (
        TimeoutError("of its own") if chain.finished and verb == "write" else None
    )
    with pytest.raises(TimeoutError, match="of its own"):
        case.run()


def test_a_context_that_is_full_while_thinking_ends_the_thinking() -> None:
    case = Case()
    full = ContextTooLong("full", role="small")
    case.small.fails = lambda verb, chain: (
        full if len(chain.steps) == 2 and not chain.finished else None
    )
    outcome, _ = case.run(fallback=False)
    assert (outcome.answer, outcome.reason, len(outcome.chain.steps)) == ("42", "context", 2)


@pytest.mark.parametrize("failure", FAILURES)
def test_an_answer_that_the_small_model_cannot_begin_is_the_large_models(
    failure: EndpointError,
) -> None:
    case = Case()
    case.small.fails = lambda verb, chain: failure if chain.finished and verb == "write" else None
    outcome, _ = case.run(answerer=case.small)
    [answered] = [event for event in case.events if isinstance(event, Answered)]
    assert (outcome.answer, outcome.reason, answered.step.author) == ("42", "stop", "large")
    assert [event.role for event in case.events if isinstance(event, Degraded)] == ["small"]


@pytest.mark.parametrize("seconds", [None, 600.0])
def test_a_context_that_is_full_when_the_answer_is_due_leaves_it_empty(
    seconds: float | None,
) -> None:
    case = Case(Budget(seconds=seconds))
    case.large.fails = lambda verb, chain: (
        ContextTooLong("full") if chain.finished and verb == "write" else None
    )
    outcome, _ = case.run()
    assert (outcome.text, outcome.reason, len(outcome.chain.steps)) == ("", "context", 4)


@pytest.mark.parametrize("how", [{}, {"by_method": True}, {"thinks": False}])
def test_a_context_in_which_nothing_at_all_can_be_written_is_raised(how: dict[str, bool]) -> None:
    case = Case()
    full = ContextTooLong("full", role="large")
    case.large.fails = lambda verb, chain: full
    with pytest.raises(ContextTooLong, match="full"):
        case.run(**how)
    assert not [event for event in case.events if isinstance(event, Committed | Finished)]


def test_models_without_a_thinking_block_have_answered_when_they_end() -> None:
    case = Case()
    case.small.script = lambda previous: "First.\n\n" if not previous else "So it is \\boxed{7}."
    outcome, _ = case.run(thinks=False)
    assert (outcome.text, outcome.answer, outcome.reason) == (
        "First.\n\nSo it is \\boxed{7}.",
        "7",
        "stop",
    )
    assert case.emitted == ["First.\n\n", "So it is \\boxed{7}."]  # as the steps are committed
    assert not [event for event in case.events if isinstance(event, Answered)]


def test_the_stop_that_ended_the_answer_is_known() -> None:
    case = Case()
    case.small.script = lambda previous: "It is STOP, not END"
    outcome, _ = case.run(thinks=False, stop=("END", "STOP"))
    assert (outcome.text, outcome.stopped) == ("It is ", "STOP")
    assert Case().run(stop=("STOP",))[0].stopped == ""


@pytest.mark.parametrize(
    ("limits", "reason", "most"),
    [(Budget(tokens=40), "length", (40, math.inf)), (Budget(seconds=8.0), "time", (math.inf, 8.0))],
)
def test_models_without_a_thinking_block_have_all_tokens_and_seconds_for_their_answer(
    limits: Budget, reason: str, most: tuple[float, float]
) -> None:
    case = Case(limits)
    case.small.script = lambda previous: f"Step {len(previous)} of many.\n\n"
    outcome, seconds = case.run(thinks=False, ahead=0)
    assert outcome.reason == reason
    assert min(most[0] - outcome.chain.tokens, most[1] - seconds) == 0


def test_the_end_of_thinking_is_no_part_of_the_text() -> None:
    case = Case()
    case.large.answer = f"\n\n{THINK_END}So it is \\boxed{{7}}."
    outcome, _ = case.run()
    assert THINK_END not in outcome.text
    assert "".join(case.emitted) == outcome.text


@pytest.mark.parametrize("ahead", [0, 1, 9])
@pytest.mark.parametrize("wrong", [None, 2])
def test_the_answer_is_emitted_in_pieces_once_all_steps_before_it_are_committed(
    ahead: int, wrong: int | None
) -> None:
    case = Case()
    case.large.judge = lambda chain, _: {
        "2" if chain.text.count("small") == wrong == len(chain.steps) else "9": 1
    }
    case.large.pace = 0.25
    outcome, _ = case.run(ahead=ahead)
    assert "".join(case.emitted) == outcome.text
    assert len(case.emitted) > 1
    first = next(place for place, event in enumerate(case.events) if isinstance(event, Answering))
    assert not [event for event in case.events[first:] if isinstance(event, Committed)]
    assert isinstance(case.events[-2], Answered)


@pytest.mark.parametrize("stop", [(), ("it is",)])
def test_a_partial_answer_counts_when_the_time_is_up(stop: tuple[str, ...]) -> None:
    case = Case(Budget(seconds=8.0))
    case.small.latency = lambda chain: 0.25
    case.large.pace = 0.6
    outcome, seconds = case.run(ahead=0, stop=stop)
    assert (outcome.text, outcome.reason, seconds) == ("So it", "time", 8.0)
    assert "".join(case.emitted) == "So it"
    assert [event.step.text for event in case.events if isinstance(event, Answered)] == [
        "\n\nSo it"
    ]
