"""SpecReason follows its paper, at its limits and in hand-written examples."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Accept, Budget, Chain, Ledger, Rollback, Step, Verdict, reason
from stepspec.orchestrator.answer import AnswerStream, write_answer
from stepspec.orchestrator.chain import DELIMITER, THINK_END
from stepspec.orchestrator.errors import ContextTooLong, EndpointRejected
from stepspec.orchestrator.events import Called, Committed, Event
from stepspec.orchestrator.reason import End
from stepspec.orchestrator.run import RunParts
from stepspec.orchestrator.run import run as solve
from stepspec.policies import Led, SpecReason, make

from ..fakes import Previous, ScriptedModel, counting, run, saying
from ..orchestrator.arms import BOUNDED, PROBLEM, arm

SEEDS = st.integers(0, 10_000)


def written(chain: Chain) -> list[tuple[str, str]]:
    return [(step.author, step.text) for step in chain.steps]


def verdict(grades: Mapping[str, float], **options: Any) -> Verdict:
    """Judge one draft with *grades*."""
    small = ScriptedModel("small", counting("small", 3))
    large = ScriptedModel("large", counting("large", 3), judge=lambda chain, question: grades)
    draft = Step("So it is.\n\n", "small")
    return run(make("specreason", small, large, **options).verify(PROBLEM, draft))[0]


@given(seed=SEEDS)
@BOUNDED
def test_a_step_is_the_small_models_exactly_where_its_grade_reaches_the_threshold(seed: int) -> None:
    tried = arm("specreason", seed, trouble=0.0)
    policy = SpecReason(tried.small, tried.large, threshold=5)
    (chain, _), _ = run(reason(policy, PROBLEM))
    before = PROBLEM
    for step in chain.steps:
        draft = run(tried.small.write(before))[0]
        ruling = run(policy.verify(before, draft))[0]
        assert step.author == ("small" if isinstance(ruling, Accept) else "large")
        assert step.note == ("" if isinstance(ruling, Accept) else ruling.reason)
        before = before.extend(step)


@pytest.mark.parametrize(
    ("grade", "threshold", "ruling"),
    [
        ("7", 7, Accept(7.0)),
        ("6", 7, Rollback(reason="grade", score=6.0)),
        ("9", 7, Accept(9.0)),
        ("0", 0, Accept(0.0)),
        ("8", 8.5, Rollback(reason="grade", score=8.0)),
    ],
)
def test_a_grade_that_reaches_the_threshold_is_enough(grade: str, threshold: float, ruling: Verdict) -> None:
    assert verdict({grade: 1.0}, threshold=threshold) == ruling


@pytest.mark.parametrize(
    ("grades", "greedy", "expected"),
    [
        ({"9": 0.5, "0": 0.25, "1": 0.25}, Accept(9.0), Rollback(reason="grade", score=4.75)),
        ({"6": 0.5, "8": 0.25, "9": 0.25}, Rollback(reason="grade", score=6.0), Accept(7.25)),
        ({"6": 0.5, "8": 0.5}, Rollback(reason="grade", score=6.0), Accept(7.0)),  # of equals, the lowest
        ({"3": 0.125, "7": 0.375}, Accept(7.0), Rollback(reason="grade", score=6.0)),  # the rest is on other words
    ],
)
def test_the_likeliest_grade_and_the_mean_grade_may_disagree(
    grades: Mapping[str, float], greedy: Verdict, expected: Verdict
) -> None:
    assert verdict(grades, read="greedy") == greedy
    assert verdict(grades, read="expected") == expected


@pytest.mark.parametrize("read", ["greedy", "expected"])
def test_a_judge_with_little_probability_on_digits_gives_no_grade(read: str) -> None:
    assert verdict({"9": 0.03125, "Well": 0.9}, read=read) == Rollback(reason="no grade")
    assert verdict({}, read=read) == Rollback(reason="no grade")
    assert verdict({"9": 0.0625, "Well": 0.9}, read=read) == Accept(9.0)
    assert verdict({"9": 0.5, "Well": 0.5}, read=read, sure=0.5) == Accept(9.0)


# The mistakes of SpecReason's reference code, each stated in a docstring; stepspec has none of them.


def pair(
    *small: str, large: Callable[[Previous], str] | None = None
) -> tuple[ScriptedModel, ScriptedModel, list[Event]]:
    events: list[Event] = []
    writer = ScriptedModel("small", saying(*small), observe=events.append)
    return writer, ScriptedModel("large", large or counting("large", 4), log=writer.log, observe=events.append), events


def think(small: ScriptedModel, large: ScriptedModel, first: int = 0) -> tuple[Chain, End]:
    return run(reason(Led(SpecReason(small, large), large, first), PROBLEM, ahead=1))[0]


LAST = f"Last.\n{THINK_END}"


@pytest.mark.parametrize("mention", ["The result goes into \\boxed{}.", "Answer: not yet.", "ANSWER: later"])
def test_a_step_that_mentions_the_answer_does_not_end_the_run(mention: str) -> None:
    """Any step with "boxed" or "Answer:" in it ends the reference's run."""
    chain, end = think(*pair(mention + DELIMITER, LAST)[:2])
    assert (len(chain.steps), end) == (2, "finished")


