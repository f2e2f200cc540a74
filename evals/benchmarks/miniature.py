"""
Multi-step arithmetic word problems: text, worked reasoning, and answer.

Training and test problems are disjoint by construction: the hash of a problem's text decides its
split.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
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
CHANGES: dict[Kind, tuple[str, Callable[[int, int], int]]] = {
    "add": ("+", int.__add__),
    "sub": ("-", int.__sub__),
    "double": ("*", int.__mul__),
    "halve": ("/", int.__floordiv__),
}
"""The sign of each kind of operation, and the function that calculates its result."""
CHECKS: dict[Kind, str] = {
    "double": "Alternatively, {value} + {value} = {result}.\n\n",
    "halve": "Let me check: {result} + {result} = {value}.\n\n",
}
"""The paragraphs that check a doubling or halving of a *value* with this *result*."""
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

    @property
    def operand(self) -> int:
        """The second number of the equation: a doubling or halving is by 2."""
        return self.n or 2

    def apply(self, value: int) -> int:
        _, change = CHANGES[self.kind]
        return change(value, self.operand)

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
    for day, operation, value in zip(DAYS, problem.operations, problem.values, strict=False):
        result = operation.apply(value)
        sign, _ = CHANGES[operation.kind]
        equation = f"{value} {sign} {operation.operand} = {result}"
        steps.append(f"On {day} {problem.pronoun} {operation.words}: {equation}.\n\n")
        if operation.kind in CHECKS:
            steps.append(CHECKS[operation.kind].format(value=value, result=result))
    return [*steps, f"Yes, that is all: {problem.answer}.\n{THINK_END}"]
