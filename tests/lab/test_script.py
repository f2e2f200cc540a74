"""The script of a run: a turn for every step, with what was drafted, kept and repaired."""

from __future__ import annotations

from dataclasses import replace

from lab.script import Script, Turn
from stepspec.orchestrator import Budget
from stepspec.orchestrator.chain import Accept, Rollback, Step, Token
from stepspec.orchestrator.events import Answered, Called, Chosen, Committed, Event, Judged, Lost, Repaired
from stepspec.orchestrator.run import RunParts
from stepspec.orchestrator.run import run as run_policy
from stepspec.policies import BiLD, Ending, SpecReason

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import PROBLEM


def step(text: str, author: str = "small", tokens: int = 4, stop: str = "delimiter") -> Step:
    return Step(text, author, stop, tuple(Token(text[place]) for place in range(tokens)))  # type: ignore[arg-type]


GOOD, BAD, LAST = step("Good.\n\n"), step("Bad..\n\n"), step("End.\n</think>", tokens=5, stop="end")


def verdict_call(index: int, prompt: int, cached: int = 0) -> Called:
    return Called("large", "ask", "done", 0.0, 1.0, 1.0, prompt, cached, 1, purpose="verify", step=index)


def test_a_turn_has_what_was_drafted_and_what_came_of_it() -> None:
    mended, other, own = (
        step("Mended.\n\n", "large", 6),
        step("Other.\n\n", tokens=6),
        step("So.\n</think>", "large", 3, "end"),
    )
    rejected, partly = Rollback(reason="grade", score=2.0), Rollback(2, reason="rollback", score=7.0)
    events: list[Event] = [
        Called("small", "write", "done", 0.0, 1.0, 0.5, 30, step=0),
        Judged(0, GOOD, Accept(8.5)),
        Committed(0, GOOD),
        Judged(1, BAD, rejected),
        Judged(2, GOOD, Accept(9.0)),
        Repaired(1, mended, rejected),
        Lost(2, GOOD),
        Committed(1, mended),
        Judged(2, BAD, partly),
        Judged(3, GOOD, Accept(9.0)),
        Committed(2, BAD.cut(2)),
        Repaired(3, mended, partly),
        Committed(3, mended),
        Judged(4, GOOD, Rollback(reason="worse")),
        Chosen(4, other),
        Committed(4, other),
        Judged(5, own, Accept()),
        Committed(5, own),
        Answered(step("The answer", "large", 7, "end")),
    ]
    assert Script.of(events) == Script(
        30,
        (
            Turn(4, 4, grade=8.5),
            Turn(4, 0, 6, 2.0),
            Turn(4, 2, 6, 7.0),
            Turn(6, 6),
            Turn(3, 3, author="large", stop="end", ends=True),
            Turn(7, 7, author="large", stop="end", ends=True),
        ),
    )


def test_a_question_is_what_a_verdict_reads_beyond_the_chain_and_the_draft() -> None:
    events: list[Event] = [Called("small", "write", "done", 0.0, 1.0, 0.5, 30, step=0)]
    for index in range(3):
        calls = verdict_call(index, 30 + 4 * index + 4 + 50, cached=30 + 4 * index)
        events += [Judged(index, GOOD, Accept(9.0)), calls, Committed(index, GOOD)]
    assert (Script.of(events).question, Script.of(events).uncached) == (50, False)
    again = [replace(event, cached=0) if isinstance(event, Called) else event for event in events]
    assert Script.of(again) == replace(Script.of(events), uncached=True)


def scripts(policy: SpecReason | BiLD | Ending, models: tuple[ScriptedModel, ScriptedModel]) -> Script:
    events = list[Event]()
    for model in models:
        model.observe = events.append
    run(run_policy(RunParts(policy, budget=Budget(), ahead=2), PROBLEM, events.append))
    return Script.of(events)


def test_the_script_of_a_real_run_has_a_turn_for_every_step_and_the_answer() -> None:
    small, large = (ScriptedModel(role, counting(role, 4)) for role in ("small", "large"))
    large.judge = lambda chain, question: {"1" if len(chain.steps) == 2 else "9": 1.0}
    read = scripts(SpecReason(small, large), (small, large))
    assert [(turn.kept == turn.draft, turn.grade, turn.ends) for turn in read.turns] == [
        (True, 9.0, False),
        (False, 1.0, False),
        (True, 9.0, False),
        (True, 9.0, True),
        (True, None, True),
    ]
    assert {turn.author for turn in read.turns[:4]} == {"small"}
    assert read.turns[4].author == "large"


def test_a_script_has_the_end_of_the_thinking_and_that_of_the_answer() -> None:
    step, closing = Turn(10, 10), Turn(1, 1, author="large", stop="end", ends=True)
    answer = Turn(5, 5, stop="length")
    whole = Script(50, (step, closing, replace(answer, stop="end", ends=True)))
    assert Script(50, (step, step)).completed.turns == (step, step, closing, closing)
    assert Script(50, (step, closing)).completed.turns == (step, closing, closing)
    assert Script(50, (step, closing, answer)).completed == whole
    assert whole.completed == whole
    assert Script(50, ()).completed.turns == (closing, closing)
