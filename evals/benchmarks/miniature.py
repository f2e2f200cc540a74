"""
Multi-step arithmetic word problems, and their answers.

The hash of a problem's text decides whether models may be trained on the problem. `generate` yields
the others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

PEOPLE = {
    "Maya": "she", "Tom": "he", "Ann": "she", "Ben": "he", "Lily": "she", "Omar": "he",
    "Nina": "she", "Sam": "he", "Eva": "she", "Leo": "he", "Rosa": "she", "Max": "he",
}  # fmt: skip
ITEMS = ("apples", "coins", "marbles", "stickers", "books", "cards", "shells", "pens")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PHRASES: dict[str, tuple[str, ...]] = {
    "add": ("buys {n} more", "finds {n}", "wins {n}"),
    "sub": ("gives away {n}", "loses {n}", "sells {n}"),
    "double": ("doubles them",),
    "halve": ("keeps half of them",),
}
"""The words of each kind of change."""
CHANGES: dict[str, Callable[[int, int], int]] = {
    "add": int.__add__,
    "sub": int.__sub__,
    "double": int.__mul__,
    "halve": int.__floordiv__,
}
"""The function that calculates the result of each kind of change."""
MAX_VALUE = 99
STEPS = (3, 6)  # the least and the largest number of changes
OPERAND = (2, 9)  # the least and the largest number that is added or taken away
DOUBLING = 0.2  # the share of doublings and halvings
START = (2, 60)  # the least and the largest number of things at the start


@dataclass(frozen=True, slots=True)
class Problem:
    """A person has some things. From Monday on, their number changes once a day."""

    text: str
    """The words of the problem."""
    answer: int
    """The number of things at the end."""


def is_held_out(words: str) -> bool:
    """Whether no model was trained on the problem with these *words*. An eighth is held out."""
    return blake2b(words.encode(), digest_size=1).digest()[0] < 32


def generate(seed: int, steps: tuple[int, int] = STEPS) -> Iterator[Problem]:
    """Yield held-out problems, without end. The sequence depends on the arguments only."""
    rng = random.Random(f"{seed} test")
    while True:
        problem = draw(rng, steps)
        if is_held_out(problem.text):
            yield problem


def draw(rng: random.Random, steps: tuple[int, int] = STEPS) -> Problem:
    """Draw a problem, held out or not. It has a number of changes within the range *steps*."""
    person = rng.choice(list(PEOPLE))
    item = rng.choice(ITEMS)
    value = rng.randint(*START)
    sentences = [f"{person} has {value} {item}."]
    for day in DAYS[: rng.randint(*steps)]:
        words, value = _draw_change(rng, value)
        sentences.append(f"On {day} {PEOPLE[person]} {words}.")
    sentences.append(f"How many {item} does {person} have now?")
    return Problem(" ".join(sentences), value)


def _draw_change(rng: random.Random, value: int) -> tuple[str, int]:
    """
    Draw changes until one is possible for *value* things. Return its words and its result.

    The result of a possible change is a whole number from 1 to `MAX_VALUE`.
    """
    while True:
        if rng.random() < DOUBLING:
            kind = rng.choice(("double", "halve"))
            n = 2
        else:
            kind = rng.choice(("add", "sub"))
            n = rng.randint(*OPERAND)
        words = rng.choice(PHRASES[kind]).format(n=n)
        if kind == "halve" and value % 2:
            continue
        result = CHANGES[kind](value, n)
        if 1 <= result <= MAX_VALUE:
            return words, result
