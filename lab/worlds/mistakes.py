"""
Wrong steps of short problems: corruptions of right ones, from which a judge learns what an error
is.
"""

from __future__ import annotations

import random
from dataclasses import replace

from stepspec.evals.benchmarks.miniature import (
    PHRASES,
    Kind,
    Operation,
    Problem,
    equation,
    worked_steps,
)

from .short import CORRECTION, State, advance, begin, expected, is_right


def corrupt(rng: random.Random, problem: Problem, state: State, *, sums: float = 0.0) -> str:
    """
    Return a wrong paragraph for *state*; a share *sums* of them is right except for the result.
    """
    while True:
        make = _wrong_digits if rng.random() < sums else _attempt
        paragraph = make(rng, problem, state)
        if not is_right(problem, state, paragraph):
            return paragraph


def _attempt(rng: random.Random, problem: Problem, state: State) -> str:
    kinds = (
        _wrong_digits,
        _wrong_operand,
        _wrong_value,
        _wrong_kind,
        _wrong_day,
        _wrong_close,
        _repeated,
        _false_alarm,
    )
    make = rng.choices(kinds, weights=(50, 12, 14, 6, 6, 6, 4, 4))[0]
    return make(rng, problem, state)


def _wrong_digits(rng: random.Random, problem: Problem, state: State) -> str:
    """Change the last number of the paragraph: a small difference, or its digits reversed."""
    paragraph = expected(problem, state)
    end = max(i for i, char in enumerate(paragraph) if char.isdigit()) + 1
    start = end
    while paragraph[start - 1].isdigit():
        start -= 1
    number = int(paragraph[start:end])
    return f"{paragraph[:start]}{_near(rng, number)}{paragraph[end:]}"


def _near(rng: random.Random, number: int) -> int:
    near = (
        number + 1,
        number - 1,
        number + 10,
        number - 10,
        number + 2,
        number - 2,
        rng.randint(1, 99),
    )
    swapped = int(str(number)[::-1])
    return max(1, rng.choice((*near, swapped)))


def _with_deed(problem: Problem, state: State, operation: Operation, value: int) -> str:
    """Return the worked step of *state*, with another operation in its equation."""
    step = problem.step(state.index, value)
    head, _, _ = step.partition(": ")
    return f"{head}: {equation(operation, value)}.\n\n"


def _wrong_operand(rng: random.Random, problem: Problem, state: State) -> str:
    if state.index >= len(problem.operations):
        return _wrong_digits(rng, problem, state)
    operation = problem.operations[state.index]
    if operation.kind in ("double", "halve"):
        return _wrong_digits(rng, problem, state)
    other = replace(operation, n=rng.randint(2, 9))
    if rng.random() < 0.5:
        return _with_deed(problem, state, other, state.value)
    operations = (*problem.operations[: state.index], other, *problem.operations[state.index + 1 :])
    return replace(problem, operations=operations).step(state.index, state.value)


def _wrong_value(rng: random.Random, problem: Problem, state: State) -> str:
    value = rng.choice((*problem.values, _near(rng, state.value)))
    if state.index >= len(problem.operations):
        return problem.close(value)
    return problem.step(state.index, value)


def _wrong_kind(rng: random.Random, problem: Problem, state: State) -> str:
    if state.index >= len(problem.operations):
        return _wrong_digits(rng, problem, state)
    operation = problem.operations[state.index]
    kind: Kind = rng.choice([kind for kind in PHRASES if kind != operation.kind])
    other = Operation(kind, operation.n or rng.randint(2, 9), rng.randrange(len(PHRASES[kind])))
    if rng.random() < 0.5:
        return _with_deed(problem, state, other, state.value)
    operations = (*problem.operations[: state.index], other, *problem.operations[state.index + 1 :])
    return replace(problem, operations=operations).step(state.index, state.value)


def _wrong_day(rng: random.Random, problem: Problem, state: State) -> str:
    return problem.step(rng.randrange(len(problem.operations)), state.value)


def _wrong_close(rng: random.Random, problem: Problem, state: State) -> str:
    return problem.close(rng.choice((state.value, _near(rng, state.value))))


def _repeated(rng: random.Random, problem: Problem, state: State) -> str:
    return rng.choice(worked_steps(problem))


def _false_alarm(rng: random.Random, problem: Problem, state: State) -> str:
    return CORRECTION + expected(problem, replace(state, wrong=""))


def with_mistakes(
    rng: random.Random, problem: Problem, rate: float, *, sums: float = 0.0
) -> list[tuple[str, bool]]:
    """
    Return worked reasoning in which a share *rate* of the steps is wrong, and corrected at once.

    Each paragraph comes with whether it is right. *sums* is as for `corrupt`.
    """
    state = begin(problem)
    steps = list[tuple[str, bool]]()
    while state.index <= len(problem.operations):
        wrong = not state.wrong and rng.random() < rate
        paragraph = corrupt(rng, problem, state, sums=sums) if wrong else expected(problem, state)
        steps.append((paragraph, not wrong))
        state = advance(problem, state, paragraph)
    return steps
