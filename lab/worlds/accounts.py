"""
Long arithmetic problems: an account with dozens of dated deeds, worked reasoning, a checker of every step, wrong steps.

The chain has one step for each deed, of about 45 tokens, which needs only that deed and the balance before it: the
equation, its columns from the ones on, and the new balance. The last step needs an early fact: the deed of an earlier
day is done once more. The functions are those of `short`, so that everything that works with one
world works with the other.

The text is like a bank statement, "18th -37.", so that all that is looked up follows a word that stands once in it: the
deed after its day, the end of the account likewise, the day of the question after "again". A tiny model learns that
within minutes, and did not learn to look up deeds of five tokens within an hour.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from stepspec.evals.testbed.problems import PEOPLE, THINK_END, Split, final_answer, split_of
from stepspec.orchestrator.errors import ConfigurationError

from .short import CORRECTION, of_split, paragraphs

__all__ = ["final_answer", "paragraphs"]  # the same as in `short`

Sign: TypeAlias = Literal["+", "-"]

SIGNS: tuple[Sign, Sign] = ("+", "-")
PLACES = ("Ones", "tens", "hundreds")
DAYS = 99
LEAST, MOST = 100, 999  # of a balance: always three digits
AMOUNTS = (10, 99)  # always two digits


@dataclass(frozen=True, slots=True)
class Difficulty:
    """
    The ranges, inclusive, of the parameters of a problem: the number of deeds, *steps*, and their *amount* in dollars.

    All days are among the first *days*.

    Raise `ConfigurationError` for impossible ranges.
    """

    steps: tuple[int, int] = (32, 80)
    amount: tuple[int, int] = AMOUNTS
    days: int = DAYS

    def __post_init__(self) -> None:
        if not 3 <= self.days <= DAYS:
            raise ConfigurationError(f"days {self.days}: from 3 to {DAYS}")
        if not 1 <= self.steps[0] <= self.steps[1] < self.days - 1:
            raise ConfigurationError(f"steps {self.steps}: from 1 to {self.days - 2}, the smaller first")
        if not AMOUNTS[0] <= self.amount[0] <= self.amount[1] <= AMOUNTS[1]:
            raise ConfigurationError(f"amount {self.amount}: from {AMOUNTS[0]} to {AMOUNTS[1]}, the smaller first")


DEFAULT = Difficulty()


@dataclass(frozen=True, slots=True)
class Deed:
    """One change of the balance, in dollars."""

    sign: Sign
    amount: int

    def __str__(self) -> str:
        return f"{self.sign}{self.amount}"

    def apply(self, value: int) -> int:
        return value + self.amount if self.sign == "+" else value - self.amount


@dataclass(frozen=True, slots=True)
class Problem:
    """
    A person has *start* dollars after day *first*, and one deed changes the balance every day until the account closes.

    The question is about the balance after deed number *queried*, from 0, is done once more at the end.
    """

    person: str
    first: int
    start: int
    operations: tuple[Deed, ...]
    queried: int

    @property
    def values(self) -> tuple[int, ...]:
        """The balance at the start and after each deed."""
        values = [self.start]
        for deed in self.operations:
            values.append(deed.apply(values[-1]))
        return tuple(values)

    @property
    def answer(self) -> int:
        return self.operations[self.queried].apply(self.values[-1])

    def day(self, index: int) -> str:
        """Return the day of deed *index* in words."""
        return ordinal(self.first + 1 + index)

    @property
    def text(self) -> str:
        deeds = " ".join(f"{self.day(index)} {deed}." for index, deed in enumerate(self.operations))
        count = len(self.operations)
        return (
            f"{self.person} keeps accounts. Balance on the {ordinal(self.first)}: ${self.start}. {deeds} "
            f"{self.day(count)} closed. By mistake, the bank books again {self.day(self.queried)}. What is the balance?"
        )

    @property
    def split(self) -> Split:
        return split_of(self.text)

    def step(self, index: int, value: int) -> str:
        """Return the paragraph that applies deed *index* to a balance of *value*."""
        return _step(self, index, Sum(value, self.operations[index].sign, self.operations[index].amount))

    def close(self, value: int) -> str:
        """Return the last paragraph, which does the queried deed again, with a balance of *value*."""
        deed = self.operations[self.queried]
        return _close(self, self.queried, Sum(value, deed.sign, deed.amount))


def ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number // 10 == 1 else endings.get(number % 10, 'th')}"


@dataclass(frozen=True, slots=True)
class Sum:
    """
    A sum or difference of two numbers of at most three digits, worked out in columns from the ones on.

    The result of column *slip*, from 0, is wrong by *by*, if that is not 0. Column *misborrowed* of a difference
    borrows when it need not, or does not when it must. The result's last three digits always agree with the columns.
    """

    left: int
    sign: Sign
    right: int
    slip: int = 0
    by: int = 0
    misborrowed: int | None = None

    def columns(self) -> list[tuple[str, int]]:
        """Return the equation of each column, and its result."""
        columns: list[tuple[str, int]] = []
        carry = 0
        for place in range(len(PLACES)):
            a, b = self.left // 10**place % 10, self.right // 10**place % 10
            last = place == len(PLACES) - 1
            if self.sign == "+":
                result = a + b + carry + (self.by if self.slip == place else 0)
                text = f"{a}+{b}{'+1' * carry}={result}"
                carry = int(result > 9)
            else:
                borrowed = int((a < b + carry) != (self.misborrowed == place) and not last)
                result = a + 10 * borrowed - b - carry + (self.by if self.slip == place else 0)
                if self.misborrowed == place:
                    result %= 10
                text = f"{a + 10 * borrowed}-{b}{'-1' * carry}={result}"
                carry = borrowed
            columns.append((text, result))
        return columns

    @property
    def result(self) -> int:
        (_, ones), (_, tens), (_, hundreds) = self.columns()
        return ones % 10 + 10 * (tens % 10) + 100 * hundreds

    def work(self) -> str:
        """Return the equation and its columns."""
        columns = ", ".join(f"{place} ({text})" for place, (text, _) in zip(PLACES, self.columns(), strict=True))
        return f"${self.left}{self.sign}${self.right}. {columns}."

    @property
    def possible(self) -> bool:
        """Whether no column is negative, nor above what two digits and a carry can give."""
        return all(0 <= result <= 19 for _, result in self.columns()) and self.result >= LEAST


def _step(problem: Problem, index: int, work: Sum, result: int | None = None, after: int | None = None) -> str:
    deed, day = problem.operations[index], problem.day(index)
    end = day if after is None else problem.day(after)
    shown = work.result if result is None else result
    return f"The {day} {deed}: {work.work()} Balance on the {end}: ${shown}.\n\n"


def _close(problem: Problem, queried: int, work: Sum, result: int | None = None) -> str:
    day, shown = problem.day(queried), work.result if result is None else result
    return (
        f"The {problem.day(len(problem.operations))} closed: again {day} {problem.operations[queried]}: {work.work()} "
        f"The balance: ${shown}.\n{THINK_END}"
    )


def generate(seed: int, split: Split, difficulty: Difficulty = DEFAULT) -> Iterator[Problem]:
    """Yield problems of one split, without end; the sequence depends on *seed* only."""
    rng = random.Random(f"accounts {seed} {split}")
    return of_split(split, lambda: draw(rng, difficulty))


def draw(rng: random.Random, difficulty: Difficulty = DEFAULT) -> Problem:
    """Draw one problem of either split."""
    count = rng.randint(*difficulty.steps)
    person, first, start = (
        rng.choice(list(PEOPLE)),
        rng.randint(1, difficulty.days - count - 1),
        rng.randint(LEAST, MOST),
    )
    deeds: list[Deed] = []
    value = start
    for _ in range(count):
        deeds.append(_draw_deed(rng, value, difficulty))
        value = deeds[-1].apply(value)
    possible = [index for index, deed in enumerate(deeds) if LEAST <= deed.apply(value) <= MOST]
    if not possible:
        return draw(rng, difficulty)
    return Problem(person, first, start, tuple(deeds), rng.choice(possible))


def _draw_deed(rng: random.Random, value: int, difficulty: Difficulty) -> Deed:
    while True:
        deed = Deed(rng.choice(SIGNS), rng.randint(*difficulty.amount))
        if LEAST <= deed.apply(value) <= MOST:
            return deed


@dataclass(frozen=True, slots=True)
class State:
    """
    The position in a chain of reasoning: the *index* of the next deed, and the current balance, *value*.

    *wrong* is the right paragraph that a correction must give, if the last paragraph was wrong.
    """

    index: int
    value: int
    wrong: str = ""


Mistaken: TypeAlias = Callable[[random.Random, Problem, State], str]
"""Makes a wrong paragraph, or by chance a right one, or "" where this kind of mistake cannot be made."""


def begin(problem: Problem) -> State:
    return State(0, problem.start)


def expected(problem: Problem, state: State) -> str:
    """Return the next paragraph of the worked reasoning."""
    if state.wrong:
        return CORRECTION + state.wrong
    if state.index == len(problem.operations):
        return problem.close(state.value)
    return problem.step(state.index, state.value)


def is_right(problem: Problem, state: State, paragraph: str) -> bool:
    """Whether *paragraph* is the right next step; there is only one."""
    return paragraph == expected(problem, state)


def advance(problem: Problem, state: State, paragraph: str) -> State:
    """
    Return the state after *paragraph*, right or wrong.

    A wrong paragraph does not change the position, and the correction must come next.
    """
    if not is_right(problem, state, paragraph):
        return replace(state, wrong=state.wrong or expected(problem, state))
    if state.index == len(problem.operations):
        return State(state.index + 1, state.value)
    return State(state.index + 1, problem.operations[state.index].apply(state.value))


def worked_steps(problem: Problem) -> list[str]:
    """Return the paragraphs of the worked reasoning; the last one ends the thinking."""
    values = problem.values
    steps = [problem.step(index, values[index]) for index in range(len(problem.operations))]
    return [*steps, problem.close(values[-1])]


def corrupt(rng: random.Random, problem: Problem, state: State) -> str:
    """Return a wrong paragraph for *state*."""
    while True:
        rng.random()  # the wrong steps of a seed are those that the model card was measured with
        paragraph = _any_mistake(rng)(rng, problem, state)
        if paragraph and not is_right(problem, state, paragraph):
            return paragraph


def _any_mistake(rng: random.Random) -> Mistaken:
    kinds = (
        _wrong_column,
        _wrong_borrow,
        _wrong_result,
        _wrong_amount,
        _wrong_balance,
        _wrong_sign,
        _wrong_day,
        _wrong_end,
        _false_alarm,
    )
    return rng.choices(kinds, weights=(30, 30, 12, 18, 18, 6, 8, 6, 2))[0]


def _next(problem: Problem, state: State) -> int:
    """Return the index of the deed that comes next; after all, the queried one."""
    return problem.queried if state.index == len(problem.operations) else state.index


def _right_sum(problem: Problem, state: State) -> Sum:
    deed = problem.operations[_next(problem, state)]
    return Sum(state.value, deed.sign, deed.amount)


def _misread(problem: Problem, state: State, deed: Deed) -> Problem:
    """Return *problem* with *deed* in the place of the one that comes next."""
    index = _next(problem, state)
    return replace(problem, operations=(*problem.operations[:index], deed, *problem.operations[index + 1 :]))


def _written(problem: Problem, state: State, work: Sum, result: int | None = None) -> str:
    if state.index == len(problem.operations):
        return _close(problem, problem.queried, work, result)
    return _step(problem, state.index, work, result)


def _off_by_a_digit(rng: random.Random, number: int) -> int:
    """Change one digit of *number*, mostly by one, or swap two; the result has as many digits."""
    digits = len(str(number))
    while True:
        place = 10 ** rng.randrange(digits)
        digit = number // place % 10
        new = rng.choice((digit - 1, digit + 1, rng.randrange(10)))
        swapped = int("".join(rng.sample(str(number), digits)))
        near = swapped if rng.random() < 0.2 else number + (new % 10 - digit) * place
        if len(str(near)) == digits and near != number:
            return near


def _wrong_column(rng: random.Random, problem: Problem, state: State) -> str:
    work = _right_sum(problem, state)
    slipped = replace(work, slip=rng.randrange(3), by=rng.choice((1, -1, 1, -1, 2, -2, 10, -10)))
    return _written(problem, state, slipped if slipped.possible else work)


def _wrong_borrow(rng: random.Random, problem: Problem, state: State) -> str:
    """Borrow in a column where that is not needed, or do not where it is: the small model's most frequent mistake."""
    work = replace(_right_sum(problem, state), misborrowed=rng.randrange(2))
    return _written(problem, state, work) if work.possible and work.sign == "-" else ""


