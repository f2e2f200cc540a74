"""
The short problems of the package, with a checker of every step.

Everything is a pure function of a problem, so that any text that a model writes can be checked step
by step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from stepspec.evals.benchmarks.miniature import (
    DEFAULT,
    PEOPLE,
    THINK_END,
    Difficulty,
    Operation,
    Problem,
    Split,
    check,
    draw,
    final_answer,
    generate,
    worked_steps,
)

__all__ = [
    "DEFAULT",
    "PEOPLE",
    "Difficulty",
    "Problem",
    "draw",
    "final_answer",
    "generate",
    "worked_steps",
]  # as in `accounts`

CORRECTION = "Wait, that is wrong. "
# grades
RIGHT = 9
WRONG = 1
SMALL_NUMBERS = Difficulty(start=(2, 12))  # more single digits


class Divided(Protocol):
    """A problem of one split."""

    @property
    def split(self) -> Split: ...


D = TypeVar("D", bound=Divided)


def of_split(split: Split, draw: Callable[[], D]) -> Iterator[D]:
    """Yield the drawn problems of one *split*, without end."""
    while True:
        problem = draw()
        if problem.split == split:
            yield problem


@dataclass(frozen=True, slots=True)
class State:
    """
    The position in a chain of reasoning: the *index* of the next operation, and the current
    *value*.

    *unchecked* is the last operation, if its check may follow, and *before* the value before it.
    *wrong* is the right paragraph that a correction must give, if the last paragraph was wrong.
    """

    index: int
    value: int
    unchecked: Operation | None = None
    before: int = 0
    wrong: str = ""


def paragraphs(text: str) -> list[str]:
    """Split reasoning after each delimiter and after the end of the thinking."""
    return [p for p in re.split(r"(?<=\n\n)|(?<=</think>)", text) if p]


def begin(problem: Problem) -> State:
    return State(0, problem.start)


def expected(problem: Problem, state: State) -> str:
    """Return the next paragraph of the worked reasoning."""
    if state.wrong:
        return CORRECTION + state.wrong
    if state.unchecked is not None:
        return check(state.unchecked, state.before)
    if state.index == len(problem.operations):
        return problem.close(state.value)
    return problem.step(state.index, state.value)


def is_right(problem: Problem, state: State, paragraph: str) -> bool:
    """
    Whether *paragraph* is a right next step: the worked one, or the next operation without the
    check.
    """
    return paragraph in (expected(problem, state), _unchecked(problem, state))


def grade(problem: Problem, state: State, paragraph: str) -> int:
    """Return the grade, 0 to 9, that a perfect judge gives *paragraph*."""
    return RIGHT if is_right(problem, state, paragraph) else WRONG


def _unchecked(problem: Problem, state: State) -> str:
    if state.wrong:
        return CORRECTION + state.wrong
    return expected(problem, State(state.index, state.value))


def advance(problem: Problem, state: State, paragraph: str) -> State:
    """
    Return the state after *paragraph*, right or wrong.

    A wrong paragraph does not change the position, and the correction must come next.
    """
    if not is_right(problem, state, paragraph):
        return replace(state, wrong=state.wrong or expected(problem, state))
    step = paragraph.removeprefix(CORRECTION)
    if state.unchecked is not None and step == check(state.unchecked, state.before):
        return State(state.index, state.value)
    if step.endswith(THINK_END):
        return State(state.index + 1, state.value)
    operation = problem.operations[state.index]
    return State(
        state.index + 1,
        operation.apply(state.value),
        operation if check(operation, state.value) else None,
        state.value,
    )
