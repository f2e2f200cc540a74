"""
Long arithmetic problems: an account with dozens of dated deeds, and worked reasoning.

The chain has one step for each deed, of about 45 tokens, which needs only that deed and the balance
before it: the equation, its columns from the ones on, and the new balance. The last step needs an
early fact: the deed of an earlier day is done once more.

The text is like a bank statement, "18th -37.", so that all that is looked up follows a word that
stands once in it: the deed after its day, the end of the account likewise, the day of the question
after "again". A tiny model learns that within minutes, and did not learn to look up deeds of five
tokens within an hour.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stepspec.evals.benchmarks.miniature import PEOPLE, THINK_END, Split, final_answer, split_of
from stepspec.orchestrator.errors import ConfigurationError

from .short import of_split, paragraphs

__all__ = ["final_answer", "paragraphs"]  # the same as in `short`

Sign: TypeAlias = Literal["+", "-"]

SIGNS: tuple[Sign, Sign] = ("+", "-")
PLACES = ("Ones", "tens", "hundreds")
DAYS = 99
# of a balance: always three digits
LEAST = 100
MOST = 999
AMOUNTS = (10, 99)  # always two digits


@dataclass(frozen=True, slots=True)
class Difficulty:
    """
    The ranges, inclusive, of the parameters of a problem: the number of deeds, *steps*, and their
    *amount* in dollars.

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
            raise ConfigurationError(
                f"steps {self.steps}: from 1 to {self.days - 2}, the smaller first"
            )
        if not AMOUNTS[0] <= self.amount[0] <= self.amount[1] <= AMOUNTS[1]:
            raise ConfigurationError(
                f"amount {self.amount}: from {AMOUNTS[0]} to {AMOUNTS[1]}, the smaller first"
            )


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
    A person has *start* dollars after day *first*, and one deed changes the balance every day until
    the account closes.

    The question is about the balance after deed number *queried*, from 0, is done once more at the
    end.
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
            f"{self.person} keeps accounts. Balance on the {ordinal(self.first)}: ${self.start}."
            f" {deeds} {self.day(count)} closed. By mistake, the bank books again"
            f" {self.day(self.queried)}. What is the balance?"
        )

    @property
    def split(self) -> Split:
        return split_of(self.text)

    def step(self, index: int, value: int) -> str:
        """Return the paragraph that applies deed *index* to a balance of *value*."""
        return _step(
            self, index, Sum(value, self.operations[index].sign, self.operations[index].amount)
        )

    def close(self, value: int) -> str:
        """
        Return the last paragraph, which does the queried deed again, with a balance of *value*.
        """
        deed = self.operations[self.queried]
        return _close(self, self.queried, Sum(value, deed.sign, deed.amount))


def ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number // 10 == 1 else endings.get(number % 10, 'th')}"


@dataclass(frozen=True, slots=True)
class Sum:
    """
    A sum or difference of two numbers of at most three digits, worked out in columns from the ones
    on.
    """

    left: int
    sign: Sign
    right: int

    def columns(self) -> list[tuple[str, int]]:
        """Return the equation of each column, and its result."""
        columns: list[tuple[str, int]] = []
        carry = 0
        for place in range(len(PLACES)):
            a = self.left // 10**place % 10
            b = self.right // 10**place % 10
            last = place == len(PLACES) - 1
            if self.sign == "+":
                result = a + b + carry
                text = f"{a}+{b}{'+1' * carry}={result}"
                carry = int(result > 9)
            else:
                borrowed = int(a < b + carry and not last)
                result = a + 10 * borrowed - b - carry
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
        columns = ", ".join(
            f"{place} ({text})" for place, (text, _) in zip(PLACES, self.columns(), strict=True)
        )
        return f"${self.left}{self.sign}${self.right}. {columns}."


def _step(problem: Problem, index: int, work: Sum) -> str:
    deed = problem.operations[index]
    day = problem.day(index)
    return f"The {day} {deed}: {work.work()} Balance on the {day}: ${work.result}.\n\n"


def _close(problem: Problem, queried: int, work: Sum) -> str:
    day = problem.day(queried)
    shown = work.result
    return (
        f"The {problem.day(len(problem.operations))} closed: again {day}"
        f" {problem.operations[queried]}: {work.work()} The balance: ${shown}.\n{THINK_END}"
    )


def generate(seed: int, split: Split, difficulty: Difficulty = DEFAULT) -> Iterator[Problem]:
    """Yield problems of one split, without end; the sequence depends on *seed* only."""
    rng = random.Random(f"accounts {seed} {split}")
    return of_split(split, lambda: draw(rng, difficulty))


def draw(rng: random.Random, difficulty: Difficulty = DEFAULT) -> Problem:
    """Draw one problem of either split."""
    count = rng.randint(*difficulty.steps)
    person = rng.choice(list(PEOPLE))
    first = rng.randint(1, difficulty.days - count - 1)
    start = rng.randint(LEAST, MOST)
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


def worked_steps(problem: Problem) -> list[str]:
    """Return the paragraphs of the worked reasoning; the last one ends the thinking."""
    values = problem.values
    steps = [problem.step(index, values[index]) for index in range(len(problem.operations))]
    return [*steps, problem.close(values[-1])]
