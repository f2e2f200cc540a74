"""Corrupted steps are wrong, and reasoning with mistakes comes back to the right one."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lab.worlds.mistakes import corrupt, with_mistakes
from lab.worlds.short import CORRECTION, State, advance, begin, expected, is_right, paragraphs
from stepspec.evals.benchmarks.miniature import Problem, check, draw, final_answer, worked_steps

from ..orchestrator.arms import BOUNDED

SEEDS = st.integers(0, 2**32)
PROBLEMS = SEEDS.map(lambda seed: draw(random.Random(seed)))


def walk(problem: Problem, rng: random.Random) -> list[State]:
    """
    Return states of all kinds on a way through *problem*: after right steps, wrong ones, and checks
    left out.
    """
    states = [begin(problem)]
    while states[-1].index <= len(problem.operations):
        state = states[-1]
        skipped = (
            State(state.index, state.value) if not state.wrong and rng.random() < 0.5 else state
        )
        wrong = not state.wrong and rng.random() < 0.3
        states.append(
            advance(
                problem,
                state,
                corrupt(rng, problem, state) if wrong else expected(problem, skipped),
            )
        )
    return states[:-1]


@given(problem=PROBLEMS, seed=SEEDS)
@BOUNDED
def test_every_corrupted_step_is_wrong_and_mending_it_brings_everything_back(
    problem: Problem, seed: int
) -> None:
    rng = random.Random(seed)
    for state in walk(problem, rng):
        good = expected(problem, state)
        wrong = advance(problem, state, bad := corrupt(rng, problem, state))
        assert bad != good
        assert not is_right(problem, state, bad)
        assert (wrong.index, wrong.value) == (state.index, state.value)
        assert expected(problem, wrong) == CORRECTION + good.removeprefix(CORRECTION)
        assert not is_right(problem, wrong, good.removeprefix(CORRECTION))
        again = advance(problem, wrong, corrupt(rng, problem, wrong))
        assert again == wrong
        assert advance(problem, wrong, expected(problem, wrong)) == advance(problem, state, good)


@given(problem=PROBLEMS, seed=SEEDS)
@BOUNDED
def test_a_mended_step_without_a_mistake_before_it_is_wrong(problem: Problem, seed: int) -> None:
    for state in walk(problem, random.Random(seed)):
        if not state.wrong:
            assert not is_right(problem, state, CORRECTION + expected(problem, state))


@given(problem=PROBLEMS, seed=SEEDS, rate=st.sampled_from([0.0, 0.4, 1.0]))
@BOUNDED
def test_stumbling_reasoning_is_marked_with_the_verdicts_of_the_judge(
    problem: Problem, seed: int, rate: float
) -> None:
    steps = with_mistakes(random.Random(seed), problem, rate)
    state = begin(problem)
    for text, good in steps:
        assert is_right(problem, state, text) is good
        state = advance(problem, state, text)
    assert state == State(len(problem.operations) + 1, problem.answer)
    assert steps == with_mistakes(random.Random(seed), problem, rate)
    mended = [text.removeprefix(CORRECTION) for text, good in steps if good]
    assert mended == worked_steps(problem)
    if rate != 0.4:
        assert [good for _, good in steps] == [not rate, True][-1 - bool(rate) :] * len(
            worked_steps(problem)
        )


@given(problem=PROBLEMS)
@BOUNDED
def test_worked_reasoning_is_right_by_its_own_judge_and_splits_into_paragraphs(
    problem: Problem,
) -> None:
    state = begin(problem)
    steps = worked_steps(problem)
    for step in steps:
        assert is_right(problem, state, step)
        assert expected(problem, state) == step
        state = advance(problem, state, step)
        assert not state.wrong
    assert state.index == len(problem.operations) + 1
    answered = "".join(steps) + final_answer(problem.answer)
    assert paragraphs(answered)[: len(steps)] == paragraphs("".join(steps)) == steps


@given(problem=PROBLEMS)
@BOUNDED
def test_a_check_may_be_omitted_but_not_repeated_or_misplaced(problem: Problem) -> None:
    state = begin(problem)
    for index, operation in enumerate(problem.operations):
        step = problem.step(index, state.value)
        checking = check(operation, state.value)
        assert is_right(problem, state, step)
        after = advance(problem, state, step)
        assert after.index == index + 1
        assert bool(checking) == (operation.kind in ("double", "halve"))
        if checking:
            checked = advance(problem, after, checking)
            assert checked == State(after.index, after.value)
            assert not is_right(problem, checked, checking)
        state = after
    assert is_right(problem, state, problem.close(problem.answer))
