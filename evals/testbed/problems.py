"""
Multi-step arithmetic word problems: text, worked reasoning, answer, a checker of every step, and wrong steps.

Everything is a pure function of a problem, so that any text that a model writes can be checked step by step. Training
and test problems are disjoint by construction: the hash of a problem's text decides its split. The wrong steps are
corruptions of right ones, of many kinds, from which the judge learns what an error looks like.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal, TypeAlias

from stepspec.orchestrator.errors import ConfigurationError

Kind: TypeAlias = Literal["add", "sub", "double", "halve"]
Split: TypeAlias = Literal["train", "test"]

PEOPLE = {
    "Maya": "she", "Tom": "he", "Ann": "she", "Ben": "he", "Lily": "she", "Omar": "he",
    "Nina": "she", "Sam": "he", "Eva": "she", "Leo": "he", "Rosa": "she", "Max": "he",
}  # fmt: skip
ITEMS = ("apples", "coins", "marbles", "stickers", "books", "cards", "shells", "pens")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DEEDS: dict[Kind, tuple[str, ...]] = {
    "add": ("buys {n} more", "finds {n}", "wins {n}"),
    "sub": ("gives away {n}", "loses {n}", "sells {n}"),
    "double": ("doubles them",),
    "halve": ("keeps half of them",),
}
SIGNS: dict[Kind, str] = {"add": "+", "sub": "-", "double": "*", "halve": "/"}
MENDING = "Wait, that is wrong. "
THINK_END = "</think>"
LIMIT = 99


@dataclass(frozen=True, slots=True)
class Difficulty:
    """
    *steps* is the least and the greatest number of deeds, *operand* of what is added or taken away, *start* of what
    there is at first, and *doubling* the share of doublings and halvings. Raise `ConfigurationError` for what no
    problem can have.
    """

    steps: tuple[int, int] = (3, 6)
    operand: tuple[int, int] = (2, 9)
    doubling: float = 0.2
    start: tuple[int, int] = (2, 60)

    def __post_init__(self) -> None:
        if not 1 <= self.steps[0] <= self.steps[1] <= len(DAYS):
            raise ConfigurationError(f"steps {self.steps}: from 1 to {len(DAYS)}, the lesser first")
        if not 1 <= self.operand[0] <= self.operand[1] <= LIMIT // 2:  # so that one of sum and difference is possible
            raise ConfigurationError(f"operand {self.operand}: from 1 to {LIMIT // 2}, the lesser first")
        if not 0 <= self.doubling < 1:  # an odd number above half of the limit can be neither doubled nor halved
            raise ConfigurationError(f"doubling {self.doubling}: at least 0 and less than 1")
        if not 1 <= self.start[0] <= self.start[1] <= LIMIT:
            raise ConfigurationError(f"start {self.start}: from 1 to {LIMIT}, the lesser first")


DEFAULT = Difficulty()
FEW = Difficulty(start=(2, 12))  # single digits are rare otherwise


@dataclass(frozen=True, slots=True)
class Deed:
    """One change of the number of things; *phrase* indexes the wordings of its kind."""

    kind: Kind
    n: int
    phrase: int = 0

    @property
    def words(self) -> str:
        return DEEDS[self.kind][self.phrase].format(n=self.n)

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
    """Somebody has *start* things, and something happens to them every day."""

    person: str
    item: str
    start: int
    deeds: tuple[Deed, ...]

    @property
    def pronoun(self) -> str:
        return PEOPLE[self.person]

    @property
    def values(self) -> tuple[int, ...]:
        """The number of things before the first deed and after each."""
        values = [self.start]
        for deed in self.deeds:
            values.append(deed.apply(values[-1]))
        return tuple(values)

    @property
    def answer(self) -> int:
        return self.values[-1]

    @property
    def text(self) -> str:
        days = " ".join(f"On {day} {self.pronoun} {deed.words}." for day, deed in zip(DAYS, self.deeds, strict=False))
        question = f"How many {self.item} does {self.person} have now?"
        return f"{self.person} has {self.start} {self.item}. {days} {question}"

    @property
    def split(self) -> Split:
        return "test" if blake2b(self.text.encode(), digest_size=1).digest()[0] < 32 else "train"

    def step(self, index: int, value: int) -> str:
        """The paragraph that works out deed *index* when *value* things are left."""
        deed, day = self.deeds[index], DAYS[index]
        return f"On {day} {self.pronoun} {deed.words}: {equation(deed, value)}.\n\n"

    def close(self, value: int) -> str:
        """The paragraph that ends the thinking."""
        return f"Yes, that is all: {value}.\n{THINK_END}"


def equation(deed: Deed, value: int) -> str:
    operand = deed.n if deed.kind in ("add", "sub") else 2
    return f"{value} {SIGNS[deed.kind]} {operand} = {deed.apply(value)}"


def check(deed: Deed, value: int) -> str:
    """The paragraph that makes sure of a doubling or a halving of *value*; empty for other deeds."""
    match deed.kind:
        case "double":
            return f"Alternatively, {value} + {value} = {value * 2}.\n\n"
        case "halve":
            return f"Let me check: {value // 2} + {value // 2} = {value}.\n\n"
        case _:
            return ""


def final_answer(value: int) -> str:
    return f"\n\n\\boxed{{{value}}}"


def generate(seed: int, split: Split, difficulty: Difficulty = DEFAULT) -> Iterator[Problem]:
    """Yield problems of one half, for ever; the same for the same *seed*."""
    rng = random.Random(f"{seed} {split}")
    while True:
        problem = draw(rng, difficulty)
        if problem.split == split:
            yield problem


def draw(rng: random.Random, difficulty: Difficulty = DEFAULT) -> Problem:
    """Draw one problem of either half."""
    person, item, start = rng.choice(list(PEOPLE)), rng.choice(ITEMS), rng.randint(*difficulty.start)
    deeds: list[Deed] = []
    value = start
    for _ in range(rng.randint(*difficulty.steps)):
        deed = draw_deed(rng, value, difficulty)
        deeds.append(deed)
        value = deed.apply(value)
    return Problem(person, item, start, tuple(deeds))


def draw_deed(rng: random.Random, value: int, difficulty: Difficulty) -> Deed:
    while True:
        kinds: tuple[Kind, Kind] = ("double", "halve") if rng.random() < difficulty.doubling else ("add", "sub")
        kind = rng.choice(kinds)
        n = rng.randint(*difficulty.operand) if kind in ("add", "sub") else 0
        deed = Deed(kind, n, rng.randrange(len(DEEDS[kind])))
        if deed.possible(value):
            return deed


@dataclass(frozen=True, slots=True)
class State:
    """How far a chain of reasoning has come: the next deed, the value it believes in, and what may be said next."""

    index: int
    value: int
    unchecked: Deed | None = None
    before: int = 0
    wrong: str = ""  # the right paragraph, where the last one was wrong


def paragraphs(text: str) -> list[str]:
    """Split reasoning after each delimiter and after the end of the thinking."""
    return [p for p in re.split(r"(?<=\n\n)|(?<=</think>)", text) if p]


def begin(problem: Problem) -> State:
    return State(0, problem.start)


def expected(problem: Problem, state: State) -> str:
    """The one right next paragraph of the worked reasoning."""
    if state.wrong:
        return MENDING + state.wrong
    if state.unchecked is not None:
        return check(state.unchecked, state.before)
    if state.index == len(problem.deeds):
        return problem.close(state.value)
    return problem.step(state.index, state.value)


def right(problem: Problem, state: State, paragraph: str) -> bool:
    """Whether *paragraph* is a right next step: the worked one, or the next deed with its check left out."""
    return paragraph in (expected(problem, state), _unchecked(problem, state))


def _unchecked(problem: Problem, state: State) -> str:
    if state.wrong:
        return MENDING + state.wrong
    return expected(problem, State(state.index, state.value))


def advance(problem: Problem, state: State, paragraph: str) -> State:
    """
    The state after *paragraph*, right or wrong.

    A wrong paragraph leaves the state as it was, with the right one to be said first.
    """
    if not right(problem, state, paragraph):
        return replace(state, wrong=state.wrong or expected(problem, state))
    said = paragraph.removeprefix(MENDING)
    if state.unchecked is not None and said == check(state.unchecked, state.before):
        return State(state.index, state.value)
    if said.endswith(THINK_END):
        return State(state.index + 1, state.value)
    deed = problem.deeds[state.index]
    return State(state.index + 1, deed.apply(state.value), deed if check(deed, state.value) else None, state.value)


def worked(problem: Problem) -> list[str]:
    """The paragraphs of the worked reasoning, the last one closing the thinking."""
    state, steps = begin(problem), list[str]()
    while state.index <= len(problem.deeds):
        steps.append(expected(problem, state))
        state = advance(problem, state, steps[-1])
    return steps


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
