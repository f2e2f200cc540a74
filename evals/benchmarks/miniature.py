"""
Multi-step arithmetic word problems: text, worked reasoning, and answer.

Training and test problems are disjoint by construction: the hash of a problem's text decides its
split.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["add", "sub", "double", "halve"]
Split: TypeAlias = Literal["train", "test"]

PEOPLE = {
    "Maya": "she", "Tom": "he", "Ann": "she", "Ben": "he", "Lily": "she", "Omar": "he",
    "Nina": "she", "Sam": "he", "Eva": "she", "Leo": "he", "Rosa": "she", "Max": "he",
}  # fmt: skip
ITEMS = ("apples", "coins", "marbles", "stickers", "books", "cards", "shells", "pens")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PHRASES: dict[Kind, tuple[str, ...]] = {
    "add": ("buys {n} more", "finds {n}", "wins {n}"),
    "sub": ("gives away {n}", "loses {n}", "sells {n}"),
    "double": ("doubles them",),
    "halve": ("keeps half of them",),
}
SIGNS: dict[Kind, str] = {"add": "+", "sub": "-", "double": "*", "halve": "/"}
THINK_END = "</think>"
LIMIT = 99


@dataclass(frozen=True, slots=True)
class Difficulty:
    """
    The ranges, inclusive, of the parameters of a problem: *steps* is the number of operations,
    *operand* the number that is added or taken away, *start* the number at the start. *doubling* is
    the share of doublings and halvings.
    """

    steps: tuple[int, int] = (3, 6)
    operand: tuple[int, int] = (2, 9)
    doubling: float = 0.2
    start: tuple[int, int] = (2, 60)


DEFAULT = Difficulty()


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of the number of things; *phrase* is an index into the phrases of its kind."""

    kind: Kind
    n: int
    phrase: int = 0

    @property
    def words(self) -> str:
        return PHRASES[self.kind][self.phrase].format(n=self.n)

    def apply(self, value: int) -> int:
        match self.kind:
            case "add":
                return value + self.n
            case "sub":
                return value - self.n
            case "double":
                return value * 2
            case "halve":
                return value // 2

    def possible(self, value: int) -> bool:
        """Whether the result is a whole number from 1 to the limit."""
        return 1 <= self.apply(value) <= LIMIT and not (self.kind == "halve" and value % 2)


@dataclass(frozen=True, slots=True)
class Problem:
    """A person has *start* things, and one operation changes their number every day."""

    person: str
    item: str
    start: int
    operations: tuple[Operation, ...]

    @property
    def pronoun(self) -> str:
        return PEOPLE[self.person]

    @property
    def values(self) -> tuple[int, ...]:
        """The number of things at the start and after each operation."""
        values = [self.start]
        for operation in self.operations:
            values.append(operation.apply(values[-1]))
        return tuple(values)

    @property
    def answer(self) -> int:
        return self.values[-1]

    @property
    def text(self) -> str:
        days = " ".join(
            f"On {day} {self.pronoun} {operation.words}."
            for day, operation in zip(DAYS, self.operations, strict=False)
        )
        question = f"How many {self.item} does {self.person} have now?"
        return f"{self.person} has {self.start} {self.item}. {days} {question}"

    @property
    def split(self) -> Split:
        return split_of(self.text)

    def step(self, index: int, value: int) -> str:
        """Return the paragraph that applies operation *index* to *value* things."""
        operation = self.operations[index]
        day = DAYS[index]
        return f"On {day} {self.pronoun} {operation.words}: {equation(operation, value)}.\n\n"

    def close(self, value: int) -> str:
        """Return the paragraph that ends the thinking."""
        return f"Yes, that is all: {value}.\n{THINK_END}"


def equation(operation: Operation, value: int) -> str:
    operand = operation.n if operation.kind in ("add", "sub") else 2
    return f"{value} {SIGNS[operation.kind]} {operand} = {operation.apply(value)}"


def check(operation: Operation, value: int) -> str:
    """
    Return the paragraph that checks a doubling or a halving of *value*; empty for other operations.
    """
    match operation.kind:
        case "double":
            return f"Alternatively, {value} + {value} = {value * 2}.\n\n"
        case "halve":
            return f"Let me check: {value // 2} + {value // 2} = {value}.\n\n"
        case _:
            return ""


def final_answer(value: int) -> str:
    return f"\n\n\\boxed{{{value}}}"


def split_of(words: str) -> Split:
    """Return the split of the problem with these *words*: an eighth is for tests."""
    return "test" if blake2b(words.encode(), digest_size=1).digest()[0] < 32 else "train"


def generate(seed: int, split: Split, difficulty: Difficulty = DEFAULT) -> Iterator[Problem]:
    """Yield problems of one split, without end; the sequence depends on *seed* only."""
    rng = random.Random(f"{seed} {split}")
    while True:
        problem = draw(rng, difficulty)
        if problem.split == split:
            yield problem


def draw(rng: random.Random, difficulty: Difficulty = DEFAULT) -> Problem:
    """Draw one problem of either split."""
    person = rng.choice(list(PEOPLE))
    item = rng.choice(ITEMS)
    start = rng.randint(*difficulty.start)
    operations: list[Operation] = []
    value = start
    for _ in range(rng.randint(*difficulty.steps)):
        operation = draw_operation(rng, value, difficulty)
        operations.append(operation)
        value = operation.apply(value)
    return Problem(person, item, start, tuple(operations))


def draw_operation(rng: random.Random, value: int, difficulty: Difficulty) -> Operation:
    while True:
        kinds: tuple[Kind, Kind] = (
            ("double", "halve") if rng.random() < difficulty.doubling else ("add", "sub")
        )
        kind = rng.choice(kinds)
        n = rng.randint(*difficulty.operand) if kind in ("add", "sub") else 0
        operation = Operation(kind, n, rng.randrange(len(PHRASES[kind])))
        if operation.possible(value):
            return operation


def worked_steps(problem: Problem) -> list[str]:
    """Return the paragraphs of the worked reasoning; the last one ends the thinking."""
    steps: list[str] = []
    for index, (operation, value) in enumerate(
        zip(problem.operations, problem.values, strict=False)
    ):
        steps += filter(None, (problem.step(index, value), check(operation, value)))
    return [*steps, problem.close(problem.answer)]
