"""Which steps of the arithmetic are right, at any point of a text, and from the events of a run."""

from __future__ import annotations

import itertools

import pytest

from stepspec.evals.report.judging import ScoredVerdict, checked_verdicts, is_right_prefix
from stepspec.evals.testbed.problems import Problem, generate, worked_steps
from stepspec.orchestrator.chain import Accept, Rollback, Step, Verdict
from stepspec.orchestrator.events import Committed, Drafted, Event, Judged, Lost, Repaired

PROBLEMS = list(itertools.islice(generate(5, "test"), 30))
PROBLEM = PROBLEMS[0]
STEPS = worked_steps(PROBLEM)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_beginning_of_the_worked_reasoning_is_right_and_a_wrong_digit_is_not(problem: Problem) -> None:
    text = "".join(worked_steps(problem))
    assert all(is_right_prefix(problem, text[:end]) for end in range(len(text) + 1))
    result = text.index("= ") + 2
    wrong = text[:result] + ("1" if text[result] != "1" else "2") + text[result + 1 :]
    assert is_right_prefix(problem, wrong[:result])
    assert not is_right_prefix(problem, wrong[: result + 1])
    assert not is_right_prefix(problem, wrong)
    assert not is_right_prefix(problem, text + "More.\n\n")
    assert not is_right_prefix(problem, text + "More.\n\nAnd more.")  # text may go on for any number of paragraphs


def test_a_check_may_be_left_out() -> None:
    problem = next(one for one in PROBLEMS if any(operation.kind == "double" for operation in one.operations))
    text = "".join(part for part in worked_steps(problem) if not part.startswith(("Alternatively", "Let me check")))
    assert text != "".join(worked_steps(problem))
    assert all(is_right_prefix(problem, text[:end]) for end in range(len(text) + 1))


def step(text: str) -> Step:
    return Step(text, "small")


def draft(index: int, text: str, verdict: Verdict) -> list[Event]:
    return [Drafted(index, step(text)), Judged(index, step(text), verdict)]


SLIP = STEPS[1].replace("= ", "= 9")


def test_verdicts_are_known_if_every_earlier_step_is_right() -> None:
    events = [
        *draft(0, STEPS[0], Accept(9.0)),
        Committed(0, step(STEPS[0]), 9.0),
        Drafted(1, step(SLIP)),
        Drafted(2, step(STEPS[2])),
        Judged(2, step(STEPS[2]), Accept(7.0)),  # a bet on the slip: nobody can say
        Judged(1, step(SLIP), Rollback(reason="grade", score=2.0)),
        Lost(2, step(STEPS[2])),
        Repaired(1, Step(STEPS[1], "large"), Rollback(reason="grade", score=2.0)),
        Committed(1, Step(STEPS[1], "large")),
        *draft(2, STEPS[2], Accept(8.0)),
    ]
    assert checked_verdicts(events, PROBLEM, 4) == [
        ScoredVerdict(9.0, True, True, 4),
        ScoredVerdict(2.0, False, False, 4),
        ScoredVerdict(8.0, True, True, 4),
    ]


def test_a_bet_is_read_after_the_drafts_that_it_bets_on() -> None:
    events: list[Event] = [Drafted(at, step(text)) for at, text in enumerate(STEPS[:2])]
    events += [Judged(1, step(STEPS[1]), Accept(6.0)), Judged(0, step(STEPS[0]), Accept(5.0))]
    assert [(one.score, one.right) for one in checked_verdicts(events, PROBLEM, 0)] == [(6.0, True), (5.0, True)]


def test_drafts_may_be_parts_of_paragraphs() -> None:
    half = len(STEPS[0]) // 2
    events = [
        *draft(0, STEPS[0][:half], Accept(0.1)),
        Committed(0, step(STEPS[0][:half]), 0.1),
        *draft(1, "nonsense", Rollback(0, "rollback", 7.0)),
        *draft(1, STEPS[0][half:], Rollback(3, "fallback", 0.2)),
    ]
    found = checked_verdicts(events, PROBLEM, 0)
    assert [(one.score, one.accepted, one.right, one.decided) for one in found] == [
        (0.1, True, True, True),
        (7.0, False, False, True),
        (0.2, False, True, False),
    ]


def test_verdicts_without_a_finite_score_are_left_out() -> None:
    events = [*draft(0, STEPS[0], Accept()), *draft(0, STEPS[0], Rollback(score=float("inf")))]
    assert checked_verdicts(events, PROBLEM, 0) == []
