"""The long problems: a reader's arithmetic agrees with their steps, and every step can be checked alone."""

import random
import re
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.evals.testbed import tokenizer as vocabulary
from stepspec.evals.testbed.accounts import (
    DAYS,
    DEFAULT,
    LEAST,
    MOST,
    VERBS,
    WIDEST,
    Deed,
    Difficulty,
    Problem,
    State,
    Sum,
    advance,
    begin,
    corrupt,
    draw,
    expected,
    generate,
    is_right,
    ordinal,
    with_mistakes,
    worked_steps,
)
from stepspec.evals.testbed.data import Writer
from stepspec.evals.testbed.problems import CORRECTION, final_answer, paragraphs
from stepspec.orchestrator.answer import extract
from stepspec.orchestrator.errors import ConfigurationError

from ...orchestrator.arms import BOUNDED

SEEDS = st.integers(0, 2**32)
SHORT = Difficulty(steps=(1, 8))
PROBLEMS = SEEDS.map(lambda seed: draw(random.Random(seed), SHORT))
EXAMPLE = Problem("Maya", 10, 342, (Deed("+", 257), Deed("-", 163, 2), Deed("+", 450, 1)), 1)


def read(text: str) -> tuple[dict[str, int], str]:
    """Read a problem as its reader would: return the balance on each day, and the day that is asked about."""
    opening = re.match(r"\w+ keeps accounts\. Balance on the (\w+): \$(\d+)\. ", text)
    assert opening
    balances = {opening[1]: int(opening[2])}
    for day, verb, amount in re.findall(r"(\w+): (\w+) \$(\d+)\. ", text[opening.end() :]):
        change = int(amount) if verb in VERBS["+"] else -int(amount)
        balances[day] = [*balances.values()][-1] + change
    asked = re.search(r" What is the balance on the (\w+) plus the balance at the end\?$", text)
    assert asked
    return balances, asked[1]


def computed(paragraph: str) -> int:
    """Compute the equation of a paragraph and each of its columns; return the result that the paragraph states."""
    ((left, sign, right),) = re.findall(r"\$(\d+)([-+])\$(\d+)\.", paragraph)
    whole = int(left) + int(right) if sign == "+" else int(left) - int(right)
    columns = re.findall(r"\(([^=]*)=(\d+)\)", paragraph)
    for terms, result in columns:
        assert sum(int(term) for term in re.findall(r"[-+]?\d+", terms)) == int(result)
    digits = [int(result) % 10 for _, result in columns[:-1]]
    assert whole == int(columns[-1][1]) * 100 + digits[1] * 10 + digits[0]
    (result,) = re.findall(r": \$(\d+)\.\n", paragraph)
    assert int(result) == whole
    return whole


def test_a_problem_and_its_worked_reasoning() -> None:
    assert EXAMPLE.text == (
        "Maya keeps accounts. Balance on the 10th: $342. 11th: earns $257. 12th: loses $163. 13th: receives $450. "
        "What is the balance on the 12th plus the balance at the end?"
    )
    assert EXAMPLE.answer == 436 + 886
    assert worked_steps(EXAMPLE) == [
        "The 11th: earns $257: $342+$257. Ones (2+7=9), tens (4+5=9), hundreds (3+2=5). Balance on the 11th: $599.\n\n",
        "The 12th: loses $163: $599-$163. Ones (9-3=6), tens (9-6=3), hundreds (5-1=4). Balance on the 12th: $436.\n\n",
        "The 13th: receives $450: $436+$450. Ones (6+0=6), tens (3+5=8), hundreds (4+4=8). "
        "Balance on the 13th: $886.\n\n",
        "Yes, that is all. Balance on the 12th: $436: $436+$886. Ones (6+6=12), tens (3+8+1=12), "
        "hundreds (4+8+1=13). The sum: $1322.\n</think>",
    ]


@given(problem=PROBLEMS)
@BOUNDED
def test_the_chain_computed_again_from_the_text_equals_the_answer(problem: Problem) -> None:
    balances, asked = read(problem.text)
    assert list(balances.values()) == list(problem.values)
    assert len(balances) == len(problem.operations) + 1  # every day has a name of its own
    assert all(LEAST <= balance <= MOST for balance in balances.values())
    assert problem.answer == balances[asked] + problem.values[-1]
    *steps, last = worked_steps(problem)
    assert [computed(step) for step in steps] == list(problem.values[1:])
    assert computed(last) == problem.answer
    assert [step.endswith("\n\n") for step in steps] == [True] * len(steps)
    answered = "".join((*steps, last)) + final_answer(problem.answer)
    assert paragraphs(answered)[: len(steps) + 1] == [*steps, last]
    assert extract(answered) == str(problem.answer)


@given(left=st.integers(LEAST, MOST), right=st.integers(LEAST, MOST), sign=st.sampled_from(("+", "-")))
@BOUNDED
def test_columns_carry_and_borrow(left: int, right: int, sign: Any) -> None:
    left, right = max(left, right), min(left, right)
    work = Sum(left, sign, right)
    assert work.result == (left + right if sign == "+" else left - right)
    assert computed(f"{work.work()} The sum: ${work.result}.\n") == work.result


