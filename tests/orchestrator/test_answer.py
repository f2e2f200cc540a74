"""How the thinking is closed, and what of a text is its answer."""

import pytest

from stepspec.orchestrator import Chain, Step
from stepspec.orchestrator.answer import close, extract, write_answer
from stepspec.orchestrator.chain import THINK_END

from ..fakes import ScriptedModel, counting, run
from .arms import PROBLEM


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So it is \boxed{42}.", "42"),
        (r"\boxed{ 4 2 }", "4 2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\frac{1}{\sqrt{2}}} and more", r"\frac{1}{\sqrt{2}}"),
        (r"First \boxed{1}, no, \boxed{2}.", "2"),
        (r"First \boxed{1}, then \boxed{2", "1"),
        (r"First \boxed{\frac{1}{2}}, then \boxed{\frac{3}{4}", r"\frac{1}{2}"),
        (r"\boxed{a \boxed{b}", "b"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{}", ""),
        ("\\boxed{1}\nor rather two", "1"),
        (r"\boxed{4", r"\boxed{4"),
        ("no box\n\nThe answer is 7.\n\n  ", "The answer is 7."),
        ("boxed{7}", "boxed{7}"),
        ("  \n ", ""),
        ("", ""),
    ],
)
def test_the_answer_is_in_the_last_complete_box_or_is_the_last_line(text: str, answer: str) -> None:
    assert extract(text) == answer


@pytest.mark.parametrize(
    ("text", "closing"),
    [("So.\n\n", THINK_END), ("So.\n", THINK_END), ("So", f"\n{THINK_END}"), ("", f"\n{THINK_END}")],
)
def test_thinking_that_did_not_end_is_closed_on_a_line_of_its_own(text: str, closing: str) -> None:
    chain = PROBLEM.extend(Step(text, "small", "length"))
    closed = close(chain, ScriptedModel("large", counting("large", 3)))
    assert closed.steps[:-1] == chain.steps
    assert closed.steps[-1] == Step(closing, "large", "end", note="closed")
    assert closed.finished


def test_thinking_that_ended_is_not_closed_again() -> None:
    chain = PROBLEM.extend(Step(f"So.\n{THINK_END}", "small", "end"))
    assert close(chain, ScriptedModel("large", counting("large", 3))) is chain


def test_a_turn_that_ended_without_closing_the_thinking_is_closed() -> None:
    chain = PROBLEM.extend(Step("So.", "small", "end"))
    assert close(chain, ScriptedModel("large", counting("large", 3))).text == f"So.\n{THINK_END}"


def test_the_answer_may_hold_several_paragraphs_and_is_written_after_the_thinking() -> None:
    author = ScriptedModel("large", counting("large", 3), answer="\n\nBy counting:\n\nit is \\boxed{3}.")
    for chain in (PROBLEM, PROBLEM.extend(Step(f"So.\n{THINK_END}", "small", "end"))):
        step, _ = run(write_answer(author, chain, limit=100))
        assert (step.text, step.stop, step.author) == (author.answer, "end", "large")


def test_the_answer_is_cut_where_its_share_ends() -> None:
    author = ScriptedModel("large", counting("large", 3))
    step, _ = run(write_answer(author, Chain.of("Why?"), limit=3))
    assert (len(step.tokens), step.stop) == (3, "length")
