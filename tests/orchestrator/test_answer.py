"""The end of the thinking, and the answer of a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Step, Token
from stepspec.orchestrator.answer import AnswerStream, answer_text, close, extract, write_answer
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
        (r"\boxed{7} and \boxed{}", "7"),
        (r"\boxed{7} \boxed{\text{ }} \boxed{\ldots}", "7"),
        ("Put it in \\boxed{}.\nIt is 7", "It is 7"),
        (r"\boxed {7}", "7"),
        ("\\boxed\n{7}", "7"),
        (r"\boxed 7.", "7"),
        (r"\boxed x", "x"),
        (r"\boxedness", r"\boxedness"),
        (r"\fbox{7}", "7"),
        (r"\framebox[3cm][c]{7}", "7"),
        (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a \\ {b}}", r"a \\ {b}"),
        (r"\\boxed{7}", "7"),
        (r"$\boxed{3}$, $\boxed{5}$", "3, 5"),
        (r"$x = \boxed{3}$ and $x = \boxed{5}$", "3, 5"),
        (r"\boxed{3}\text{ or }\boxed{5}", "3, 5"),
        (r"**\boxed{3}**, \boxed{4}, and \boxed{5}", "3, 4, 5"),
        (r"\boxed{\boxed{3}, \boxed{5}}", "3, 5"),
        (r"\boxed{5} or \boxed{5}", "5"),
        (r"\boxed{3}. \boxed{5}", "5"),
        (r"\boxed{3}, which gives \boxed{5}", "5"),
        ("\\boxed{3},\n\n\\boxed{5}", "5"),
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
    ("step", "closing"),
    [
        (Step("So.\n\n", "small", "length"), THINK_END),
        (Step("So.\n", "small", "length"), THINK_END),
        (Step("So", "small", "length"), f"\n{THINK_END}"),
        (Step("", "small", "length"), f"\n{THINK_END}"),
        (Step("So.", "small", "end"), f"\n{THINK_END}"),  # a turn that ended
        (Step(f"So.\n{THINK_END}", "small", "end"), None),
    ],
)
def test_thinking_that_did_not_end_is_closed_on_a_line_of_its_own(
    step: Step, closing: str | None
) -> None:
    chain = PROBLEM.extend(step)
    added = [] if closing is None else [Step(closing, "large", "end", note="closed")]
    assert close(chain, ScriptedModel("large", counting("large", 3))).steps == (step, *added)


def test_the_answer_may_hold_several_paragraphs_and_is_written_after_the_thinking() -> None:
    author = ScriptedModel(
        "large", counting("large", 3), answer="\n\nBy counting:\n\nit is \\boxed{3}."
    )
    for chain in (PROBLEM, PROBLEM.extend(Step(f"So.\n{THINK_END}", "small", "end"))):
        step, _ = run(write_answer(author, chain, limit=100, stream=AnswerStream(print)))
        assert (step.text, step.stop, step.author) == (author.answer, "end", "large")
        step, _ = run(write_answer(author, chain, limit=3, stream=AnswerStream(print)))
        assert (len(step.tokens), step.stop) == (3, "length")


PIECES = st.lists(
    st.sampled_from(["a", "b", " ", "\n", "ab", "</", "think>", THINK_END, "stop", "st", "\n\n"]),
    max_size=9,
)
STOPS = st.lists(st.sampled_from(["stop", "ab", "\n\n", "b a"]), max_size=2).map(tuple)


def grown(pieces: list[str], stops: tuple[str, ...]) -> list[Step]:
    """The partial answers that a model shows, up to a stop string, which ends the write."""
    steps = list[Step]()
    text = ""
    for piece in pieces:
        text += piece
        steps.append(Step(text, "large", "until", tuple(map(Token, pieces[: len(steps) + 1]))))
        if any(stop in text for stop in stops):
            break
    return steps


@given(PIECES, STOPS)
def test_the_pieces_of_an_answer_join_to_its_text_and_are_never_taken_back(
    pieces: list[str], stops: tuple[str, ...]
) -> None:
    emitted: list[str] = []
    stream = AnswerStream(emitted.append, stops)
    steps = grown(pieces, stops)
    assert not any(map(stream.on_token, steps))
    full = steps[-1].text if steps else ""
    stream.finish(full)
    assert "".join(emitted) == answer_text(full, stops)
    assert all(emitted)


def test_text_that_may_become_a_stop_string_is_held_back_and_no_other() -> None:
    emitted: list[str] = []
    stream = AnswerStream(emitted.append, ("Problem:",), thought=True)
    for text in ("\n\n4", "\n\n42.", "\n\n42. Pro", "\n\n42. Probably", "\n\n42. Probably </thi"):
        stream.on_token(Step(text, "large", tokens=tuple(map(Token, text))))
    assert emitted == ["4", "2.", " ", "Probably", " </thi"]


@pytest.mark.parametrize(
    ("text", "thought", "content"),
    [
        ("\n\n    return x\n", True, "    return x\n"),
        ("    return x\n", True, "    return x\n"),
        ("\n    return x", True, "    return x"),
        ("\n\n\treturn\t\n\n", True, "\treturn\t\n\n"),
        (" \n\nYes ", True, " \n\nYes "),
        ("\n\n", True, ""),
        ("</think>\n\n  Yes\n", True, "  Yes\n"),
        ("\n\n    return x\n", False, "\n\n    return x\n"),
        ("\u00a0Yes\u2003", True, "\u00a0Yes\u2003"),
        ("\r\n  a\r\n", False, "\r\n  a\r\n"),
    ],
)
def test_an_answer_keeps_its_white_space_and_not_the_blank_line_after_the_thinking(
    text: str, thought: bool, content: str
) -> None:
    assert answer_text(text, thought=thought) == content
    emitted: list[str] = []
    stream = AnswerStream(emitted.append, thought=thought)
    for step in grown(list(text), ()):
        stream.on_token(step)
    stream.finish(text)
    assert "".join(emitted) == content


def test_an_answer_ends_before_its_stop_string() -> None:
    large = ScriptedModel("large", counting("large", 3), answer="\n\nIt is 42. Next problem")
    emitted: list[str] = []
    stream = AnswerStream(emitted.append, (" Next",), thought=True)
    step, _ = run(write_answer(large, PROBLEM, limit=99, stop=(" Next",), stream=stream))
    assert (step.text, step.stop) == ("\n\nIt is 42. Next", "delimiter")
    assert "".join(emitted) == answer_text(step.text, (" Next",), thought=True) == "It is 42."


def test_a_model_that_starts_again_continues_after_the_emitted_text() -> None:
    """As another replica does, when the first one died in the middle of the answer."""
    other = ScriptedModel("large", counting("large", 3), answer="\n\nSo it is certainly 42.")
    emitted: list[str] = []
    stream = AnswerStream(emitted.append, thought=True)
    assert not stream.on_token(
        Step("\n\nSo it is", "large", "until", tuple(map(Token, ("\n\n", "So", " it", " is"))))
    )
    assert stream.on_token(
        Step("\n\nThus it", "large", "until", tuple(map(Token, ("\n\n", "Thus", " it"))))
    )
    step, _ = run(write_answer(other, PROBLEM, limit=99, stream=stream))
    assert step.text == "\n\nSo it is certainly 42."
    stream.finish(step.text)
    assert "".join(emitted) == "So it is certainly 42."