@given(problem=PROBLEMS, seed=SEEDS)
@BOUNDED
def test_every_corrupted_step_is_wrong_and_its_correction_is_right(problem: Problem, seed: int) -> None:
    rng, state = random.Random(seed), begin(problem)
    while state.index <= len(problem.operations):
        good, bad = expected(problem, state), corrupt(rng, problem, state, sums=rng.choice((0.0, 1.0)))
        assert is_right(problem, state, good)
        assert bad
        assert not is_right(problem, state, bad)
        wrong = advance(problem, state, bad)
        assert (wrong.index, wrong.value) == (state.index, state.value)
        assert expected(problem, wrong) == CORRECTION + good
        assert not is_right(problem, wrong, good)
        assert advance(problem, wrong, corrupt(rng, problem, wrong)) == wrong
        assert advance(problem, wrong, CORRECTION + good) == advance(problem, state, good)
        state = advance(problem, state, good)
    assert state == State(len(problem.operations) + 1, problem.values[-1])


@given(problem=PROBLEMS, seed=SEEDS, rate=st.sampled_from([0.0, 0.4, 1.0]))
@BOUNDED
def test_reasoning_with_mistakes_is_marked_by_the_checker(problem: Problem, seed: int, rate: float) -> None:
    steps = with_mistakes(random.Random(seed), problem, rate)
    state = begin(problem)
    for text, right in steps:
        assert is_right(problem, state, text) is right
        state = advance(problem, state, text)
    assert [text.removeprefix(CORRECTION) for text, right in steps if right] == worked_steps(problem)
    if rate != 0.4:
        assert [right for _, right in steps].count(False) == rate * len(worked_steps(problem))


def test_wrong_steps_are_of_many_kinds() -> None:
    """Each part of a step is wrong in some: day, verb, amount, balance, sign, amount again, columns, day, result."""
    problem = draw(random.Random(7), Difficulty(steps=(20, 20)))
    state, rng = begin(problem), random.Random(1)
    for step in worked_steps(problem)[:9]:
        state = advance(problem, state, step)
    pattern = r"The (\w+): (\w+) \$(\d+): \$(\d+)([-+])\$(\d+)\. (.*)\. Balance on the (\w+): \$(\d+)\.\n\n"
    good = re.fullmatch(pattern, expected(problem, state))
    assert good
    changed: set[int] = set()
    for _ in range(300):
        match = re.fullmatch(pattern, corrupt(rng, problem, state))
        if match:
            changed |= {part for part in range(1, 10) if match[part] != good[part]}
    assert changed == set(range(1, 10))


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_same_seed_gives_the_same_problems_of_one_split(split: Any) -> None:
    def problems(seed: int) -> list[Problem]:
        return list(islice(generate(seed, split, SHORT), 30))

    assert problems(3) == problems(3) != problems(4)
    assert {problem.split for problem in problems(3)} == {split}


def test_a_chain_has_30_to_70_steps_and_1500_to_4000_tokens_of_thinking() -> None:
    writer = Writer(vocabulary.train("dated"))
    lengths: list[int] = []
    for steps in DEFAULT.steps:
        for problem in islice(generate(5, "test", Difficulty(steps=(steps, steps))), 30):
            lengths.append(sum(len(writer.encode(step)) for step in worked_steps(problem)))
            assert len(writer.prompt(problem)) < 1100
    assert 1500 <= min(lengths) < 1800
    assert 3600 < max(lengths) <= 4000


def test_a_day_is_one_token_with_its_colon_a_verb_with_its_sign_and_a_number_one_for_each_digit() -> None:
    """A deed is looked up by its day: the fewer tokens are between them, the sooner that is learnt."""
    writer = Writer(vocabulary.train("dated"))
    days = {writer.encode(f" {ordinal(day)}{end}") for day in range(1, DAYS + 1) for end in ("", ":")}
    assert len(days) == 2 * DAYS
    verbs = {writer.encode(f" {verb} $") for verbs in VERBS.values() for verb in verbs}
    assert len(verbs) == 6
    assert all(len(ids) == 1 for ids in days | verbs)
    assert len(writer.encode(" 17th: pays $117.")) == 6
    plain = {writer.encode(str(digit))[0] for digit in range(10)}
    assert set(writer.encode(worked_steps(EXAMPLE)[0])) >= {writer.encode(digit)[0] for digit in "342579"}
    numbers = [id for step in worked_steps(EXAMPLE) for id in writer.encode(step) if writer.is_number(id)]
    assert set(numbers) <= plain


def test_english_ordinals() -> None:
    days = (1, 2, 3, 4, 11, 12, 13, 20, 21, 22, 23, 30, 99)
    assert " ".join(map(ordinal, days)) == "1st 2nd 3rd 4th 11th 12th 13th 20th 21st 22nd 23rd 30th 99th"


@pytest.mark.parametrize(
    "wrong", [{"steps": (0, 3)}, {"steps": (4, 3)}, {"steps": (3, DAYS)}, {"amount": (LEAST - 1, LEAST)},
              {"amount": (LEAST, WIDEST + 1)}, {"amount": (200, 199)}]
)  # fmt: skip
def test_a_difficulty_that_no_problem_can_have_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Difficulty(**wrong)


def test_the_widest_amounts_are_always_possible() -> None:
    hardest = Difficulty(steps=(DAYS - 1, DAYS - 1), amount=(WIDEST, WIDEST))
    assert all(len(draw(random.Random(seed), hardest).operations) == DAYS - 1 for seed in range(20))