def test_thinking_that_ends_in_the_large_models_first_steps_ends_the_run() -> None:
    """The reference leaves the tag in there, and the server refuses the next request."""
    small, large, _ = pair(LAST, large=saying("First.\n\n", LAST))
    chain, end = think(small, large, first=5)
    assert ([step.author for step in chain.steps], end) == (["large", "large"], "finished")
    assert chain.text.count(THINK_END) == 1
    answer, _ = run(write_answer(large, chain, limit=50, stream=AnswerStream(print)))
    assert answer.stop == "end"


def test_a_refused_request_raises_its_own_error_and_loses_nothing_committed() -> None:
    """The reference catches another error than its client raises, and dies without writing what it had."""
    small, large, events = pair("First.\n\n", "Second.\n\n", LAST)
    refusal = EndpointRejected("HTTP 400", role="large", url="http://here:8002", verb="ask")
    large.fails = lambda verb, chain: refusal if len(chain.steps) == 2 else None
    with pytest.raises(EndpointRejected, match="the large model at http://here:8002: HTTP 400"):
        run(reason(SpecReason(small, large), PROBLEM, ahead=1, observe=events.append))
    assert [event.step.text for event in events if isinstance(event, Committed)] == ["First.\n\n"]


def test_a_turn_without_an_answer_causes_one_request_for_it() -> None:
    """The reference goes on asking to continue a finished message."""
    small, large, _ = pair("First.\n\n", "I stop here.")
    outcome, _ = run(solve(RunParts(SpecReason(small, large), budget=Budget(), ahead=1), PROBLEM, lambda event: None))
    assert (outcome.answer, outcome.reason) == ("42", "stop")
    assert outcome.chain.text == "First.\n\nI stop here."
    assert [line for line in small.log if " write " in line and "done" not in line] == [
        "small write 0",
        "small write 1",
        "large write 3",  # the answer, after the thinking was closed by a step of its own
    ]


def test_a_chain_that_outgrows_the_context_ends_the_run_gracefully() -> None:
    """The reference's server limit equals its budget, so that it crashes shortly before."""
    small, large, _ = pair("First.\n\n", "Second.\n\n", LAST)
    small.fails = lambda verb, chain: ContextTooLong("full", role="small") if len(chain.steps) == 2 else None
    outcome, _ = run(solve(RunParts(SpecReason(small, large), budget=Budget(), ahead=1), PROBLEM, lambda event: None))
    assert (outcome.reason, outcome.answer, len(outcome.chain.steps)) == ("context", "42", 2)


def test_refused_drafts_and_judgements_are_accounted_for() -> None:
    """The reference counts neither."""
    small, large, events = pair("First.\n\n", "Second and wrong.\n\n", LAST)
    large.judge = lambda chain, question: {"0" if "wrong" in chain.text else "9": 1.0}
    run(reason(SpecReason(small, large), PROBLEM, observe=events.append))
    ledger = Ledger.of(events)
    assert (ledger.small.discarded, ledger.small.kept) == (4, 2 + 4)  # "Last", ".", a line break, the end of thinking
    questions = [event for event in events if isinstance(event, Called) and event.verb == "ask"]
    assert ledger.large.judging == sum(event.prompt + event.written for event in questions) > 0


@pytest.mark.parametrize("read", ["greedy", "expected"])
def test_a_judge_without_a_digit_has_not_graded_0_but_nothing(read: str) -> None:
    """In its mode "average" the reference takes no digit for a 0, without a word."""
    small, large, events = pair("First.\n\n", LAST)
    large.judge = lambda chain, question: {"Well": 1.0}
    policy = SpecReason(small, large, threshold=0, read="greedy" if read == "greedy" else "expected")
    (chain, _), _ = run(reason(policy, PROBLEM, observe=events.append))
    assert {step.note for step in chain.steps} == {"no grade"}