def _wrong_result(rng: random.Random, problem: Problem, state: State) -> str:
    work = _right_sum(problem, state)
    return _written(problem, state, work, _off_by_a_digit(rng, work.result))


def _wrong_amount(rng: random.Random, problem: Problem, state: State) -> str:
    work = _right_sum(problem, state)
    near = rng.random() < 0.6
    other = _off_by_a_digit(rng, work.right) if near else rng.choice(problem.operations).amount
    changed = replace(work, right=other)
    if not changed.possible:
        return ""
    if rng.random() < 0.6:  # read wrongly, else copied wrongly
        problem = _misread(problem, state, Deed(work.sign, other))
    return _written(problem, state, changed)


def _wrong_balance(rng: random.Random, problem: Problem, state: State) -> str:
    work = _right_sum(problem, state)
    other = rng.choice(problem.values) if rng.random() < 0.4 else _off_by_a_digit(rng, work.left)
    changed = replace(work, left=other)
    return _written(problem, state, changed if changed.possible else work)


def _wrong_sign(rng: random.Random, problem: Problem, state: State) -> str:
    right = _right_sum(problem, state)
    sign: Sign = "-" if right.sign == "+" else "+"
    work = replace(right, sign=sign) if rng.random() < 0.7 else right
    if rng.random() < 0.5:
        problem = _misread(problem, state, Deed(sign, right.right))
    return _written(problem, state, work) if work.possible else ""


