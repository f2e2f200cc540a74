"""Wrong steps of many kinds, made from right ones, so that a judge learns what wrong looks like."""

from __future__ import annotations

import random
from dataclasses import replace

from .problems import (
    DEEDS,
    MENDING,
    Deed,
    Kind,
    Problem,
    State,
    advance,
    begin,
    equation,
    expected,
    right,
    worked,
)


def corrupt(rng: random.Random, problem: Problem, state: State, *, sums: float = 0.0) -> str:
    """Return a wrong paragraph for *state*, never equal to a right one; a share of *sums* only has a wrong result."""
    while True:
        make = _wrong_digits if rng.random() < sums else _attempt
        paragraph = make(rng, problem, state)
        if not right(problem, state, paragraph):
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
    """The last number of the paragraph, off by a little or with a digit changed."""
    paragraph = expected(problem, state)
    end = max(i for i, char in enumerate(paragraph) if char.isdigit()) + 1
    start = end
    while paragraph[start - 1].isdigit():
        start -= 1
    number = int(paragraph[start:end])
    return f"{paragraph[:start]}{_near(rng, number)}{paragraph[end:]}"


def _near(rng: random.Random, number: int) -> int:
    near = (number + 1, number - 1, number + 10, number - 10, number + 2, number - 2, rng.randint(1, 99))
    swapped = int(str(number)[::-1])
    return max(1, rng.choice((*near, swapped)))


def _with_deed(problem: Problem, state: State, deed: Deed, value: int) -> str:
    """The worked step of *state*, with another deed in its equation."""
    step = problem.step(state.index, value)
    head, _, _ = step.partition(": ")
    return f"{head}: {equation(deed, value)}.\n\n"


def _wrong_operand(rng: random.Random, problem: Problem, state: State) -> str:
    if state.index >= len(problem.deeds):
        return _wrong_digits(rng, problem, state)
    deed = problem.deeds[state.index]
    if deed.kind in ("double", "halve"):
        return _wrong_digits(rng, problem, state)
    other = replace(deed, n=rng.randint(2, 9))
    if rng.random() < 0.5:
        return _with_deed(problem, state, other, state.value)
    deeds = (*problem.deeds[: state.index], other, *problem.deeds[state.index + 1 :])
    return replace(problem, deeds=deeds).step(state.index, state.value)


def _wrong_value(rng: random.Random, problem: Problem, state: State) -> str:
    value = rng.choice((*problem.values, _near(rng, state.value)))
    if state.index >= len(problem.deeds):
        return problem.close(value)
    return problem.step(state.index, value)


def _wrong_kind(rng: random.Random, problem: Problem, state: State) -> str:
    if state.index >= len(problem.deeds):
        return _wrong_digits(rng, problem, state)
    deed = problem.deeds[state.index]
    kind: Kind = rng.choice([kind for kind in DEEDS if kind != deed.kind])
    other = Deed(kind, deed.n or rng.randint(2, 9), rng.randrange(len(DEEDS[kind])))
    if rng.random() < 0.5:
        return _with_deed(problem, state, other, state.value)
    deeds = (*problem.deeds[: state.index], other, *problem.deeds[state.index + 1 :])
    return replace(problem, deeds=deeds).step(state.index, state.value)


def _wrong_day(rng: random.Random, problem: Problem, state: State) -> str:
    return problem.step(rng.randrange(len(problem.deeds)), state.value)


def _wrong_close(rng: random.Random, problem: Problem, state: State) -> str:
    return problem.close(rng.choice((state.value, _near(rng, state.value))))


def _repeated(rng: random.Random, problem: Problem, state: State) -> str:
    return rng.choice(worked(problem))


def _false_alarm(rng: random.Random, problem: Problem, state: State) -> str:
    return MENDING + expected(problem, replace(state, wrong=""))


def stumbling(rng: random.Random, problem: Problem, rate: float, *, sums: float = 0.0) -> list[tuple[str, bool]]:
    """Worked reasoning that goes wrong at a *rate*, mended at once; every paragraph with whether it is right."""
    state, steps = begin(problem), list[tuple[str, bool]]()
    while state.index <= len(problem.deeds):
        wrong = not state.wrong and rng.random() < rate
        paragraph = corrupt(rng, problem, state, sums=sums) if wrong else expected(problem, state)
        steps.append((paragraph, not wrong))
        state = advance(problem, state, paragraph)
    return steps
