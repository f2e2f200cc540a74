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
MAX_VALUE = 99


@dataclass(frozen=True, slots=True)
class Difficulty:
    """The parameters of problems. Ranges include both ends."""

    steps: tuple[int, int] = (3, 6)
    """The range of the number of operations."""
    operand: tuple[int, int] = (2, 9)
    """The range of the number that is added or taken away."""
    doubling: float = 0.2
    """The share of doublings and halvings."""
    start: tuple[int, int] = (2, 60)
    """The range of the number at the start."""


DEFAULT = Difficulty()


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of the number of things."""

    kind: Kind
    """What is done."""
    n: int
    """The number that is added or taken away; 0 for other kinds."""
    phrase: int = 0
    """The index of its phrase in `PHRASES`."""

    @property
    def words(self) -> str:
        """The operation in a sentence of the problem."""
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
        """Whether the result is a whole number from 1 to `MAX_VALUE`."""
        if self.kind == "halve" and value % 2:
            return False
        return 1 <= self.apply(value) <= MAX_VALUE


@dataclass(frozen=True, slots=True)
class Problem:
    """A person has some things, and one operation changes their number every day."""

    person: str
    """The name of the person."""
    item: str
    """What the person has."""
    start: int
    """The number of things at the start."""
    operations: tuple[Operation, ...]
    """The changes, one a day from Monday on."""

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
    """Return the paragraph that checks a doubling or halving of *value*; "" for other kinds."""
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
    """Return the split of the problem with these *words*. An eighth is for tests."""
    digest = blake2b(words.encode(), digest_size=1).digest()
    return "test" if digest[0] < 32 else "train"


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
    """Draw operations until one is possible for *value* things."""
    while True:
        kinds: tuple[Kind, Kind] = ("add", "sub")
        if rng.random() < difficulty.doubling:
            kinds = ("double", "halve")
        kind = rng.choice(kinds)
        n = rng.randint(*difficulty.operand) if kind in ("add", "sub") else 0
        operation = Operation(kind, n, rng.randrange(len(PHRASES[kind])))
        if operation.possible(value):
            return operation


def worked_steps(problem: Problem) -> list[str]:
    """Return the paragraphs of the worked reasoning. The last one ends the thinking."""
    steps: list[str] = []
    values = problem.values
    for index, operation in enumerate(problem.operations):
        steps.append(problem.step(index, values[index]))
        checked = check(operation, values[index])
        if checked:
            steps.append(checked)
    return [*steps, problem.close(values[-1])]