def _wrong_day(rng: random.Random, problem: Problem, state: State) -> str:
    """Take another deed than the next one, often the one before or after it; or name another day at the end."""
    count = len(problem.operations)
    if state.index == count:
        deed = problem.operations[queried := rng.randrange(count)]
        work = Sum(state.value, deed.sign, deed.amount)
        return _close(problem, queried, work) if work.possible else ""
    near = state.index + rng.choice((-1, 1))
    other = near if 0 <= near < count and rng.random() < 0.7 else rng.randrange(count)
    if rng.random() < 0.3:
        return _step(problem, state.index, _right_sum(problem, state), after=other)
    work = Sum(state.value, problem.operations[other].sign, problem.operations[other].amount)
    return _step(problem, other, work) if work.possible else ""


def _wrong_end(rng: random.Random, problem: Problem, state: State) -> str:
    """End the thinking too early, or go on when it should end."""
    if state.index == len(problem.operations):
        index = rng.randrange(len(problem.operations))
        return problem.step(index, problem.values[index])
    deed = problem.operations[problem.queried]
    return problem.close(state.value) if Sum(state.value, deed.sign, deed.amount).possible else ""


def _false_alarm(rng: random.Random, problem: Problem, state: State) -> str:
    return CORRECTION + expected(problem, replace(state, wrong=""))
